//! The smallest NVMe/TCP host that can send any command: one controller with one I/O queue.
//! Commands are sent one at a time, or several before their answers are awaited.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nvme::host::{AsyncEvent, Dialogue, Established, Next, Setup, Wish, admin, connect_io, connected};
use nvme::identify::{IDENTIFY_BYTES, IdentifyNamespace, cns};
use nvme::target::Host;
use nvme::tcp::{Digests, HostLimits, HostReceiver, HostStep, Transfer};
use nvme::{Command, Nqn, Status};
use zerocopy::FromBytes;

/// Asynchronous Event Configuration: Namespace Attribute Notices. They come if they are asked for.
const EVENTS: u32 = 1 << 8;

/// The target has ended the connection.
#[derive(Debug)]
pub struct Ended;

/// One queue.
struct Queue {
    stream: TcpStream,
    machine: HostReceiver,
    input: Vec<u8>,
    data: BTreeMap<u16, Vec<u8>>,
    /// Answers that were not asked for yet, by the identifiers of their commands.
    completed: BTreeMap<u16, nvme::Completion>,
}

impl Queue {
    fn open(address: &str) -> Queue {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let limits = HostLimits { digests: Digests::default(), alignment: 0, requests_max: 1, commands_max: 128 };
        let machine = HostReceiver::new(limits);
        stream.write_all(&machine.request()).unwrap();
        let (data, completed) = Default::default();
        let mut queue = Queue { stream, machine, input: Vec::new(), data, completed };
        while queue.machine.agreement().is_none() {
            assert!(queue.advance().unwrap().is_none(), "nothing was asked for yet");
        }
        queue
    }

    /// Takes one step. Returns a completed command, if any.
    fn advance(&mut self) -> Result<Option<nvme::Completion>, Ended> {
        let (taken, step) = self.machine.step(&self.input);
        let taken: Vec<u8> = self.input.drain(..taken).collect();
        match step {
            HostStep::NeedMore | HostStep::Receive { .. } => {
                let mut bytes = vec![0; 64 << 10];
                let len = match self.stream.read(&mut bytes) {
                    // The process was stopped, and continues.
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(None),
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
                    len => len.unwrap(),
                };
                if len == 0 {
                    return Err(Ended);
                }
                self.input.extend_from_slice(&bytes[..len]);
            }
            HostStep::Data { cid, offset, .. } => {
                let data = self.data.get_mut(&cid).unwrap();
                data[offset as usize..offset as usize + taken.len()].copy_from_slice(&taken);
            }
            HostStep::Completed { completion, .. } => return Ok(Some(completion)),
            HostStep::Continue | HostStep::Initialized(_) => {}
            HostStep::Requested(_) | HostStep::Close(_) => panic!("{step:?}"),
        }
        Ok(None)
    }

    /// Sends a command, with data in its capsule. Returns its identifier.
    fn send(&mut self, command: Command, data: &[u8], reply_bytes: u32) -> u16 {
        let transfer = if reply_bytes > 0 { Transfer::ToHost(reply_bytes) } else { Transfer::None };
        let cid = self.machine.begin(transfer).unwrap();
        self.data.insert(cid, vec![0; reply_bytes as usize]);
        let writer = self.machine.writer().unwrap();
        let head = writer.command(Command { cid: cid.into(), ..command }, data.len());
        // Sending may fail if the connection has ended. Reading finds its end.
        let _ = self.stream.write_all(&[&head, data].concat());
        cid
    }

    /// Waits for the answer of a command.
    fn wait(&mut self, cid: u16) -> Result<(nvme::Completion, Vec<u8>), Ended> {
        loop {
            if let Some(completion) = self.completed.remove(&cid) {
                return Ok((completion, self.data.remove(&cid).unwrap()));
            }
            if let Some(completion) = self.advance()? {
                self.completed.insert(completion.cid.get(), completion);
            }
        }
    }

    /// Sends a command, with data in its capsule, and returns its answer.
    fn execute(
        &mut self,
        command: Command,
        data: &[u8],
        reply_bytes: u32,
    ) -> Result<(nvme::Completion, Vec<u8>), Ended> {
        let cid = self.send(command, data, reply_bytes);
        self.wait(cid)
    }
}

/// A connected host. It disconnects when it is dropped.
pub struct NvmeHost {
    admin: Queue,
    io: Queue,
}

impl NvmeHost {
    /// Blocks until the host is connected.
    pub fn connect(address: &str, subsystem: &Nqn, number: u8) -> NvmeHost {
        let host = Host { nqn: format!("nqn.2026-11.com.example:host-{number}").parse().unwrap(), id: [number; 16] };
        let subsystem = subsystem.clone();
        let wish = Wish { host, subsystem, queue_entries: 32, keep_alive_ms: 0, queues: 1, events: EVENTS };
        let mut admin = Queue::open(address);
        let mut setup = Setup::new(wish.clone());
        let established: Box<Established> = loop {
            match setup.next() {
                Next::Done(established) => break established,
                Next::Wait(ms) => std::thread::sleep(Duration::from_millis(ms.into())),
                Next::Send(submission) => {
                    let (completion, data) =
                        admin.execute(submission.command, &submission.data, submission.reply_bytes).unwrap();
                    setup.answer(&completion, &data).unwrap();
                }
            }
        };
        let mut io = Queue::open(address);
        let connect = connect_io(&wish.host, &wish.subsystem, established.cntlid, 1, 32);
        connected(&io.execute(connect.command, &connect.data, 0).unwrap().0).unwrap();
        NvmeHost { admin, io }
    }

    /// The status and data of an admin command.
    ///
    /// # Panics
    /// If the connection ends first.
    pub fn administer(&mut self, command: Command, reply_bytes: u32) -> (Status, Vec<u8>) {
        let (completion, data) = self.admin.execute(command, &[], reply_bytes).unwrap();
        (completion.status(), data)
    }

    /// The status and data of a command.
    ///
    /// # Panics
    /// If the connection ends first.
    pub fn execute(&mut self, command: Command, data: &[u8], reply_bytes: u32) -> (Status, Vec<u8>) {
        self.try_execute(command, data, reply_bytes).unwrap()
    }

    /// As [`NvmeHost::execute`], where the connection may end.
    pub fn try_execute(&mut self, command: Command, data: &[u8], reply_bytes: u32) -> Result<(Status, Vec<u8>), Ended> {
        let (completion, data) = self.io.execute(command, data, reply_bytes)?;
        Ok((completion.status(), data))
    }
    /// Sends commands with their data, all of them before the first answer is awaited. Returns
    /// their statuses.
    ///
    /// # Panics
    /// If the connection ends first.
    pub fn execute_at_once(&mut self, commands: &[(Command, Vec<u8>)]) -> Vec<Status> {
        let sent: Vec<u16> = commands.iter().map(|(command, data)| self.io.send(*command, data, 0)).collect();
        sent.into_iter().map(|cid| self.io.wait(cid).unwrap().0.status()).collect()
    }

    /// Asks for an event. Returns the identifier of the request, for [`NvmeHost::event`].
    pub fn ask_event(&mut self) -> u16 {
        self.admin.send(admin::event_request().command, &[], 0)
    }

    /// Waits for an event.
    pub fn event(&mut self, request: u16) -> AsyncEvent {
        AsyncEvent::of(self.admin.wait(request).unwrap().0.result.get())
    }

    /// Identify Namespace.
    pub fn identify(&mut self, nsid: u32) -> IdentifyNamespace {
        let (status, data) = self.administer(admin::identify(cns::NAMESPACE, nsid).command, IDENTIFY_BYTES as u32);
        assert_eq!(status, Status::SUCCESS);
        IdentifyNamespace::read_from_bytes(&data).unwrap()
    }
}

/// Connects outside the runtime of the test.
pub async fn connect(address: &str, subsystem: &Nqn, number: u8) -> NvmeHost {
    let (address, subsystem) = (address.to_owned(), subsystem.clone());
    tokio::task::spawn_blocking(move || NvmeHost::connect(&address, &subsystem, number)).await.unwrap()
}

/// Runs `act` outside the runtime of the test, which also serves the daemon.
pub async fn ask<T: Send + 'static>(
    host: NvmeHost,
    act: impl FnOnce(&mut NvmeHost) -> T + Send + 'static,
) -> (NvmeHost, T) {
    let asking = tokio::task::spawn_blocking(move || {
        let mut host = host;
        let answer = act(&mut host);
        (host, answer)
    });
    asking.await.unwrap()
}
