//! Commands of I/O queues: NVM Command Set 1.0, clause 3.2. The caller sets their identifiers.

use crate::{Command, Sgl, nvm};

/// Maximum number of blocks of one command: NLB has 16 bits and is one less than that.
pub const BLOCKS_MAX: u32 = 1 << 16;

/// Maximum number of ranges of one Dataset Management: NR has 8 bits and is one less than that.
pub const RANGES_MAX: usize = 256;

/// Blocks of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// NSID.
    pub nsid: u32,
    /// SLBA.
    pub first: u64,
    /// The number of blocks, 1 to [`BLOCKS_MAX`].
    pub count: u32,
}

impl Blocks {
    fn command(self, opcode: u8) -> Command {
        assert!((1..=BLOCKS_MAX).contains(&self.count), "{} blocks in one command", self.count);
        let mut command = Command::new(opcode, 0, self.nsid);
        command.set_slba(self.first);
        command.set_cdw(12, self.count - 1);
        command
    }
}

/// FUA and DEAC in dword 12.
const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;

/// AD in dword 11 of Dataset Management.
const AD: u32 = 1 << 2;

fn data(len: u32, in_capsule: bool) -> Sgl {
    if in_capsule { Sgl::in_capsule(len) } else { Sgl::transport(len) }
}

/// Read of `len` bytes.
///
/// # Panics
/// If the number of blocks is not 1 to [`BLOCKS_MAX`]. Other functions with [`Blocks`] panic, too.
pub fn read(blocks: Blocks, len: u32) -> Command {
    let mut command = blocks.command(nvm::READ);
    command.dptr = Sgl::transport(len);
    command
}

/// Write of `len` bytes, in the capsule or on request. `fua`: the data are durable when the
/// controller answers.
pub fn write(blocks: Blocks, len: u32, in_capsule: bool, fua: bool) -> Command {
    let mut command = blocks.command(nvm::WRITE);
    command.dptr = data(len, in_capsule);
    command.set_cdw(12, command.cdw(12) | if fua { FUA } else { 0 });
    command
}

/// Compare with `len` bytes, in the capsule or on request. The status is
/// [`crate::Status::COMPARE_FAILURE`] if they differ.
pub fn compare(blocks: Blocks, len: u32, in_capsule: bool) -> Command {
    let mut command = blocks.command(nvm::COMPARE);
    command.dptr = data(len, in_capsule);
    command
}

/// Write Zeroes. `deallocate`: the controller may deallocate the space.
pub fn write_zeroes(blocks: Blocks, fua: bool, deallocate: bool) -> Command {
    let mut command = blocks.command(nvm::WRITE_ZEROES);
    let flags = if fua { FUA } else { 0 } | if deallocate { DEAC } else { 0 };
    command.set_cdw(12, command.cdw(12) | flags);
    command
}

/// Verify: the controller checks that the blocks are readable.
pub fn verify(blocks: Blocks) -> Command {
    blocks.command(nvm::VERIFY)
}

/// Flush of one namespace.
pub fn flush(nsid: u32) -> Command {
    Command::new(nvm::FLUSH, 0, nsid)
}

/// Dataset Management that deallocates these ranges, each a first block and a number of blocks. The
/// data travel in the capsule, or on request if they do not fit.
///
/// # Panics
/// If there are no ranges, or more than [`RANGES_MAX`].
pub fn deallocate(nsid: u32, ranges: &[(u64, u32)], in_capsule: bool) -> (Command, Vec<u8>) {
    assert!((1..=RANGES_MAX).contains(&ranges.len()), "{} ranges in one command", ranges.len());
    let mut bytes = Vec::with_capacity(ranges.len() * 16);
    for (first, count) in ranges {
        // No context attributes.
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&first.to_le_bytes());
    }
    let mut command = Command::new(nvm::DATASET_MANAGEMENT, 0, nsid);
    command.set_cdw(10, ranges.len() as u32 - 1);
    command.set_cdw(11, AD);
    command.dptr = data(bytes.len() as u32, in_capsule);
    (command, bytes)
}
