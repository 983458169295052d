//! To NVMe hosts, a daemon that is stopped in order looks like one that was killed: their
//! connections end, and they retry unanswered commands when it is back. An error would reach the
//! application.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::*;
use daemon::http::{ExportControl, VolumeControl};
use nvme::host::{Blocks, io};
use nvme::{Nqn, Status};

use crate::bench::*;
use crate::nvme_host::{Ended, NvmeHost};

const HOSTS: u8 = 4;

#[tokio::test]
async fn an_orderly_stop_ends_connections_of_hosts_and_fails_none_of_their_commands() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    let address = bench.address();
    let mut subsystem = String::new();
    // Several volumes, so that the first has ended while the last is still there.
    for number in 1..=4 {
        let asked = serde_json::json!({ "group": "tank", "volume": format!("v{number}"), "size_bytes": 8 << 20 });
        engine.volume_create(serde_json::from_value(asked).unwrap()).await.unwrap();
        let export: ExportCreate = serde_json::from_value(serde_json::json!({
            "volume": format!("tank/v{number}"), "nvme_tcp": { "address": address, "allow_any_host": true, "block_bytes": 4096, "nsid": number },
        }))
        .unwrap();
        let (volume, place) = export.validate().unwrap();
        subsystem = engine.export_create(export, volume, place).await.unwrap().object.unwrap().nqn.unwrap();
    }
    let subsystem: Nqn = subsystem.parse().unwrap();
    let busy = Arc::new(AtomicUsize::new(0));
    let hosts = (1..=HOSTS).map(|number| {
        let (address, subsystem, busy) = (address.clone(), subsystem.clone(), busy.clone());
        std::thread::spawn(move || {
            let mut host = NvmeHost::connect(&address, &subsystem, number);
            let read = || io::read(Blocks { nsid: number.into(), first: 0, count: 1 }, 4096);
            assert_eq!(host.execute(read(), &[], 4096).0, Status::SUCCESS);
            busy.fetch_add(1, Ordering::SeqCst);
            loop {
                match host.try_execute(read(), &[], 4096) {
                    Ok((status, _)) => assert_eq!(status, Status::SUCCESS),
                    Err(Ended) => return,
                }
            }
        })
    });
    let hosts: Vec<_> = hosts.collect();
    while busy.load(Ordering::SeqCst) < HOSTS.into() {
        assert!(hosts.iter().all(|host| !host.is_finished()), "a host could not read");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    end(engine).await;
    for host in hosts {
        host.join().unwrap();
    }
}
