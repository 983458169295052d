//! The engine on one core, over memory drives, without any client: the cost of the array in
//! addition to its drives.
//!
//! - Random reads through RAID 6, compared with reads of the same drives by the same tasks over the
//!   same number of bytes.
//! - Sequential writes of whole stripes, compared with `memcpy` of the same buffers on the same
//!   core.
//! - Random writes with and without the write-hole log; reads and writes with and without
//!   checksums. All other groups have the log and no checksums.
//! - Random writes: first writes to new space, and read-modify-write.

use std::process::ExitCode;
use std::rc::Rc;

use bench::arguments::OneCore;
use bench::group::{Group, Protection};
use bench::load::{self, Rng, shuffled, turn, turn_of};
use bench::process::go_first;
use bench::report::{Report, Row, Target};
use bench::rounds::{Basis, Rounds};
use clap::Parser;
use drive::{Buf, Drive, Env};
use format::Level;
use mimalloc::MiMalloc;
use runtime::ShardEnv;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

/// The allocator of `purlind`.
#[global_allocator]
static HEAP: MiMalloc = MiMalloc;

/// Benchmarks the array engine on one core over memory drives.
#[derive(Parser, Clone)]
struct Arguments {
    #[command(flatten)]
    on: OneCore,
    /// Only one of: reads, streams, writes, log, checksums
    #[arg(long, value_parser = ["reads", "streams", "writes", "log", "checksums"])]
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
    Report::run("engine", rounds, json, |report| {
        report.rows = run(arguments)?;
        report.notes = vec![
            "The machine may be shared, so targets are judged by CPU time of the shard's thread; wall time stands beside it.".into(),
            "Direct reads go to the same drives, over as many bytes as the group has.".into(),
            "memcpy copies the same 1 MiB buffers to memory as large as the group, on the same thread.".into(),
        ];
        report.note_priority(first);
        Ok(())
    })
}

fn run(arguments: Arguments) -> Result<Vec<Row>, bench::Error> {
    let runtime = arguments.on.runtime()?;
    let rows = runtime.shard(0).call(move || async move {
        let mut rows = Vec::new();
        if arguments.has("reads") || arguments.has("writes") {
            let group = Group::make("r6-4+2", Level::Raid6, 6, arguments.on.drives_mib * MIB, Protection::LOG).await?;
            group.fill().await;
            if arguments.has("reads") {
                rows.extend(random_reads(&arguments, &group).await);
            }
            if arguments.has("writes") {
                rows.extend(random_writes(&arguments, &group).await);
            }
            group.close().await?;
        }
        if arguments.has("streams") {
            let group = Group::make("r6-8+2", Level::Raid6, 10, arguments.on.drives_mib * MIB, Protection::LOG).await?;
            group.fill().await;
            rows.extend(streams(&arguments, &group).await);
            group.close().await?;
        }
        let half = arguments.on.drives_mib * MIB / 2;
        let pair = async |(level, members): (Level, u16), with: Protection, without: Protection| {
            let with = Group::make("with", level, members, half, with).await?;
            let without = Group::make("without", level, members, half, without).await?;
            with.fill().await;
            without.fill().await;
            Ok::<_, String>((with, without))
        };
        let raid5 = (Level::Raid5, 5);
        let raid6 = (Level::Raid6, 6);
        let (blocks, stripes) = ("4 KiB random writes, RAID 6 4+2", "whole random stripes, RAID 6 4+2");
        let work = |what, len, reads, target| Work { what, len, reads, target };
        if arguments.has("log") {
            let target = Some(Target::AtLeast(0.75));
            for (group, blocks, stripes) in [
                (raid6, blocks, stripes),
                (raid5, "4 KiB random writes, RAID 5 4+1", "whole random stripes, RAID 5 4+1"),
            ] {
                let (on, off) = pair(group, Protection::LOG, Protection::NONE).await?;
                let stripe = on.array.shared().geometry.stripe_data_bytes();
                let works = [work(blocks, BLOCK, false, target), work(stripes, stripe, false, None)];
                rows.extend(cost(&arguments, &on, &off, "crash safety off", &works).await);
                on.close().await?;
                off.close().await?;
            }
        }
        if arguments.has("checksums") {
            let (on, off) = pair(raid6, Protection::LOG_AND_CHECKSUMS, Protection::LOG).await?;
            let works = [
                work("4 KiB random reads, RAID 6 4+2", BLOCK, true, None),
                work("1 MiB random reads, RAID 6 4+2", MIB, true, None),
                work(blocks, BLOCK, false, None),
                work(stripes, on.array.shared().geometry.stripe_data_bytes(), false, None),
            ];
            rows.extend(cost(&arguments, &on, &off, "checksums off", &works).await);
            on.close().await?;
            off.close().await?;
        }
        Ok::<_, String>(rows)
    });
    let rows = rows.wait()??;
    runtime.stop();
    Ok(rows)
}

/// Rows for both bases; the one that is judged comes first.
fn rows(what: (&str, &str), rounds: &Rounds, peer: &str, target: Option<Target>) -> [Row; 2] {
    [Row::of(what, rounds, Basis::Cpu, 0, (1, peer), target), Row::of(what, rounds, Basis::Wall, 0, (1, peer), None)]
}

async fn random_reads(arguments: &Arguments, group: &Group) -> [Row; 2] {
    let blocks = group.array.size_bytes() / BLOCK;
    let (array, drives) = (&group.array, Rc::new(group.drives.clone()));
    let mut rounds = Rounds::new(2);
    // The round before the first is not counted: it fills caches and pools.
    for round in 0..=usize::from(arguments.on.rounds) {
        for contender in Rounds::order(2, round) {
            let sample = turn(arguments.on.depth, arguments.on.turn(), |seed, pace| {
                let (array, drives, env) = (array.clone(), drives.clone(), ShardEnv::current());
                let mut rng = Rng::new(seed + 1000 * round as u64);
                async move {
                    if contender == 0 {
                        while pace.goes_on() {
                            let buf = env.alloc(BLOCK as usize);
                            array.read(rng.below(blocks) * BLOCK, buf).await.expect("memory does not fail");
                        }
                    } else {
                        let count = drives.len() as u64;
                        while pace.goes_on() {
                            let (block, buf) = (rng.below(blocks), env.alloc(BLOCK as usize));
                            let drive = &drives[(block % count) as usize];
                            // After the metadata region, like the group's own data.
                            let offset = MIB + block / count * BLOCK;
                            drive.read(offset, buf).await.expect("memory does not fail");
                        }
                    }
                }
            });
            let sample = sample.await;
            if round > 0 {
                rounds.add(contender, sample);
            }
        }
    }
    rows(("4 KiB random reads, RAID 6 4+2", "IOPS"), &rounds, "the drives directly", Some(Target::AtLeast(0.9)))
}

async fn random_writes(arguments: &Arguments, group: &Group) -> Vec<Row> {
    let env = ShardEnv::current();
    let blocks = group.array.size_bytes() / BLOCK;
    let geometry = &group.array.shared().geometry;
    // One block of each allocation chunk, in the first strip: each is the first write to its chunk.
    let firsts: Vec<u64> = (0..geometry.stripe_group_count())
        .flat_map(|stripe_group| geometry.chunks().map(move |chunk| (stripe_group, chunk.start)))
        .map(|(stripe_group, offset)| geometry.offset(array::StripeGroup(stripe_group), 0, offset))
        .collect();
    let mut data = env.alloc(BLOCK as usize);
    data.fill(0xa5);
    let data = data.freeze();
    let mut rounds = Rounds::new(3);
    for round in 0..=usize::from(arguments.on.rounds) {
        group.fill().await;
        let mut rng = Rng::new(round as u64 + 1);
        let modify = turn(arguments.on.depth, arguments.on.turn(), |seed, pace| {
            let (array, data) = (group.array.clone(), data.clone());
            let mut rng = Rng::new(seed + 1000 * round as u64);
            async move {
                while pace.goes_on() {
                    let offset = rng.below(blocks) * BLOCK;
                    array.write(offset, data.clone(), false).await.expect("memory does not fail");
                }
            }
        });
        let modify = modify.await;
        // This overwrites the group's data, which is not read any more.
        let drives = Rc::new(group.drives.clone());
        let direct = turn(arguments.on.depth, arguments.on.turn(), |seed, pace| {
            let (drives, data, env, start) = (drives.clone(), data.clone(), ShardEnv::current(), geometry.data_start);
            let mut rng = Rng::new(seed + 2000 * round as u64);
            async move {
                let count = drives.len() as u64;
                while pace.goes_on() {
                    let block = rng.below(blocks);
                    let offset = start + block / count * BLOCK;
                    for drive in 0..3 {
                        let drive = &drives[((block + drive) % count) as usize];
                        let buf = env.alloc(BLOCK as usize);
                        drive.read(offset, buf).await.expect("memory does not fail");
                    }
                    for drive in 0..3 {
                        let drive = &drives[((block + drive) % count) as usize];
                        let segments = drive::Segments::from_iter([data.clone()]);
                        drive.write(offset, segments, false).await.expect("memory does not fail");
                    }
                }
            }
        });
        let direct = direct.await;
        group.empty().await;
        let firsts = Rc::new(shuffled(&firsts, &mut rng));
        let (array, new) = (group.array.clone(), data.clone());
        let first = turn_of(arguments.on.depth, firsts, move |offset| {
            let (array, new) = (array.clone(), new.clone());
            async move { array.write(offset, new, false).await.expect("memory does not fail") }
        });
        let first = first.await;
        if round > 0 {
            rounds.add(0, modify);
            rounds.add(1, direct);
            rounds.add(2, first);
        }
    }
    let what = ("4 KiB random writes, RAID 6 4+2", "IOPS");
    let mut rows = rows(what, &rounds, "3 reads + 3 writes directly", None).to_vec();
    rows.push(Row::of(what, &rounds, Basis::Cpu, 0, (2, "first writes to new chunks"), None));
    rows
}

/// A random load.
struct Work {
    what: &'static str,
    len: u64,
    reads: bool,
    target: Option<Target>,
}

/// Runs the same random loads on two groups that were written before and differ in one protection.
async fn cost(arguments: &Arguments, with: &Group, without: &Group, peer: &str, works: &[Work]) -> Vec<Row> {
    let mut all = Vec::new();
    for &Work { what, len, reads, target } in works {
        let mut data = drive::BufMut::zeroed(len as usize);
        data.fill(0xa5);
        let data = data.freeze();
        let mut rounds = Rounds::new(2);
        for round in 0..=usize::from(arguments.on.rounds) {
            for contender in Rounds::order(2, round) {
                let group = if contender == 0 { with } else { without };
                let places = group.array.size_bytes() / len;
                let sample = turn(arguments.on.depth, arguments.on.turn(), |seed, pace| {
                    let (array, data, env) = (group.array.clone(), data.clone(), ShardEnv::current());
                    let mut rng = Rng::new(seed + 1000 * round as u64);
                    async move {
                        while pace.goes_on() {
                            let offset = rng.below(places) * len;
                            if reads {
                                let buf = env.alloc(len as usize);
                                array.read(offset, buf).await.expect("memory does not fail");
                            } else {
                                array.write(offset, data.clone(), false).await.expect("memory does not fail");
                            }
                        }
                    }
                });
                let sample = sample.await;
                if round > 0 {
                    rounds.add(contender, sample);
                }
            }
        }
        all.extend(rows((what, "IOPS"), &rounds, peer, target));
    }
    all
}

async fn streams(arguments: &Arguments, group: &Group) -> [Row; 2] {
    let depth = arguments.on.depth;
    // The sources are in memory that is in no cache, like data from a network.
    let source_count = 256.min(group.array.size_bytes() / MIB);
    let sources: Vec<Buf> = (0..source_count)
        .map(|index| {
            let mut buf = drive::BufMut::zeroed(MIB as usize);
            buf.fill(index as u8 | 1);
            buf.freeze()
        })
        .collect();
    let sources = Rc::new(sources);
    let pieces = group.array.size_bytes() / MIB;
    let mut target = vec![1u8; (pieces.min(512) * MIB) as usize];
    let mut rounds = Rounds::new(2);
    let next = Rc::new(std::cell::Cell::new(0));
    for round in 0..=usize::from(arguments.on.rounds) {
        for contender in Rounds::order(2, round) {
            let mut sample = if contender == 0 {
                let work = turn(depth, arguments.on.turn(), |_, pace| {
                    let (array, sources, next) = (group.array.clone(), sources.clone(), next.clone());
                    async move {
                        while pace.goes_on() {
                            let piece = next.get();
                            next.set(piece + 1);
                            let data = sources[(piece % source_count) as usize].clone();
                            array.write(piece % pieces * MIB, data, false).await.expect("memory does not fail");
                        }
                    }
                });
                work.await
            } else {
                load::copy_turn(arguments.on.turn(), &sources, &mut target)
            };
            sample.amount *= MIB as f64 / 1e9;
            if round > 0 {
                rounds.add(contender, sample);
            }
        }
    }
    rows(("1 MiB sequential writes, RAID 6 8+2", "GB/s"), &rounds, "memcpy", Some(Target::AtLeast(0.6)))
}
