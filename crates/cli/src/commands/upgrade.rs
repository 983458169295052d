//! `purlin upgrade`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::{Upgrade, UpgradeRequest, UpgradeState};

use super::absolute;
use crate::common_args::{Common, DryRun};
use crate::output::{show, show_changed};
use crate::{Client, Failure};

/// Interval between queries of the state.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Time for retries while the daemon does not answer: a service manager may be starting it.
const BACK_WITHIN: Duration = Duration::from_secs(20);

pub(super) async fn run(
    common: &Common,
    client: &Client,
    program: Option<PathBuf>,
    dry_run: DryRun,
) -> Result<(), Failure> {
    let program = program.as_deref().map(absolute).transpose()?;
    let request = UpgradeRequest { program, dry_run: dry_run.dry_run };
    let changed = client.upgrade(&request).await?;
    if changed.dry_run {
        return show_changed(common, &changed, |_| String::new());
    }
    let upgrade = wait(client).await?;
    match upgrade.state {
        UpgradeState::Failed => Err(Failure::Ended(format!(
            "{}; purlind {} goes on, after nobody was served for {}",
            upgrade.message.as_deref().unwrap_or("the program cannot be executed"),
            version(&upgrade.from_version),
            pause(&upgrade)
        ))),
        UpgradeState::None => {
            Err(Failure::Ended("purlind was started anew in the middle of the upgrade: see its log".to_owned()))
        }
        _ => show(common, &upgrade, |upgrade| {
            let (from, to) = (version(&upgrade.from_version), version(&upgrade.to_version));
            format!("upgraded purlind {from} to {to}; nobody was served for {}\n", pause(upgrade))
        }),
    }
}

/// Waits until the upgrade ends. Connections wait meanwhile, so polling is nearly all there is to
/// do.
async fn wait(client: &Client) -> Result<Upgrade, Failure> {
    let mut silent_since = Instant::now();
    loop {
        match client.upgrade_state().await {
            Ok(upgrade) if upgrade.state == UpgradeState::Running => silent_since = Instant::now(),
            Ok(upgrade) => return Ok(upgrade),
            Err(Failure::Unreachable { .. } | Failure::Garbled { .. }) if silent_since.elapsed() < BACK_WITHIN => {}
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn version(known: &Option<String>) -> &str {
    known.as_deref().unwrap_or("of an unknown version")
}

/// A duration in milliseconds, or in seconds with a tenth.
fn pause(upgrade: &Upgrade) -> String {
    match upgrade.pause_us.unwrap_or_default() {
        us if us < 10_000_000 => format!("{} ms", us.div_ceil(1000)),
        us => format!("{:.1} s", us as f64 / 1e6),
    }
}
