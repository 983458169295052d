//! Commands of I/O queues: NVM Command Set 1.0, clause 3.2.

use super::{Namespace, Permit, Reserve, TRANSFER_BYTES_MAX, fused};
use crate::{Command, Status, nvm};

/// A checked command, converted to bytes of the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// Flush.
    Flush,
    /// Read.
    Read {
        /// First byte.
        offset: u64,
        /// Length of the range and of the data.
        len: u32,
        /// Earlier writes to the range are made durable before the read.
        fua: bool,
    },
    /// Write.
    Write {
        /// First byte.
        offset: u64,
        /// Length of the range and of the data.
        len: u32,
        /// The write is durable when it is answered.
        fua: bool,
    },
    /// Compare.
    Compare {
        /// First byte.
        offset: u64,
        /// Length of the range and of the data.
        len: u32,
        /// Earlier writes to the range are made durable before the comparison.
        fua: bool,
    },
    /// Write Zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// The zeroes are durable when the command is answered.
        fua: bool,
        /// The space may be deallocated.
        deallocate: bool,
    },
    /// Dataset Management with the attribute Deallocate.
    Deallocate {
        /// Ranges in the data, of 16 bytes each.
        ranges: u32,
    },
    /// Dataset Management with hints only.
    Hint {
        /// Ranges in the data, of 16 bytes each.
        ranges: u32,
    },
    /// Verify.
    Verify {
        /// First byte.
        offset: u64,
        /// Length of the range; the command has no data.
        len: u32,
        /// Earlier writes to the range are made durable before the check.
        fua: bool,
    },
    /// Copy: several source ranges to one destination.
    Copy {
        /// First byte of the destination.
        offset: u64,
        /// Source ranges in the data, of 32 bytes each.
        ranges: u32,
        /// The copy is durable when it is answered.
        fua: bool,
    },
    /// Reservation Register, Acquire or Release.
    Reserve(Reserve),
    /// Reservation Report with extended data structures.
    Report {
        /// Bytes of the host's buffer.
        len: u32,
    },
}

/// The group of a command for conflicts with a reservation: Base 2.0, clause 8.19, "Command
/// Behavior in the Presence of a Reservation".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Commands that read.
    Read,
    /// Commands that write, and Flush.
    Write,
    /// Commands of reservations, which have their own rules.
    Reservation,
}

impl Permit {
    /// Whether commands of a group are allowed.
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

/// Maximum number of ranges of one command: NR has eight bits and is one less than that.
const RANGES_MAX: u32 = 256;

/// Bytes of a source range in the data of Copy, in format 0.
const SOURCE_BYTES: usize = 32;

/// MSRC plus one: maximum number of source ranges of one Copy command.
pub const COPY_RANGES_MAX: u32 = 256;

/// MCL and MSSRL: maximum data of one Copy command, in bytes; as much as a write. All of it is in
/// memory at once.
pub const COPY_BYTES_MAX: u32 = TRANSFER_BYTES_MAX;

impl Io {
    /// Reads a command for a namespace. A fused command is part of a [`super::CompareAndWrite`].
    ///
    /// # Errors
    /// The status for the host.
    #[inline]
    pub fn of(command: &Command, namespace: &Namespace) -> Result<Io, Status> {
        fused::check(command)?;
        let changes = matches!(command.opcode, nvm::WRITE | nvm::WRITE_ZEROES | nvm::DATASET_MANAGEMENT | nvm::COPY);
        if changes && namespace.read_only {
            return Err(Status::WRITE_PROTECTED);
        }
        let io = Io::parse(command, namespace)?;
        io.check_data_length(command)?;
        Ok(io)
    }

    #[inline]
    fn parse(command: &Command, namespace: &Namespace) -> Result<Io, Status> {
        let fua = command.fua();
        match command.opcode {
            nvm::FLUSH => Ok(Io::Flush),
            nvm::READ => range(command, namespace).map(|(offset, len)| Io::Read { offset, len, fua }),
            nvm::WRITE => range(command, namespace).map(|(offset, len)| Io::Write { offset, len, fua }),
            nvm::COMPARE => range(command, namespace).map(|(offset, len)| Io::Compare { offset, len, fua }),
            nvm::WRITE_ZEROES => range(command, namespace).map(|(offset, len)| {
                let deallocate = command.deallocate();
                Io::WriteZeroes { offset, len, fua, deallocate }
            }),
            nvm::VERIFY => match range(command, namespace)? {
                (_, len) if len > TRANSFER_BYTES_MAX => Err(Status::INVALID_FIELD),
                (offset, len) => Ok(Io::Verify { offset, len, fua }),
            },
            nvm::COPY => Io::parse_copy(command, namespace),
            nvm::RESERVATION_REGISTER | nvm::RESERVATION_ACQUIRE | nvm::RESERVATION_RELEASE => {
                Ok(Io::Reserve(Reserve::new(command)))
            }
            nvm::RESERVATION_REPORT => Io::parse_report(command),
            nvm::DATASET_MANAGEMENT => {
                let ranges = (command.cdw(10) & 0xFF) + 1;
                // AD, Attribute - Deallocate.
                Ok(if command.cdw(11) & 1 << 2 != 0 { Io::Deallocate { ranges } } else { Io::Hint { ranges } })
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn parse_copy(command: &Command, namespace: &Namespace) -> Result<Io, Status> {
        // Desired descriptor format, bits 11:8.
        if command.cdw(12) >> 8 & 0xF != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let first = command.slba();
        if first >= namespace.blocks {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        let (offset, ranges) = (first * u64::from(namespace.block_bytes), (command.cdw(12) & 0xFF) + 1);
        Ok(Io::Copy { offset, ranges, fua: command.fua() })
    }

    fn parse_report(command: &Command) -> Result<Io, Status> {
        // EDS: over fabrics host identifiers have 128 bits. Only the extended structures hold them.
        if command.cdw(11) & 1 == 0 {
            return Err(Status::HOST_ID_INCONSISTENT);
        }
        // NUMD is one less than the number of dwords.
        let bytes = (u64::from(command.cdw(10)) + 1) * 4;
        Ok(Io::Report { len: u32::try_from(bytes).map_err(|_| Status::INVALID_FIELD)? })
    }

    /// The data has to be no longer than MDTS, and as long as its descriptor says.
    #[inline]
    fn check_data_length(&self, command: &Command) -> Result<(), Status> {
        let data_bytes = self.data_bytes();
        if data_bytes > TRANSFER_BYTES_MAX {
            return Err(Status::INVALID_FIELD);
        }
        let described = command.dptr.length.get();
        let fits = match self {
            // Linux hosts always describe room for 256 ranges, even for fewer ranges.
            Io::Deallocate { .. } | Io::Hint { .. } => {
                (data_bytes..=RANGES_MAX * RANGE_BYTES as u32).contains(&described)
            }
            _ => data_bytes == 0 || described == data_bytes,
        };
        if fits { Ok(()) } else { Err(Status::DATA_SGL_LENGTH_INVALID) }
    }

    /// Bytes of data that the command needs or returns. As many are transferred, except for Dataset
    /// Management: there the host may send more, up to the length in its SGL. The bytes behind the
    /// ranges are ignored.
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

    /// The group for conflicts with a reservation.
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

/// Converts SLBA and NLB to bytes. The range has to lie in the namespace. The length never exceeds
/// 4 GiB, even without data: 65,536 blocks of at most 4 KiB are 256 MiB.
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
/// [`Io::data_bytes`] of the command's data. Empty ranges are left out.
///
/// # Errors
/// A range exceeds the namespace. Then the caller deallocates none.
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

/// The source ranges of Copy and their destination: NVM Command Set 1.0, clause 3.2.2, format 0.
/// `data` are the first [`Io::data_bytes`] of the command's data. `offset` is the first byte of the
/// destination.
///
/// # Errors
/// The ranges are larger than one command may copy, exceed the namespace, or do not fit the
/// destination.
pub fn copied(data: &[u8], offset: u64, namespace: &Namespace) -> Result<(Vec<Range>, Range), Status> {
    let mut sources = Vec::with_capacity(data.len() / SOURCE_BYTES);
    let (block_bytes, mut blocks) = (u64::from(namespace.block_bytes), 0);
    for source in data.chunks_exact(SOURCE_BYTES) {
        // SLBA; NLB is one less than the number of blocks.
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
