//! Submission queue entries: NVMe Base 2.0, clause 3.3.3.1; NVM Command Set 1.0, clause 3.2.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Opcodes of the admin command set: Base 2.0, figure 138.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0A;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0C;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Opcodes of the NVM command set: Base 2.0, figure 390; NVM Command Set 1.0, figure 16.
pub mod nvm {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0C;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0D;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0E;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Copy.
    pub const COPY: u8 = 0x19;
}

/// The opcode of all fabrics commands: Base 2.0, clause 6.
pub const FABRICS: u8 = 0x7F;

/// Types of fabrics commands, in [`Command::fabrics_type`]: Base 2.0, figure 383.
pub mod fabrics {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// A submission queue entry of 64 bytes, "SQE". Fields are named as in Base 2.0, figure 87.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Command {
    /// OPC.
    pub opcode: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// CID.
    pub cid: U16,
    /// NSID. In fabrics commands the lowest byte is FCTYPE.
    pub nsid: U32,
    /// Command dwords 2 and 3.
    pub cdw2_3: [U32; 2],
    /// MPTR.
    pub mptr: U64,
    /// DPTR: over fabrics always one SGL descriptor.
    pub dptr: Sgl,
    /// CDW10 to CDW15.
    pub cdw10: [U32; 6],
}

/// An SGL descriptor: Base 2.0, figure 94.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sgl {
    /// Address or, with the subtype "offset", bytes from the start of the capsule's data.
    pub address: U64,
    /// Bytes of the data.
    pub length: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// SGL Identifier: type in bits 7:4, subtype in bits 3:0.
    pub identifier: u8,
}

/// The place of a command's data over TCP: TCP Transport 1.0, clause 3.6 ("Data Transfer").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPlace {
    /// In the capsule, at this offset from the start of its data.
    InCapsule(u64),
    /// In PDUs of their own.
    Transport,
}

/// PSDT, "SGLs are used for this transfer, metadata in one buffer".
const PSDT_SGL: u8 = 0b01 << 6;

/// The direction of a command's data: Base 2.0, figure 88, "Data Transfer" in bits 1:0 of the
/// opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// From the host to the controller.
    ToController,
    /// From the controller to the host.
    ToHost,
    /// Both ways: no command uses it today.
    Both,
}

/// FUSE: Base 2.0, figure 87.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fuse {
    /// A command by itself.
    No,
    /// The first of two.
    First,
    /// The second of two.
    Second,
    /// 11b.
    Reserved,
}

impl Sgl {
    /// An SGL Data Block descriptor for data at the start of the capsule's data.
    pub fn in_capsule(len: u32) -> Sgl {
        Sgl { address: U64::ZERO, length: len.into(), reserved: [0; 3], identifier: 0x01 }
    }

    /// A Transport SGL Data Block descriptor: the transport carries the data in its own PDUs.
    pub fn transport(len: u32) -> Sgl {
        Sgl { address: U64::ZERO, length: len.into(), reserved: [0; 3], identifier: 0x5A }
    }

    /// The place of the data. `None` for descriptors that TCP does not have.
    pub fn place(&self) -> Option<DataPlace> {
        match self.identifier {
            0x01 => Some(DataPlace::InCapsule(self.address.get())),
            0x5A => Some(DataPlace::Transport),
            _ => None,
        }
    }
}

impl Command {
    /// A command with this opcode and no data.
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Command {
        Command {
            opcode,
            flags: PSDT_SGL,
            cid: cid.into(),
            nsid: nsid.into(),
            cdw2_3: [U32::ZERO; 2],
            mptr: U64::ZERO,
            dptr: Sgl::transport(0),
            cdw10: [U32::ZERO; 6],
        }
    }

    /// Command dword `number`.
    ///
    /// # Panics
    /// If `number` is not 10 to 15.
    #[inline]
    pub fn cdw(&self, number: usize) -> u32 {
        self.cdw10[number - 10].get()
    }

    /// Sets command dword `number`.
    ///
    /// # Panics
    /// If `number` is not 10 to 15.
    pub fn set_cdw(&mut self, number: usize, value: u32) {
        self.cdw10[number - 10] = value.into();
    }

    /// FCTYPE of a command with the opcode [`FABRICS`].
    pub fn fabrics_type(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// FUSE.
    pub fn fuse(&self) -> Fuse {
        match self.flags & 0b11 {
            0b00 => Fuse::No,
            0b01 => Fuse::First,
            0b10 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Whether PSDT says that an SGL describes the data, as fabrics require: Base 2.0, figure 87.
    #[inline]
    pub fn has_sgl(&self) -> bool {
        // 01b and 10b differ in the place of metadata, which no command here has. 00b is a PRP, 11b
        // is reserved.
        matches!(self.flags >> 6, 0b01 | 0b10)
    }

    /// The direction of its data.
    #[inline]
    pub fn direction(&self) -> Direction {
        let code = if self.opcode == FABRICS { self.fabrics_type() } else { self.opcode };
        match code & 0b11 {
            0b00 => Direction::None,
            0b01 => Direction::ToController,
            0b10 => Direction::ToHost,
            _ => Direction::Both,
        }
    }

    /// SLBA of commands of the NVM command set: the first block.
    #[inline]
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw(11)) << 32 | u64::from(self.cdw(10))
    }

    /// Sets SLBA.
    pub fn set_slba(&mut self, slba: u64) {
        self.set_cdw(10, slba as u32);
        self.set_cdw(11, (slba >> 32) as u32);
    }

    /// The number of blocks: NLB plus one.
    #[inline]
    pub fn blocks(&self) -> u32 {
        (self.cdw(12) & 0xFFFF) + 1
    }

    /// FUA: Force Unit Access.
    #[inline]
    pub fn fua(&self) -> bool {
        self.cdw(12) & 1 << 30 != 0
    }

    /// DEAC of Write Zeroes: the blocks should be deallocated.
    pub fn deallocate(&self) -> bool {
        self.cdw(12) & 1 << 25 != 0
    }
}
