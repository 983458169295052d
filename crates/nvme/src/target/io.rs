//! Commands of I/O queues: NVM Command Set 1.0, clause 3.2.

use super::{Namespace, Permit, Reserve, TRANSFER_BYTES_MAX, fused};
use crate::{Command, Status, nvm};

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
        /// What was written there and is not durable yet is made so before it is looked at.
        fua: bool,
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
        /// What was written there and is not durable yet is made so before it is looked at.
        fua: bool,
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
        /// What was written there and is not durable yet is made so before it is looked at.
        fua: bool,
    },
    /// Copy: several ranges to one place.
    Copy {
        /// First byte of the place.
        offset: u64,
        /// Source ranges in the data, of 32 bytes each.
        ranges: u32,
        /// Durable when it is answered.
        fua: bool,
    },
    /// Reservation Register, Acquire or Release.
    Reserve(Reserve),
    /// Reservation Report with extended data structures.
    Report {
        /// Bytes that the host has room for.
        len: u32,
    },
}

/// What a reservation excludes a command as: Base 2.0, clause 8.19, "Command Behavior in the
/// Presence of a Reservation".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// It reads.
    Read,
    /// It writes. Flush is one of them.
    Write,
    /// A command of reservations, which have rules of their own.
    Reservation,
}

impl Permit {
    /// Whether commands of a group are let through.
    #[inline]
    pub fn covers(self, group: Group) -> bool {
        match group {
            Group::Read => self.reads,
            Group::Write => self.writes,
            Group::Reservation => true,
        }
    }
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

/// Bytes of a source range in the data of Copy, in format 0.
const SOURCE_BYTES: usize = 32;

/// MSRC and one: source ranges of one Copy command at most.
pub const COPY_RANGES_MAX: u32 = 256;

/// MCL, and MSSRL: what one Copy command copies at most, in bytes; as much as a write. All of it is
/// in memory at once.
pub const COPY_BYTES_MAX: u32 = TRANSFER_BYTES_MAX;

impl Io {
    /// Reads a command for a namespace. One that is fused is a part of a
    /// [`super::CompareAndWrite`].
    ///
    /// # Errors
    /// The status that the host gets.
    #[inline]
    pub fn of(command: &Command, namespace: &Namespace) -> Result<Io, Status> {
        fused::check(command)?;
        let changes = matches!(command.opcode, nvm::WRITE | nvm::WRITE_ZEROES | nvm::DATASET_MANAGEMENT | nvm::COPY);
        if changes && namespace.read_only {
            return Err(Status::WRITE_PROTECTED);
        }
        let io = match command.opcode {
            nvm::FLUSH => Io::Flush,
            nvm::READ => {
                let (offset, len) = range(command, namespace)?;
                Io::Read { offset, len, fua: command.fua() }
            }
            nvm::WRITE => {
                let (offset, len) = range(command, namespace)?;
                Io::Write { offset, len, fua: command.fua() }
            }
            nvm::COMPARE => {
                let (offset, len) = range(command, namespace)?;
                Io::Compare { offset, len, fua: command.fua() }
            }
            nvm::WRITE_ZEROES => {
                let (offset, len) = range(command, namespace)?;
                Io::WriteZeroes { offset, len, fua: command.fua(), deallocate: command.deallocate() }
            }
            nvm::VERIFY => {
                let (offset, len) = range(command, namespace)?;
                if len > TRANSFER_BYTES_MAX {
                    return Err(Status::INVALID_FIELD);
                }
                Io::Verify { offset, len, fua: command.fua() }
            }
            nvm::COPY => {
                // Desired descriptor format, bits 11:8.
                if command.cdw(12) >> 8 & 0xF != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                let first = command.slba();
                if first >= namespace.blocks {
                    return Err(Status::LBA_OUT_OF_RANGE);
                }
                let (offset, ranges) = (first * u64::from(namespace.block_bytes), (command.cdw(12) & 0xFF) + 1);
                Io::Copy { offset, ranges, fua: command.fua() }
            }
            nvm::RESERVATION_REGISTER | nvm::RESERVATION_ACQUIRE | nvm::RESERVATION_RELEASE => {
                Io::Reserve(Reserve::new(command))
            }
            nvm::RESERVATION_REPORT => {
                // EDS: over fabrics host identifiers have 128 bits, which only the extended
                // structures hold.
                if command.cdw(11) & 1 == 0 {
                    return Err(Status::HOST_ID_INCONSISTENT);
                }
                // NUMD says one less.
                let bytes = (u64::from(command.cdw(10)) + 1) * 4;
                Io::Report { len: u32::try_from(bytes).map_err(|_| Status::INVALID_FIELD)? }
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

    /// Bytes of data that the command needs or gives. As many travel, but for Dataset Management:
    /// there the host may send more than its ranges, as the length in its SGL says, and what is
    /// behind them means nothing.
    #[inline]
    pub fn data_bytes(&self) -> u32 {
        match self {
            Io::Read { len, .. } | Io::Write { len, .. } | Io::Compare { len, .. } | Io::Report { len } => *len,
            Io::Copy { ranges, .. } => ranges * SOURCE_BYTES as u32,
            Io::Reserve(reserve) => reserve.data_bytes(),
            Io::Deallocate { ranges } | Io::Hint { ranges } => ranges * RANGE_BYTES as u32,
            Io::Flush | Io::WriteZeroes { .. } | Io::Verify { .. } => 0,
        }
    }

    /// What a reservation excludes it as.
    #[inline]
    pub fn group(&self) -> Group {
        match self {
            Io::Read { .. } | Io::Compare { .. } | Io::Verify { .. } => Group::Read,
            Io::Flush
            | Io::Write { .. }
            | Io::WriteZeroes { .. }
            | Io::Deallocate { .. }
            | Io::Hint { .. }
            | Io::Copy { .. } => Group::Write,
            Io::Reserve(_) | Io::Report { .. } => Group::Reservation,
        }
    }
}

/// SLBA and NLB as bytes, which have to lie in the namespace. Without data the length may pass 4
/// GiB nowhere: 65,536 blocks of at most 4 KiB are 256 MiB.
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

/// The ranges of Dataset Management: NVM Command Set 1.0, figure 37. `data` are the first
/// [`Io::data_bytes`] of those that came with the command. Empty ranges are left out.
///
/// # Errors
/// A range lies outside of the namespace: then none is to be deallocated.
pub fn ranges(data: &[u8], namespace: &Namespace) -> Result<Vec<Range>, Status> {
    let mut ranges = Vec::with_capacity(data.len() / RANGE_BYTES);
    let block_bytes = u64::from(namespace.block_bytes);
    for range in data.chunks_exact(RANGE_BYTES) {
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

/// An unsigned integer of any width, little-endian.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The source ranges of Copy, and the range that they are copied to: NVM Command Set 1.0, clause
/// 3.2.2, format 0. `data` are the first [`Io::data_bytes`] of those that came with the command,
/// `offset` is the first byte of the place.
///
/// # Errors
/// They are more than can be copied at a time, or lie outside of the namespace, or do not fit the
/// place.
pub fn copied(data: &[u8], offset: u64, namespace: &Namespace) -> Result<(Vec<Range>, Range), Status> {
    let mut sources = Vec::with_capacity(data.len() / SOURCE_BYTES);
    let (block_bytes, mut blocks) = (u64::from(namespace.block_bytes), 0);
    for source in data.chunks_exact(SOURCE_BYTES) {
        // SLBA; NLB says one less.
        let (first, count) = (number(&source[8..16]), number(&source[16..18]) + 1);
        blocks += count;
        if blocks * block_bytes > u64::from(COPY_BYTES_MAX) {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED);
        }
        match first.checked_add(count) {
            Some(end) if end <= namespace.blocks => {}
            _ => return Err(Status::LBA_OUT_OF_RANGE),
        }
        sources.push(Range { offset: first * block_bytes, len: count * block_bytes });
    }
    let to = Range { offset, len: blocks * block_bytes };
    if offset / block_bytes + blocks > namespace.blocks {
        return Err(Status::LBA_OUT_OF_RANGE);
    }
    Ok((sources, to))
}
