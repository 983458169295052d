//! A host's side of a connection, PDU by PDU.

use nvme::tcp::{Digests, Kind, Writer, pdu};
use nvme::{Command, Sgl, nvm};

use super::crc32c;

/// Bytes of a host whose PDUs follow each other without waiting for an answer.
pub struct Stream {
    pub bytes: Vec<u8>,
    pub writer: Writer,
}

impl Stream {
    /// Begins with an ICReq.
    pub fn new(digests: Digests) -> Stream {
        Stream { bytes: pdu::initialize(Kind::IcReq, 0, digests, 0).to_vec(), writer: Writer::new(digests, 0) }
    }

    /// A command with data in its capsule, or with none.
    pub fn command(&mut self, command: Command, data: &[u8]) -> &mut Stream {
        self.bytes.extend_from_slice(&self.writer.command(command, data.len()));
        self.data(data, true)
    }

    /// Data that were asked for.
    pub fn transfer(&mut self, cid: u16, tag: u16, offset: u32, data: &[u8], last: bool) -> &mut Stream {
        self.transfer_with(cid, tag, offset, data, last, true)
    }

    /// Data that were asked for; unless they are `intact`, with a wrong digest.
    pub fn transfer_with(
        &mut self,
        cid: u16,
        tag: u16,
        offset: u32,
        data: &[u8],
        last: bool,
        intact: bool,
    ) -> &mut Stream {
        self.bytes.extend_from_slice(&self.writer.data_to_controller(cid, tag, offset, data.len() as u32, last));
        self.data(data, intact)
    }

    fn data(&mut self, data: &[u8], intact: bool) -> &mut Stream {
        self.bytes.extend_from_slice(data);
        if self.writer.digests().data && !data.is_empty() {
            let mut digest = crc32c(data);
            digest[1] ^= u8::from(!intact);
            self.bytes.extend_from_slice(&digest);
        }
        self
    }
}

/// A write of `len` bytes that have to be asked for.
pub fn write(cid: u16, len: u32) -> Command {
    let mut command = Command::new(nvm::WRITE, cid, 1);
    command.dptr = Sgl::transport(len);
    command
}

/// A write with its `len` bytes in the capsule.
pub fn write_in_capsule(cid: u16, len: u32) -> Command {
    let mut command = Command::new(nvm::WRITE, cid, 1);
    command.dptr = Sgl::in_capsule(len);
    command
}

/// A read of `len` bytes.
pub fn read(cid: u16, len: u32) -> Command {
    let mut command = Command::new(nvm::READ, cid, 1);
    command.dptr = Sgl::transport(len);
    command
}

/// `len` bytes that differ from each other, and from those of another `seed`.
pub fn noise(seed: u16, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(u32::from(seed) * 977) as u8).collect()
}
