//! Fabrics commands and their data: NVMe Base 2.0, clauses 3.1.3, 5.16.1.23 and 6.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nqn::NQN_FIELD_BYTES;
use crate::{Command, FABRICS, Sgl, fabrics};

/// Bytes of the data of a Connect command.
pub const CONNECT_DATA_BYTES: usize = 1024;

/// CNTLID of a host that accepts any controller: Base 2.0, figure 386.
pub const ANY_CONTROLLER: u16 = 0xFFFF;

/// Parameters of a Connect command in its dwords: Base 2.0, figure 385.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    /// RECFMT.
    pub format: u16,
    /// QID: 0 is the admin queue.
    pub queue: u16,
    /// SQSIZE: entries of the queue minus one.
    pub size: u16,
    /// CATTR bit 2: SQ flow control is not used.
    pub no_flow_control: bool,
    /// KATO in ms; 0 disables keep-alive.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// The parameters of a Connect command.
    pub fn of(command: &Command) -> Connect {
        let (dword10, dword11) = (command.cdw(10), command.cdw(11));
        Connect {
            format: dword10 as u16,
            queue: (dword10 >> 16) as u16,
            size: dword11 as u16,
            no_flow_control: dword11 >> 16 & 1 << 2 != 0,
            keep_alive_ms: command.cdw(12),
        }
    }

    /// The command with these parameters; its data are in the capsule.
    pub fn command(&self, cid: u16) -> Command {
        let mut command = Command::new(FABRICS, cid, u32::from(fabrics::CONNECT));
        command.dptr = Sgl::in_capsule(CONNECT_DATA_BYTES as u32);
        command.set_cdw(10, u32::from(self.format) | u32::from(self.queue) << 16);
        command.set_cdw(11, u32::from(self.size) | if self.no_flow_control { 1 << 18 } else { 0 });
        command.set_cdw(12, self.keep_alive_ms);
        command
    }
}

/// The data of a Connect command: Base 2.0, figure 386.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// CNTLID.
    pub cntlid: U16,
    /// Reserved.
    pub reserved18: [u8; 238],
    /// SUBNQN.
    pub subnqn: [u8; NQN_FIELD_BYTES],
    /// HOSTNQN.
    pub hostnqn: [u8; NQN_FIELD_BYTES],
    /// Reserved.
    pub reserved768: [u8; 256],
}

/// Properties of a controller, by their offset: Base 2.0, figure 35.
pub mod property {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Controller Configuration.
    pub const CC: u32 = 0x14;
    /// Controller Status.
    pub const CSTS: u32 = 0x1C;
    /// NVM Subsystem Reset.
    pub const NSSR: u32 = 0x20;
    /// Controller Ready Timeouts.
    pub const CRTO: u32 = 0x68;
}

/// Fields of the property CC: Base 2.0, figure 46.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Configuration(pub u32);

impl Configuration {
    /// EN: the host enables the controller.
    pub fn enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// SHN: the host asks for a shutdown.
    pub fn shutdown(self) -> bool {
        self.0 >> 14 & 0b11 != 0
    }

    /// CSS, 000b for the NVM command set.
    pub fn command_set(self) -> u32 {
        self.0 >> 4 & 0b111
    }

    /// AMS, 000b for round robin.
    pub fn arbitration(self) -> u32 {
        self.0 >> 11 & 0b111
    }

    /// IOSQES: entries of I/O submission queues have 2^IOSQES bytes.
    pub fn submission_entry_size(self) -> u32 {
        self.0 >> 16 & 0b1111
    }

    /// IOCQES: entries of I/O completion queues have 2^IOCQES bytes.
    pub fn completion_entry_size(self) -> u32 {
        self.0 >> 20 & 0b1111
    }

    /// MPS: memory pages of 2^(12+MPS) bytes.
    pub fn page_size(self) -> u32 {
        self.0 >> 7 & 0b1111
    }
}

/// An entry of the discovery log: Base 2.0, clause 5.16.1.23 ("Discovery Log Page Entry").
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// TRTYPE: 3 is TCP.
    pub trtype: u8,
    /// ADRFAM: 1 is IPv4, 2 is IPv6.
    pub adrfam: u8,
    /// SUBTYPE: 1 a referral, 2 an NVM subsystem, 3 the discovery subsystem itself.
    pub subtype: u8,
    /// TREQ: bits 1:0 say whether a secure channel is required (01b) or not (10b); bit 2 says that
    /// SQ flow control may be disabled.
    pub treq: u8,
    /// PORTID.
    pub portid: U16,
    /// CNTLID.
    pub cntlid: U16,
    /// ASQSZ.
    pub asqsz: U16,
    /// EFLAGS: bit 0, DUPRETINFO; bit 1, EPCSD: the host may keep a connection to the discovery
    /// controller.
    pub eflags: U16,
    /// Reserved.
    pub reserved12: [u8; 20],
    /// TRSVCID: the port as text.
    pub trsvcid: [u8; 32],
    /// Reserved.
    pub reserved64: [u8; 192],
    /// SUBNQN.
    pub subnqn: [u8; NQN_FIELD_BYTES],
    /// TRADDR: the address as text.
    pub traddr: [u8; 256],
    /// TSAS: for TCP, SECTYPE in its first byte: 0 none, 2 TLS 1.3.
    pub tsas: [u8; 256],
}

/// The head of the discovery log: Base 2.0, figure 272 ("Discovery Log Page").
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryHead {
    /// GENCTR: changes with every change of the log.
    pub genctr: U64,
    /// NUMREC: the number of entries.
    pub numrec: U64,
    /// RECFMT.
    pub recfmt: U16,
    /// Reserved.
    pub reserved18: [u8; 2],
    /// Reserved.
    pub reserved20: U32,
    /// Reserved.
    pub reserved24: [u8; 1000],
}

const _: () = {
    assert!(size_of::<ConnectData>() == CONNECT_DATA_BYTES);
    assert!(size_of::<DiscoveryEntry>() == 1024);
    assert!(size_of::<DiscoveryHead>() == 1024);
};
