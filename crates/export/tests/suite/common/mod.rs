//! A server for tests: a volume whose answers can be held back or failed, served on shards, and
//! ways to reach it.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod honest;
pub mod nvme;

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use drive::{Block, BlockError, Buf, BufMut, Extent, WriteZeroes};
use export::{ExportState, Exports, Ram, ServerConfig, serve};
use nbd::client::{self, Reply};
use nbd::wire::{opt, rep};
use runtime::{Config, Listener, Runtime, ShardEnv};

/// How long a test waits for an event that must happen. Build machines are slow at times.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Reads the available bytes, and waits if there are none. A call with a time limit is not
/// restarted by itself when the process was stopped and continues.
pub fn read_some(stream: &mut impl Read, into: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// A volume in memory that a test can hold and break.
#[derive(Clone)]
pub struct Volume {
    pub ram: Ram,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    held: Mutex<(bool, Vec<Waker>)>,
    error: Mutex<Option<BlockError>>,
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
    entered: AtomicUsize,
}

struct InFlight<'a>(&'a Shared);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Volume {
    pub fn new(size_bytes: u64) -> Volume {
        Volume { ram: Ram::new(size_bytes), shared: Arc::default() }
    }

    /// From now on requests wait in the volume.
    pub fn hold(&self) {
        self.shared.held.lock().unwrap().0 = true;
    }

    /// Lets all requests go.
    pub fn release(&self) {
        let wakers = {
            let mut held = self.shared.held.lock().unwrap();
            held.0 = false;
            std::mem::take(&mut held.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Every request fails with this error; with `None`, no request does.
    pub fn fail(&self, error: Option<BlockError>) {
        *self.shared.error.lock().unwrap() = error;
    }

    /// Requests that are in the volume now.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::SeqCst)
    }

    /// The most requests that were in the volume at a time.
    pub fn in_flight_max(&self) -> usize {
        self.shared.in_flight_max.load(Ordering::SeqCst)
    }

    /// Requests that have come so far.
    pub fn entered(&self) -> usize {
        self.shared.entered.load(Ordering::SeqCst)
    }

    async fn enter(&self) -> Result<InFlight<'_>, BlockError> {
        self.shared.entered.fetch_add(1, Ordering::SeqCst);
        let now = self.shared.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.shared.in_flight_max.fetch_max(now, Ordering::SeqCst);
        let guard = InFlight(&self.shared);
        poll_fn(|context| {
            let mut held = self.shared.held.lock().unwrap();
            if held.0 {
                held.1.push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        match &*self.shared.error.lock().unwrap() {
            Some(error) => Err(error.clone()),
            None => Ok(guard),
        }
    }
}

impl Block for Volume {
    fn size_bytes(&self) -> u64 {
        self.ram.size_bytes()
    }

    fn optimal_io_bytes(&self) -> u32 {
        self.ram.optimal_io_bytes()
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        let _in = self.enter().await?;
        self.ram.read(offset, buf).await
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let _in = self.enter().await?;
        self.ram.write(offset, data, fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        let _in = self.enter().await?;
        self.ram.write_zeroes(offset, len, how).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let _in = self.enter().await?;
        self.ram.discard(offset, len).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        let _in = self.enter().await?;
        self.ram.flush().await
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.ram.extents(offset, len).await
    }
}

/// A running server. Stops when it is dropped.
pub struct Served {
    runtime: Option<Runtime>,
    pub directory: PathBuf,
    pub exports: Exports<Volume>,
    pub address: Option<SocketAddr>,
}

impl Served {
    /// Serves on a Unix socket, or with `tcp` on a free port of this host, by `shards` shards.
    pub fn start(config: ServerConfig, tcp: bool, shards: usize) -> Served {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("purlin-export-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("nbd.sock");

        let allowed = Config::default().cores;
        let cores = (0..shards).map(|index| allowed[index % allowed.len()]).collect();
        let runtime = Runtime::start(Config { cores, ..Config::default() }).unwrap();
        let exports = Exports::default();
        let handles = if shards == 1 { Vec::new() } else { runtime.shards().to_vec() };
        let (sender, receiver) = mpsc::channel();
        let catalog = exports.clone();
        runtime
            .shard(0)
            .spawn(move || async move {
                let env = ShardEnv::current();
                let listener = if tcp {
                    Listener::bind_tcp(&env, "127.0.0.1:0".parse().unwrap()).unwrap()
                } else {
                    Listener::bind_unix(&env, &path, 0o600).unwrap()
                };
                sender.send(listener.local_addr()).unwrap();
                serve(env, listener, handles, config, move || catalog.clone()).await;
            })
            .unwrap();
        let address = receiver.recv_timeout(PATIENCE).unwrap();
        Served { runtime: Some(runtime), directory, exports, address }
    }

    /// A Unix socket, one shard, and one export `disk` of `size_bytes`.
    pub fn disk(size_bytes: u64) -> (Served, Volume, Arc<ExportState>) {
        let served = Served::start(ServerConfig::default(), false, 1);
        let (volume, export) = served.add("disk", size_bytes, false);
        (served, volume, export)
    }

    pub fn add(&self, name: &str, size_bytes: u64, read_only: bool) -> (Volume, Arc<ExportState>) {
        let volume = Volume::new(size_bytes);
        let export = ExportState::new(name, "for tests", read_only);
        self.exports.add(volume.clone(), export.clone());
        (volume, export)
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join("nbd.sock")
    }

    /// The URI of an export for third-party clients.
    pub fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket().display())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.stop();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Waits until something is true.
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A client that sends arbitrary bytes.
pub struct Raw {
    pub stream: UnixStream,
    /// Length of the reads in flight, by cookie.
    reads: std::collections::HashMap<u64, usize>,
    pending: Vec<u8>,
}

impl Raw {
    /// Connects, up to the greeting and the client's flags.
    pub fn connect(path: &Path) -> Raw {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(&client::flags(true, true)).unwrap();
        Raw { stream, reads: Default::default(), pending: Vec::new() }
    }

    /// Connects, up to the transmission phase of an export.
    pub fn on(path: &Path, name: &str, structured: bool) -> Raw {
        let mut raw = Raw::connect(path);
        if structured {
            raw.send(&client::option(opt::STRUCTURED_REPLY, &[]));
            assert_eq!(raw.option_reply().kind, rep::ACK);
        }
        raw.send(&client::go(name, &[]));
        loop {
            let reply = raw.option_reply();
            match reply.kind {
                rep::INFO => {}
                rep::ACK => return raw,
                kind => panic!("refused with {kind:#x}: {}", String::from_utf8_lossy(&reply.payload)),
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn read(&mut self, cookie: u64, offset: u64, len: u32) {
        self.reads.insert(cookie, len as usize);
        self.send(&client::read(cookie, offset, len));
    }

    pub fn option_reply(&mut self) -> client::OptionReply {
        self.parse(|input, _| client::option_reply(input)).expect("a reply")
    }

    pub fn reply(&mut self) -> Reply {
        self.try_reply().expect("a reply, not the end")
    }

    /// `None` if the server has closed the connection.
    pub fn try_reply(&mut self) -> Option<Reply> {
        self.parse(|input, reads| client::reply(input, |cookie| *reads.get(&cookie).unwrap_or(&0)))
    }

    fn parse<T>(
        &mut self,
        parse: impl Fn(&mut &[u8], &std::collections::HashMap<u64, usize>) -> Option<T>,
    ) -> Option<T> {
        loop {
            let mut rest = self.pending.as_slice();
            if let Some(reply) = parse(&mut rest, &self.reads) {
                let left = rest.len();
                self.pending.drain(..self.pending.len() - left);
                return Some(reply);
            }
            let mut more = vec![0; 1 << 20];
            match read_some(&mut self.stream, &mut more) {
                Ok(0) => return None,
                Ok(len) => self.pending.extend_from_slice(&more[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    /// The error of the next reply, in any form. 0 if it has none.
    pub fn error(&mut self) -> u32 {
        match self.reply() {
            Reply::Simple { error, .. } => error,
            Reply::Chunk { kind: nbd::wire::chunk::ERROR, payload, .. } => {
                u32::from_be_bytes(payload[..4].try_into().unwrap())
            }
            Reply::Chunk { .. } => 0,
        }
    }

    /// The server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.try_reply().is_none()
    }
}

/// Whether a tool is installed. Prints a message if it is not.
pub fn has(tool: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|paths| std::env::split_paths(&paths).any(|path| path.join(tool).is_file()));
    if !found {
        println!("SKIPPED: {tool} is not installed here");
    }
    found
}

/// A Python that has libnbd. Prints a message if there is none. Debian's module belongs to Debian's
/// interpreter.
pub fn python_with_libnbd() -> Option<&'static str> {
    let knows = |python: &&str| {
        Command::new(python).args(["-c", "import nbd"]).output().is_ok_and(|output| output.status.success())
    };
    let python = ["/usr/bin/python3", "python3"].into_iter().find(knows);
    if python.is_none() {
        println!("SKIPPED: no python3 with the module nbd (python3-libnbd) is installed here");
    }
    python
}

/// Runs a program for at most two minutes, and shows its output if it failed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// As [`run`], for programs that may fail.
pub fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new("timeout").arg("120").arg(program).args(arguments).output().unwrap()
}
