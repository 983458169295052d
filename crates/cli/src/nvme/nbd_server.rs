//! Exports a namespace to NBD clients of this machine, on tokio.
//!
//! Invariants:
//! 1. A request holds a part of the connection's budget until its answer is sent. So a client that
//!    does not read its answers is not read from.
//! 2. A client that violates the protocol or disconnects ends its own connection only.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use drive::{Block, BlockError, Buf, BufMut, WriteZeroes};
use initiator::tokio::{TokioNetwork, send_all};
use nbd::{
    Command, Descriptor, Directory, Errno, ExportInfo, Handshake, Listed, Progress, Refusal, Replies, Request, Step,
    TlsPolicy, Transmission,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::edges::Edges;
use super::serve::export_name;

type Disk = Edges<TokioNetwork>;

/// Budget of one connection for requests, in units of [`UNIT_BYTES`]: slightly more than 64 MiB, so
/// that the longest request fits twice.
const BUDGET: usize = (64 << 20) / UNIT_BYTES + REQUESTS_MAX;
const UNIT_BYTES: usize = 4096;

/// Additional units of the budget: each request takes one, besides those for its data.
const REQUESTS_MAX: usize = 256;

/// Size of the input buffer.
const INPUT_BYTES: usize = 256 << 10;

/// Maximum number of answers that are sent together.
const GATHER_MAX: usize = 64;

/// A client violated the protocol, or the connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Violation(nbd::Violation),
}

/// An answer, and its part of the budget.
struct Answer {
    head: Buf,
    body: Option<Buf>,
    _permit: OwnedSemaphorePermit,
}

/// The only export: the default one, and also available under its own name.
struct Only<'a>(&'a ExportInfo);

impl Directory for Only<'_> {
    type Export = ();

    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: self.0.name.clone(), description: self.0.description.clone() }]
    }

    fn find(&self, name: &str) -> Result<((), ExportInfo), Refusal> {
        if name.is_empty() || name == self.0.name { Ok(((), self.0.clone())) } else { Err(Refusal::Unknown) }
    }
}

/// The description of a namespace for a client.
fn export_info(edges: &Disk) -> ExportInfo {
    let disk = edges.disk();
    let (name, description) = export_name(disk);
    ExportInfo {
        name,
        description,
        size_bytes: disk.size_bytes(),
        read_only: disk.is_read_only(),
        // All connections share the namespace's queues.
        multi_conn: true,
        block_bytes_preferred: disk.info().block_bytes.max(4096),
    }
}

/// Serves a client until it disconnects.
///
/// # Errors
/// [`Broken`]
pub(super) async fn serve<R, W>(reader: R, mut writer: W, edges: Disk) -> Result<(), Broken>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    let info = export_info(&edges);
    let mut receiving = Receiving { reader, input: Vec::with_capacity(INPUT_BYTES), at: 0 };
    let Some(machine) = haggle(&mut receiving, &mut writer, &info).await? else { return Ok(()) };
    let (answers, outbox) = mpsc::unbounded_channel();
    let sending = tokio::task::spawn_local(send_answers(outbox, writer));
    let client = Client { edges, replies: machine.replies(), answers, budget: Arc::new(Semaphore::new(BUDGET)) };
    let received = transmission(&mut receiving, machine, client).await;
    if received.is_err() {
        sending.abort();
        return received;
    }
    // Pending answers are still sent: the sender ends after the last request.
    match sending.await {
        Ok(sent) => sent.map_err(Broken::from),
        Err(_) => Ok(()),
    }
}

struct Receiving<R> {
    reader: R,
    input: Vec<u8>,
    /// The number of bytes parsed.
    at: usize,
}

impl<R: AsyncRead + Unpin> Receiving<R> {
    /// Receives more. False at the end of the stream.
    async fn more(&mut self) -> io::Result<bool> {
        self.input.drain(..self.at);
        self.at = 0;
        Ok(self.reader.read_buf(&mut self.input).await? > 0)
    }
}

/// The handshake phase. `None` if the client disconnected.
async fn haggle<R, W>(
    receiving: &mut Receiving<R>,
    writer: &mut W,
    info: &ExportInfo,
) -> Result<Option<Transmission>, Broken>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut out = Vec::new();
    let mut machine = Handshake::new(TlsPolicy::Off, &mut out);
    loop {
        let (taken, progress) = machine.step(&receiving.input[receiving.at..], &Only(info), &mut out);
        receiving.at += taken;
        if !out.is_empty() {
            send_all(writer, &[Buf::from(std::mem::take(&mut out))]).await?;
        }
        match progress {
            Progress::Continue => {}
            Progress::NeedMore => {
                if !receiving.more().await? {
                    return Ok(None);
                }
            }
            Progress::Entered(machine, ()) => return Ok(Some(machine)),
            Progress::StartTls => unreachable!("TLS is off"),
            Progress::Ended => return Ok(None),
            Progress::Close(violation) => return Err(Broken::Violation(violation)),
        }
    }
}

struct Client {
    edges: Disk,
    replies: Replies,
    answers: mpsc::UnboundedSender<Answer>,
    budget: Arc<Semaphore>,
}

/// A write whose data are arriving.
struct Write {
    request: Request,
    data: BufMut,
    filled: usize,
    permit: OwnedSemaphorePermit,
}

/// The transmission phase, receiving side.
async fn transmission<R: AsyncRead + Unpin>(
    receiving: &mut Receiving<R>,
    mut machine: Transmission,
    client: Client,
) -> Result<(), Broken> {
    let client = Rc::new(client);
    let mut write: Option<Write> = None;
    loop {
        let (taken, step) = machine.step(&receiving.input[receiving.at..]);
        let from = receiving.at;
        receiving.at += taken;
        match step {
            Step::Continue => {}
            Step::NeedMore => {
                if !receiving.more().await? {
                    return Ok(());
                }
            }
            Step::Request(request) => {
                let permit = client.admitted(&request.command).await;
                if let Command::Write { len, .. } = request.command {
                    write = Some(Write { request, data: BufMut::zeroed(len as usize), filled: 0, permit });
                } else {
                    tokio::task::spawn_local(client.clone().one(request, None, permit));
                }
            }
            Step::Data { len, .. } => {
                let arriving = write.as_mut().expect("data follow a write");
                arriving.data[arriving.filled..arriving.filled + len]
                    .copy_from_slice(&receiving.input[from..from + len]);
                arriving.filled += len;
            }
            Step::Receive { len } => {
                let arriving = write.as_mut().expect("data follow a write");
                let filled = arriving.filled;
                let count = receiving.reader.read(&mut arriving.data[filled..filled + len as usize]).await?;
                if count == 0 {
                    return Ok(());
                }
                machine.received(count as u32);
                arriving.filled += count;
            }
            Step::Refused { cookie, errno, reason } => {
                let permit = client.admitted(&Command::Flush).await;
                client.put(client.replies.error(cookie, errno, reason), None, permit);
            }
            Step::Disconnect => return Ok(()),
            Step::Close(violation) => return Err(Broken::Violation(violation)),
        }
        if write.as_ref().is_some_and(|write| write.filled == write.data.len()) {
            let Write { request, data, permit, .. } = write.take().expect("looked at above");
            tokio::task::spawn_local(client.clone().one(request, Some(data.freeze()), permit));
        }
    }
}

impl Client {
    /// Waits until the budget has room for another request.
    async fn admitted(&self, command: &Command) -> OwnedSemaphorePermit {
        let bytes = match command {
            Command::Read { len, .. } | Command::Write { len, .. } => *len as usize,
            _ => 0,
        };
        let units = (1 + bytes / UNIT_BYTES).min(BUDGET) as u32;
        self.budget.clone().acquire_many_owned(units).await.expect("the budget is never closed")
    }

    fn put(&self, head: Vec<u8>, body: Option<Buf>, permit: OwnedSemaphorePermit) {
        // The sending task is gone if the client does not take answers any more.
        let _ = self.answers.send(Answer { head: head.into(), body, _permit: permit });
    }

    /// Serves one request.
    async fn one(self: Rc<Self>, request: Request, data: Option<Buf>, permit: OwnedSemaphorePermit) {
        let Request { cookie, command } = request;
        let replies = self.replies;
        let is_read = matches!(command, Command::Read { .. });
        match (self.execute(command, data).await, command) {
            (Ok(Some(data)), Command::Read { offset, len, .. }) => {
                self.put(replies.data(cookie, offset, len).to_vec(), Some(data), permit);
            }
            (Ok(_), Command::BlockStatus { len, .. }) => {
                let all = Descriptor { len, allocated: true };
                self.put(replies.block_status(cookie, [all]), None, permit);
            }
            (Ok(_), _) => self.put(replies.done(cookie, is_read).to_vec(), None, permit),
            (Err(error), _) => self.put(replies.error(cookie, errno(&error), &error.to_string()), None, permit),
        }
    }

    async fn execute(&self, command: Command, data: Option<Buf>) -> Result<Option<Buf>, BlockError> {
        let edges = &self.edges;
        match command {
            Command::Read { offset, len, .. } if len > 0 => {
                let read = edges.read(offset, BufMut::zeroed(len as usize)).await?;
                return Ok(Some(read.freeze()));
            }
            Command::Write { offset, len, fua } if len > 0 => {
                edges.write(offset, data.expect("a write brings data"), fua).await?;
            }
            Command::Flush => edges.flush().await?,
            Command::Trim { offset, len, fua } => {
                edges.discard(offset, len.into()).await?;
                if fua {
                    edges.flush().await?;
                }
            }
            Command::WriteZeroes { offset, len, fua, keep_allocated, only_fast } if len > 0 => {
                edges.write_zeroes(offset, len.into(), WriteZeroes { fua, keep_allocated, only_fast }).await?;
            }
            // Nothing to do, or answered by the caller.
            Command::Read { .. }
            | Command::Write { .. }
            | Command::WriteZeroes { .. }
            | Command::Cache { .. }
            | Command::BlockStatus { .. } => {}
        }
        Ok(None)
    }
}

/// The error value of the NBD protocol ("Error values").
fn errno(error: &BlockError) -> Errno {
    match error {
        BlockError::NoSpace => Errno::NoSpc,
        BlockError::ReadOnly { .. } => Errno::Perm,
        BlockError::OutOfRange { .. } => Errno::Inval,
        BlockError::NotFast => Errno::NotSup,
        BlockError::Stopped => Errno::Shutdown,
        BlockError::Lost { .. } | BlockError::Unknown { .. } => Errno::Io,
    }
}

/// The sending task of a connection. It ends when all senders of answers are gone.
async fn send_answers<W: AsyncWrite + Unpin>(
    mut outbox: mpsc::UnboundedReceiver<Answer>,
    mut writer: W,
) -> io::Result<()> {
    let mut ready = Vec::with_capacity(GATHER_MAX);
    while outbox.recv_many(&mut ready, GATHER_MAX).await > 0 {
        let parts: Vec<Buf> =
            ready.iter_mut().flat_map(|answer| [Some(answer.head.clone()), answer.body.take()]).flatten().collect();
        send_all(&mut writer, &parts).await?;
        ready.clear();
    }
    Ok(())
}
