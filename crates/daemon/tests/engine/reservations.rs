//! Reservations of NVMe hosts outlive the daemon if the host requested that, and not otherwise.

use std::sync::Arc;

use api::*;
use daemon::Engine;
use daemon::http::{ExportControl, VolumeControl};
use nvme::host::{Blocks, io};
use nvme::{Command, Nqn, Sgl, Status, nvm};

use crate::bench::*;
use crate::nvme_host::{NvmeHost, ask, connect};

const KEY: u64 = 0xFEED_FACE_0000_0001;

fn reserve(host: &mut NvmeHost, opcode: u8, dword10: u32, keys: &[u64]) -> Status {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let mut command = Command::new(opcode, 0, 1);
    command.set_cdw(10, dword10);
    command.dptr = Sgl::in_capsule(data.len() as u32);
    host.execute(command, &data, 0).0
}

/// The first bytes of the report: GEN, RTYPE and the number of registrants.
fn report(host: &mut NvmeHost) -> Vec<u8> {
    let mut command = Command::new(nvm::RESERVATION_REPORT, 0, 1);
    command.set_cdw(10, 31);
    command.set_cdw(11, 1);
    command.dptr = Sgl::transport(128);
    let (status, data) = host.execute(command, &[], 128);
    assert_eq!(status, Status::SUCCESS);
    data[..6].to_vec()
}

fn write(host: &mut NvmeHost) -> Status {
    let blocks = Blocks { nsid: 1, first: 0, count: 1 };
    host.execute(io::write(blocks, 4096, true, false), &[7; 4096], 0).0
}

/// A group with one volume, as a namespace at an address of its own.
async fn export(bench: &Bench, engine: &Arc<Engine>) -> (String, Nqn) {
    let address = bench.address();
    bench.create(engine, bench.request("tank", Level::Raid1, 2)).await;
    let volume = serde_json::from_value(serde_json::json!({ "group": "tank", "volume": "db", "size_bytes": 8 << 20 }));
    engine.volume_create(volume.unwrap()).await.unwrap();
    let export = serde_json::json!({
        "volume": "tank/db", "nvme_tcp": { "address": address, "allow_any_host": true, "block_bytes": 4096 },
    });
    let created = export_create(engine, serde_json::from_value(export).unwrap()).await;
    let nqn = created.nqn.unwrap().parse().unwrap();
    (address, nqn)
}

async fn export_create(engine: &Arc<Engine>, request: ExportCreate) -> Export {
    let (volume, place) = request.validate().unwrap();
    engine.export_create(request, volume, place).await.unwrap().object.unwrap()
}

#[tokio::test]
async fn a_reservation_that_persists_outlives_the_daemon_and_one_that_does_not_is_gone() {
    for persists in [true, false] {
        let bench = Bench::new();
        let engine = bench.engine().await;
        let (address, nqn) = export(&bench, &engine).await;
        let cptpl = if persists { 0b11 << 30 } else { 0 };
        let holder = connect(&address, &nqn, 1).await;
        let (holder, answers) = ask(holder, move |host| {
            let registered = reserve(host, nvm::RESERVATION_REGISTER, cptpl, &[0, KEY]);
            (registered, reserve(host, nvm::RESERVATION_ACQUIRE, 1 << 8, &[KEY, 0]), report(host))
        })
        .await;
        assert_eq!(answers, (Status::SUCCESS, Status::SUCCESS, vec![1, 0, 0, 0, 1, 1]));
        let shown = Reservation {
            kind: Some(ReservationKind::WriteExclusive),
            persists,
            registrants: vec![Registrant {
                host_id: "01".repeat(16),
                host: Some("nqn.2026-11.com.example:host-1".to_owned()),
                key: format!("{KEY:#x}"),
                is_holder: true,
            }],
        };
        assert_eq!(engine.exports().await.unwrap()[0].reservation.as_ref(), Some(&shown));
        let (other, refused) = ask(connect(&address, &nqn, 2).await, write).await;
        assert_eq!(refused, Status::RESERVATION_CONFLICT);
        drop((holder, other));
        end(engine).await;

        let engine = bench.engine().await;
        let (other, answers) = ask(connect(&address, &nqn, 2).await, |host| (write(host), report(host))).await;
        if persists {
            assert_eq!(answers, (Status::RESERVATION_CONFLICT, vec![1, 0, 0, 0, 1, 1]));
            // The holder is known at once, and its name when it has reconnected.
            let mut unseen = shown;
            unseen.registrants[0].host = None;
            assert_eq!(engine.exports().await.unwrap()[0].reservation.as_ref(), Some(&unseen));
            let (holder, written) = ask(connect(&address, &nqn, 1).await, |host| {
                (write(host), reserve(host, nvm::RESERVATION_RELEASE, 1, &[KEY]))
            })
            .await;
            assert_eq!(written, (Status::SUCCESS, Status::SUCCESS), "it writes, and clears everything");
            drop(holder);
        } else {
            assert_eq!(answers, (Status::SUCCESS, vec![0; 6]));
            assert_eq!(engine.exports().await.unwrap()[0].reservation, None);
        }
        drop(other);
        end(engine).await;

        // A cleared reservation does not come back.
        let engine = bench.engine().await;
        let (other, answers) =
            ask(connect(&address, &nqn, 2).await, |host| (write(host), report(host)[4..].to_vec())).await;
        assert_eq!(answers, (Status::SUCCESS, vec![0; 2]));
        drop(other);
        end(engine).await;
    }
}

#[tokio::test]
async fn every_type_outlives_the_daemon_with_all_its_registrants() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (address, nqn) = export(&bench, &engine).await;
    end(engine).await;
    for kind in 1..=6 {
        let engine = bench.engine().await;
        let register =
            |key: u64| move |host: &mut NvmeHost| reserve(host, nvm::RESERVATION_REGISTER, 0b11 << 30, &[0, key]);
        let (two, registered) = ask(connect(&address, &nqn, 2).await, register(KEY + 2)).await;
        let (one, answers) = ask(connect(&address, &nqn, 1).await, move |host| {
            (register(KEY)(host), reserve(host, nvm::RESERVATION_ACQUIRE, kind << 8, &[KEY, 0]))
        })
        .await;
        assert_eq!((registered, answers), (Status::SUCCESS, (Status::SUCCESS, Status::SUCCESS)), "type {kind}");
        drop((one, two));
        end(engine).await;

        let engine = bench.engine().await;
        let (two, known) =
            ask(connect(&address, &nqn, 2).await, |host| (report(host)[4..].to_vec(), write(host))).await;
        let written = if kind < 3 { Status::RESERVATION_CONFLICT } else { Status::SUCCESS };
        assert_eq!(known, (vec![kind as u8, 2], written), "type {kind}");
        let shown = engine.exports().await.unwrap().remove(0).reservation.unwrap();
        let holders: Vec<bool> = shown.registrants.iter().map(|registrant| registrant.is_holder).collect();
        assert_eq!(holders, [true, kind >= 5], "type {kind}");
        let (one, cleared) = ask(connect(&address, &nqn, 1).await, |host| {
            (write(host), reserve(host, nvm::RESERVATION_RELEASE, 1, &[KEY]))
        })
        .await;
        assert_eq!(cleared, (Status::SUCCESS, Status::SUCCESS), "it writes, and clears everything");
        drop((one, two));
        end(engine).await;
    }
}

#[tokio::test]
async fn reservations_end_with_their_volume_and_not_with_its_exports() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (address, nqn) = export(&bench, &engine).await;
    let (holder, registered) = ask(connect(&address, &nqn, 1).await, |host| {
        let registered = reserve(host, nvm::RESERVATION_REGISTER, 0b11 << 30, &[0, KEY]);
        (registered, reserve(host, nvm::RESERVATION_ACQUIRE, 1 << 8, &[KEY, 0]))
    })
    .await;
    assert_eq!(registered, (Status::SUCCESS, Status::SUCCESS));
    drop(holder);
    let id = engine.exports().await.unwrap().remove(0).id;
    engine.export_delete(&id).await.unwrap();
    let again = serde_json::json!({
        "volume": "tank/db", "nvme_tcp": { "address": address, "allow_any_host": true, "block_bytes": 4096 },
    });
    let export = export_create(&engine, serde_json::from_value(again.clone()).unwrap()).await;
    let (other, refused) = ask(connect(&address, &nqn, 2).await, write).await;
    assert_eq!(refused, Status::RESERVATION_CONFLICT);
    drop(other);
    engine.export_delete(&export.id).await.unwrap();
    let name: VolumeName = "tank/db".parse().unwrap();
    engine.volume_delete(&name, false).await.unwrap();
    let volume = serde_json::json!({ "group": "tank", "volume": "db", "size_bytes": 8 << 20 });
    engine.volume_create(serde_json::from_value(volume).unwrap()).await.unwrap();
    export_create(&engine, serde_json::from_value(again).unwrap()).await;
    let (other, written) = ask(connect(&address, &nqn, 2).await, write).await;
    assert_eq!(written, Status::SUCCESS);
    drop(other);
    end(engine).await;
}
