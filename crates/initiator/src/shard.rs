//! Connections of a shard's ring: `runtime`'s sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};

use drive::{BufMut, Segments};
use runtime::{ShardEnv, Stream, StreamReader, StreamWriter};

use crate::network::{Address, Network, Reader, Writer};

impl Network for ShardEnv {
    type Reader = StreamReader;
    type Writer = StreamWriter;

    /// To an IP address: names are resolved by whoever may wait for that.
    async fn connect(&self, address: &Address) -> io::Result<(StreamReader, StreamWriter)> {
        let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "an IP address is needed here, not a name");
        let ip: IpAddr = address.host.parse().map_err(|_| no_name())?;
        Ok(Stream::connect(self, SocketAddr::new(ip, address.port)).await?.split())
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
