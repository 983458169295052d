//! A network that fails on command.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvme::tcp::Kind;

/// Forwards connections to a target.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: Mutex<SocketAddr>,
    streams: Mutex<Vec<TcpStream>>,
    /// New connections are closed at once.
    refuses: AtomicBool,
    /// No bytes go through in either direction.
    stalls: AtomicBool,
    /// Each direction of a connection is cut after about this many bytes.
    cuts_after: AtomicU64,
    /// Each piece is delayed by this many milliseconds.
    delays_ms: AtomicU64,
    /// The ANA state that targets report, if it replaces theirs.
    access: AtomicU8,
    damage: Mutex<Option<Damage>>,
    /// Damaged PDUs so far.
    damaged: AtomicU64,
    connections: AtomicU64,
    stops: AtomicBool,
    /// The recorded traffic, if recording is on.
    recorded: Mutex<Option<Vec<Recorded>>>,
}

/// Damage to the next PDUs of a type in transit. The type also gives the direction.
#[derive(Clone, Copy)]
pub struct Damage {
    pub kind: Kind,
    pub at: At,
    /// The bits of this byte that are flipped.
    pub flips: u8,
    /// This many PDUs pass undamaged first. PDUs that are too short do not count, here and below.
    pub after: u64,
    /// The number of PDUs to damage.
    pub times: u64,
}

/// A byte of a PDU.
#[derive(Clone, Copy)]
pub enum At {
    /// From the start of the header, behind its common part of 8 bytes.
    Header(usize),
    /// From the start of the data.
    Data(usize),
}

/// The bytes of one direction of a connection.
#[derive(Clone)]
pub struct Recorded {
    pub to_host: bool,
    pub bytes: Vec<u8>,
}

impl Proxy {
    pub fn to(upstream: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            streams: Mutex::default(),
            refuses: AtomicBool::new(false),
            stalls: AtomicBool::new(false),
            cuts_after: AtomicU64::new(u64::MAX),
            delays_ms: AtomicU64::new(0),
            access: AtomicU8::new(0),
            damage: Mutex::default(),
            damaged: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            stops: AtomicBool::new(false),
            recorded: Mutex::default(),
        });
        let for_thread = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if for_thread.stops.load(SeqCst) {
                    return;
                }
                if let Ok(stream) = stream {
                    for_thread.forward(stream);
                }
            }
        });
        Proxy { address, shared }
    }

    /// Cuts all current connections.
    pub fn cut(&self) {
        for stream in std::mem::take(&mut *self.shared.streams.lock().unwrap()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// New connections go to another target.
    pub fn lead_to(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().unwrap() = upstream;
    }

    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, SeqCst);
    }

    pub fn stall(&self, stalls: bool) {
        self.shared.stalls.store(stalls, SeqCst);
    }

    /// From now on each direction of each new connection is cut somewhere within this many bytes.
    pub fn cut_after(&self, bytes: u64) {
        self.shared.cuts_after.store(bytes, SeqCst);
    }

    pub fn delay(&self, ms: u64) {
        self.shared.delays_ms.store(ms, SeqCst);
    }

    /// Replaces the target's ANA states. 0: no replacement.
    pub fn access(&self, state: u8) {
        self.shared.access.store(state, SeqCst);
    }

    /// From now on PDUs are damaged, counted over all connections.
    pub fn damage(&self, damage: Damage) {
        *self.shared.damage.lock().unwrap() = Some(damage);
    }

    /// Damaged PDUs so far.
    pub fn damaged(&self) -> u64 {
        self.shared.damaged.load(SeqCst)
    }

    /// From now on, the traffic of new connections is recorded. Call it once for a proxy.
    pub fn record(&self) {
        self.shared.recorded.lock().unwrap().get_or_insert_default();
    }

    /// The recorded traffic so far.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.shared.recorded.lock().unwrap().clone().unwrap_or_default()
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stops.store(true, SeqCst);
        self.cut();
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn forward(self: &Arc<Self>, near: TcpStream) {
        let count = self.connections.fetch_add(1, SeqCst);
        if self.refuses.load(SeqCst) {
            return;
        }
        let upstream = *self.upstream.lock().unwrap();
        let Ok(far) = TcpStream::connect(upstream) else { return };
        let most = self.cuts_after.load(SeqCst);
        for (way, (from, to)) in [(&near, &far), (&far, &near)].into_iter().enumerate() {
            let _ = from.set_nodelay(true);
            self.streams.lock().unwrap().push(from.try_clone().unwrap());
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            // The cut is somewhere in the second half, and never in the same place.
            let left =
                if most == u64::MAX { most } else { most / 2 + (count * 7919 + way as u64 * 104_729) % (most / 2) };
            let shared = self.clone();
            std::thread::spawn(move || shared.pump(from, to, left, way == 1));
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, mut left: u64, to_host: bool) {
        let mut bytes = vec![0; 64 << 10];
        let mut patch = Patch { to_host, ..Patch::default() };
        let kept = self.recorded.lock().unwrap().as_mut().map(|recorded| {
            recorded.push(Recorded { to_host, bytes: Vec::new() });
            recorded.len() - 1
        });
        while let Ok(len) = from.read(&mut bytes) {
            while self.stalls.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let delay = self.delays_ms.load(SeqCst);
            if delay > 0 {
                std::thread::sleep(Duration::from_millis(delay));
            }
            let part = &mut bytes[..len.min(usize::try_from(left).unwrap_or(usize::MAX))];
            patch.apply(part, self);
            left -= part.len() as u64;
            if let (Some(index), Some(recorded)) = (kept, &mut *self.recorded.lock().unwrap()) {
                recorded[index].bytes.extend_from_slice(part);
            }
            if part.is_empty() || to.write_all(part).is_err() || left == 0 {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// Follows the PDUs of one direction of a connection to change them: the ANA state in the log of a
/// target (8 groups were requested, 272 bytes), and the bits to be damaged.
#[derive(Default)]
struct Patch {
    to_host: bool,
    /// The common header of the next PDU.
    head: Vec<u8>,
    /// Bytes of the PDU that are still to come.
    left: usize,
    /// The current place in the PDU.
    at: usize,
    /// The PDU is the log.
    is_log: bool,
    /// The place in the PDU where bits are flipped, and which.
    flips: Option<(usize, u8)>,
}

impl Patch {
    fn apply(&mut self, bytes: &mut [u8], shared: &Shared) {
        const HEAD: usize = 24;
        // The first group's state, behind the head of the log.
        const STATE: usize = HEAD + 16 + 16;
        let access = shared.access.load(SeqCst);
        for byte in bytes {
            if self.left == 0 {
                self.head.push(*byte);
                if self.head.len() < 8 {
                    continue;
                }
                let len = u32::from_le_bytes(self.head[4..8].try_into().unwrap()) as usize;
                self.is_log = self.to_host && self.head[0] == Kind::C2hData as u8 && len == HEAD + 272;
                self.flips = shared.flips(self.head[0], usize::from(self.head[3]), len);
                self.at = 8;
                // Inside TLS this is not a PDU.
                self.left = len.saturating_sub(8);
                self.head.clear();
                continue;
            }
            if self.is_log && self.at == STATE && access != 0 {
                *byte = access;
            }
            if let Some((_, flips)) = self.flips.filter(|(at, _)| *at == self.at) {
                *byte ^= flips;
                shared.damaged.fetch_add(1, SeqCst);
            }
            self.at += 1;
            self.left -= 1;
        }
    }
}

impl Shared {
    /// The damage of a PDU: where, and which bits. `data_at`: where its data begins.
    fn flips(&self, kind: u8, data_at: usize, len: usize) -> Option<(usize, u8)> {
        let mut damage = self.damage.lock().unwrap();
        let damage = damage.as_mut().filter(|damage| damage.times > 0 && damage.kind as u8 == kind)?;
        let at = match damage.at {
            At::Header(at) => at,
            At::Data(_) if data_at == 0 => return None,
            At::Data(at) => data_at + at,
        };
        if at >= len {
            return None;
        }
        if damage.after > 0 {
            damage.after -= 1;
            return None;
        }
        damage.times -= 1;
        Some((at, damage.flips))
    }
}
