//! Connections and time with tokio. It must be used inside a `tokio::task::LocalSet`: tasks stay on
//! its thread.

use std::future::Future;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use drive::{Buf, BufMut, Nanos, Segments, Tasks};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::network::{Address, Network, Reader, Writer};

/// Most segments of one gathered send: fewer than any system's limit.
const SLICES_MAX: usize = 64;

/// The tokio of this thread.
#[derive(Debug, Clone, Copy)]
pub struct TokioNetwork {
    start: Instant,
}

impl TokioNetwork {
    /// A network whose clock begins now.
    pub fn new() -> TokioNetwork {
        TokioNetwork { start: Instant::now() }
    }
}

impl Default for TokioNetwork {
    fn default() -> Self {
        TokioNetwork::new()
    }
}

impl Tasks for TokioNetwork {
    fn now(&self) -> Nanos {
        self.start.elapsed().as_nanos() as u64
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + 'static {
        tokio::time::sleep(duration)
    }

    fn turn_end(&self) -> impl Future<Output = ()> + 'static {
        tokio::task::yield_now()
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        tokio::task::spawn_local(task);
    }

    fn alloc(&self, len: usize) -> BufMut {
        BufMut::zeroed(len)
    }
}

impl Network for TokioNetwork {
    type Reader = OwnedReadHalf;
    type Writer = OwnedWriteHalf;

    async fn connect(&self, address: &Address) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        stream.set_nodelay(true)?;
        Ok(stream.into_split())
    }
}

impl Reader for OwnedReadHalf {
    async fn recv(&mut self, mut buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        let received = self.read(&mut buf[from..]).await;
        (received, buf)
    }
}

impl Writer for OwnedWriteHalf {
    async fn send(&mut self, data: Segments) -> io::Result<()> {
        send_all(self, &data).await
    }
}

/// Sends all data, gathered into as few operations as possible.
///
/// # Errors
/// Errors of the system.
pub async fn send_all(writer: &mut (impl AsyncWrite + Unpin), data: &[Buf]) -> io::Result<()> {
    // The number of segments that were sent completely, and bytes sent of the next one.
    let (mut first, mut skip) = (0, 0);
    loop {
        while data.get(first).is_some_and(|segment| skip >= segment.len()) {
            skip -= data[first].len();
            first += 1;
        }
        if first == data.len() {
            return Ok(());
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = SLICES_MAX.min(data.len() - first);
        for (index, slice) in slices[..count].iter_mut().enumerate() {
            let from = if index == 0 { skip } else { 0 };
            *slice = IoSlice::new(&data[first + index][from..]);
        }
        let sent = writer.write_vectored(&slices[..count]).await?;
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        skip += sent;
    }
}
