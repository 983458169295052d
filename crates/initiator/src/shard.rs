//! Connections on a shard's ring: `runtime`'s sockets.

use std::io;
use std::net::SocketAddr;

use drive::{BufMut, Segments};
use runtime::{ShardEnv, Stream, StreamReader, StreamWriter};

use crate::network::{Address, Network, Reader, Writer};

impl Network for ShardEnv {
    type Reader = StreamReader;
    type Writer = StreamWriter;

    /// Connects to an IP address only: the caller must resolve names, on a thread that may block.
    async fn connect(&self, address: &Address) -> io::Result<(StreamReader, StreamWriter)> {
        let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "an IP address is needed here, not a name");
        // The text of an address keeps the number of its interface (`[fe80::1%3]:4420`).
        let address: SocketAddr = address.to_string().parse().map_err(|_| no_name())?;
        Ok(Stream::connect(self, address).await?.split())
    }
}

impl Reader for StreamReader {
    async fn recv(&mut self, buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        StreamReader::recv(self, buf, from).await
    }
}

impl Writer for StreamWriter {
    async fn send(&mut self, data: Segments) -> io::Result<()> {
        self.send_all(data).await
    }
}
