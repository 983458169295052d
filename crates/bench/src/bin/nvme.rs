//! The NVMe/TCP target over loopback: a polling initiator on one core, the daemon on another.
//!
//! Compares a plain memory volume over NVMe/TCP with a program that answers requests with the same
//! numbers of bytes and does nothing else. This is the limit of loopback and the initiator.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bench::Error;
use bench::arguments::{Sides, Turns};
use bench::daemon::Daemon;
use bench::initiator::{Initiator, LOADS, Load, NamespacePart};
use bench::process::{Process, free_address, go_first, pinned};
use bench::report::{Report, Row};
use bench::rounds::{Basis, Rounds, Sample};
use clap::Parser;
use nvme::Nqn;

/// Benchmarks the NVMe/TCP target, compared with the limit of loopback.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    turns: Turns,
    /// Seconds of one turn of one contender
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    turn_s: u64,
    /// Only loads whose names contain this text, like "writes" or "depth 32"
    #[arg(long, default_value = "")]
    only: String,
    #[command(flatten)]
    sides: Sides,
    /// Run as the answering program at this address: requests of REQUEST bytes, replies of ANSWER
    /// bytes
    #[arg(long, hide = true, num_args = 3, value_names = ["ADDRESS", "REQUEST", "ANSWER"])]
    answer: Option<Vec<String>>,
}

const TARGET: usize = 0;
const LIMIT: usize = 1;
const LIMIT_NAME: &str = "the same bytes over loopback";

/// Bytes of a command without data; bytes of a response, or of a data header.
const COMMAND_BYTES: usize = 72;
const HEADER_BYTES: usize = 24;

/// Bytes of a request and of its reply.
fn traffic(load: Load) -> (usize, usize) {
    let data = load.bytes as usize;
    if load.writes { (COMMAND_BYTES + data, HEADER_BYTES) } else { (COMMAND_BYTES, HEADER_BYTES + data) }
}

/// Answers the requests of one client until it disconnects.
fn answer(address: &str, request_bytes: usize, answer_bytes: usize) -> Result<(), Error> {
    let listener = TcpListener::bind(address)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (mut input, output) = (vec![0; 1 << 20], vec![0; answer_bytes * 1024]);
    let mut left = 0;
    loop {
        let len = stream.read(&mut input)?;
        if len == 0 {
            return Ok(());
        }
        left += len;
        let mut due = left / request_bytes;
        left %= request_bytes;
        while due > 0 {
            let now = due.min(1024);
            stream.write_all(&output[..now * answer_bytes])?;
            due -= now;
        }
    }
}

/// Keeps as many requests in flight as the load does, to the answering program. Returns the number
/// of replies.
fn limit(address: SocketAddr, load: Load, duration: Duration) -> Result<u64, Error> {
    let (request_bytes, answer_bytes) = traffic(load);
    let start = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) if start.elapsed() > Duration::from_secs(5) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut input = vec![0; 1 << 20];
    let output = vec![0; request_bytes * usize::from(load.depth)];
    let (mut to_send, mut received, mut done) = (output.len(), 0, 0);
    let would_block = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    let begin = Instant::now();
    while begin.elapsed() < duration {
        if to_send > 0 {
            match stream.write(&output[..to_send]) {
                Ok(len) => to_send -= len,
                Err(error) if would_block(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match stream.read(&mut input) {
            Ok(0) => return Err("the one that answers is gone".into()),
            Ok(len) => {
                received += len;
                let answers = received / answer_bytes;
                received %= answer_bytes;
                done += answers as u64;
                to_send += answers * request_bytes;
            }
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

fn run(arguments: &Arguments, report: &mut Report) -> Result<(), Error> {
    let dir = tempfile::Builder::new().prefix("purlin-bench-").tempdir_in("/dev/shm")?;
    let daemon = Daemon::start(dir.path(), Some(&arguments.sides.server_core.to_string()))?;
    let address = free_address()?;
    let (_, nqn) = daemon.serve_nvme("plain", arguments.sides.volume_mib, address)?;
    let subsystem: Nqn = nqn.parse()?;
    let volume_bytes = arguments.sides.volume_mib << 20;
    let place = NamespacePart { nsid: 1, block_bytes: 4096, volume_bytes };

    // This program is the initiator.
    rustix::thread::sched_setaffinity(None, &{
        let mut cores = rustix::thread::CpuSet::new();
        cores.set(arguments.sides.client_core);
        cores
    })?;
    let mut initiator = Initiator::connect(address, &subsystem, 256)?;
    let turn = Duration::from_secs(arguments.turn_s);
    initiator.fill(place)?;
    for load in LOADS {
        let what = load.to_string();
        if !what.contains(&arguments.only) {
            continue;
        }
        let mut rounds = Rounds::new(2);
        for round in 0..usize::from(arguments.turns.rounds) {
            for contender in Rounds::order(2, round) {
                let begin;
                let sample = if contender == TARGET {
                    let before = daemon.process().cpu_s()?;
                    begin = Instant::now();
                    let amount = initiator.run(load, place, turn)?;
                    let wall_s = begin.elapsed().as_secs_f64();
                    Sample { amount: amount as f64, wall_s, cpu_s: daemon.process().cpu_s()? - before }
                } else {
                    let (at, (request, reply)) = (free_address()?, traffic(load));
                    let own = std::env::current_exe()?;
                    let mut command = pinned(Some(arguments.sides.server_core), own);
                    command.args(["--answer", &at.to_string(), &request.to_string(), &reply.to_string()]);
                    let process = Process::start(&mut command)?;
                    begin = Instant::now();
                    let amount = limit(at, load, turn)?;
                    Sample {
                        amount: amount as f64,
                        wall_s: begin.elapsed().as_secs_f64(),
                        cpu_s: process.cpu_s().unwrap_or(turn.as_secs_f64()),
                    }
                };
                rounds.add(contender, sample);
            }
        }
        report.rows.push(Row::of((&what, "IOPS"), &rounds, Basis::Wall, TARGET, (LIMIT, LIMIT_NAME), None));
    }
    report.notes.push(format!(
        "Daemon on core {}, initiator on core {}, which polls; one I/O queue, a plain memory volume (RAID 0 of two drives).",
        arguments.sides.server_core, arguments.sides.client_core
    ));
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some([address, request, reply]) = arguments.answer.as_deref() {
        let numbers = request.parse().ok().zip(reply.parse().ok());
        let done = numbers.map(|(request, reply)| answer(address, request, reply));
        return if matches!(done, Some(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let first = go_first();
    Report::run("nvme", usize::from(arguments.turns.rounds), arguments.turns.json, |report| {
        run(&arguments, report)?;
        report.note_priority(first);
        Ok(())
    })
}
