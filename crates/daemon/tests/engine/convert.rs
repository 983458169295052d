//! Volumes that are converted between direct and thin while clients use them, through restarts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::*;
use daemon::Engine;
use daemon::http::{Answer, GroupControl, VolumeControl};

use crate::bench::*;
use crate::thin::{MIB, bytes, delete, fill, pool, read, show, volume, write};

const FOR_SPACE: &str = "it waits for space in the pool";

pub async fn convert(engine: &Engine, name: &str, action: ConvertAction) -> Answer<Changed<Volume>> {
    convert_with_quota(engine, name, action, None).await
}

async fn convert_with_quota(
    engine: &Engine,
    name: &str,
    action: ConvertAction,
    quota_bytes: Option<u64>,
) -> Answer<Changed<Volume>> {
    let request = VolumeConvert {
        action,
        compression: None,
        quota_bytes,
        reserve_bytes: None,
        full_wait_ms: None,
        repack_after_s: None,
        dry_run: false,
    };
    engine.volume_convert(&format!("tank/{name}").parse().unwrap(), request).await
}

async fn refused(engine: &Engine, name: &str, action: ConvertAction) -> String {
    convert(engine, name, action).await.unwrap_err().to_string()
}

/// Waits until a volume is as it is asked for.
async fn until(engine: &Engine, name: &str, holds: impl Fn(&Volume) -> bool) -> Volume {
    let began = Instant::now();
    loop {
        let shown = show(engine, name).await;
        if holds(&shown) {
            return shown;
        }
        assert!(began.elapsed() < PATIENCE, "{shown:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn until_converted(engine: &Engine, name: &str, kind: VolumeKind) -> Volume {
    until(engine, name, |volume| volume.kind == kind && volume.conversion.is_none()).await
}

/// Waits until a conversion says why it waits.
async fn until_paused(engine: &Engine, name: &str, reason: &str) -> Conversion {
    let is_paused = |volume: &Volume| volume.conversion.as_ref().is_some_and(|it| it.message.is_some());
    let shown = until(engine, name, is_paused).await;
    let conversion = shown.conversion.unwrap();
    assert!(conversion.message.as_ref().unwrap().starts_with(reason), "{conversion:?}");
    assert!(conversion.done_bytes < conversion.total_bytes, "{conversion:?}");
    conversion
}

pub async fn bench_with_group() -> (Bench, Arc<Engine>) {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid6, 5)).await;
    (bench, engine)
}

/// A client that writes the whole time in one connection. Ends with what it has written.
struct Writer {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<u8>>,
}

impl Writer {
    fn start(socket: &Path, name: &str, mut content: Vec<u8>) -> Writer {
        let (socket, name) = (socket.to_path_buf(), format!("tank/{name}"));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let task = tokio::task::spawn_blocking(move || {
            let mut stream = crate::client::connect(&socket, &name).unwrap();
            let mut number = 1u32;
            while !stopped.load(Ordering::Relaxed) {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = number as usize % (content.len() / 512 - 64) * 512;
                let part = bytes(number, 512 + u64::from(number >> 16) % 63 * 512);
                crate::client::write_on(&mut stream, at as u64, &part).unwrap();
                content[at..at + part.len()].copy_from_slice(&part);
            }
            content
        });
        Writer { stop, task }
    }

    async fn end(self) -> Vec<u8> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

#[tokio::test]
async fn a_volume_keeps_its_content_from_direct_to_thin_and_back_while_a_client_writes() {
    let (bench, engine) = bench_with_group().await;
    let free = engine.group("tank").await.unwrap().free_bytes;
    let socket = volume(&bench, &engine, "db", 24 * MIB, false).await;
    let content = [bytes(1, 9 * MIB), vec![0; 7 * MIB as usize], bytes(2, 8 * MIB)].concat();
    write(&socket, "db", 0, content[..9 * MIB as usize].to_vec()).await.unwrap();
    write(&socket, "db", 16 * MIB, bytes(2, 8 * MIB)).await.unwrap();

    let writer = Writer::start(&socket, "db", content);
    let started = convert(&engine, "db", ConvertAction::Thin).await.unwrap();
    assert_eq!(started.steps[0], "convert the volume \"tank/db\" of 24 MiB to thin while it is in use");
    let shown = until_converted(&engine, "db", VolumeKind::Thin).await;
    assert!(shown.thin.is_some(), "{shown:?}");
    let content = writer.end().await;
    assert!(read(&socket, "db", 0, 24 * MIB).await == content);
    end(engine).await;

    let engine = bench.engine().await;
    assert!(read(&socket, "db", 0, 24 * MIB).await == content, "after a restart");
    let writer = Writer::start(&socket, "db", content);
    convert(&engine, "db", ConvertAction::Direct).await.unwrap();
    until_converted(&engine, "db", VolumeKind::Direct).await;
    let content = writer.end().await;
    assert!(read(&socket, "db", 0, 24 * MIB).await == content);
    end(engine).await;

    let engine = bench.engine().await;
    assert!(read(&socket, "db", 0, 24 * MIB).await == content, "after another restart");
    assert_eq!(pool(&engine).await, None, "the pool goes with its last volume");
    delete(&engine, "db").await;
    assert_eq!(engine.group("tank").await.unwrap().free_bytes, free, "nothing is left of either content");
    end(engine).await;
}

/// A thin volume that has filled all but some 25 MiB of the pool, and a direct one of 50 MiB: its
/// conversion stops on the way.
pub async fn stuck(bench: &Bench, engine: &Engine) -> (PathBuf, Vec<u8>) {
    let socket = volume(bench, engine, "db", 50 * MIB, false).await;
    let content = bytes(3, 50 * MIB);
    write(&socket, "db", 0, content.clone()).await.unwrap();
    let gap = volume(bench, engine, "gap", 1 << 30, true).await;
    write(&gap, "gap", 0, bytes(4, 25 * MIB)).await.unwrap();
    let other = volume(bench, engine, "other", 1 << 30, true).await;
    fill(&other, "other", 0).await;
    let used = pool(engine).await.unwrap().used_bytes;
    delete(engine, "gap").await;
    let began = Instant::now();
    while pool(engine).await.unwrap().used_bytes + 24 * MIB > used {
        assert!(began.elapsed() < PATIENCE, "the deleted volume is not freed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    convert(engine, "db", ConvertAction::Thin).await.unwrap();
    until_paused(engine, "db", FOR_SPACE).await;
    (socket, content)
}

#[tokio::test]
async fn a_conversion_that_waits_for_space_goes_on_where_it_was_after_a_restart() {
    let (bench, engine) = bench_with_group().await;
    let (socket, mut content) = stuck(&bench, &engine).await;
    // Clients are not refused, wherever they write.
    for at in 0..50 {
        write(&socket, "db", at * MIB + 4096, bytes(at as u32, 8192)).await.unwrap();
        let at = (at * MIB + 4096) as usize;
        content[at..at + 8192].copy_from_slice(&bytes((at as u64 / MIB) as u32, 8192));
    }
    assert!(read(&socket, "db", 0, 50 * MIB).await == content);
    end(engine).await;

    let engine = bench.engine().await;
    let conversion = until_paused(&engine, "db", FOR_SPACE).await;
    assert!(conversion.done_bytes > 10 * MIB, "it began again: {conversion:?}");
    assert!(read(&socket, "db", 0, 50 * MIB).await == content);
    delete(&engine, "other").await;
    until_converted(&engine, "db", VolumeKind::Thin).await;
    assert!(read(&socket, "db", 0, 50 * MIB).await == content);
    end(engine).await;
    let engine = bench.engine().await;
    assert!(read(&socket, "db", 0, 50 * MIB).await == content, "after another restart");
    end(engine).await;
}

#[tokio::test]
async fn a_conversion_is_cancelled_and_can_begin_again() {
    let (bench, engine) = bench_with_group().await;
    let (socket, content) = stuck(&bench, &engine).await;
    let used = pool(&engine).await.unwrap().used_bytes;
    convert(&engine, "db", ConvertAction::Cancel).await.unwrap();
    let shown = show(&engine, "db").await;
    assert_eq!((shown.kind, shown.conversion), (VolumeKind::Direct, None));
    assert!(read(&socket, "db", 0, 50 * MIB).await == content);
    let began = Instant::now();
    while pool(&engine).await.unwrap().used_bytes + 10 * MIB > used {
        assert!(began.elapsed() < PATIENCE, "what was copied is not freed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    delete(&engine, "other").await;
    let began = Instant::now();
    while let Err(error) = convert(&engine, "db", ConvertAction::Thin).await {
        assert!(began.elapsed() < PATIENCE && error.to_string().contains("still frees"), "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until_converted(&engine, "db", VolumeKind::Thin).await;
    assert!(read(&socket, "db", 0, 50 * MIB).await == content);
    end(engine).await;
}

#[tokio::test]
async fn a_volume_that_is_deleted_during_its_conversion_leaves_nothing() {
    let (bench, engine) = bench_with_group().await;
    let free = engine.group("tank").await.unwrap().free_bytes;
    stuck(&bench, &engine).await;
    delete(&engine, "db").await;
    delete(&engine, "other").await;
    assert_eq!(pool(&engine).await, None);
    assert_eq!(engine.group("tank").await.unwrap().free_bytes, free);
    end(engine).await;
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_with_one_sentence() {
    let (bench, engine) = bench_with_group().await;
    let direct = volume(&bench, &engine, "direct", 4 * MIB, false).await;
    write(&direct, "direct", 0, bytes(1, 2 * MIB)).await.unwrap();
    let few = convert_with_quota(&engine, "direct", ConvertAction::Thin, Some(MIB)).await.unwrap_err().to_string();
    assert!(few.starts_with("a quota of 1 MiB is less than the 2"), "{few}");
    let thin = volume(&bench, &engine, "thin", 1 << 40, true).await;
    write(&thin, "thin", 0, bytes(1, MIB)).await.unwrap();
    assert_eq!(refused(&engine, "direct", ConvertAction::Direct).await, "the volume \"tank/direct\" is direct already");
    assert_eq!(refused(&engine, "thin", ConvertAction::Thin).await, "the volume \"tank/thin\" is thin already");
    assert_eq!(
        refused(&engine, "thin", ConvertAction::Cancel).await,
        "the volume \"tank/thin\" is not being converted"
    );
    let too_large = refused(&engine, "thin", ConvertAction::Direct).await;
    let of_group = "the volume \"tank/thin\" needs 1 TiB, and the group \"tank\" has ";
    assert!(
        too_large.starts_with(of_group) && too_large.contains(" free, and its pool of thin volumes"),
        "{too_large}"
    );
    assert_eq!(show(&engine, "thin").await.conversion, None);
    delete(&engine, "direct").await;
    delete(&engine, "thin").await;

    stuck(&bench, &engine).await;
    let name: VolumeName = "tank/db".parse().unwrap();
    let resize = VolumeUpdate { size_bytes: 60 * MIB, confirm: None, dry_run: false };
    let busy = "the volume \"tank/db\" is being converted to thin: wait until that is done, or stop it with `purlin \
                volume convert tank/db --cancel`";
    assert_eq!(engine.volume_resize(&name, resize).await.unwrap_err().to_string(), busy);
    assert_eq!(refused(&engine, "db", ConvertAction::Thin).await, busy);
    assert_eq!(refused(&engine, "db", ConvertAction::Direct).await, busy);
    let settings = ThinUpdate { quota_bytes: Some(MIB), ..ThinUpdate::default() };
    assert_eq!(engine.volume_thin(&name, settings).await.unwrap_err().to_string(), busy);
    end(engine).await;
}

#[tokio::test]
async fn a_conversion_that_waits_because_of_its_quota_says_so() {
    let (bench, engine) = bench_with_group().await;
    let socket = volume(&bench, &engine, "db", 60 * MIB, false).await;
    write(&socket, "db", 0, bytes(3, 40 * MIB)).await.unwrap();
    convert_with_quota(&engine, "db", ConvertAction::Thin, Some(42 * MIB)).await.unwrap();
    write(&socket, "db", 40 * MIB, bytes(4, 10 * MIB)).await.unwrap();
    let conversion = until_paused(&engine, "db", "it waits because of its quota").await;
    assert_eq!(conversion.thin.unwrap().quota_bytes, Some(42 * MIB));
    convert(&engine, "db", ConvertAction::Cancel).await.unwrap();
    assert!(read(&socket, "db", 40 * MIB, 10 * MIB).await == bytes(4, 10 * MIB));
    end(engine).await;
}
