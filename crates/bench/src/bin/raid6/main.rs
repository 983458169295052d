//! Random writes that are smaller than a stripe: RAID 6 over six loop devices in memory, compared
//! with btrfs raid6 over the same devices and with the speed of the devices for the same
//! operations.
//!
//! Each turn is set up and torn down again, because the contenders share the devices. All
//! contenders have the same size and are written as a whole before they are measured. Needs root,
//! for loop devices and mounts.

mod devices;

use std::path::Path;
use std::process::{Command, ExitCode};

use bench::arguments::Turns;
use bench::daemon::{Daemon, DriveCounts};
use bench::process::output;
use bench::report::{Report, Row, Target};
use bench::rounds::{Basis, Rounds, Sample};
use bench::{Error, fio};
use clap::Parser;
use devices::{Loops, Mount};

/// Benchmarks 4 KiB random writes on RAID 6, compared with btrfs and the raw devices. Needs root.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    turns: Turns,
    /// Seconds of one turn of one contender
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    turn_s: u64,
    /// Bytes of each device
    #[arg(long, default_value_t = 320, value_parser = clap::value_parser!(u64).range(256..))]
    device_mib: u64,
    /// Writes in flight
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    depth: u64,
    /// Number of single writes whose drive operations are counted
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..))]
    counted: u64,
}

const DEVICES: usize = 6;
const MIB: u64 = 1 << 20;

const PURLIN: usize = 0;
const BTRFS: usize = 1;
const RAW: usize = 2;
const UNLOGGED: usize = 3;
const LOGGED: usize = 4;

/// Purlin with default options, with the log only, and with neither log nor checksums: names,
/// options, and the expected additional writes. With checksums, a log record is on one more member.
/// A flush, also one by the log, writes each checksum block that has changed: at most three for
/// each write.
const FORMS: [Form; 3] = [
    Form { contender: PURLIN, name: "as it is", options: &[], logs: 3.0, saved_most: 3.0 },
    Form {
        contender: LOGGED,
        name: "log on, no checksums",
        options: &["--checksums", "off"],
        logs: 2.0,
        saved_most: 0.0,
    },
    Form {
        contender: UNLOGGED,
        name: "log off, no checksums",
        options: &["--crash-safety", "off"],
        logs: 0.0,
        saved_most: 0.0,
    },
];

struct Form {
    contender: usize,
    name: &'static str,
    options: &'static [&'static str],
    /// Writes to the logs of members, for each user write.
    logs: f64,
    /// Most checksum blocks that are written, for each user write.
    saved_most: f64,
}

/// Expected reads and writes for a 4 KiB write: the data strip and both parity strips.
const OPERATIONS_PER_WRITE: f64 = 3.0;

/// Reads and writes of the drives for each user write: one write at a time, then in a turn.
type Counts = [[f64; 2]; 2];

/// Reads and writes of the drives between two counts, for each user write.
fn per_write(from: DriveCounts, to: DriveCounts, writes: f64) -> [f64; 2] {
    [(to.reads - from.reads) as f64 / writes, (to.writes - from.writes) as f64 / writes]
}

struct Bench<'a> {
    arguments: &'a Arguments,
    dir: &'a Path,
    loops: &'a Loops,
    /// Bytes that are written at random: half of the capacity of six devices with two parities.
    bytes: u64,
    /// The counts of each form in its last turn.
    counts: [Option<Counts>; 3],
}

impl Bench<'_> {
    fn job(&self, depth: u64) -> Vec<String> {
        let size = self.bytes;
        vec!["--rw=randwrite".into(), "--bs=4k".into(), format!("--iodepth={depth}"), format!("--size={size}")]
    }

    fn timed(&self, mut job: Vec<String>) -> Vec<String> {
        job.extend(["--time_based".into(), format!("--runtime={}", self.arguments.turn_s)]);
        job
    }

    /// Starts a daemon on these cores, or on all, with its files in `dir`, and a group of one of
    /// the [`FORMS`] that is written once in sequence. Returns the daemon, and fio's arguments for
    /// the group.
    fn serve(&self, form: usize, dir: &Path, cores: Option<&str>) -> Result<(Daemon, [String; 2]), Error> {
        // The daemon refuses drives with a file system.
        output(Command::new("wipefs").args(["--all", "--force", "--quiet"]).args(self.loops.paths()))?;
        let daemon = Daemon::start(dir, cores)?;
        let uri = daemon.serve_with("tank", "raid6", FORMS[form].options, self.loops.paths(), self.bytes)?;
        fio::fill(&uri, self.bytes)?;
        Ok((daemon, ["--ioengine=nbd".to_owned(), format!("--uri={uri}")]))
    }

    /// Runs a turn of one of the [`FORMS`].
    fn purlin(&mut self, form: usize, last: bool) -> Result<Sample, Error> {
        let dir = tempfile::tempdir_in(self.dir)?;
        let (daemon, nbd) = self.serve(form, dir.path(), None)?;
        let start = (daemon.process().cpu_s()?, daemon.drive_counts()?);
        let done = run(&[&nbd[..], &self.timed(self.job(self.arguments.depth))].concat())?;
        let end = (daemon.process().cpu_s()?, daemon.drive_counts()?);
        daemon.purlin(&["group", "delete", "tank", "--yes"])?;
        if last {
            self.counts[form] = Some([self.count_alone(form)?, per_write(start.1, end.1, done.operations)]);
        }
        Ok(Sample { amount: done.operations, wall_s: done.wall_s, cpu_s: end.0 - start.0 })
    }

    /// Counts the drive operations of writes that come one at a time. The daemon runs on one core:
    /// several shards may change owners of a group, and write the superblocks then.
    fn count_alone(&self, form: usize) -> Result<[f64; 2], Error> {
        let dir = tempfile::tempdir_in(self.dir)?;
        let core = runtime::Config::default().cores[0].to_string();
        let (daemon, nbd) = self.serve(form, dir.path(), Some(&core))?;
        let number = format!("--number_ios={}", self.arguments.counted);
        let from = daemon.quiet_drive_counts()?;
        let done = run(&[&nbd[..], &self.job(1), &[number]].concat())?;
        let counts = per_write(from, daemon.drive_counts()?, done.operations);
        daemon.purlin(&["group", "delete", "tank", "--yes"])?;
        Ok(counts)
    }

    fn btrfs(&self) -> Result<Sample, Error> {
        let mut make = Command::new("mkfs.btrfs");
        make.args(["--quiet", "--force", "--data", "raid6", "--metadata", "raid1c3"]).args(self.loops.paths());
        output(&mut make)?;
        let mount = Mount::btrfs(self.loops.paths(), &self.dir.join("btrfs"))?;
        let file = format!("--filename={}", mount.path().join("file").display());
        let size = format!("--size={}", self.bytes);
        let direct = ["--ioengine=io_uring".to_owned(), "--direct=1".to_owned(), file];
        let fill = ["--rw=write".to_owned(), "--bs=1m".to_owned(), "--iodepth=4".to_owned(), size];
        run(&[&direct[..], &fill, &["--end_fsync=1".to_owned()]].concat())?;
        sample(run(&[&direct[..], &self.timed(self.job(self.arguments.depth))].concat())?)
    }

    /// Runs as many 4 KiB reads as writes, spread over the devices, with as many in flight as the
    /// writes of the other contenders cause.
    fn raw(&self) -> Result<Sample, Error> {
        let depth = self.arguments.depth as f64 * OPERATIONS_PER_WRITE;
        let job = [
            "--ioengine=io_uring".to_owned(),
            "--direct=1".to_owned(),
            format!("--filename={}", self.loops.paths().join(":")),
            "--rw=randrw".to_owned(),
            "--rwmixread=50".to_owned(),
            "--bs=4k".to_owned(),
            format!("--iodepth={depth}"),
            // The size of all devices together.
            format!("--size={}", self.arguments.device_mib * MIB * DEVICES as u64),
        ];
        let mut sample = sample(run(&self.timed(job.to_vec()))?)?;
        sample.amount /= 2.0 * OPERATIONS_PER_WRITE;
        Ok(sample)
    }
}

fn run(job: &[String]) -> Result<fio::Done, Error> {
    fio::run(None, &job.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The sample of a contender in the kernel. Its CPU time belongs to no process, so only the
/// client's CPU time is known.
fn sample(done: fio::Done) -> Result<Sample, Error> {
    Ok(Sample { amount: done.operations, wall_s: done.wall_s, cpu_s: done.client_cpu_s })
}

fn measure(arguments: &Arguments, report: &mut Report) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        return Err("loop devices and mounts need root".into());
    }
    report.notes.push(output(Command::new("fio").arg("--version"))?.trim().to_owned());
    report.notes.push(output(Command::new("mkfs.btrfs").arg("--version"))?.trim().to_owned());
    // The caretaker of the loop devices removes it in any case.
    let dir = tempfile::Builder::new().prefix("purlin-bench-").tempdir_in("/dev/shm")?.keep();
    let loops = Loops::new(&dir, DEVICES, arguments.device_mib * MIB)?;
    let bytes = arguments.device_mib * MIB * (DEVICES as u64 - 2) / 2;
    let mut bench = Bench { arguments, dir: &dir, loops: &loops, bytes, counts: [None; 3] };
    let mut rounds = Rounds::new(5);
    let count = usize::from(arguments.turns.rounds);
    for round in 0..count {
        for contender in Rounds::order(5, round) {
            let sample = match FORMS.iter().position(|form| form.contender == contender) {
                Some(form) => bench.purlin(form, round + 1 == count)?,
                None if contender == BTRFS => bench.btrfs()?,
                None => bench.raw()?,
            };
            rounds.add(contender, sample);
        }
    }
    let what = ("4 KiB random writes, RAID 6 over 6 loop devices", "IOPS");
    let row = |of, peer, name, target| Row::of(what, &rounds, Basis::Wall, of, (peer, name), target);
    report.rows = vec![
        row(PURLIN, BTRFS, "btrfs raid6", Some(Target::AtLeast(3.0))),
        row(PURLIN, UNLOGGED, "neither log nor checksums", None),
        row(LOGGED, UNLOGGED, "no checksums: log off", Some(Target::AtLeast(0.75))),
        row(UNLOGGED, RAW, "off: 3 reads + 3 writes, raw", Some(Target::AtLeast(0.7))),
    ];
    for (form, counts) in FORMS.iter().zip(bench.counts) {
        let [alone, busy] = counts.ok_or("the last round counts")?;
        let name = form.name;
        let what = |kind: &str| format!("drive {kind} per write, one at a time, {name}");
        let writes = OPERATIONS_PER_WRITE + form.logs + form.saved_most;
        let exactly = Target::Exactly(1.0);
        let target = if form.saved_most > 0.0 { Target::AtMost(1.0) } else { exactly };
        report.rows.push(Row::count(&what("reads"), "", alone[0], OPERATIONS_PER_WRITE, exactly));
        report.rows.push(Row::count(&what("writes"), "", alone[1], writes, target));
        report.notes.push(format!(
            "At depth {}, {name}: {:.4} reads and {:.4} writes of drives per write; fewer than one at a time where writes met and were gathered.",
            arguments.depth, busy[0], busy[1]
        ));
    }
    report.notes.push(format!(
        "Purlin: fio's nbd engine on a Unix socket. btrfs: a plain file, written once, then direct by io_uring; data raid6, metadata raid1c3. \
         Raw: direct by io_uring, depth {}. Nothing is pinned. {} MiB are written at random.",
        arguments.depth * 3,
        bytes / MIB
    ));
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    Report::run("raid6", usize::from(arguments.turns.rounds), arguments.turns.json, |report| {
        measure(&arguments, report)
    })
}
