//! The smallest NBD client that can fill a volume and read one.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nbd::client;
use nbd::wire::rep;

/// Bytes of one request.
const STEP: usize = 1 << 20;

/// A connection in its transmission phase.
pub fn connect(socket: &Path, export: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    stream.write_all(&client::flags(true, true))?;
    stream.write_all(&client::go(export, &[]))?;
    loop {
        let mut header = [0; 20];
        stream.read_exact(&mut header)?;
        let len = u32::from_be_bytes(header[16..20].try_into().expect("4 bytes"));
        let mut payload = vec![0; len as usize];
        stream.read_exact(&mut payload)?;
        match u32::from_be_bytes(header[12..16].try_into().expect("4 bytes")) {
            rep::INFO => {}
            rep::ACK => return Ok(stream),
            kind => return Err(io::Error::other(format!("option reply {kind:#x}: {payload:?}"))),
        }
    }
}

/// Writes `bytes` at `offset` of an export, flushes, and disconnects.
pub fn write(socket: &Path, export: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut stream = connect(socket, export)?;
    for (index, part) in bytes.chunks(STEP).enumerate() {
        stream.write_all(&client::write(index as u64, offset + (index * STEP) as u64, part, 0))?;
        answered(&mut stream)?;
    }
    stream.write_all(&client::flush(u64::MAX))?;
    answered(&mut stream)?;
    stream.write_all(&client::disconnect())
}

/// Reads `len` bytes at `offset` of an export, and disconnects.
pub fn read(socket: &Path, export: &str, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut stream = connect(socket, export)?;
    let mut bytes = vec![0; len];
    for (index, part) in bytes.chunks_mut(STEP).enumerate() {
        stream.write_all(&client::read(index as u64, offset + (index * STEP) as u64, part.len() as u32))?;
        answered(&mut stream)?;
        stream.read_exact(part)?;
    }
    stream.write_all(&client::disconnect())?;
    Ok(bytes)
}

/// Writes in a connection that stays open.
pub fn write_on(stream: &mut UnixStream, offset: u64, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&client::write(1, offset, bytes, 0))?;
    answered(stream)
}

fn answered(stream: &mut UnixStream) -> io::Result<()> {
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    match u32::from_be_bytes(reply[4..8].try_into().expect("4 bytes")) {
        0 => Ok(()),
        error => Err(io::Error::other(format!("error {error}"))),
    }
}
