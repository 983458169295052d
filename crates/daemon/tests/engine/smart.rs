//! The state of a group as hosts read it: the SMART log.

use std::sync::Arc;

use api::*;
use daemon::Engine;
use daemon::http::{ExportControl, MemberControl, VolumeControl};
use nvme::host::{Blocks, admin, io};
use nvme::{Nqn, Status};

use crate::bench::*;
use crate::nvme_host::NvmeHost;

const BLOCK: u32 = 4096;

/// The view of a host: critical warning, media errors, and the newest entry of the error log by
/// status and LBA.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    warning: u8,
    media_errors: u64,
    newest: Option<(Status, u64)>,
}

fn look(host: &mut NvmeHost) -> Seen {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut log = |page: u8, len: u32| {
        let (status, log) = host.administer(admin::get_log_page(page, 0, len, false).command, len);
        assert_eq!(status, Status::SUCCESS);
        log
    };
    let (health, errors) = (log(2, 512), log(1, 64));
    let newest =
        (number(&errors[..8]) > 0).then(|| (Status((number(&errors[12..14]) >> 1) as u16), number(&errors[16..24])));
    Seen { warning: health[0], media_errors: number(&health[160..176]), newest }
}

/// Runs `act` with a host where it may block.
async fn with<T: Send + 'static>(
    host: NvmeHost,
    act: impl FnOnce(&mut NvmeHost) -> T + Send + 'static,
) -> (NvmeHost, T) {
    let acting = tokio::task::spawn_blocking(move || {
        let mut host = host;
        let result = act(&mut host);
        (host, result)
    });
    acting.await.unwrap()
}

/// A mirror with a volume that a host has written.
async fn mirror(bench: &Bench, engine: &Arc<Engine>) -> NvmeHost {
    bench.create(engine, bench.request("tank", Level::Raid1, 2)).await;
    let volume = serde_json::json!({ "group": "tank", "volume": "db", "size_bytes": 16 << 20 });
    engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
    let address = bench.address();
    let export = serde_json::json!({ "volume": "tank/db", "nvme_tcp": { "address": address, "allow_any_host": true, "block_bytes": 4096 } });
    let request: ExportCreate = serde_json::from_value(export).unwrap();
    let (volume, place) = request.validate().unwrap();
    let export = engine.export_create(request, volume, place).await.unwrap().object.unwrap();
    let nqn: Nqn = export.nqn.unwrap().parse().unwrap();
    let connecting = tokio::task::spawn_blocking(move || NvmeHost::connect(&address, &nqn, 1));
    let (host, ()) = with(connecting.await.unwrap(), |host| {
        for first in (0..4096).step_by(16) {
            let write = io::write(Blocks { nsid: 1, first, count: 16 }, 16 * BLOCK, true, false);
            assert_eq!(host.execute(write, &vec![7; 16 * BLOCK as usize], 0).0, Status::SUCCESS);
        }
        assert_eq!(host.execute(io::flush(1), &[], 0).0, Status::SUCCESS);
    })
    .await;
    host
}

#[tokio::test]
async fn hosts_are_warned_while_a_group_is_degraded_and_not_before_or_after() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let host = mirror(&bench, &engine).await;
    let seen = |warning| Seen { warning, media_errors: 0, newest: None };
    let (host, whole) = with(host, look).await;
    assert_eq!(whole, seen(0));
    engine.member_fail("tank", 1, MemberFail { dry_run: false }).await.unwrap();
    let (host, degraded) = with(host, look).await;
    // Bit 2: "NVM subsystem reliability has been degraded".
    assert_eq!(degraded, seen(0b100));
    let with_new = MemberReplace {
        with: bench.drive("new"),
        create_files_bytes: Some(64 << 20),
        wipe_foreign: false,
        dry_run: false,
    };
    engine.member_replace("tank", 1, with_new).await.unwrap();
    until(&engine, "tank", |group| group.health == GroupHealth::Optimal).await;
    let (_, again) = with(host, look).await;
    assert_eq!(again, seen(0));
    end(engine).await;
}

#[tokio::test]
async fn a_block_that_no_drive_has_any_more_is_a_media_error_and_named() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let host = mirror(&bench, &engine).await;
    // With 16 MiB written to 2 drives of 64 MiB, this is data of the volume on both.
    const ROTTEN: u64 = 3 << 20;
    for drive in ["tank-0", "tank-1"] {
        bench.rot(drive, ROTTEN);
    }
    let (host, failed) = with(host, |host| {
        let read = |first| io::read(Blocks { nsid: 1, first, count: 1 }, BLOCK);
        let failed =
            (0..4096).filter(|first| host.execute(read(*first), &[], BLOCK).0 == Status::UNRECOVERED_READ_ERROR);
        failed.collect::<Vec<u64>>()
    })
    .await;
    let [failed] = failed[..] else { panic!("{failed:?}") };
    let (_, after) = with(host, look).await;
    let newest = Some((Status::UNRECOVERED_READ_ERROR, failed));
    assert_eq!(after, Seen { warning: 0, media_errors: 1, newest });
    end(engine).await;
}
