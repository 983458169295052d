//! One connection, from its first byte to its last.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use drive::{Block, BufMut, Env, Input, Nanos, within};
use nbd::{
    Command, Directory, Errno, ExportInfo, Handshake, Listed, Progress, Refusal, Replies, Request, Step, Transmission,
};
use runtime::{ShardEnv, Stream};

use super::catalog::Catalog;
use super::serve::{held_bytes, kind, serve, serve_limited, serve_now};
use crate::budget::Budget;
use crate::limits::{INPUT_BYTES, LINGER_MAX};
use crate::link::{Link, drained, send_answers};
use crate::pace::Pace;
use crate::server::{NewConnection, address_of};
use crate::state::{Alarm, ConnectionState, ExportState};
use crate::tls::TlsConfig;
use crate::wire::{Received, WireReader, WireWriter, split};

/// The reason why a connection ended; for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// `NBD_CMD_DISC` or `NBD_OPT_ABORT`.
    Client,
    /// The client closed the stream without either.
    Closed,
    /// The export was stopped.
    Stopped,
    /// The operator ended the connection, or the client held up a stop.
    Cut,
    /// The client broke the protocol or TLS, or the socket failed.
    Broken,
    /// No export was chosen in time.
    Slow,
}

/// The catalog as a [`Directory`] of the protocol.
struct Exports<'a, C>(&'a C);

/// The smallest request that costs no read-modify-write on any volume, in bytes.
const BLOCK_BYTES_PREFERRED: u32 = 4096;

impl<C: Catalog> Directory for Exports<'_, C> {
    type Export = (C::Block, Arc<ExportState>);

    fn list(&self) -> Vec<Listed> {
        self.0.list()
    }

    fn find(&self, name: &str) -> Result<(Self::Export, ExportInfo), Refusal> {
        let (block, export) = self.0.find(name)?;
        let info = ExportInfo {
            name: export.name().to_owned(),
            description: export.description().to_owned(),
            size_bytes: block.size_bytes(),
            read_only: export.read_only(),
            // A volume has one cache, or none, for all of its connections.
            multi_conn: true,
            block_bytes_preferred: BLOCK_BYTES_PREFERRED,
        };
        Ok(((block, export), info))
    }
}

/// State that the handshake leaves to the transmission phase.
struct Entered<B> {
    machine: Transmission,
    block: B,
    export: Arc<ExportState>,
    secure: bool,
}

/// Serves a client until it leaves or its connection has to end.
pub(crate) async fn run<C: Catalog>(
    env: ShardEnv,
    stream: Stream,
    new_connection: NewConnection,
    catalog: C,
    tls: Option<TlsConfig>,
    budget: Arc<Budget>,
) {
    let peer = stream.peer.to_string();
    let (mut reader, mut writer) = split(&env, stream);
    let mut input = Input::new(env.alloc(INPUT_BYTES));
    let haggling = haggle(&mut reader, &mut writer, &mut input, &catalog, tls.as_ref());
    let entered = new_connection.within(&env, haggling).await.unwrap_or(Err(End::Slow));
    let entered = match entered {
        Ok(entered) => entered,
        Err(end) => {
            tracing::debug!(%peer, ?end, "NBD handshake ended");
            return;
        }
    };
    let alarm = Arc::new(Alarm::default());
    let Some(state) = entered.export.enter(peer.clone(), None, entered.secure, alarm) else { return };
    new_connection.stays();
    tracing::debug!(%peer, export = entered.export.name(), secure = entered.secure, "NBD client");

    let closer = writer.closer();
    let link = Link::new(env.clone(), &writer);
    link.belongs_to(&budget, address_of(&peer));
    let replies = entered.machine.replies();
    let (export, stall) = (entered.export.clone(), RefCell::default());
    let client = Client { link: link.clone(), replies, export, state: state.clone(), stall };
    env.spawn(send_answers(link.clone(), writer));
    reader.expect_promptly();
    let receiving = Receiving {
        client: Rc::new(client),
        block: Rc::new(entered.block),
        machine: entered.machine,
        reader,
        input,
        write: None,
        arrived: env.now(),
        pace: Pace::new(env.now()),
        requests_since: 0,
    };
    let end = receiving.run().await;
    tracing::debug!(%peer, export = entered.export.name(), ?end, "NBD client gone");

    // Requests that have not begun are dropped if the client is gone.
    if end != End::Client && end != End::Stopped {
        link.drop_waiting();
    }
    // Pending answers are still sent, unless the client does not take them. The sender must not end
    // before the last of them is ready.
    let drained = match end {
        End::Client | End::Closed | End::Stopped => within(&env, LINGER_MAX, drained(&link)).await.is_some(),
        _ => false,
    };
    if !drained {
        state.limits.drop_waiting();
        link.drop_waiting();
        link.die();
        closer.close();
        self::drained(&link).await;
    }
    link.finish();
    entered.export.leave(&state);
}

/// The handshake phase.
async fn haggle<C: Catalog>(
    reader: &mut WireReader,
    writer: &mut WireWriter,
    input: &mut Input,
    catalog: &C,
    tls: Option<&TlsConfig>,
) -> Result<Entered<C::Block>, End> {
    /// Replies are sent at the latest when they are this long, so that a client cannot fill the
    /// memory by sending option requests.
    const REPLY_BYTES: usize = 64 << 10;
    let mut out = Vec::new();
    let mut machine = Handshake::new(TlsConfig::policy(tls), &mut out);
    loop {
        let (taken, progress) = machine.step(input.bytes(), &Exports(catalog), &mut out);
        input.take(taken);
        if matches!(progress, Progress::Continue) && out.len() < REPLY_BYTES {
            continue;
        }
        writer.send_bytes(std::mem::take(&mut out)).await.map_err(|_| End::Broken)?;
        match progress {
            Progress::Continue => {}
            Progress::NeedMore => {
                let (buf, free) = input.lend();
                let (lent, received) = reader.recv(buf, free).await;
                match received {
                    Received::Bytes(len) => input.give_back(lent, len),
                    Received::Flush => {
                        input.give_back(lent, 0);
                        writer.flush().await.map_err(|_| End::Broken)?;
                    }
                    Received::End => return Err(End::Closed),
                    Received::Broken => {
                        // TLS tells the peer the cause, if it has an alert to send.
                        let _ = writer.flush().await;
                        return Err(End::Broken);
                    }
                }
            }
            Progress::StartTls => {
                let config = tls.expect("the machine starts TLS only where it is configured");
                crate::wire::start_tls(reader, writer, config, input.bytes()).map_err(|_| End::Broken)?;
                input.take(input.bytes().len());
            }
            Progress::Entered(machine_after, (block, export)) => {
                return Ok(Entered { machine: machine_after, block, export, secure: machine.secure() });
            }
            Progress::Ended => return Err(End::Client),
            Progress::Close(violation) => {
                tracing::debug!(%violation, "NBD client breaks the protocol");
                return Err(End::Broken);
            }
        }
    }
}

/// A client in the transmission phase: its link, its export and its state.
pub(super) struct Client {
    pub link: Rc<Link>,
    pub replies: Replies,
    pub export: Arc<ExportState>,
    pub state: Arc<ConnectionState>,
    /// Runs while the export is being stopped and answers are unsent.
    stall: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
}

impl Client {
    /// Whether the export is being stopped and the client has left answers unread for
    /// [`LINGER_MAX`]. The stop does not wait for such a client. Wakes the task when the time is
    /// over.
    fn holds_up_a_stop(&self, context: &mut Context<'_>) -> bool {
        let mut timer = self.stall.borrow_mut();
        if !(self.export.stopping() && self.link.has_unsent()) {
            *timer = None;
            return false;
        }
        let timer = timer.get_or_insert_with(|| Box::pin(self.link.env.sleep(LINGER_MAX)));
        timer.as_mut().poll(context).is_ready()
    }

    /// Answers a request with an error.
    pub fn put_error(&self, cookie: u64, errno: Errno, reason: &str) {
        self.link.put_bytes(&self.replies.error(cookie, errno, reason));
    }
}

/// A write whose data is arriving.
struct IncomingWrite {
    request: Request,
    data: BufMut,
    filled: usize,
}

/// The receiving side of the transmission phase.
struct Receiving<B> {
    client: Rc<Client>,
    block: Rc<B>,
    machine: Transmission,
    reader: WireReader,
    input: Input,
    write: Option<IncomingWrite>,
    /// When the last bytes arrived.
    arrived: Nanos,
    pace: Pace,
    /// Requests since the last receive.
    requests_since: u32,
}

impl<B: Block + 'static> Receiving<B> {
    async fn run(mut self) -> End {
        let end = self.requests().await;
        if let Some(write) = self.write.take() {
            self.client.link.abandon(held_bytes(&write.request.command));
        }
        end
    }

    async fn requests(&mut self) -> End {
        loop {
            let (taken, step) = self.machine.step(self.input.bytes());
            let received = match step {
                Step::Continue => Ok(()),
                Step::NeedMore => {
                    self.input.take(taken);
                    match self.receive().await {
                        Ok(()) => continue,
                        Err(end) => return end,
                    }
                }
                Step::Request(request) => self.request(request).await,
                Step::Data { len, last } => {
                    self.copy_data(len);
                    if last { self.dispatch_write().await } else { Ok(()) }
                }
                Step::Receive { .. } => self.receive_data().await,
                Step::Refused { cookie, errno, reason } => match self.admitted(0).await {
                    Ok(()) => {
                        self.client.state.counters.refused();
                        self.client.put_error(cookie, errno, reason);
                        self.client.link.answered(0);
                        Ok(())
                    }
                    Err(end) => Err(end),
                },
                Step::Disconnect => Err(End::Client),
                Step::Close(violation) => {
                    tracing::debug!(%violation, "NBD client breaks the protocol");
                    Err(End::Broken)
                }
            };
            self.input.take(taken);
            if let Err(end) = received {
                return end;
            }
        }
    }

    /// Waits until the connection may hold another request.
    async fn admitted(&self, bytes: u64) -> Result<(), End> {
        if self.client.link.admit(bytes) {
            return Ok(());
        }
        poll_fn(|context| {
            self.client.state.listen(context.waker());
            if self.client.state.is_cut() || self.client.holds_up_a_stop(context) {
                return Poll::Ready(Err(End::Cut));
            }
            if self.client.link.admit(bytes) {
                return Poll::Ready(Ok(()));
            }
            self.client.link.wake_when_released(context.waker());
            Poll::Pending
        })
        .await
    }

    async fn request(&mut self, request: Request) -> Result<(), End> {
        self.requests_since += 1;
        self.admitted(held_bytes(&request.command)).await?;
        match request.command {
            Command::Write { len, .. } => {
                let data = self.client.link.env.alloc(len as usize);
                self.write = Some(IncomingWrite { request, data, filled: 0 });
            }
            _ => self.dispatch(request, None)?,
        }
        Ok(())
    }

    /// Serves a request up to the point where it waits. From there on it is a task of its own.
    fn dispatch(&self, request: Request, mut data: Option<BufMut>) -> Result<(), End> {
        if self.client.export.handed_over() {
            self.client.link.abandon(held_bytes(&request.command));
            return Err(End::Stopped);
        }
        if self.client.export.stopping() {
            self.client.state.counters.refused();
            self.client.put_error(request.cookie, Errno::Shutdown, "the export is being stopped");
            self.client.link.answered(held_bytes(&request.command));
            return Ok(());
        }
        self.client.state.counters.accepted(kind(&request.command));
        self.client.link.arrived(self.arrived);
        let is_limited = self.client.state.limits.is_on();
        if !is_limited && data.is_none() {
            match serve_now(&self.client, &*self.block, &request, self.arrived) {
                Ok(()) => return Ok(()),
                Err(buf) => data = buf,
            }
        }
        let (client, block) = (self.client.clone(), self.block.clone());
        if is_limited {
            self.client.link.env.spawn_now(serve_limited(client, block, request, data, self.arrived));
        } else {
            self.client.link.env.spawn_now(serve(client, block, request, data, self.arrived));
        }
        Ok(())
    }

    fn copy_data(&mut self, len: usize) {
        let write = self.write.as_mut().expect("data follow a write");
        write.data[write.filled..write.filled + len].copy_from_slice(&self.input.bytes()[..len]);
        write.filled += len;
    }

    async fn dispatch_write(&mut self) -> Result<(), End> {
        let write = self.write.take().expect("data follow a write");
        self.dispatch(write.request, Some(write.data))
    }

    /// Receives into the input buffer.
    async fn receive(&mut self) -> Result<(), End> {
        self.client.link.send_at_once();
        let requests = std::mem::take(&mut self.requests_since);
        match self.pace.wait(self.arrived, requests) {
            Some(wait) => self.client.link.env.sleep(wait).await,
            None => self.client.link.answers_go_first().await,
        }
        let (buf, free) = self.input.lend();
        let (buf, len) = self.received(buf, free).await?;
        self.input.give_back(buf, len);
        Ok(())
    }

    /// Receives data of a write directly into its buffer.
    async fn receive_data(&mut self) -> Result<(), End> {
        let write = self.write.take().expect("data follow a write");
        let IncomingWrite { request, data, filled } = write;
        // During the receive the connection holds a request that is not in `write`.
        let received = self.received(data, filled).await;
        let Ok((data, len)) = received else {
            self.client.link.abandon(held_bytes(&request.command));
            return received.map(|_| ());
        };
        self.write = Some(IncomingWrite { request, data, filled: filled + len });
        if self.machine.received(len as u32) {
            self.dispatch_write().await?;
        }
        Ok(())
    }

    /// One receive, unless the connection has to end first.
    async fn received(&mut self, mut buf: BufMut, from: usize) -> Result<(BufMut, usize), End> {
        // A write whose data is incomplete cannot be answered, so a stop does not wait for it.
        let own = u32::from(self.machine.data_left() > 0);
        loop {
            let client = &self.client;
            let mut receive = pin!(self.reader.recv(buf, from));
            let (back, received) = poll_fn(|context| {
                client.state.listen(context.waker());
                if client.state.is_cut() {
                    return Poll::Ready(Err(End::Cut));
                }
                if client.export.stopping() {
                    client.link.wake_when_released(context.waker());
                    if client.link.held_requests() == own {
                        return Poll::Ready(Err(End::Stopped));
                    }
                    if client.holds_up_a_stop(context) {
                        return Poll::Ready(Err(End::Cut));
                    }
                }
                receive.as_mut().poll(context).map(Ok)
            })
            .await?;
            self.arrived = client.link.env.now();
            match received {
                Received::Bytes(len) => return Ok((back, len)),
                Received::Flush => client.link.poke(),
                Received::End => return Err(End::Closed),
                Received::Broken => return Err(End::Broken),
            }
            buf = back;
        }
    }
}
