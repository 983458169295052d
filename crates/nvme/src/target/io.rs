//! Commands of I/O queues: NVM Command Set 1.0, clause 3.2.

use super::{Namespace, TRANSFER_BYTES_MAX};
use crate::{Command, Fuse, Status, nvm};

/// A checked command, in bytes of the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// Flush.
    Flush,
    /// Read.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, also of the data.
        len: u32,
    },
    /// Write.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes, also of the data.
        len: u32,
        /// Durable when it is answered.
        fua: bool,
    },
    /// Compare.
    Compare {
        /// First byte.
        offset: u64,
        /// Bytes, also of the data.
        len: u32,
    },
    /// Write Zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Durable when it is answered.
        fua: bool,
        /// The space may be given back.
        deallocate: bool,
    },
    /// Dataset Management with the attribute Deallocate.
    Deallocate {
        /// Ranges in the data, of 16 bytes each.
        ranges: u32,
    },
    /// Dataset Management that only gives hints.
    Hint {
        /// Ranges in the data, of 16 bytes each.
        ranges: u32,
    },
    /// Verify.
    Verify {
        /// First byte.
        offset: u64,
        /// Bytes; there are no data.
        len: u32,
    },
}

/// A range of a namespace in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Bytes of a range in the data of Dataset Management.
const RANGE_BYTES: usize = 16;

/// Ranges of one command at most: NR says one less in eight bits.
const RANGES_MAX: u32 = 256;

impl Io {
    /// Reads a command for a namespace.
    ///
    /// # Errors
    /// The status that the host gets.
    #[inline]
    pub fn of(command: &Command, namespace: &Namespace) -> Result<Io, Status> {
        // FUSES says that there are no fused commands.
        if command.fuse() != Fuse::No {
            return Err(Status::INVALID_FIELD);
        }
        let changes = matches!(command.opcode, nvm::WRITE | nvm::WRITE_ZEROES | nvm::DATASET_MANAGEMENT);
        if changes && namespace.read_only {
            return Err(Status::WRITE_PROTECTED);
        }
        let io = match command.opcode {
            nvm::FLUSH => Io::Flush,
            nvm::READ => {
                let (offset, len) = range(command, namespace)?;
                Io::Read { offset, len }
            }
            nvm::WRITE => {
                let (offset, len) = range(command, namespace)?;
                Io::Write { offset, len, fua: command.fua() }
            }
            nvm::COMPARE => {
                let (offset, len) = range(command, namespace)?;
                Io::Compare { offset, len }
            }
            nvm::WRITE_ZEROES => {
                let (offset, len) = range(command, namespace)?;
                Io::WriteZeroes { offset, len, fua: command.fua(), deallocate: command.deallocate() }
            }
            nvm::VERIFY => {
                let (offset, len) = range(command, namespace)?;
                Io::Verify { offset, len }
            }
            nvm::DATASET_MANAGEMENT => {
                let ranges = (command.cdw(10) & 0xFF) + 1;
                // AD, Attribute - Deallocate.
                if command.cdw(11) & 1 << 2 != 0 { Io::Deallocate { ranges } } else { Io::Hint { ranges } }
            }
            _ => return Err(Status::INVALID_OPCODE),
        };
        let data_bytes = io.data_bytes();
        if data_bytes > TRANSFER_BYTES_MAX {
            return Err(Status::INVALID_FIELD);
        }
        let described = command.dptr.length.get();
        let fits = match io {
            // Linux hosts describe room for 256 ranges, however few there are.
            Io::Deallocate { .. } | Io::Hint { .. } => {
                (data_bytes..=RANGES_MAX * RANGE_BYTES as u32).contains(&described)
            }
            _ => data_bytes == 0 || described == data_bytes,
        };
        if !fits {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        Ok(io)
    }

    /// Bytes of data that the command needs or gives. As many travel, but for Dataset Management: there the host may send
    /// more than its ranges, as the length in its SGL says, and what is behind them means nothing.
    #[inline]
    pub fn data_bytes(&self) -> u32 {
        match self {
            Io::Read { len, .. } | Io::Write { len, .. } | Io::Compare { len, .. } => *len,
            Io::Deallocate { ranges } | Io::Hint { ranges } => ranges * RANGE_BYTES as u32,
            Io::Flush | Io::WriteZeroes { .. } | Io::Verify { .. } => 0,
        }
    }
}

/// SLBA and NLB as bytes, which have to lie in the namespace. Without data the length may pass 4 GiB nowhere: 65,536 blocks of
/// at most 4 KiB are 256 MiB.
#[inline]
fn range(command: &Command, namespace: &Namespace) -> Result<(u64, u32), Status> {
    let (first, blocks) = (command.slba(), u64::from(command.blocks()));
    match first.checked_add(blocks) {
        Some(end) if end <= namespace.blocks => {
            let block_bytes = u64::from(namespace.block_bytes);
            Ok((first * block_bytes, (blocks * block_bytes) as u32))
        }
        _ => Err(Status::LBA_OUT_OF_RANGE),
    }
}

/// The ranges of Dataset Management: NVM Command Set 1.0, figure 37. `data` are the first [`Io::data_bytes`] of those that
/// came with the command. Empty ranges are left out.
///
/// # Errors
/// A range lies outside of the namespace: then none is to be deallocated.
pub fn ranges(data: &[u8], namespace: &Namespace) -> Result<Vec<Range>, Status> {
    let mut ranges = Vec::with_capacity(data.len() / RANGE_BYTES);
    let block_bytes = u64::from(namespace.block_bytes);
    for range in data.chunks_exact(RANGE_BYTES) {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        let (blocks, first) = (number(&range[4..8]), number(&range[8..16]));
        match first.checked_add(blocks) {
            Some(end) if end <= namespace.blocks => {}
            _ => return Err(Status::LBA_OUT_OF_RANGE),
        }
        if blocks > 0 {
            ranges.push(Range { offset: first * block_bytes, len: blocks * block_bytes });
        }
    }
    Ok(ranges)
}
