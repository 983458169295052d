//! Data structures of Identify: NVMe Base 2.0, clause 5.17; NVM Command Set 1.0, clause 4.1.5.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nqn::NQN_FIELD_BYTES;

/// Bytes of every Identify data structure.
pub const IDENTIFY_BYTES: usize = 4096;

/// CNS: selects the structure. Base 2.0, figure 273.
pub mod cns {
    /// Identify Namespace of the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active Namespace ID list.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace Identification Descriptor list.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// Identify Namespace of a command set.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// Identify Controller of a command set.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Active Namespace ID list of a command set.
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// Identify Namespace, independent of command sets.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// I/O Command Set data structure.
    pub const COMMAND_SETS: u8 = 0x1C;
}

/// Identify Controller: Base 2.0, figure 275. Fields are named as there; bits are explained where
/// they are set.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub struct IdentifyController {
    pub vid: U16,
    pub ssvid: U16,
    pub sn: [u8; 20],
    pub mn: [u8; 40],
    pub fr: [u8; 8],
    pub rab: u8,
    pub ieee: [u8; 3],
    pub cmic: u8,
    pub mdts: u8,
    pub cntlid: U16,
    pub ver: U32,
    pub rtd3r: U32,
    pub rtd3e: U32,
    pub oaes: U32,
    pub ctratt: U32,
    pub rrls: U16,
    pub reserved102: [u8; 9],
    pub cntrltype: u8,
    pub fguid: [u8; 16],
    pub crdt: [U16; 3],
    pub reserved134: [u8; 119],
    pub nvmsr: u8,
    pub vwci: u8,
    pub mec: u8,
    pub oacs: U16,
    pub acl: u8,
    pub aerl: u8,
    pub frmw: u8,
    pub lpa: u8,
    pub elpe: u8,
    pub npss: u8,
    pub avscc: u8,
    pub apsta: u8,
    pub wctemp: U16,
    pub cctemp: U16,
    pub mtfa: U16,
    pub hmpre: U32,
    pub hmmin: U32,
    pub tnvmcap: [U64; 2],
    pub unvmcap: [U64; 2],
    pub rpmbs: U32,
    pub edstt: U16,
    pub dsto: u8,
    pub fwug: u8,
    pub kas: U16,
    pub hctma: U16,
    pub mntmt: U16,
    pub mxtmt: U16,
    pub sanicap: U32,
    pub hmminds: U32,
    pub hmmaxd: U16,
    pub nsetidmax: U16,
    pub endgidmax: U16,
    pub anatt: u8,
    pub anacap: u8,
    pub anagrpmax: U32,
    pub nanagrpid: U32,
    pub pels: U32,
    pub domain: U16,
    pub reserved358: [u8; 10],
    pub megcap: [u8; 16],
    pub reserved384: [u8; 128],
    pub sqes: u8,
    pub cqes: u8,
    pub maxcmd: U16,
    pub nn: U32,
    pub oncs: U16,
    pub fuses: U16,
    pub fna: u8,
    pub vwc: u8,
    pub awun: U16,
    pub awupf: U16,
    pub icsvscc: u8,
    pub nwpc: u8,
    pub acwu: U16,
    pub ocfs: U16,
    pub sgls: U32,
    pub mnan: U32,
    pub maxdna: [u8; 16],
    pub maxcna: U32,
    pub reserved564: [u8; 204],
    pub subnqn: [u8; NQN_FIELD_BYTES],
    pub reserved1024: [u8; 768],
    pub ioccsz: U32,
    pub iorcsz: U32,
    pub icdoff: U16,
    pub fcatt: u8,
    pub msdbd: u8,
    pub ofcs: U16,
    pub reserved1806: [u8; 242],
    pub psd: [PowerState; 32],
    pub vendor: [u8; 1024],
}

/// A power state: Base 2.0, figure 276.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PowerState {
    /// MP: the maximum power, in centiwatts.
    pub mp: U16,
    /// The other fields.
    pub rest: [u8; 30],
}

/// LBA format: NVM Command Set 1.0, figure 98.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// MS: metadata bytes of each block.
    pub ms: U16,
    /// LBADS: the block size as a power of two.
    pub lbads: u8,
    /// RP: relative performance.
    pub rp: u8,
}

/// Identify Namespace: NVM Command Set 1.0, figure 97. Fields are named as there.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub struct IdentifyNamespace {
    pub nsze: U64,
    pub ncap: U64,
    pub nuse: U64,
    pub nsfeat: u8,
    pub nlbaf: u8,
    pub flbas: u8,
    pub mc: u8,
    pub dpc: u8,
    pub dps: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub dlfeat: u8,
    pub nawun: U16,
    pub nawupf: U16,
    pub nacwu: U16,
    pub nabsn: U16,
    pub nabo: U16,
    pub nabspf: U16,
    pub noiob: U16,
    pub nvmcap: [U64; 2],
    pub npwg: U16,
    pub npwa: U16,
    pub npdg: U16,
    pub npda: U16,
    pub nows: U16,
    pub mssrl: U16,
    pub mcl: U32,
    pub msrc: u8,
    pub reserved81: [u8; 11],
    pub anagrpid: U32,
    pub reserved96: [u8; 3],
    pub nsattr: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub lbaf: [LbaFormat; 64],
    pub vendor: [u8; 3712],
}

/// Identify Namespace, independent of command sets: Base 2.0, figure 280.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub struct IndependentNamespace {
    pub nsfeat: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub anagrpid: U32,
    pub nsattr: u8,
    pub reserved9: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nstat: u8,
    pub reserved15: [u8; 4081],
}

/// A structure of zero bytes.
pub(crate) fn blank<T: FromZeros>() -> T {
    T::new_zeroed()
}

/// Text in a fixed field: ASCII, padded with spaces (Base 2.0, clause 1.4.2 "ASCII strings").
pub(crate) fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (byte, char) in field.iter_mut().zip(text.chars()) {
        *byte = if (' '..='~').contains(&char) { char as u8 } else { b'?' };
    }
    field
}

/// A list of namespaces in ascending order, filled up with zeroes (Base 2.0, clause 5.17.2.2).
pub(crate) fn namespace_list(nsids: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut list = vec![0; IDENTIFY_BYTES];
    for (entry, nsid) in list.chunks_exact_mut(4).zip(nsids) {
        entry.copy_from_slice(&nsid.to_le_bytes());
    }
    list
}

/// Namespace Identification Descriptors: NGUID, UUID and the NVM command set (Base 2.0, figure
/// 277).
pub(crate) fn namespace_descriptors(nguid: &[u8; 16], uuid: &[u8; 16]) -> Vec<u8> {
    let mut list = vec![0; IDENTIFY_BYTES];
    let mut at = 0;
    for (kind, id) in [(0x02, &nguid[..]), (0x03, &uuid[..]), (0x04, &[0])] {
        list[at] = kind;
        list[at + 1] = id.len() as u8;
        list[at + 4..at + 4 + id.len()].copy_from_slice(id);
        at += 4 + id.len();
    }
    list
}

const _: () = {
    assert!(size_of::<IdentifyController>() == IDENTIFY_BYTES);
    assert!(size_of::<IdentifyNamespace>() == IDENTIFY_BYTES);
    assert!(size_of::<IndependentNamespace>() == IDENTIFY_BYTES);
};
