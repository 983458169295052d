//! Clients that use more than their share. They measure the effect on another client of the daemon.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nbd::client;
use nvme::host::{Blocks, Submission, io};
use nvme::{Command, Nqn};

use crate::Error;
use crate::initiator::Initiator;

/// The volume that attackers use, and its addresses.
#[derive(Debug, Clone)]
pub struct Target {
    /// Name of the NBD export.
    pub volume: String,
    /// Socket of the NBD export.
    pub nbd: PathBuf,
    /// Address of the NVMe/TCP export.
    pub nvme: SocketAddr,
    /// Its subsystem.
    pub subsystem: Nqn,
    /// Bytes at the start of the volume that were written. The rest was not written.
    pub written_bytes: u64,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
}

/// A way to overload the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// 64 NBD trims of 4 GiB in flight, where nothing was written.
    LongTrims,
    /// 1000 NBD trims of 64 MiB in flight, where nothing was written.
    ManyTrims,
    /// 20 Dataset Management commands in flight with 256 ranges each, which overlap.
    Deallocations,
    /// 8 NBD requests in flight that write zeroes over all written bytes and keep the space.
    Zeroes,
    /// 1000 Verify commands of 1 MiB in flight on each of 8 queues.
    Verifies,
    /// 32 writes of 1 MiB on each of 120 queues whose data never arrives.
    StalledWrites,
    /// 40 NBD reads of 1 MiB on each of 16 connections that do not receive replies.
    UnreadAnswers,
}

/// All attacks.
pub const ATTACKS: [Attack; 7] = [
    Attack::LongTrims,
    Attack::ManyTrims,
    Attack::Deallocations,
    Attack::Zeroes,
    Attack::Verifies,
    Attack::StalledWrites,
    Attack::UnreadAnswers,
];

/// Size of a block of the volume in bytes.
const BLOCK_BYTES: u32 = 4096;

/// Bytes of a command that moves data: the most that a command may have.
const LONG_BYTES: u32 = 1 << 20;

/// `NBD_CMD_TRIM` and `NBD_CMD_WRITE_ZEROES`, and the flag of the latter that keeps the space.
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
const NO_HOLE: u16 = 2;

/// Time that an attacker waits when it has nothing to do.
const PAUSE: Duration = Duration::from_millis(1);

impl Attack {
    /// Name of the attack, for a table.
    pub fn name(self) -> &'static str {
        match self {
            Attack::LongTrims => "64 trims of 4 GiB",
            Attack::ManyTrims => "1000 trims of 64 MiB",
            Attack::Deallocations => "20 deallocations of 256 ranges",
            Attack::Zeroes => "8 requests for zeroes that keep the space",
            Attack::Verifies => "8000 verifies of 1 MiB",
            Attack::StalledWrites => "120 queues with writes without data",
            Attack::UnreadAnswers => "16 clients that take no answers",
        }
    }

    /// Number of connections that the attack makes.
    pub fn connections(self) -> u64 {
        match self {
            Attack::LongTrims | Attack::ManyTrims | Attack::Zeroes => 1,
            Attack::Deallocations => 2,
            Attack::Verifies => 9,
            Attack::StalledWrites => 121,
            Attack::UnreadAnswers => 16,
        }
    }

    /// Runs until `stop` is set. Returns the number of requests that were answered.
    ///
    /// # Errors
    /// If the daemon refuses the connection or closes it.
    pub fn run(self, target: &Target, stop: &AtomicBool) -> Result<u64, Error> {
        match self {
            Attack::LongTrims => {
                let len = u32::MAX - (BLOCK_BYTES - 1);
                nbd_ranges(target, stop, 64, |cookie| client::request(0, TRIM, cookie, behind(target), len))
            }
            Attack::ManyTrims => {
                nbd_ranges(target, stop, 1000, |cookie| client::request(0, TRIM, cookie, behind(target), 64 << 20))
            }
            Attack::Zeroes => {
                let len = target.written_bytes as u32;
                nbd_ranges(target, stop, 8, |cookie| client::request(NO_HOLE, WRITE_ZEROES, cookie, 0, len))
            }
            Attack::Deallocations => nvme_commands(target, stop, 1, 20, |_| deallocation(target)),
            Attack::Verifies => nvme_commands(target, stop, 8, 1000, |number| verify(target, number)),
            Attack::StalledWrites => stalled_writes(target, stop),
            Attack::UnreadAnswers => unread_answers(target, stop),
        }
    }
}

/// The first multiple of 64 MiB after the bytes that were written.
fn behind(target: &Target) -> u64 {
    target.written_bytes.next_multiple_of(64 << 20)
}

/// A connection to the NBD export, after the handshake.
fn nbd_connection(target: &Target) -> Result<UnixStream, Error> {
    let mut stream = UnixStream::connect(&target.nbd)?;
    stream.read_exact(&mut [0; 18])?;
    stream.write_all(&client::flags(true, true))?;
    // NBD_OPT_EXPORT_NAME: the transmission phase follows size and flags at once.
    stream.write_all(&client::option(1, target.volume.as_bytes()))?;
    stream.read_exact(&mut [0; 10])?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Keeps `depth` requests with short replies in flight.
fn nbd_ranges(
    target: &Target,
    stop: &AtomicBool,
    depth: usize,
    request: impl Fn(u64) -> Vec<u8>,
) -> Result<u64, Error> {
    let mut stream = nbd_connection(target)?;
    let (mut asked, mut answered, mut half) = (0, 0, 0);
    let mut answers = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        let mut out = Vec::new();
        while asked - answered < depth as u64 {
            out.extend(request(asked));
            asked += 1;
        }
        stream.set_nonblocking(false)?;
        stream.write_all(&out)?;
        stream.set_nonblocking(true)?;
        match stream.read(&mut answers) {
            Ok(0) => return Err("the daemon closed an NBD connection".into()),
            Ok(len) => {
                // A simple reply has 16 bytes.
                answered += ((half + len) / 16) as u64;
                half = (half + len) % 16;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(answered)
}

/// Keeps `depth` commands in flight on each queue, as far as the target accepts them.
fn nvme_commands(
    target: &Target,
    stop: &AtomicBool,
    queues: u16,
    depth: u64,
    command: impl Fn(u64) -> Submission,
) -> Result<u64, Error> {
    let mut host = Initiator::connect_as("attacker", target.nvme, &target.subsystem, queues, 1024)?;
    let mut in_flight = vec![0; usize::from(queues)];
    let (mut number, mut answered) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let before = answered;
        for (queue, in_flight) in in_flight.iter_mut().enumerate() {
            while *in_flight < depth && host.post(queue, &command(number))? {
                number += 1;
                *in_flight += 1;
            }
            let ended = host.answers(queue)?;
            *in_flight -= ended;
            answered += ended;
        }
        if answered == before {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(answered)
}

fn submission(command: Command) -> Submission {
    Submission { command, data: Vec::new(), reply_bytes: 0 }
}

fn verify(target: &Target, number: u64) -> Submission {
    let count = LONG_BYTES / BLOCK_BYTES;
    let places = target.written_bytes / u64::from(LONG_BYTES);
    submission(io::verify(Blocks { nsid: 1, first: number % places * u64::from(count), count }))
}

/// 256 ranges of 4 GiB minus one block, in space that was never written. Each starts one block
/// after the previous one.
fn deallocation(target: &Target) -> Submission {
    let first = behind(target) / u64::from(BLOCK_BYTES);
    let ranges: Vec<(u64, u32)> = (0..256).map(|index| (first + index, (1 << 20) - 1)).collect();
    let (command, data) = io::deallocate(1, &ranges, true);
    Submission { command, data, reply_bytes: 0 }
}

fn stalled_writes(target: &Target, stop: &AtomicBool) -> Result<u64, Error> {
    let queues = 120;
    let mut host = Initiator::connect_as("attacker", target.nvme, &target.subsystem, queues, 64)?;
    for queue in 0..usize::from(queues) {
        for number in 0..32 {
            let count = LONG_BYTES / BLOCK_BYTES;
            let blocks = Blocks { nsid: 1, first: number * u64::from(count), count };
            host.post(queue, &submission(io::write(blocks, LONG_BYTES, false, false)))?;
        }
    }
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
    }
    Ok(0)
}

fn unread_answers(target: &Target, stop: &AtomicBool) -> Result<u64, Error> {
    let mut streams = Vec::new();
    for _ in 0..16 {
        let mut stream = nbd_connection(target)?;
        for cookie in 0..40 {
            stream.write_all(&client::read(cookie, cookie * u64::from(LONG_BYTES), LONG_BYTES))?;
        }
        streams.push(stream);
    }
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
    }
    Ok(0)
}
