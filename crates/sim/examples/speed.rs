//! How many simulated drive operations a core does in a second of its time. `cargo run --release -p
//! sim --example speed`

use drive::{Buf, Drive, Env, Segments};
use format::{CrashSafety, Level};
use sim::engine::{Group, KIB, Protection, shape};
use sim::{DriveOptions, Latency, Sim, SimDrive};

const OPS: u64 = 2_000_000;
const TASKS: u64 = 32;
const DRIVE_BYTES: u64 = 8 << 20;

fn main() {
    for level in [Level::Raid10, Level::Raid5, Level::Raid6] {
        for (mix, reads_of_ten) in [("reads", 10), ("writes", 0), ("70 % reads", 7)] {
            let (requests, ops) = measure_group(level, reads_of_ten);
            println!(
                "{level:12} {mix:10}  4096 B: {requests:6.2} million requests/s, {ops:6.2} million drive operations/s"
            );
        }
    }
    let between = Latency::between(5_000, 100_000);
    for (mode, latency) in [("immediate", Latency::IMMEDIATE), ("5 to 100 us", between)] {
        for (mix, reads_of_ten) in [("reads", 10), ("writes", 0), ("70 % reads", 7)] {
            for len in [512_u64, 4096] {
                let (rate, virtual_ms) = measure(latency, reads_of_ten, len);
                println!("{mode:12} {mix:10} {len:5} B: {rate:6.2} million operations/s, {virtual_ms} virtual ms");
            }
        }
    }
}

/// Operations at random offsets by 32 tasks, with a flush after every 1000 writes of a task.
fn measure(latency: Latency, reads_of_ten: u64, len: u64) -> (f64, u64) {
    let sim = Sim::new(1);
    let env = sim.env();
    let options = DriveOptions { latency, ..DriveOptions::new("d", DRIVE_BYTES, 512) };
    let drive = SimDrive::with_options(&env, options);
    drive.write_raw(0, &vec![1; DRIVE_BYTES as usize]);
    let mut rng = sim.rng();
    for _ in 0..TASKS {
        let (env, drive, mut rng) = (env.clone(), drive.clone(), rng.fork());
        let data = Buf::from(vec![7; len as usize]);
        env.clone().spawn(async move {
            let mut buf = env.alloc(len as usize);
            for op in 0..OPS / TASKS {
                let offset = rng.below(DRIVE_BYTES / len) * len;
                if rng.chance(reads_of_ten, 10) {
                    buf = drive.read(offset, buf).await.expect("nothing is wrong with the drive");
                } else {
                    let data = Segments::from_iter([data.clone()]);
                    drive.write(offset, data, false).await.expect("nothing is wrong with the drive");
                }
                if op % 1000 == 999 && reads_of_ten < 10 {
                    drive.flush().await.expect("nothing is wrong with the drive");
                }
            }
        });
    }
    let start_ns = cpu_ns();
    sim.run_until_idle();
    (OPS as f64 * 1e3 / (cpu_ns() - start_ns) as f64, sim.now() / 1_000_000)
}

/// Requests of 4 KiB at random offsets to a group on immediate drives, without the log. Gives
/// requests and drive operations a second, in millions.
fn measure_group(level: Level, reads_of_ten: u64) -> (f64, f64) {
    const REQUESTS: u64 = 200_000;
    let sim = Sim::new(1);
    let env = sim.env();
    let drive = |index| {
        let info = DriveOptions::new(&format!("d{index}"), DRIVE_BYTES, 4096);
        SimDrive::with_options(&env, DriveOptions { latency: Latency::IMMEDIATE, ..info })
    };
    let shape = shape(level, 4, 64 * KIB);
    let group = Group::create_with(&sim, shape, Protection::plain(CrashSafety::Off), (0..4).map(drive).collect(), 1);
    let array = group.leader().clone();
    let size = group.size();
    sim.block_on(array.write(0, Buf::from(vec![1; size as usize]), true)).expect("nothing is wrong with the drives");
    let before = sim.ops_done();
    let mut rng = sim.rng();
    for _ in 0..TASKS {
        let (env, array, mut rng) = (env.clone(), array.clone(), rng.fork());
        let data = Buf::from(vec![7; 4096]);
        env.clone().spawn(async move {
            let mut buf = env.alloc(4096);
            for _ in 0..REQUESTS / TASKS {
                let offset = rng.below(size / 4096) * 4096;
                if rng.chance(reads_of_ten, 10) {
                    buf = array.read(offset, buf).await.expect("nothing is wrong with the drives");
                } else {
                    array.write(offset, data.clone(), false).await.expect("nothing is wrong with the drives");
                }
            }
        });
    }
    let start_ns = cpu_ns();
    sim.run_until_idle();
    let seconds = (cpu_ns() - start_ns) as f64 / 1e9;
    (REQUESTS as f64 / seconds / 1e6, (sim.ops_done() - before) as f64 / seconds / 1e6)
}

/// Time this thread has spent on a processor (proc(5), `/proc/pid/schedstat`): not disturbed by who
/// else wants it.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with scheduler statistics");
    let run_ns = stat.split(' ').next().expect("three numbers");
    run_ns.parse().expect("nanoseconds are a number")
}
