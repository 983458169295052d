//! A thin volume beside the group that it is in: RAID 6 with 4+2 memory drives, on one core.
//!
//! The pool has the first half of the group, and the second half is written directly, as a direct
//! volume would. The pool is brought to a steady state first: every block of the volume was
//! overwritten several times, and garbage collection runs all the time.

mod latency;
mod setup;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use bench::arguments::OneCore;
use bench::load::Rng;
use bench::process::go_first;
use bench::report::{Report, Row, Target};
use bench::rounds::{Basis, Rounds};
use clap::Parser;
use drive::{Block, Buf, Env};
use format::BLOCK;
use mimalloc::MiMalloc;
use runtime::ShardEnv;
use volume::thin::{Compression, Tuning};

use latency::latency;
use setup::{Bench, Contents};

const BLOCK_BYTES: u64 = BLOCK as u64;
const MIB: u64 = 1 << 20;

/// Smaller pools consist of reserves.
const DRIVES_MIB_MIN: u64 = 512;

/// The allocator of `purlind`.
#[global_allocator]
static HEAP: MiMalloc = MiMalloc;

/// Benchmarks thin volumes on one core over memory drives.
#[derive(Parser, Clone)]
struct Arguments {
    #[command(flatten)]
    on: OneCore,
    /// Directory of files whose stored size is compared with LZ4
    #[arg(long, default_value = "/usr/lib")]
    files: PathBuf,
    /// Only one of: writes, lz4, reads, amplification, size, latency
    #[arg(long, value_parser = ["writes", "lz4", "reads", "amplification", "size", "latency"])]
    only: Option<String>,
}

impl Arguments {
    fn has(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let first = go_first();
    let (rounds, json) = (usize::from(arguments.on.rounds), arguments.on.json);
    Report::run("thin", rounds, json, |report| {
        report.rows = run(arguments)?;
        report.notes = vec![
            "Targets of speed are judged by CPU time of the shard's thread, with all garbage collection in it.".into(),
            "Spare: the part of the segments that clients may fill, beside the pool's reserves, that is not live. Write amplification counts runs of clients and of the collector, with their indexes.".into(),
        ];
        report.note_priority(first);
        Ok(())
    })
}

fn run(arguments: Arguments) -> Result<Vec<Row>, bench::Error> {
    if arguments.on.drives_mib < DRIVES_MIB_MIN {
        return Err(format!("a pool needs drives of {DRIVES_MIB_MIN} MiB together: see --drives-mib").into());
    }
    let runtime = arguments.on.runtime()?;
    let rows = runtime.shard(0).call(move || async move {
        let mut rows = Vec::new();
        if arguments.has("writes") {
            rows.extend(writes(&arguments, Compression::Off, 1.5).await?);
        }
        if arguments.has("lz4") {
            rows.extend(writes(&arguments, Compression::Lz4, 0.8).await?);
            rows.extend(incompressible(&arguments).await?);
        }
        if arguments.has("reads") {
            rows.extend(reads(&arguments).await?);
        }
        if arguments.has("amplification") {
            for (spare, hot, most) in
                [(0.07, false, 7.15 * 1.05), (0.20, false, 2.68 * 1.05), (0.28, false, 1.99 * 1.05), (0.20, true, 2.6)]
            {
                rows.push(amplification(&arguments, spare, hot, most).await?);
            }
        }
        if arguments.has("size") {
            rows.extend(sizes(&arguments).await?);
        }
        if arguments.has("latency") {
            rows.extend(latency(&arguments).await?);
        }
        Ok::<_, String>(rows)
    });
    let rows = rows.wait()??;
    runtime.stop();
    Ok(rows)
}

/// Overwrites at 20% spare: CPU time, and drive operations.
async fn writes(arguments: &Arguments, compression: Compression, target: f64) -> Result<Vec<Row>, String> {
    let contents = Rc::new(Contents::new(compression != Compression::Off));
    let bench = Bench::make(arguments, 0.2, compression, Tuning::default()).await?;
    bench.fill_direct(&contents).await;
    bench.settle(arguments, &contents, 3.0, false).await;
    let name = match compression {
        Compression::Off => "4 KiB random overwrites, 20% spare",
        _ => "4 KiB random overwrites, LZ4, half compresses",
    };
    let rounds = bench.rounds(arguments, &contents, false).await;
    let target = Some(Target::AtLeast(target));
    let mut rows = vec![
        Row::of((name, "IOPS"), &rounds, Basis::Cpu, 0, (1, "direct"), target),
        Row::of((name, "IOPS"), &rounds, Basis::Wall, 0, (1, "direct"), None),
    ];
    if compression == Compression::Off {
        let (count, before) = (bench.blocks, bench.group.drive_counts());
        bench.overwrite(arguments, &contents, count, false).await;
        bench.volume.flush().await.map_err(|error| error.to_string())?;
        let after = bench.group.drive_counts();
        let each = |operations: u64| operations as f64 / count as f64;
        let (reads, writes) = (each(after.0 - before.0), each(after.1 - before.1));
        rows.push(Row::within("drive reads per such overwrite", "reads", &[reads], 0.75));
        rows.push(Row::within("drive reads and writes per such overwrite", "operations", &[reads + writes], 0.75));
    }
    bench.close().await?;
    if compression == Compression::Off {
        rows.extend(single(arguments).await?);
    }
    Ok(rows)
}

/// Single writes with FUA to a new volume: nothing is collected meanwhile.
async fn single(arguments: &Arguments) -> Result<Vec<Row>, String> {
    const COUNT: u64 = 40;
    let bench = Bench::make(arguments, 0.5, Compression::Off, Tuning::default()).await?;
    let (data, before) = (Buf::zeroes(BLOCK), bench.group.drive_counts());
    for block in 0..COUNT {
        bench.volume.write(block * 50 * BLOCK_BYTES, data.clone(), true).await.expect("there is space");
    }
    let after = bench.group.drive_counts();
    let each = |operations: u64| operations as f64 / COUNT as f64;
    bench.close().await?;
    Ok(vec![
        Row::within("drive writes per single 4 KiB FUA write", "writes", &[each(after.1 - before.1)], 3.2),
        Row::within("drive reads per single 4 KiB FUA write", "reads", &[each(after.0 - before.0)], 0.1),
    ])
}

/// Random data with LZ4 beside the same without.
async fn incompressible(arguments: &Arguments) -> Result<Vec<Row>, String> {
    let contents = Rc::new(Contents::new(false));
    let mut rounds = Rounds::new(2);
    let mut stored = [0, 0];
    for round in 0..usize::from(arguments.on.rounds) {
        for contender in Rounds::order(2, round) {
            let compression = [Compression::Lz4, Compression::Off][contender];
            let bench = Bench::make(arguments, 0.5, compression, Tuning::default()).await?;
            rounds.add(contender, bench.settle(arguments, &contents, 0.5, false).await);
            bench.store.land_all().await.map_err(|error| error.to_string())?;
            stored[contender] = bench.store.mapped(1).1;
            bench.close().await?;
        }
    }
    let what = "random data with LZ4";
    Ok(vec![
        Row::of((what, "CPU s"), &rounds, Basis::Cost, 0, (1, "compression off"), Some(Target::AtMost(1.15))),
        Row::count(
            "stored size of random data with LZ4",
            "bytes",
            stored[0] as f64,
            stored[1] as f64,
            Target::AtMost(1.01),
        ),
    ])
}

/// Random reads, with the map in memory and without.
async fn reads(arguments: &Arguments) -> Result<Vec<Row>, String> {
    let contents = Rc::new(Contents::new(false));
    let bench = Bench::make(arguments, 0.2, Compression::Off, Tuning::default()).await?;
    bench.fill_direct(&contents).await;
    bench.settle(arguments, &contents, 1.0, false).await;
    bench.store.land_all().await.map_err(|error| error.to_string())?;
    let rounds = bench.rounds(arguments, &contents, true).await;
    let what = ("4 KiB random reads, map in memory", "IOPS");
    let mut rows = vec![Row::of(what, &rounds, Basis::Cpu, 0, (1, "direct"), Some(Target::AtLeast(0.85)))];
    bench.close().await?;
    let tuning = Tuning { cached_leaves_max: 16, ..Tuning::default() };
    let bench = Bench::make(arguments, 0.2, Compression::Off, tuning).await?;
    bench.settle(arguments, &contents, 0.5, false).await;
    bench.store.checkpoint().await.map_err(|error| error.to_string())?;
    let (count, before, mut rng) = (4000, bench.group.drive_counts(), Rng::new(8));
    for _ in 0..count {
        let at = rng.below(bench.blocks) * BLOCK_BYTES;
        drop(bench.volume.read(at, ShardEnv::current().alloc(BLOCK)).await);
    }
    let reads = (bench.group.drive_counts().0 - before.0) as f64 / f64::from(count);
    rows.push(Row::within("drive reads per 4 KiB read, map not in memory", "reads", &[reads], 3.0));
    bench.close().await?;
    Ok(rows)
}

/// Write amplification in the steady state.
async fn amplification(arguments: &Arguments, spare: f64, hot: bool, most: f64) -> Result<Row, String> {
    let contents = Rc::new(Contents::new(false));
    let bench = Bench::make(arguments, spare, Compression::Off, Tuning::default()).await?;
    bench.settle(arguments, &contents, 4.0, hot).await;
    let before = bench.store.counts();
    let count = 2 * bench.blocks;
    bench.overwrite(arguments, &contents, count, hot).await;
    let after = bench.store.counts();
    let bytes = after.data_run_bytes - before.data_run_bytes + after.collected_run_bytes - before.collected_run_bytes;
    let load = if hot { "80% of writes to 20%" } else { "uniform" };
    let what = format!("write amplification, {load}, {:.0}% spare", spare * 100.0);
    let row = Row::within(&what, "bytes per byte", &[bytes as f64 / (count * BLOCK_BYTES) as f64], most);
    let maps = (after.node_run_bytes - before.node_run_bytes) as f64 / (count * BLOCK_BYTES) as f64;
    eprintln!("{what}: maps add {maps:.3}");
    bench.close().await?;
    Ok(row)
}

/// The stored size of files beside LZ4 alone in pieces of the same size, and once they were packed
/// again beside Zstandard alone in pieces of 64 KiB.
async fn sizes(arguments: &Arguments) -> Result<[Row; 2], String> {
    const PIECE: usize = 4 * BLOCK;
    const LARGE_PIECE: usize = 16 * BLOCK;
    let bench = Bench::make(arguments, 0.2, Compression::Lz4, Tuning::default()).await?;
    let room = bench.blocks as usize * BLOCK / 2;
    let mut image = Vec::new();
    add_files(&arguments.files, room, &mut image);
    image.resize(image.len().next_multiple_of(LARGE_PIECE), 0);
    let ideal: usize = image.chunks(PIECE).map(|piece| lz4_flex::block::compress(piece).len().min(piece.len())).sum();
    let zstd =
        |piece: &[u8]| zstd::bulk::compress(piece, 3).map_or(piece.len(), |packed| packed.len().min(piece.len()));
    let ideal_again: usize = image.chunks(LARGE_PIECE).map(zstd).sum();
    for (index, piece) in image.chunks(LARGE_PIECE).enumerate() {
        let data = Buf::from(piece.to_vec());
        bench.volume.write((index * LARGE_PIECE) as u64, data, false).await.map_err(|error| error.to_string())?;
    }
    bench.store.land_all().await.map_err(|error| error.to_string())?;
    bench.store.checkpoint().await.map_err(|error| error.to_string())?;
    let stored = || {
        let sums = bench.store.space().segments;
        (sums.live_data + sums.live_nodes) as f64
    };
    let files = format!("{} MiB of files", image.len() / MIB as usize);
    let what = format!("LZ4 size of {files} per stored byte, maps counted");
    let first = Row::count(&what, "bytes", ideal as f64, stored(), Target::AtLeast(0.95));
    bench.store.repack_once(1).await.map_err(|error| error.to_string())?;
    bench.store.checkpoint().await.map_err(|error| error.to_string())?;
    let what = format!("Zstandard size of {files} in 64 KiB per byte packed again, maps counted");
    let again = Row::count(&what, "bytes", ideal_again as f64, stored(), Target::AtLeast(0.95));
    bench.close().await?;
    Ok([first, again])
}

/// The files below a directory, each in whole blocks, as in a file system.
fn add_files(directory: &Path, room: usize, image: &mut Vec<u8>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Ok(kind) = path.symlink_metadata().map(|data| data.file_type()) else { continue };
        if kind.is_dir() {
            add_files(&path, room, image);
        } else if kind.is_file()
            && let Ok(bytes) = std::fs::read(&path)
        {
            image.extend(&bytes[..bytes.len().min(room.saturating_sub(image.len()))]);
            image.resize(image.len().next_multiple_of(BLOCK), 0);
        }
        if image.len() >= room {
            return;
        }
    }
}
