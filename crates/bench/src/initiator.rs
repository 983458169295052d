//! An NVMe/TCP host that only generates load. It polls its I/O queues.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nvme::host::{Blocks, Dialogue, Next, Setup, Submission, Wish, connect_io, connected, io};
use nvme::target::Host;
use nvme::tcp::{Digests, HostLimits, HostReceiver, HostStep};
use nvme::{Command, Completion, Nqn};

use crate::Error;

/// The load of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The load consists of writes; otherwise of reads.
    pub writes: bool,
    /// Bytes of each command.
    pub bytes: u32,
    /// Commands in flight.
    pub depth: u16,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.writes { "writes" } else { "reads" };
        write!(f, "{} KiB random {kind} over NVMe/TCP, depth {}", self.bytes / 1024, self.depth)
    }
}

/// Loads for which other projects publish figures.
pub const LOADS: [Load; 7] = [
    Load { writes: false, bytes: 4096, depth: 1 },
    Load { writes: false, bytes: 4096, depth: 32 },
    Load { writes: false, bytes: 4096, depth: 128 },
    Load { writes: true, bytes: 4096, depth: 32 },
    Load { writes: true, bytes: 4096, depth: 128 },
    Load { writes: false, bytes: 128 << 10, depth: 8 },
    Load { writes: true, bytes: 128 << 10, depth: 8 },
];

/// The part of the volume that the load is on.
#[derive(Debug, Clone, Copy)]
pub struct NamespacePart {
    /// NSID.
    pub nsid: u32,
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
}

/// Most bytes that are received at once.
const INPUT_BYTES: usize = 1 << 20;

/// A queue on a socket.
struct Queue {
    stream: TcpStream,
    machine: HostReceiver,
    input: Vec<u8>,
    start: usize,
    end: usize,
}

impl Queue {
    fn connect(address: SocketAddr, entries: u16) -> Result<Queue, Error> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let limits =
            HostLimits { digests: Digests::default(), alignment: 0, requests_max: 1, commands_max: entries - 1 };
        let machine = HostReceiver::new(limits);
        let mut queue = Queue { stream, machine, input: vec![0; INPUT_BYTES], start: 0, end: 0 };
        queue.stream.write_all(&queue.machine.request())?;
        while queue.machine.writer().is_none() {
            queue.step(true, &mut Vec::new())?;
        }
        Ok(queue)
    }

    /// Takes one step. Returns a completion if there is one. Without `waits`, also returns `None`
    /// if nothing has arrived.
    fn step(&mut self, waits: bool, data: &mut Vec<u8>) -> Result<Option<Completion>, Error> {
        loop {
            let (taken, step) = self.machine.step(&self.input[self.start..self.end]);
            let from = self.start;
            self.start += taken;
            match step {
                HostStep::Continue => {}
                HostStep::Initialized(_) => return Ok(None),
                HostStep::Data { len, .. } if waits => data.extend_from_slice(&self.input[from..from + len]),
                // A load does not use the data that it reads.
                HostStep::Data { .. } => {}
                HostStep::Completed { completion, .. } => return Ok(Some(completion)),
                HostStep::NeedMore | HostStep::Receive { .. } => {
                    self.input.copy_within(self.start..self.end, 0);
                    (self.start, self.end) = (0, self.end - self.start);
                    match self.stream.read(&mut self.input[self.end..]) {
                        Ok(0) => return Err("the target closed the connection".into()),
                        Ok(len) => self.end += len,
                        Err(error) if !waits && error.kind() == ErrorKind::WouldBlock => return Ok(None),
                        Err(error) => return Err(error.into()),
                    }
                }
                other => return Err(format!("the target says {other:?}").into()),
            }
        }
    }

    /// Sends a command and waits for its answer.
    fn ask(&mut self, submission: &Submission) -> Result<(Completion, Vec<u8>), Error> {
        let mut out = Vec::new();
        self.put(submission.command, submission, &mut out)?;
        self.stream.write_all(&out)?;
        let mut data = Vec::new();
        loop {
            if let Some(completion) = self.step(true, &mut data)? {
                return Ok((completion, data));
            }
        }
    }

    fn put(&mut self, mut command: Command, submission: &Submission, out: &mut Vec<u8>) -> Result<(), Error> {
        let cid = self.machine.begin(submission.transfer()).ok_or("more commands than entries")?;
        command.cid = cid.into();
        let writer = self.machine.writer().ok_or("the connection is not initialized")?;
        out.extend_from_slice(&writer.command(command, submission.data.len()));
        out.extend_from_slice(&submission.data);
        Ok(())
    }
}

/// A host with a controller and I/O queues.
pub struct Initiator {
    /// If the admin queue ended, the I/O queues would end.
    _admin: Queue,
    queues: Vec<Queue>,
}

impl Initiator {
    /// Connects to a subsystem, with one I/O queue.
    ///
    /// # Errors
    /// If the target refuses the host, or violates the protocol.
    pub fn connect(address: SocketAddr, subsystem: &Nqn, entries: u16) -> Result<Initiator, Error> {
        Initiator::connect_as("bench", address, subsystem, 1, entries)
    }

    /// Connects to a subsystem as a host of this name, with `queues` I/O queues.
    ///
    /// # Errors
    /// As for [`Initiator::connect`].
    pub fn connect_as(
        name: &str,
        address: SocketAddr,
        subsystem: &Nqn,
        queues: u16,
        entries: u16,
    ) -> Result<Initiator, Error> {
        let mut id = [7; 16];
        id.iter_mut().zip(name.bytes()).for_each(|(byte, of_name)| *byte = of_name);
        let host = Host { nqn: format!("nqn.2026-11.com.example:{name}").parse()?, id };
        let mut admin = Queue::connect(address, 32)?;
        let wish = Wish {
            host: host.clone(),
            subsystem: subsystem.clone(),
            queue_entries: 32,
            keep_alive_ms: 0,
            queues,
            events: 0,
        };
        let mut setup = Setup::new(wish);
        let established = loop {
            match setup.next() {
                Next::Send(submission) => {
                    let (completion, data) = admin.ask(&submission)?;
                    setup.answer(&completion, &data)?;
                }
                Next::Wait(millis) => std::thread::sleep(Duration::from_millis(millis.into())),
                Next::Done(established) => break established,
            }
        };
        let connect = |number| -> Result<Queue, Error> {
            let mut queue = Queue::connect(address, entries)?;
            let (completion, _) = queue.ask(&connect_io(&host, subsystem, established.cntlid, number, entries))?;
            connected(&completion)?;
            queue.stream.set_nonblocking(true)?;
            Ok(queue)
        };
        let queues = (1..=queues).map(connect).collect::<Result<_, Error>>()?;
        Ok(Initiator { _admin: admin, queues })
    }

    /// Sends a command on an I/O queue and does not wait for the completion. Data that the target
    /// requests is not sent. Returns whether the socket accepted the command.
    ///
    /// # Errors
    /// If the target has closed the connection, or the queue has no free entry.
    pub fn post(&mut self, queue: usize, submission: &Submission) -> Result<bool, Error> {
        let (mut out, queue) = (Vec::new(), &mut self.queues[queue]);
        queue.put(submission.command, submission, &mut out)?;
        match queue.stream.write(&out) {
            Ok(len) if len == out.len() => Ok(true),
            Ok(_) => Err("the socket took a part of a command".into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the completions that have arrived on an I/O queue. Returns how many there were.
    ///
    /// # Errors
    /// If the target has closed the connection.
    pub fn answers(&mut self, queue: usize) -> Result<u64, Error> {
        let mut count = 0;
        while self.queues[queue].step(false, &mut Vec::new())?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Reads 4 KiB at random offsets, one read at a time, for `duration`. Returns the latency of
    /// each read in nanoseconds.
    ///
    /// # Errors
    /// If a read fails.
    pub fn latencies(&mut self, place: NamespacePart, duration: Duration) -> Result<Vec<u64>, Error> {
        let load = Load { writes: false, bytes: 4096, depth: 1 };
        let (begin, mut last) = (Instant::now(), None);
        let (mut taken, mut random) = (Vec::new(), 0x9E37_79B9_7F4A_7C15_u64);
        self.run_at(load, place, || {
            let now = Instant::now();
            taken.extend(last.replace(now).map(|last: Instant| (now - last).as_nanos() as u64));
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (begin.elapsed() < duration).then_some((random >> 16) % (place.volume_bytes / 4096))
        })?;
        Ok(taken)
    }

    /// Runs `load` for `duration` at random offsets of the volume. Returns the number of completed
    /// commands.
    ///
    /// # Errors
    /// If a command fails.
    pub fn run(&mut self, load: Load, place: NamespacePart, duration: Duration) -> Result<u64, Error> {
        let slots = place.volume_bytes / u64::from(load.bytes);
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        let begin = Instant::now();
        self.run_at(load, place, || {
            // xorshift64
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (begin.elapsed() < duration).then_some(random % slots)
        })
    }

    /// Writes the whole volume once, because space that was never written is read faster.
    ///
    /// # Errors
    /// If a command fails.
    pub fn fill(&mut self, place: NamespacePart) -> Result<(), Error> {
        let load = Load { writes: true, bytes: 128 << 10, depth: 8 };
        let mut slots = 0..place.volume_bytes / u64::from(load.bytes);
        self.run_at(load, place, || slots.next()).map(|_| ())
    }

    /// Runs `load` at the offsets from `next`, in units of its size, until `next` returns `None`.
    /// Returns the number of completed commands.
    fn run_at(
        &mut self,
        load: Load,
        place: NamespacePart,
        mut next: impl FnMut() -> Option<u64>,
    ) -> Result<u64, Error> {
        let reply_bytes = if load.writes { 0 } else { load.bytes };
        let data = if load.writes { vec![0x5A; load.bytes as usize] } else { Vec::new() };
        let blank = Command::new(0, 0, place.nsid);
        let submission = Submission { command: blank, data, reply_bytes };
        let (mut out, mut sent) = (Vec::new(), 0);
        let (mut in_flight, mut done, mut goes_on) = (0, 0, true);
        loop {
            while goes_on && in_flight < load.depth {
                let Some(slot) = next() else {
                    goes_on = false;
                    break;
                };
                let count = load.bytes / place.block_bytes;
                let blocks = Blocks { nsid: place.nsid, first: slot * u64::from(count), count };
                let command =
                    if load.writes { io::write(blocks, load.bytes, true, false) } else { io::read(blocks, load.bytes) };
                self.queues[0].put(command, &submission, &mut out)?;
                in_flight += 1;
            }
            if !goes_on && in_flight == 0 {
                return Ok(done);
            }
            if sent < out.len() {
                match self.queues[0].stream.write(&out[sent..]) {
                    Ok(len) => sent += len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if sent == out.len() {
                out.clear();
                sent = 0;
            }
            while let Some(completion) = self.queues[0].step(false, &mut Vec::new())? {
                if !completion.status().is_success() {
                    return Err(format!("a command failed: {}", completion.status()).into());
                }
                in_flight -= 1;
                done += 1;
            }
        }
    }
}
