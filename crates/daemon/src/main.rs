//! `purlind`: the storage daemon, in the foreground.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use daemon::http::{HttpOptions, Server};
use daemon::{Engine, Handover, Interfaces, LogWriter, WallClock};
use mimalloc::MiMalloc;
use runtime::{Config, DefaultSignals, Runtime, raise_descriptor_limit, take_memory_without_io};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

#[global_allocator]
static HEAP: MiMalloc = MiMalloc;

/// Purlin's storage daemon: pools drives under parity RAID and serves volumes. Runs in the
/// foreground.
#[derive(Debug, Parser)]
#[command(
    name = "purlind",
    version = env!("PURLIN_VERSION"),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  purlind --state /var/lib/purlin\n  purlind --state /tmp/p --socket /tmp/p.sock --cores 0,2-3\n  purlind --state /var/lib/purlin --passthrough\n\nEnvironment:\n  PURLIN_LOG     what to log, such as info, debug, or warn,array=debug [default: info]\n  LISTEN_FDS     sockets that the process before left, as of sd_listen_fds(3)\n  NOTIFY_SOCKET  the service manager, as of sd_notify(3)"
)]
struct Line {
    /// Directory that remembers where the drives of groups are; made if it is not there
    #[arg(long, value_name = "DIR", required = true)]
    state: Option<PathBuf>,
    /// Cores to run on, one shard each, such as 0,2-3 [default: all that the process may use]
    #[arg(long, value_name = "LIST", value_parser = parse_cores)]
    cores: Option<Cores>,
    /// Most memory that requests of all clients hold together; pieces of it are pinned from their
    /// first use on
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = api::parse_bytes)]
    buffers: u64,
    /// Announce where NVMe/TCP hosts find this machine's discovery service, by multicast DNS
    /// (_nvme-disc._tcp), on these network interfaces, such as eth0,eth1; all is every one but the
    /// loopback interface [default: announce nothing]
    #[arg(long, value_name = "INTERFACE,...|all")]
    mdns: Option<Interfaces>,
    /// Read and write NVMe drives as commands on their generic character devices (/dev/ngXnY), past
    /// the kernel's block layer, where that can be had; drive show says where [default: by their
    /// block devices]
    #[arg(long)]
    passthrough: bool,
    #[command(flatten)]
    http: HttpOptions,
    #[command(subcommand)]
    instead: Option<Instead>,
}

/// Actions other than running the daemon.
#[derive(Debug, Subcommand)]
enum Instead {
    /// Write this program's manual page, purlind.8, into a directory
    Man {
        /// Directory, such as /usr/share/man/man8; made if it is not there
        dir: PathBuf,
    },
}

/// Writes the manual page.
fn write_manual(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    // Hide the command that writes the page: operators of the daemon do not need it.
    let command = Line::command().mut_subcommand("man", |man| man.hide(true));
    let mut page = Vec::new();
    clap_mangen::Man::new(command).section("8").render(&mut page)?;
    std::fs::write(dir.join("purlind.8"), page)
}

/// A list of cores, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cores(Vec<usize>);

fn parse_cores(text: &str) -> Result<Cores, String> {
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| format!("{text:?} is not a core's number"));
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last || last > 4095 {
            return Err(format!("{part:?} is not a range of cores"));
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(Cores(cores))
}

fn main() -> ExitCode {
    let line = Line::parse();
    if let Some(Instead::Man { dir }) = &line.instead {
        return match write_manual(dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format!("cannot write the manual page to {}: {error}", dir.display()));
                ExitCode::FAILURE
            }
        };
    }
    // Every thread inherits this from the thread that starts it, so it precedes all of them. The
    // log's thread needs it too: a shard may wait for a lock of the allocator that it holds.
    let memory = take_memory_without_io();
    let filter = tracing_subscriber::EnvFilter::try_from_env("PURLIN_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let log = LogWriter::stderr();
    // A line that cannot be written is counted. An error message on stderr would fail as well.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log.clone()).with_ansi(terminal);
    lines.log_internal_errors(false).init();
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(%error, "no more descriptors than it was started with");
    }
    if let Err(error) = memory {
        tracing::debug!(%error, "may wait for its own block devices when memory is short");
    }
    let handover = Arc::new(Handover::inherited());
    loop {
        match run(&line, &handover) {
            Ok(None) => {
                log.flush();
                return ExitCode::SUCCESS;
            }
            // Returns only if neither that program nor this one can be executed. Then everything is
            // started again in this process.
            Ok(Some(signals)) => handover.replace(signals),
            Err(error) => {
                log.flush();
                complain(&error);
                return ExitCode::FAILURE;
            }
        }
    }
}

/// Reports on stderr why the daemon ends, if possible.
fn complain(why: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "purlind: {why}");
}

/// Runs until the daemon is signalled to stop. Returns `Some` if another program is to replace it.
/// Then everything has stopped, and signals have their default action.
fn run(line: &Line, handover: &Arc<Handover>) -> Result<Option<DefaultSignals>, Box<dyn std::error::Error>> {
    let mut config = Config { arena_bytes: line.buffers as usize, passthrough: line.passthrough, ..Config::default() };
    if let Some(Cores(cores)) = &line.cores {
        config.cores = cores.clone();
    }
    let runtime = Runtime::start(config)?;
    let control = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let end = control.block_on(serve(&runtime, line, handover))?;
    // This drops the objects that tasks still hold, such as the lock of the state directory. It
    // does not wait for a drive that does not answer.
    control.shutdown_timeout(Duration::from_secs(1));
    runtime.stop();
    Ok(end)
}

async fn serve(
    runtime: &Runtime,
    line: &Line,
    handover: &Arc<Handover>,
) -> Result<Option<DefaultSignals>, Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let state = line.state.as_deref().expect("the command line needs it where the daemon runs");
    let engine = Engine::with_handover(runtime, state, WallClock::system(), handover.clone())
        .await
        .map_err(|error| format!("the state directory {}: {error}", state.display()))?;
    if let Some(interfaces) = &line.mdns {
        engine.start_announcing(interfaces.clone());
    }
    let server = Server::take_over(&line.http, handover.clone()).await?;
    engine.start_hotplug();
    engine.start_reconnecting();
    engine.start_remembered().await?;
    engine.place_arrivals()?;
    handover.drop_unused();
    engine.start_retrying_exports();
    engine.start_asking_members();
    engine.start_sampling();
    engine.start_balancing();
    engine.start_maintenance();
    engine.start_health();
    let (stop, stopping) = watch::channel(false);
    // Set the result before a client can ask for it.
    handover.ready();
    let serving = tokio::spawn(server.run(Arc::clone(&engine) as Arc<dyn daemon::http::Control>, stopping));
    tracing::info!(
        socket = %line.http.socket.display(),
        shards = runtime.shards().len(),
        parity = gf::kernel_name(),
        version = env!("CARGO_PKG_VERSION"),
        "ready"
    );
    let replaced = tokio::select! {
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
        () = handover.requested() => true,
    };
    if replaced {
        tracing::info!("stopping for an upgrade");
        handover.begin();
    } else {
        tracing::info!("stopping");
        handover.stopping();
    }
    // Without a receiver the server has already ended.
    let _ = stop.send(true);
    serving.await?;
    engine.stop().await;
    if !replaced {
        return Ok(None);
    }
    // From now on a signal ends the process. An earlier one is still in the streams, which are
    // checked once more.
    let signals = DefaultSignals::set();
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let stopped = tokio::time::timeout(Duration::from_millis(1), signalled).await.is_ok();
    Ok(Some(signals).filter(|_| !stopped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(parse_cores("0,2-3,2").unwrap(), Cores(vec![0, 2, 3]));
        assert_eq!(parse_cores("3-1").unwrap_err(), "\"3-1\" is not a range of cores");
        assert_eq!(parse_cores("a").unwrap_err(), "\"a\" is not a core's number");
    }

    #[test]
    fn the_version_names_the_commit_that_was_built() {
        let commit = option_env!("PURLIN_BUILT_FROM").map_or_else(String::new, |commit| format!(" ({commit})"));
        let shown = format!("purlind {}{commit}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(Line::command().render_version(), shown);
    }

    #[test]
    fn nothing_is_announced_unless_asked_for() {
        let parse = |options: &[&str]| {
            Line::try_parse_from([&["purlind", "--state", "/s", "--socket", "/x"][..], options].concat())
        };
        assert_eq!(parse(&[]).unwrap().mdns, None);
        assert_eq!(parse(&["--mdns", "all"]).unwrap().mdns, Some(Interfaces::All));
        assert!(parse(&["--mdns"]).is_err() && parse(&["--mdns", "eth0,"]).is_err());
    }

    #[test]
    fn drives_are_reached_by_their_block_devices_unless_asked_for() {
        let parse = |options: &[&str]| {
            Line::try_parse_from([&["purlind", "--state", "/s", "--socket", "/x"][..], options].concat()).unwrap()
        };
        assert!(!parse(&[]).passthrough && parse(&["--passthrough"]).passthrough);
    }

    #[test]
    fn the_manual_page_names_every_option_and_needs_none() {
        let dir = std::env::temp_dir().join(format!("purlind-man-{}", std::process::id()));
        let line = Line::try_parse_from(["purlind", "man", dir.to_str().unwrap()]).unwrap();
        let Some(Instead::Man { dir }) = line.instead else { panic!("no man") };
        write_manual(&dir).unwrap();
        let page = std::fs::read_to_string(dir.join("purlind.8")).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(page.contains(".TH purlind 8"), "{page}");
        for option in Line::command().get_arguments().filter_map(|argument| argument.get_long()) {
            assert!(page.contains(&option.replace('-', "\\-")), "{option}: {page}");
        }
    }

    #[test]
    fn a_daemon_without_a_state_directory_does_not_run() {
        let error = Line::try_parse_from(["purlind", "--socket", "/x"]).unwrap_err();
        assert!(error.to_string().contains("--state <DIR>"), "{error}");
        assert!(Line::try_parse_from(["purlind", "--state", "/s", "man", "/m"]).is_err());
    }

    #[test]
    fn the_line_of_the_documents_is_understood() {
        let line = Line::try_parse_from(["purlind", "--state", "/s", "--socket", "/x", "--cores", "0"]).unwrap();
        assert_eq!((line.state, line.cores), (Some(PathBuf::from("/s")), Some(Cores(vec![0]))));
    }
}
