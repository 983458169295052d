//! An NVMe/TCP target for tests, and a blocking host for it, made of the host state machine of the
//! crate `nvme`.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use drive::Block;
use export::{
    Budget, ExportState, HostSecrets, Hosts, Keep, NamespaceOffer, Portal, SharedNamespace, SubsystemHistory,
    serve_nvme_tcp,
};
use nvme::host::{Dialogue, Established, HostError, Next, Setup, Submission, Wish, admin, connect_io, connected};
use nvme::target::{Event, Host, Reservations, Subsystem};
use nvme::tcp::{Digests, HostLimits, HostReceiver, HostStep, Request, Transfer, Violation};
use nvme::{Command, Completion, DataPlace, Nqn, Sgl, Status, nvm};
use runtime::{Config, Listener, Runtime, ShardEnv};

use super::{PATIENCE, Volume, read_some};

pub const MIB: u64 = 1 << 20;

/// Size of a block of the namespaces here, in bytes.
pub const BLOCK: u32 = 4096;

/// Header and data digests.
pub const BOTH: Digests = Digests { header: true, data: true };

/// CC.EN and the sizes of entries, as hosts set them.
pub const ENABLED: u32 = 1 | 6 << 16 | 4 << 20;

/// The subsystem of all namespaces here.
pub fn subsystem() -> Nqn {
    Nqn::of_uuid(&[0x5B; 16])
}

/// A host by its number.
pub fn host(number: u8) -> Host {
    Host { nqn: format!("nqn.2026-11.com.example:host-{number}").parse().unwrap(), id: [number; 16] }
}

/// Access for these hosts only.
pub fn only(hosts: &[u8]) -> Hosts {
    Hosts::Only(hosts.iter().map(|number| host(*number).nqn.to_string()).collect())
}

/// A portal that is served at an address of its own. It stops when it is dropped.
pub struct Target<B = Volume> {
    runtime: Option<Runtime>,
    pub portal: Portal<B>,
    pub address: SocketAddr,
    pub secrets: HostSecrets,
    pub history: SubsystemHistory,
}

impl<B: Block + Clone + Send + Sync + 'static> Target<B> {
    /// Offers nothing yet, and is served by `shards` shards.
    pub fn start(shards: usize, connections_max: usize) -> Target<B> {
        Target::start_with(shards, connections_max, Budget::new(256 << 20))
    }

    /// As [`Target::start`], with this memory budget for requests in flight.
    pub fn start_with(shards: usize, connections_max: usize, budget: Arc<Budget>) -> Target<B> {
        let allowed = Config::default().cores;
        let cores = (0..shards).map(|index| allowed[index % allowed.len()]).collect();
        let runtime = Runtime::start(Config { cores, ..Config::default() }).unwrap();
        let handles = if shards == 1 { Vec::new() } else { runtime.shards().to_vec() };
        let portal = Portal::default();
        let offered = portal.clone();
        let (sender, receiver) = mpsc::channel();
        runtime
            .shard(0)
            .spawn(move || async move {
                let env = ShardEnv::current();
                let listener = Listener::bind_tcp(&env, "127.0.0.1:0".parse().unwrap()).unwrap();
                sender.send(listener.local_addr()).unwrap();
                serve_nvme_tcp(env, listener, handles, connections_max, budget, offered).await;
            })
            .unwrap();
        let address = receiver.recv_timeout(PATIENCE).unwrap().unwrap();
        Target {
            runtime: Some(runtime),
            portal,
            address,
            secrets: HostSecrets::default(),
            history: SubsystemHistory::default(),
        }
    }

    /// Offers a volume as a namespace.
    pub fn offer(&self, nsid: u32, volume: B, hosts: Hosts, read_only: bool) -> Arc<ExportState> {
        self.offer_shared(nsid, volume, hosts, read_only, &Saved::default().namespace())
    }

    /// Offers a volume that may be offered elsewhere, too.
    pub fn offer_shared(
        &self,
        nsid: u32,
        volume: B,
        hosts: Hosts,
        read_only: bool,
        shared: &Arc<SharedNamespace>,
    ) -> Arc<ExportState> {
        let state = ExportState::new(format!("disk-{nsid}"), "for tests", read_only);
        self.offer_as(nsid, volume, hosts, state.clone(), shared);
        state
    }

    /// Offers a volume with this export state.
    pub fn offer_as(&self, nsid: u32, volume: B, hosts: Hosts, state: Arc<ExportState>, shared: &Arc<SharedNamespace>) {
        let described = Subsystem { nqn: subsystem(), serial: "TEST".to_owned(), firmware: "1".to_owned() };
        let offer = NamespaceOffer {
            block_bytes: BLOCK,
            uuid: [nsid as u8; 16],
            hosts,
            state,
            open: Arc::new(move || Some(volume.clone())),
            shared: shared.clone(),
            secrets: self.secrets.clone(),
            history: self.history.clone(),
        };
        self.portal.add(described, nsid, offer);
    }
}

impl Target {
    /// One shard, and namespace 1 for any host.
    pub fn disk(size_bytes: u64) -> (Target, Volume, Arc<ExportState>) {
        let target = Target::start(1, 1024);
        let volume = Volume::new(size_bytes);
        let state = target.offer(1, volume.clone(), Hosts::Any, false);
        (target, volume, state)
    }
}

impl<B> Drop for Target<B> {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.stop();
        }
    }
}

/// Where reservations are saved, as in a group's catalogue.
#[derive(Clone, Default)]
pub struct Saved {
    pub reservations: Arc<Mutex<Option<Reservations>>>,
    /// Saving fails from now on.
    pub fails: Arc<AtomicBool>,
}

impl Saved {
    /// A namespace with the saved reservations.
    pub fn namespace(&self) -> Arc<SharedNamespace> {
        let (reservations, fails) = (self.reservations.clone(), self.fails.clone());
        let keep: Keep = Box::new(move |saved| {
            let (reservations, fails) = (reservations.clone(), fails.clone());
            Box::pin(async move {
                if fails.load(Ordering::SeqCst) {
                    return Err("a test".to_owned());
                }
                *reservations.lock().unwrap() = saved;
                Ok(())
            })
        });
        SharedNamespace::new(self.reservations.lock().unwrap().clone().unwrap_or_default(), keep)
    }
}

/// The answer to a command.
#[derive(Debug)]
pub struct Answer {
    pub completion: Completion,
    /// The data of the answer, as many bytes as were requested.
    pub data: Vec<u8>,
    /// The data digests were right.
    pub intact: bool,
}

impl Answer {
    pub fn status(&self) -> Status {
        self.completion.status()
    }

    /// The data of a command that succeeded.
    pub fn data(self) -> Vec<u8> {
        assert!(self.status().is_success() && self.intact, "{self:?}");
        self.data
    }
}

/// The data of a command that was sent, and the space for its answer.
struct Sent {
    data: Vec<u8>,
    reply: Vec<u8>,
}

/// One connection, which is one queue.
pub struct Queue {
    pub stream: TcpStream,
    pub machine: HostReceiver,
    input: Vec<u8>,
    sent: HashMap<u16, Sent>,
    answers: VecDeque<Answer>,
    /// Requested data is sent only by [`Queue::supply`].
    pub withholds: bool,
    /// Requests for data that are not served yet.
    pub requested: VecDeque<Request>,
    /// R2Ts so far.
    pub requests: u32,
    /// FES, if the controller ended the connection with a termination request.
    pub terminated: Option<u16>,
}

impl Queue {
    /// A connection that is initialized.
    pub fn open(address: SocketAddr, digests: Digests) -> Queue {
        Queue::open_aligned(address, digests, 0)
    }

    /// As [`Queue::open`], with this HPDA.
    pub fn open_aligned(address: SocketAddr, digests: Digests, alignment: u8) -> Queue {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let limits = HostLimits { digests, alignment, requests_max: 1, commands_max: 4096 };
        let mut queue = Queue {
            stream,
            machine: HostReceiver::new(limits),
            input: Vec::new(),
            sent: HashMap::new(),
            answers: VecDeque::new(),
            withholds: false,
            requested: VecDeque::new(),
            requests: 0,
            terminated: None,
        };
        let request = queue.machine.request();
        queue.stream.write_all(&request).unwrap();
        while queue.machine.agreement().is_none() {
            assert!(queue.advance(), "the connection is initialized");
        }
        assert_eq!(queue.machine.agreement().unwrap().digests, digests);
        queue
    }

    /// Sends a command, with `data` in its capsule if its descriptor says so, and otherwise when
    /// the controller requests it. Returns the command identifier.
    pub fn send(&mut self, command: Command, data: &[u8], reply_bytes: u32) -> u16 {
        let in_capsule = matches!(command.dptr.place(), Some(DataPlace::InCapsule(_)));
        let transfer = match (data.len() as u32, reply_bytes) {
            (0, 0) => Transfer::None,
            (0, reply) => Transfer::ToHost(reply),
            _ if in_capsule => Transfer::None,
            (len, _) => Transfer::ToController(len),
        };
        let cid = self.machine.begin(transfer).unwrap();
        let command = Command { cid: cid.into(), ..command };
        let bytes = self.capsule(command, if in_capsule { data } else { &[] });
        self.sent.insert(cid, Sent { data: data.to_vec(), reply: vec![0; reply_bytes as usize] });
        self.stream.write_all(&bytes).unwrap();
        cid
    }

    /// The bytes of a command capsule.
    pub fn capsule(&self, command: Command, data: &[u8]) -> Vec<u8> {
        let writer = self.machine.writer().unwrap();
        let mut bytes = writer.command(command, data.len()).to_vec();
        bytes.extend_from_slice(data);
        if writer.digests().data && !data.is_empty() {
            bytes.extend_from_slice(&gf::crc32c(data).to_le_bytes());
        }
        bytes
    }

    /// Sends a command and waits for its answer.
    pub fn execute(&mut self, command: Command, data: &[u8], reply_bytes: u32) -> Answer {
        let cid = self.send(command, data, reply_bytes);
        self.wait(cid)
    }

    pub fn submit(&mut self, submission: Submission) -> Answer {
        self.execute(submission.command, &submission.data, submission.reply_bytes)
    }

    /// The answer to this command. Other answers are kept.
    pub fn wait(&mut self, cid: u16) -> Answer {
        loop {
            if let Some(at) = self.answers.iter().position(|answer| answer.completion.cid.get() == cid) {
                return self.answers.remove(at).unwrap();
            }
            assert!(self.advance(), "the controller ended the connection ({:?})", self.terminated);
        }
    }

    /// The next answer to any command. `None` if the controller has closed the connection.
    pub fn next(&mut self) -> Option<Answer> {
        while self.answers.is_empty() {
            if !self.advance() {
                return None;
            }
        }
        self.answers.pop_front()
    }

    /// Waits until the controller requests data. The test sends it with [`Queue::supply`] or
    /// otherwise.
    pub fn wait_for_request(&mut self) -> Request {
        loop {
            if let Some(request) = self.requested.pop_front() {
                return request;
            }
            assert!(self.advance(), "the controller ended the connection ({:?})", self.terminated);
        }
    }

    /// Waits until the controller closes the connection. Earlier answers are dropped.
    pub fn is_closed(&mut self) -> bool {
        while self.next().is_some() {}
        true
    }

    /// Runs a dialogue to its end.
    pub fn lead<D: Dialogue>(&mut self, mut dialogue: D) -> Result<D::Outcome, HostError> {
        loop {
            match dialogue.next() {
                Next::Done(outcome) => return Ok(outcome),
                Next::Wait(ms) => std::thread::sleep(Duration::from_millis(ms.into())),
                Next::Send(submission) => {
                    let answer = self.submit(submission);
                    dialogue.answer(&answer.completion, &answer.data)?;
                }
            }
        }
    }

    /// Takes one step of the state machine, and receives if it needs more input. False if the
    /// controller has ended the connection.
    fn advance(&mut self) -> bool {
        let (taken, step) = self.machine.step(&self.input);
        match step {
            HostStep::Continue | HostStep::Initialized(_) => {}
            HostStep::NeedMore | HostStep::Receive { .. } => {
                self.input.drain(..taken);
                return self.receive();
            }
            HostStep::Data { cid, offset, len } => {
                let reply = &mut self.sent.get_mut(&cid).unwrap().reply;
                reply[offset as usize..offset as usize + len].copy_from_slice(&self.input[..len]);
            }
            HostStep::Requested(request) => {
                self.requests += 1;
                self.requested.push_back(request);
                if !self.withholds {
                    self.supply();
                }
            }
            HostStep::Completed { completion, intact } => {
                let data = self.sent.remove(&completion.cid.get()).map_or_else(Vec::new, |sent| sent.reply);
                self.answers.push_back(Answer { completion, data, intact });
            }
            HostStep::Close(Violation::Terminated { status, .. }) => {
                self.terminated = Some(status);
                return false;
            }
            HostStep::Close(violation) => panic!("the controller breaks the protocol: {violation}"),
        }
        self.input.drain(..taken);
        true
    }

    /// Sends the data that the controller has requested.
    pub fn supply(&mut self) {
        let digests = self.machine.writer().unwrap().digests();
        while let Some(request) = self.requested.pop_front() {
            let data = &self.sent[&request.cid].data;
            for piece in self.machine.pieces(&request) {
                let part = &data[piece.offset as usize..(piece.offset + piece.len) as usize];
                let mut bytes = piece.head.to_vec();
                bytes.extend_from_slice(part);
                if digests.data {
                    bytes.extend_from_slice(&gf::crc32c(part).to_le_bytes());
                }
                self.stream.write_all(&bytes).unwrap();
            }
        }
    }

    fn receive(&mut self) -> bool {
        let old = self.input.len();
        self.input.resize(old + (256 << 10), 0);
        let received = read_some(&mut self.stream, &mut self.input[old..]);
        self.input.truncate(old + received.as_ref().map_or(0, |len| *len));
        match received {
            Ok(len) => len > 0,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("no answer: {error}"),
        }
    }
}

/// A controller that a host has enabled.
pub struct Controller {
    pub admin: Queue,
    pub established: Box<Established>,
    pub who: Host,
    /// HPDA of its I/O queues.
    pub alignment: u8,
    address: SocketAddr,
    digests: Digests,
}

/// The options of the hosts here: two I/O queues, and events for namespaces.
pub fn wish(number: u8) -> Wish {
    Wish {
        host: host(number),
        subsystem: subsystem(),
        queue_entries: 32,
        keep_alive_ms: 0,
        queues: 2,
        // Namespace Attribute Notices, and changes of the discovery log.
        events: 1 << 8 | 1 << 31,
    }
}

impl Controller {
    /// Host 1, without digests.
    pub fn connect(address: SocketAddr) -> Controller {
        Controller::with(address, wish(1), Digests::default()).unwrap()
    }

    pub fn with(address: SocketAddr, wish: Wish, digests: Digests) -> Result<Controller, HostError> {
        let mut admin = Queue::open(address, digests);
        let who = wish.host.clone();
        let established = admin.lead(Setup::new(wish))?;
        Ok(Controller { admin, established, who, alignment: 0, address, digests })
    }

    /// Connects an I/O queue of 128 entries.
    pub fn queue(&self, number: u16) -> Queue {
        self.try_queue(number, 128).unwrap()
    }

    pub fn try_queue(&self, number: u16, entries: u16) -> Result<Queue, HostError> {
        let mut queue = Queue::open_aligned(self.address, self.digests, self.alignment);
        let connect = connect_io(&self.who, &subsystem(), self.established.cntlid, number, entries);
        connected(&queue.submit(connect).completion)?;
        Ok(queue)
    }

    /// The namespaces that the host sees, with their blocks.
    pub fn namespaces(&mut self) -> Vec<(u32, u64)> {
        let found = self.admin.lead(nvme::host::Survey::new(1024)).unwrap();
        found.into_iter().map(|(nsid, info)| (nsid, info.unwrap().blocks)).collect()
    }

    /// Waits for an event, and returns the log of changed namespaces.
    pub fn changed(&mut self, request: u16) -> Vec<u32> {
        let answer = self.admin.wait(request);
        let event = nvme::host::AsyncEvent::of(answer.completion.result.get());
        assert_eq!((event.notice(), event.log_page), (Some(Event::NamespaceChanged), 4));
        let log = self.admin.submit(admin::get_log_page(4, 0, 4096, false)).data();
        let numbers = log.chunks_exact(4).map(|entry| u32::from_le_bytes(entry.try_into().unwrap()));
        numbers.take_while(|nsid| *nsid != 0).collect()
    }

    /// Sends an event request. Returns the command identifier.
    pub fn ask(&mut self) -> u16 {
        self.admin.send(admin::event_request().command, &[], 0)
    }
}

/// Polls a future to its end on this thread. `None` if it does not end within `time`.
pub fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let start = std::time::Instant::now();
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        std::thread::park_timeout(time.checked_sub(start.elapsed())?);
    }
}

/// A command that copies ranges of blocks (first block and count) to block `to`. Also returns the
/// command's data.
pub fn copy(nsid: u32, to: u64, ranges: &[(u64, u16)], in_capsule: bool, fua: bool) -> (Command, Vec<u8>) {
    let entry = |(first, count): &(u64, u16)| {
        let mut entry = [0; 32];
        entry[8..16].copy_from_slice(&first.to_le_bytes());
        entry[16..18].copy_from_slice(&(count - 1).to_le_bytes());
        entry
    };
    let data: Vec<u8> = ranges.iter().flat_map(entry).collect();
    let mut command = Command::new(nvm::COPY, 0, nsid);
    command.set_slba(to);
    command.set_cdw(12, (ranges.len() as u32 - 1) | u32::from(fua) << 30);
    let len = data.len() as u32;
    command.dptr = if in_capsule { Sgl::in_capsule(len) } else { Sgl::transport(len) };
    (command, data)
}

/// Bytes that depend on their place, so that misplaced data is found.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 4096 * 13 + seed * 31) as u8).collect()
}
