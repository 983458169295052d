//! Thin volumes: larger than their group, with the space of what was written, through restarts.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::*;
use daemon::Engine;
use daemon::http::{ExportControl, GroupControl, VolumeControl};

use crate::bench::*;

pub const MIB: u64 = 1 << 20;

/// A segment of the pool of a RAID 6 of five members with strips of 16 KiB: 24 stripes of 48 KiB.
const SEGMENT_BYTES: u64 = 1_179_648;

/// Creates a volume `tank/NAME` and offers it over NBD.
pub async fn volume(bench: &Bench, engine: &Engine, name: &str, size_bytes: u64, thin: bool) -> PathBuf {
    let volume = name.to_owned();
    let request =
        VolumeCreate { group: "tank".into(), volume, size_bytes, thin, dry_run: false, ..VolumeCreate::default() };
    engine.volume_create(request).await.unwrap();
    offer(bench, engine, name).await
}

pub async fn offer(bench: &Bench, engine: &Engine, name: &str) -> PathBuf {
    let socket = bench.directory.join(format!("{name}.nbd"));
    let address: NbdAddress = format!("unix:{}", socket.display()).parse().unwrap();
    let volume = format!("tank/{name}");
    let nbd = Some(address.to_string());
    let request = ExportCreate { volume: volume.clone(), nbd, ..ExportCreate::default() };
    engine.export_create(request, volume.parse().unwrap(), ExportPlace::Nbd(address)).await.unwrap();
    socket
}

/// Bytes that differ from place to place.
pub fn bytes(seed: u32, len: u64) -> Vec<u8> {
    (0..len as u32 / 4).flat_map(|at| (at.wrapping_mul(2_654_435_761) ^ seed).to_le_bytes()).collect()
}

pub async fn write(socket: &Path, name: &str, offset: u64, content: Vec<u8>) -> io::Result<()> {
    let (socket, name) = (socket.to_path_buf(), format!("tank/{name}"));
    tokio::task::spawn_blocking(move || crate::client::write(&socket, &name, offset, &content)).await.unwrap()
}

pub async fn read(socket: &Path, name: &str, offset: u64, len: u64) -> Vec<u8> {
    let (socket, name) = (socket.to_path_buf(), format!("tank/{name}"));
    let read = move || crate::client::read(&socket, &name, offset, len as usize);
    tokio::task::spawn_blocking(read).await.unwrap().unwrap()
}

pub async fn show(engine: &Engine, name: &str) -> Volume {
    engine.volume(&format!("tank/{name}").parse().unwrap()).await.unwrap()
}

pub async fn pool(engine: &Engine) -> Option<ThinPool> {
    engine.group("tank").await.unwrap().thin
}

pub async fn delete(engine: &Engine, name: &str) {
    let shown = show(engine, name).await;
    for export in shown.exports {
        engine.export_delete(&export).await.unwrap();
    }
    engine.volume_delete(&shown.name.parse().unwrap(), false).await.unwrap();
}

/// Writes 1 MiB after the other until there is no space. Returns how many.
pub async fn fill(socket: &Path, name: &str, from: u64) -> u64 {
    let mut count = 0;
    loop {
        match write(socket, name, (from + count) * MIB, bytes(count as u32, MIB)).await {
            Ok(()) => count += 1,
            Err(error) => {
                assert!(error.to_string().contains("error 28"), "{error}: it is not the no-space error");
                return count;
            }
        }
    }
}

#[tokio::test]
async fn a_thin_volume_has_what_was_written_after_a_restart_and_takes_no_more_space_than_that() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid6, 5)).await;
    let socket = volume(&bench, &engine, "db", 1 << 40, true).await;
    write(&socket, "db", 700 << 30, bytes(1, 8 * MIB)).await.unwrap();
    write(&socket, "db", 12_288, bytes(2, 4096)).await.unwrap();
    end(engine).await;

    let engine = bench.engine().await;
    assert!(read(&socket, "db", 700 << 30, 8 * MIB).await == bytes(1, 8 * MIB));
    assert!(read(&socket, "db", 12_288, 4096).await == bytes(2, 4096));
    assert!(read(&socket, "db", 500 << 30, MIB).await == vec![0; MIB as usize]);
    let shown = show(&engine, "db").await;
    assert_eq!((shown.kind, shown.size_bytes, shown.used_bytes), (VolumeKind::Thin, 1 << 40, 8 * MIB + 4096));
    let thin = pool(&engine).await.unwrap();
    assert_eq!(thin.data_bytes, shown.stored_bytes.unwrap());
    // Three segments are almost empty: one has the nodes of before the restart, one those of after
    // it, and one the single block. The 8 MiB are in 8 full segments, which have 1 MiB of indexes
    // and padding: less than a fourth segment.
    assert!(thin.used_bytes < thin.limit_bytes && thin.garbage_bytes < 4 * SEGMENT_BYTES, "{thin:?}");

    let before = engine.group("tank").await.unwrap().free_bytes;
    delete(&engine, "db").await;
    assert_eq!(pool(&engine).await, None, "the pool goes with its last volume");
    assert!(engine.group("tank").await.unwrap().free_bytes > before);
    end(engine).await;
}

#[tokio::test]
async fn a_full_pool_refuses_writes_and_takes_them_again_when_a_volume_is_deleted() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid6, 5)).await;
    volume(&bench, &engine, "direct", 60 * MIB, false).await;
    let socket = volume(&bench, &engine, "one", 1 << 40, true).await;
    let other = volume(&bench, &engine, "two", 1 << 40, true).await;
    let first = fill(&socket, "one", 0).await;
    assert!(first > 30, "{first} MiB only");
    write(&socket, "one", 0, bytes(99, 4 * MIB)).await.unwrap();
    assert!(read(&socket, "one", 0, 4 * MIB).await == bytes(99, 4 * MIB), "an overwrite needs no more space");
    assert!(write(&other, "two", 0, bytes(1, MIB)).await.is_err());

    // The pool takes what a direct volume leaves.
    delete(&engine, "direct").await;
    let second = fill(&other, "two", 0).await;
    assert!(second > 40, "{second} MiB only");

    // And a thin volume leaves its space to the others.
    delete(&engine, "two").await;
    let began = std::time::Instant::now();
    let mut third = 0;
    while third < second * 9 / 10 {
        assert!(began.elapsed() < PATIENCE, "{third} of {second} MiB are free");
        third += fill(&socket, "one", 10_000 + third).await;
    }
    assert!(read(&socket, "one", 0, 4 * MIB).await == bytes(99, 4 * MIB));
    end(engine).await;
}

#[tokio::test]
async fn volumes_of_1_mib_and_of_1_pib_are_used_to_their_last_byte() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid6, 5)).await;
    let small = volume(&bench, &engine, "small", MIB, true).await;
    let large = volume(&bench, &engine, "large", 1 << 50, true).await;
    write(&small, "small", 0, bytes(1, MIB)).await.unwrap();
    let last = (1 << 50) - MIB;
    for at in [0, 1 << 40, last] {
        write(&large, "large", at, bytes(at as u32 + 2, MIB)).await.unwrap();
    }
    assert!(write(&small, "small", MIB - 4096, bytes(1, 8192)).await.is_err(), "beyond the end");
    end(engine).await;

    let engine = bench.engine().await;
    assert!(read(&small, "small", 0, MIB).await == bytes(1, MIB));
    for at in [0, 1 << 40, last] {
        assert!(read(&large, "large", at, MIB).await == bytes(at as u32 + 2, MIB), "at {at}");
    }
    assert_eq!(show(&engine, "large").await.used_bytes, 3 * MIB);
    let name: VolumeName = "tank/large".parse().unwrap();
    let confirm = Some(name.to_string());
    engine.volume_resize(&name, VolumeUpdate { size_bytes: MIB, confirm, dry_run: false }).await.unwrap();
    assert!(read(&large, "large", 0, MIB).await == bytes(2, MIB));
    delete(&engine, "large").await;
    end(engine).await;
}

#[tokio::test]
async fn volumes_are_in_stores_on_different_shards_which_give_each_other_space() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let request = bench.request("tank", Level::Raid6, 5);
    bench.create(&engine, GroupCreate { create_files_bytes: Some(256 << 20), ..request }).await;
    let mut sockets = Vec::new();
    for (name, stores) in [("one", 1), ("two", 2), ("three", 2), ("four", 2)] {
        sockets.push(volume(&bench, &engine, name, 1 << 40, true).await);
        assert_eq!(pool(&engine).await.unwrap().store_count, stores, "{name}");
        write(&sockets[sockets.len() - 1], name, 0, bytes(7, 3 * MIB)).await.unwrap();
    }
    let first = fill(&sockets[2], "three", 10).await;
    assert!(first > 450, "the volumes of a store get all of the group: {first} MiB only");
    // The store of `one` keeps that space, until `four` needs it, which is in the other one.
    delete(&engine, "three").await;
    let (began, mut second) = (std::time::Instant::now(), 0);
    while second < first * 9 / 10 {
        assert!(began.elapsed() < PATIENCE, "{second} of {first} MiB are free");
        second += fill(&sockets[3], "four", 10 + second).await;
    }
    end(engine).await;

    let engine = bench.engine().await;
    assert_eq!(pool(&engine).await.unwrap().store_count, 2);
    for (socket, name) in [(&sockets[0], "one"), (&sockets[1], "two"), (&sockets[3], "four")] {
        assert!(read(socket, name, 0, 3 * MIB).await == bytes(7, 3 * MIB), "{name}");
    }
    // A store goes with its last volume.
    delete(&engine, "one").await;
    assert_eq!(pool(&engine).await.unwrap().store_count, 1);
    assert!(read(&sockets[1], "two", 0, 3 * MIB).await == bytes(7, 3 * MIB));
    end(engine).await;
}

#[tokio::test]
async fn a_group_has_500_thin_volumes_at_once() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid6, 5)).await;
    for number in 0..500 {
        let request = VolumeCreate {
            group: "tank".into(),
            volume: format!("v{number}"),
            size_bytes: 1 << 40,
            thin: true,
            ..VolumeCreate::default()
        };
        engine.volume_create(request).await.unwrap();
    }
    let mut sockets = Vec::new();
    for number in (0..500).step_by(50) {
        let name = format!("v{number}");
        let socket = offer(&bench, &engine, &name).await;
        write(&socket, &name, number << 20, bytes(number as u32, MIB)).await.unwrap();
        sockets.push((number, name, socket));
    }
    end(engine).await;
    let engine = bench.engine().await;
    assert_eq!(engine.volumes().await.unwrap().len(), 500);
    for (number, name, socket) in &sockets {
        assert!(read(socket, name, number << 20, MIB).await == bytes(*number as u32, MIB), "{name}");
    }
    for number in 0..500 {
        delete(&engine, &format!("v{number}")).await;
    }
    assert_eq!(pool(&engine).await, None);
    end(engine).await;
}

/// Bytes that compress: a line of text, with a number.
fn text(len: u64) -> Vec<u8> {
    let mut text: Vec<u8> =
        (0..len / 40).flat_map(|line| format!("{line:>9} how thin volumes compress\n").into_bytes()).collect();
    text.resize(len as usize, b'.');
    text
}

#[tokio::test]
async fn settings_of_a_thin_volume_are_kept_through_restarts_and_have_effect() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid6, 5)).await;
    let name: VolumeName = "tank/logs".parse().unwrap();
    let create = |dry_run| VolumeCreate {
        group: "tank".into(),
        volume: "logs".into(),
        size_bytes: 1 << 40,
        thin: true,
        compression: Some(Compression::Zstd(5)),
        quota_bytes: Some(20 * MIB),
        dry_run,
        ..VolumeCreate::default()
    };
    let planned = engine.volume_create(create(true)).await.unwrap();
    assert_eq!(
        planned.steps,
        [
            "make the thin volume \"tank/logs\" of 1 TiB",
            "compress new blocks with zstd:5",
            "let at most 20 MiB be written"
        ]
    );
    engine.volume_create(create(false)).await.unwrap();
    let socket = offer(&bench, &engine, "logs").await;
    write(&socket, "logs", 0, text(8 * MIB)).await.unwrap();
    end(engine).await;

    let engine = bench.engine().await;
    assert!(read(&socket, "logs", 0, 8 * MIB).await == text(8 * MIB));
    let shown = show(&engine, "logs").await;
    assert!(shown.stored_bytes.unwrap() < MIB, "{shown:?}");
    let settings = shown.thin.unwrap();
    assert_eq!((settings.compression.as_str(), settings.quota_bytes), ("zstd:5", Some(20 * MIB)));

    // The quota counts bytes as they are written, and not as they are stored.
    write(&socket, "logs", 8 * MIB, text(12 * MIB)).await.unwrap();
    let refused = write(&socket, "logs", 20 * MIB, text(MIB)).await.unwrap_err();
    assert!(refused.to_string().contains("error 28"), "{refused}");
    write(&socket, "logs", 0, text(MIB)).await.unwrap();
    let change = |update: ThinUpdate| engine.volume_thin(&name, update);
    let message = change(ThinUpdate { quota_bytes: Some(MIB), ..ThinUpdate::default() }).await.unwrap_err().to_string();
    assert!(message.starts_with("a quota of 1 MiB is less than the 20 MiB that are written"), "{message}");
    let changed = change(ThinUpdate {
        quota_bytes: Some(0),
        compression: Some(Compression::Off),
        full_wait_ms: Some(2000),
        repack_after_s: Some(3600),
        ..ThinUpdate::default()
    });
    assert_eq!(
        changed.await.unwrap().steps,
        [
            "store new blocks uncompressed",
            "let the whole volume be written",
            "let writes wait 2s for space",
            "pack content again that was not written for 1h"
        ]
    );
    write(&socket, "logs", 20 * MIB, text(MIB)).await.unwrap();
    assert!(read(&socket, "logs", 20 * MIB, MIB).await == text(MIB));
    delete(&engine, "logs").await;
    end(engine).await;
}

#[tokio::test]
async fn content_that_was_not_written_for_a_while_takes_less_space() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid6, 5)).await;
    let socket = volume(&bench, &engine, "old", 1 << 30, true).await;
    write(&socket, "old", 0, text(8 * MIB)).await.unwrap();
    let after = |seconds| ThinUpdate { repack_after_s: Some(seconds), ..ThinUpdate::default() };
    let name: VolumeName = "tank/old".parse().unwrap();
    let changed = engine.volume_thin(&name, after(1)).await.unwrap();
    assert_eq!(changed.steps, ["pack content again that was not written for 1s"]);
    let began = Instant::now();
    while show(&engine, "old").await.stored_bytes.unwrap() > 2 * MIB {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", pool(&engine).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let work = pool(&engine).await.unwrap().work;
    assert!(work.repacked_to_bytes > 0 && work.repacked_to_bytes < work.repacked_from_bytes / 4, "{work:?}");
    assert!(read(&socket, "old", 0, 8 * MIB).await == text(8 * MIB));
    end(engine).await;

    let engine = bench.engine().await;
    assert!(read(&socket, "old", 0, 8 * MIB).await == text(8 * MIB));
    let shown = show(&engine, "old").await;
    assert_eq!(shown.thin.unwrap().repack_after_s, Some(1));
    delete(&engine, "old").await;
    end(engine).await;
}

#[tokio::test]
async fn a_reserve_lets_the_pool_grow_and_is_there_when_others_have_filled_it() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid6, 5)).await;
    let request = |reserve: u64, dry_run| VolumeCreate {
        group: "tank".into(),
        volume: "db".into(),
        size_bytes: 1 << 30,
        thin: true,
        reserve_bytes: Some(reserve),
        dry_run,
        ..VolumeCreate::default()
    };
    let refused = async || {
        for dry_run in [true, false] {
            let message = engine.volume_create(request(1 << 30, dry_run)).await.unwrap_err().to_string();
            assert!(
                message.starts_with("the pool cannot keep 1 GiB for \"tank/db\": choose at most about "),
                "{message}"
            );
        }
    };
    let free_bytes = engine.group("tank").await.unwrap().free_bytes;
    refused().await;
    let group = engine.group("tank").await.unwrap();
    assert_eq!((group.thin, group.free_bytes), (None, free_bytes), "a refusal leaves no pool behind");
    let hog = volume(&bench, &engine, "hog", 1 << 40, true).await;
    let before = pool(&engine).await.unwrap();
    refused().await;
    assert_eq!(pool(&engine).await.unwrap().size_bytes, before.size_bytes, "nor one that has grown");
    engine.volume_create(request(40 * MIB, true)).await.unwrap();
    engine.volume_create(request(40 * MIB, false)).await.unwrap();
    let after = pool(&engine).await.unwrap();
    assert!(after.reserved_bytes >= 40 * MIB && after.size_bytes > before.size_bytes, "{after:?}");
    let hogged = fill(&hog, "hog", 0).await;
    assert!(hogged > 10, "{hogged} MiB");
    let socket = offer(&bench, &engine, "db").await;
    for at in 0..40 {
        write(&socket, "db", at * MIB, bytes(at as u32, MIB)).await.unwrap();
    }
    let group = engine.group("tank").await.unwrap();
    assert!(group.warnings.iter().any(|warning| warning.starts_with("thin volumes use ")), "{:?}", group.warnings);
    delete(&engine, "db").await;
    end(engine).await;
}

#[tokio::test]
async fn a_thin_volume_that_shrinks_and_grows_reads_as_zeroes_behind_its_smaller_end() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid5, 4)).await;
    let socket = volume(&bench, &engine, "db", 64 * MIB, true).await;
    write(&socket, "db", 0, bytes(3, 64 * MIB)).await.unwrap();
    let name: VolumeName = "tank/db".parse().unwrap();
    let resize = |size_bytes, confirm: bool| {
        let confirm = confirm.then(|| "tank/db".to_owned());
        engine.volume_resize(&name, VolumeUpdate { size_bytes, confirm, dry_run: false })
    };
    assert!(resize(MIB, false).await.is_err(), "data would be lost");
    resize(MIB, true).await.unwrap();
    assert!(read(&socket, "db", 0, MIB).await == bytes(3, MIB));
    resize(1 << 50, false).await.unwrap();
    assert!(read(&socket, "db", MIB, MIB).await == vec![0; MIB as usize]);
    assert!(resize((4 << 50) + 1, false).await.is_err(), "more than a map can hold");
    end(engine).await;
}

#[tokio::test]
async fn a_resize_waits_for_writes_that_wait_for_a_larger_pool() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let request = GroupCreate { create_files_bytes: Some(256 << 20), ..bench.request("tank", Level::Raid0, 2) };
    bench.create(&engine, request).await;
    let socket = volume(&bench, &engine, "db", 1 << 40, true).await;
    let before = pool(&engine).await.unwrap().size_bytes;
    let writers = (0..8u64).map(|writer| {
        let socket = socket.clone();
        tokio::spawn(async move {
            for step in 0..32 {
                write(&socket, "db", (writer * 100 + step) * MIB, bytes(step as u32, MIB)).await.unwrap();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let name: VolumeName = "tank/db".parse().unwrap();
    let began = std::time::Instant::now();
    while !writers.iter().all(|writer| writer.is_finished()) {
        assert!(began.elapsed() < PATIENCE, "the writers hang");
        let resize = engine.volume_resize(&name, VolumeUpdate { size_bytes: 1 << 40, confirm: None, dry_run: false });
        tokio::time::timeout(PATIENCE, resize).await.expect("the resize ends").unwrap();
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(pool(&engine).await.unwrap().size_bytes > before, "the pool has grown");
    end(engine).await;
}

#[tokio::test]
async fn a_dry_run_says_that_there_is_no_room_for_a_pool() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let group = bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    let create = |volume: &str, size_bytes, thin, dry_run| {
        engine.volume_create(VolumeCreate {
            group: "tank".into(),
            volume: volume.into(),
            size_bytes,
            thin,
            dry_run,
            ..VolumeCreate::default()
        })
    };
    assert!(create("thin", 1 << 40, true, true).await.is_ok());
    create("direct", group.free_bytes - MIB, false, false).await.unwrap();
    assert_eq!(create("thin", 1 << 40, true, true).await.unwrap_err().code, ErrorCode::NoSpace);
    assert_eq!(create("thin", 1 << 40, true, false).await.unwrap_err().code, ErrorCode::NoSpace);
    end(engine).await;
}

#[tokio::test]
async fn the_pool_gives_space_back_for_direct_volumes() {
    let (bench, engine) = crate::convert::bench_with_group().await;
    let one = volume(&bench, &engine, "one", 1 << 40, true).await;
    let two = volume(&bench, &engine, "two", 1 << 40, true).await;
    // Each segment has blocks of both volumes. So none is free before it is collected.
    let mut each = 0;
    while write(&one, "one", each * MIB, bytes(each as u32, MIB)).await.is_ok()
        && write(&two, "two", each * MIB, bytes(1, MIB)).await.is_ok()
    {
        each += 1;
    }
    let create = |size_bytes, dry_run| {
        let (group, volume) = ("tank".into(), "direct".into());
        engine.volume_create(VolumeCreate { group, volume, size_bytes, dry_run, ..VolumeCreate::default() })
    };
    let size_bytes = each * MIB / 2;
    assert_eq!(create(size_bytes, false).await.unwrap_err().code, ErrorCode::NoSpace);
    let full = pool(&engine).await.unwrap();
    delete(&engine, "two").await;
    let began = Instant::now();
    // The deletion runs in the background.
    let planned = loop {
        match create(size_bytes, true).await {
            Ok(planned) => break planned,
            Err(error) => assert!(began.elapsed() < PATIENCE && error.code == ErrorCode::NoSpace, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let step = &planned.steps[0];
    assert!(step.starts_with("take ") && step.ends_with(" back from the pool of thin volumes"), "{step}");
    assert_eq!(pool(&engine).await.unwrap().size_bytes, full.size_bytes, "a dry run takes nothing");
    while let Err(error) = create(size_bytes, false).await {
        assert!(began.elapsed() < PATIENCE && error.code == ErrorCode::Busy, "{error}");
    }
    let direct = offer(&bench, &engine, "direct").await;
    write(&direct, "direct", 0, bytes(7, size_bytes)).await.unwrap();
    let is_whole = async |one: &Path| {
        for at in 0..each {
            assert!(read(one, "one", at * MIB, MIB).await == bytes(at as u32, MIB), "MiB {at}");
        }
    };
    is_whole(&one).await;
    assert!(pool(&engine).await.unwrap().size_bytes + size_bytes <= full.size_bytes + MIB);

    end(engine).await;
    let engine = bench.engine().await;
    is_whole(&one).await;
    assert!(read(&direct, "direct", 0, size_bytes).await == bytes(7, size_bytes));
    delete(&engine, "direct").await;
    let more = fill(&one, "one", 1000).await;
    assert!(more > each / 2, "the pool takes {more} MiB again");
    end(engine).await;
}

#[tokio::test]
async fn a_group_is_stopped_without_waiting_for_writes_that_wait_for_space() {
    let (bench, engine) = crate::convert::bench_with_group().await;
    let socket = volume(&bench, &engine, "db", 1 << 40, true).await;
    let filled = fill(&socket, "db", 0).await;
    let settings = ThinUpdate { full_wait_ms: Some(20_000), ..ThinUpdate::default() };
    engine.volume_thin(&"tank/db".parse().unwrap(), settings).await.unwrap();
    let waiting = tokio::spawn({
        let socket = socket.clone();
        async move { write(&socket, "db", (filled + 1) * MIB, bytes(1, MIB)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished(), "it waits");
    let began = Instant::now();
    engine.group_stop("tank", GroupStop { force: true, ..GroupStop::default() }).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "the stop took {:?}", began.elapsed());
    assert!(waiting.await.unwrap().is_err());
    end(engine).await;
}
