//! Connections.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::{Rc, Weak};

use ::drive::{BufMut, Segments, View};
use io_uring::opcode;

use super::listener::{Incoming, Peer};
use super::socket::{Closer, Side, Socket, closed_here, is_transient};
use crate::drives::RANGES_MAX;
use crate::env::ShardEnv;
use crate::op::{Message, Payload};
use crate::shard::Receive;

/// A connection of one shard. Its two halves can live in two tasks; the connection ends when both
/// are dropped.
pub struct Stream {
    /// Receives.
    pub reader: StreamReader,
    /// Sends.
    pub writer: StreamWriter,
    /// The other end.
    pub peer: Peer,
    /// The address of this end, for TCP.
    pub local: Option<SocketAddr>,
}

/// The receiving half of a [`Stream`].
pub struct StreamReader {
    socket: Rc<Socket>,
    is_prompt: bool,
    /// The last receive took all available data, so the next one waits before it tries to receive.
    is_drained: bool,
}

/// `IORING_RECVSEND_POLL_FIRST`: the operation waits for data without trying to receive first.
const POLL_FIRST: u16 = 1;

/// A receive in flight for which the shard may poll instead of sleeping.
struct Prompt<'a>(&'a Cell<u32>);

impl<'a> Prompt<'a> {
    fn begin(count: &'a Cell<u32>) -> Prompt<'a> {
        count.set(count.get() + 1);
        Prompt(count)
    }
}

impl Drop for Prompt<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The sending half of a [`Stream`].
pub struct StreamWriter {
    socket: Rc<Socket>,
    /// The header of the last gathered send, for reuse.
    message: Option<Box<Message>>,
}

impl Stream {
    /// Serves a connection on this shard.
    pub fn new(env: &ShardEnv, incoming: Incoming) -> Stream {
        let socket = Socket::new(env.shard(), incoming.fd);
        Stream {
            reader: StreamReader { socket: socket.clone(), is_prompt: false, is_drained: false },
            writer: StreamWriter { socket, message: None },
            peer: incoming.peer,
            local: incoming.local,
        }
    }

    /// Separates the halves.
    pub fn split(self) -> (StreamReader, StreamWriter) {
        (self.reader, self.writer)
    }

    /// A handle that interrupts both halves.
    pub fn closer(&self) -> Closer {
        self.reader.closer()
    }
}

impl StreamReader {
    /// A handle that interrupts both halves of the stream.
    pub fn closer(&self) -> Closer {
        Closer::new(&self.socket)
    }

    /// From here on the other end may send its next request as soon as it gets an answer. If it
    /// does, the shard polls for its next bytes for some microseconds before it sleeps.
    pub fn expect_promptly(&mut self) {
        self.is_prompt = true;
    }

    /// Waits for data and puts it into `buf` from index `from` on. Returns the buffer, and the
    /// number of bytes: 0 if the other end has finished sending.
    ///
    /// Dropping the future may lose data: do it only to end the connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionAborted`] after [`Closer::close`]; otherwise errors of the
    /// system.
    ///
    /// # Panics
    /// If there is no room: `from` is not below the length of `buf`.
    pub async fn recv(&mut self, buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        assert!(from < buf.len(), "no room to receive into: from {from} of {}", buf.len());
        self.recv_flags(buf, from, 0).await
    }

    /// Fills `range` of `buf`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the other end finished before the range was full;
    /// otherwise as [`StreamReader::recv`].
    ///
    /// # Panics
    /// If the range is not within `buf`.
    pub async fn recv_exact(&mut self, buf: BufMut, range: Range<usize>) -> (io::Result<()>, BufMut) {
        assert!(range.start <= range.end && range.end <= buf.len(), "range {range:?} of {}", buf.len());
        let mut buf = buf;
        // The operation fills a buffer to its end.
        let rest = buf.split_off(range.end);
        let mut from = range.start;
        let mut result = Ok(());
        while result.is_ok() && from < buf.len() {
            let received;
            (received, buf) = self.recv_flags(buf, from, libc::MSG_WAITALL).await;
            match received {
                Ok(0) => result = Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => from += count,
                Err(error) => result = Err(error),
            }
        }
        buf.unsplit(rest).expect("taken apart above");
        (result, buf)
    }

    async fn recv_flags(&mut self, mut buf: BufMut, from: usize, flags: i32) -> (io::Result<usize>, BufMut) {
        loop {
            if self.socket.is_closed() {
                return (Err(closed_here()), buf);
            }
            let room = &mut buf[from..];
            // The kernel receives less than 2 GiB at once.
            let (start, len) = (room.as_mut_ptr(), room.len().min(1 << 30) as u32);
            let (shard, target) = (self.socket.shard(), self.socket.target());
            let first = if self.is_drained { POLL_FIRST } else { 0 };
            let entry = opcode::Recv::new(target, start, len).ioprio(first).flags(flags).build();
            let payload = Payload::Fill(buf);
            let operation = if self.is_prompt && self.is_drained && flags == 0 {
                let receive = Receive { socket: target.0, start, len };
                // SAFETY: both point into the buffer, which the payload owns, and the socket is
                // ours.
                unsafe { shard.start_held(entry, payload, receive) }
            } else {
                // SAFETY: the entry points into the buffer, which the payload owns.
                unsafe { shard.start(entry, payload) }.cancelable()
            };
            self.socket.started(Side::In, operation.key());
            let _prompt = self.is_prompt.then(|| Prompt::begin(shard.prompt_receives()));
            let result;
            (result, buf) = operation.await.into_fill();
            match result {
                // The end of data, or the result of `close`.
                0 if self.socket.is_closed() => {}
                0.. => {
                    self.is_drained = (result as u32) < len;
                    return (Ok(result as usize), buf);
                }
                _ if self.socket.is_closed() || is_transient(result) => {}
                _ => return (Err(io::Error::from_raw_os_error(-result)), buf),
            }
        }
    }
}

impl StreamWriter {
    /// A handle that interrupts both halves of the stream.
    pub fn closer(&self) -> Closer {
        Closer::new(&self.socket)
    }

    /// Sends all segments in order, gathered into as few operations as possible. When it returns,
    /// the kernel has taken all bytes. (`Segments::from_vec` turns a `Vec<Buf>` into segments
    /// without copying.)
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionAborted`] after [`Closer::close`]; otherwise errors of the
    /// system, for example [`io::ErrorKind::BrokenPipe`]. After an error it is unknown how much was
    /// sent: the connection cannot be used any more.
    pub async fn send_all(&mut self, data: Segments) -> io::Result<()> {
        match data.len() {
            0 => Ok(()),
            1 => self.send_one(data).await,
            _ => self.send_many(data).await,
        }
    }

    /// A handle that sends without waiting, from any task of the shard.
    pub fn at_once(&self) -> SendsAtOnce {
        SendsAtOnce { socket: Rc::downgrade(&self.socket) }
    }

    /// Tells the other end that no more data will follow.
    pub fn shutdown(&mut self) {
        self.socket.shutdown(libc::SHUT_WR);
    }

    /// Interprets a result: the number of bytes sent, 0 to try again.
    fn sent(&self, result: i32) -> io::Result<usize> {
        match result {
            _ if self.socket.is_closed() => Err(closed_here()),
            0.. => Ok(result as usize),
            _ if is_transient(result) => Ok(0),
            _ => Err(io::Error::from_raw_os_error(-result)),
        }
    }

    async fn send_one(&mut self, data: Segments) -> io::Result<()> {
        let mut data = data;
        let mut done = 0;
        while done < data[0].len() {
            self.sent(0)?;
            let rest = &data[0][done..];
            // The kernel sends less than 2 GiB at once.
            let (start, len) = (rest.as_ptr(), rest.len().min(1 << 30) as u32);
            let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
            let entry = opcode::Send::new(self.socket.target(), start, len).flags(flags).build();
            // SAFETY: the entry points into the segment, which the payload owns.
            let operation = unsafe { self.socket.shard().start(entry, Payload::Drain(data, Vec::new())) }.cancelable();
            self.socket.started(Side::Out, operation.key());
            let result;
            (result, data, _) = operation.await.into_drain();
            done += self.sent(result)?;
        }
        Ok(())
    }

    async fn send_many(&mut self, data: Segments) -> io::Result<()> {
        let total: usize = data.iter().map(|segment| segment.len()).sum();
        let mut message = self.message.take().unwrap_or_default();
        message.data = data;
        let mut done = 0;
        while done < total {
            self.sent(0)?;
            message.point_behind(done);
            let header = &raw const message.header;
            let flags = (libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32;
            let entry = opcode::SendMsg::new(self.socket.target(), header).flags(flags).build();
            // SAFETY: the entry points to the header, that to the vector, and that into the
            // segments. The payload owns all of them, and the box keeps the header in place.
            let operation = unsafe { self.socket.shard().start(entry, Payload::Message(message)) }.cancelable();
            self.socket.started(Side::Out, operation.key());
            let result;
            (result, message) = operation.await.into_message();
            done += self.sent(result)?;
        }
        message.data.clear();
        self.message = Some(message);
        Ok(())
    }
}

/// Sends data on a stream if the kernel takes it at once. The kernel nearly always takes short
/// answers at once. For them an operation of the ring, and the turns until its completion is seen,
/// would cost as much as the sending itself.
pub struct SendsAtOnce {
    socket: Weak<Socket>,
}

/// A range of bytes in a gathered send.
#[repr(transparent)]
pub struct Piece<'a> {
    range: libc::iovec,
    bytes: PhantomData<View<'a>>,
}

impl Piece<'_> {
    /// The number of bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.range.iov_len
    }
}

impl<'a> From<View<'a>> for Piece<'a> {
    fn from(view: View<'a>) -> Piece<'a> {
        let range = libc::iovec { iov_base: view.as_ptr().cast_mut().cast(), iov_len: view.len() };
        Piece { range, bytes: PhantomData }
    }
}

impl<'a> From<&'a [u8]> for Piece<'a> {
    fn from(bytes: &'a [u8]) -> Piece<'a> {
        View::from(bytes).into()
    }
}

impl SendsAtOnce {
    /// Sends the first of these bytes, piece after piece, and returns how many the kernel took. It
    /// sends none if the stream has failed or was closed: the next [`StreamWriter::send_all`]
    /// reports that. It must not be called during a `send_all`, whose bytes may be sent in parts.
    pub fn send(&self, pieces: &[Piece<'_>]) -> usize {
        let Some(socket) = self.socket.upgrade().filter(|socket| !socket.is_closed()) else { return 0 };
        // SAFETY: a message header without name, vector and control data is all zeroes.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = pieces.as_ptr().cast_mut().cast();
        header.msg_iovlen = pieces.len().min(RANGES_MAX) as _;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the pieces are a vector (`Piece`), which `sendmsg` only reads. The memory that
        // they point to outlives the call.
        let sent = unsafe { libc::sendmsg(socket.target().0, &raw const header, flags) };
        usize::try_from(sent).unwrap_or(0)
    }
}

impl Default for Message {
    fn default() -> Self {
        // SAFETY: a message header without name, vector and control data is all zeroes.
        let header = unsafe { std::mem::zeroed() };
        Message { header, vector: Vec::new(), data: Segments::new() }
    }
}

impl Message {
    /// Points the header to the data after the first `skip` bytes, as much as fits in one message.
    fn point_behind(&mut self, skip: usize) {
        self.vector.clear();
        let mut skip = skip;
        for segment in &self.data {
            if skip >= segment.len() {
                skip -= segment.len();
                continue;
            }
            if self.vector.len() == RANGES_MAX {
                break;
            }
            let rest = &segment[skip..];
            skip = 0;
            self.vector.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() });
        }
        self.header.msg_iov = self.vector.as_mut_ptr();
        self.header.msg_iovlen = self.vector.len() as _;
    }
}
