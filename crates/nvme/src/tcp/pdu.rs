//! The PDUs of NVMe/TCP: TCP Transport 1.0, clause 3.6.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Command, Completion};

/// PDU-Type: TCP Transport 1.0, figure 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Initialize Connection Request.
    IcReq = 0x00,
    /// Initialize Connection Response.
    IcResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2cTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2hTermReq = 0x03,
    /// Command Capsule.
    CapsuleCmd = 0x04,
    /// Response Capsule.
    CapsuleResp = 0x05,
    /// Host To Controller Data Transfer.
    H2cData = 0x06,
    /// Controller To Host Data Transfer.
    C2hData = 0x07,
    /// Ready to Transfer.
    R2t = 0x09,
}

/// HDGSTF: a header digest follows the header.
pub const FLAG_HEADER_DIGEST: u8 = 1 << 0;
/// DDGSTF: a data digest follows the data.
pub const FLAG_DATA_DIGEST: u8 = 1 << 1;
/// LAST_PDU of H2CData and C2HData.
pub const FLAG_LAST: u8 = 1 << 2;
/// SUCCESS of C2HData: no response capsule will follow.
pub const FLAG_SUCCESS: u8 = 1 << 3;

/// Bytes of a digest, a CRC-32C.
pub const DIGEST_BYTES: usize = 4;

/// The longest header, that of ICReq and ICResp, in bytes.
pub const HEADER_BYTES_MAX: usize = 128;

/// Maximum data of a terminate request, in bytes: the wrong header (TCP Transport 1.0, figure 19).
pub const TERM_DATA_BYTES_MAX: usize = 128;

impl Kind {
    /// The type with this number. `None` if there is none.
    pub fn from_number(number: u8) -> Option<Kind> {
        Some(match number {
            0x00 => Kind::IcReq,
            0x01 => Kind::IcResp,
            0x02 => Kind::H2cTermReq,
            0x03 => Kind::C2hTermReq,
            0x04 => Kind::CapsuleCmd,
            0x05 => Kind::CapsuleResp,
            0x06 => Kind::H2cData,
            0x07 => Kind::C2hData,
            0x09 => Kind::R2t,
            _ => return None,
        })
    }

    /// HLEN: bytes of the header, with the common part.
    pub fn header_bytes(self) -> usize {
        match self {
            Kind::IcReq | Kind::IcResp => 128,
            Kind::CapsuleCmd => 72,
            Kind::H2cTermReq | Kind::C2hTermReq | Kind::CapsuleResp | Kind::H2cData | Kind::C2hData | Kind::R2t => 24,
        }
    }
}

/// The common header: TCP Transport 1.0, figure 16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Common {
    /// PDU-Type.
    pub kind: u8,
    /// FLAGS.
    pub flags: u8,
    /// HLEN: bytes of the header without digest.
    pub header_len: u8,
    /// PDO: bytes from the start of the PDU to its data.
    pub data_offset: u8,
    /// PLEN: bytes of the whole PDU.
    pub len: U32,
}

/// ICReq and ICResp: TCP Transport 1.0, figures 17 and 18.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Initialize {
    /// The common header.
    pub common: Common,
    /// PFV: the version of the format, 0.
    pub version: U16,
    /// HPDA or CPDA: the alignment of data in PDUs to the sender, in dwords, minus one.
    pub alignment: u8,
    /// DGST: header digest in bit 0, data digest in bit 1.
    pub digests: u8,
    /// In ICReq MAXR2T: the R2Ts of a command at the same time, minus one. In ICResp MAXH2CDATA in
    /// bytes.
    pub maximum: U32,
    /// Reserved.
    pub reserved: [u8; 112],
}

/// H2CTermReq and C2HTermReq: TCP Transport 1.0, figures 19 and 21.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Terminate {
    /// The common header.
    pub common: Common,
    /// FES: see [`super::Violation::fatal_error`].
    pub status: U16,
    /// FEI.
    pub information: U32,
    /// Reserved.
    pub reserved: [u8; 10],
}

/// CapsuleCmd: TCP Transport 1.0, figure 23.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CapsuleCmd {
    /// The common header.
    pub common: Common,
    /// CCSQE.
    pub command: Command,
}

/// CapsuleResp: TCP Transport 1.0, figure 24.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CapsuleResp {
    /// The common header.
    pub common: Common,
    /// CCCQE.
    pub completion: Completion,
}

/// H2CData and C2HData: TCP Transport 1.0, figures 25 and 26.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Data {
    /// The common header.
    pub common: Common,
    /// CCCID: the command.
    pub cid: U16,
    /// TTAG in H2CData, reserved in C2HData.
    pub tag: U16,
    /// DATAO: bytes from the start of the command's data.
    pub offset: U32,
    /// DATAL: bytes of data in this PDU.
    pub len: U32,
    /// Reserved.
    pub reserved: U32,
}

/// R2T: TCP Transport 1.0, figure 27.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadyToTransfer {
    /// The common header.
    pub common: Common,
    /// CCCID: the command.
    pub cid: U16,
    /// TTAG, which the host repeats in the data.
    pub tag: U16,
    /// R2TO: bytes from the start of the command's data.
    pub offset: U32,
    /// R2TL: bytes requested.
    pub len: U32,
    /// Reserved.
    pub reserved: U32,
}

/// The digests that both sides have negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    /// A digest follows each header.
    pub header: bool,
    /// A digest follows data.
    pub data: bool,
}

impl Digests {
    /// Reads DGST.
    pub fn from_bits(bits: u8) -> Digests {
        Digests { header: bits & 1 != 0, data: bits & 2 != 0 }
    }

    /// The value of DGST.
    pub fn bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    fn header_bytes(self) -> usize {
        if self.header { DIGEST_BYTES } else { 0 }
    }
}

/// A header as sent, with its digest and the padding before the data: at most 128 bytes, for ICReq
/// and ICResp, or for a capsule with padding.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    bytes: [u8; HEADER_BYTES_MAX],
    len: u8,
}

impl std::ops::Deref for Head {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Writes the PDUs of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    digests: Digests,
    /// The other side's alignment of data, in bytes.
    alignment: usize,
}

impl Default for Writer {
    /// No digests, and data aligned to one dword.
    fn default() -> Self {
        Writer::new(Digests::default(), 0)
    }
}

impl Writer {
    /// `alignment` is the other side's HPDA or CPDA.
    pub fn new(digests: Digests, alignment: u8) -> Writer {
        Writer { digests, alignment: (usize::from(alignment) + 1) * 4 }
    }

    /// The digests added to headers and data.
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// Builds a header. `data_bytes` of data follow it, then their digest if negotiated.
    #[inline]
    fn head<P: FromBytes + IntoBytes>(&self, kind: Kind, flags: u8, mut pdu: P, data_bytes: usize) -> Head {
        let header_bytes = kind.header_bytes();
        let mut flags = flags;
        let mut at = header_bytes;
        if self.digests.header {
            flags |= FLAG_HEADER_DIGEST;
            at += DIGEST_BYTES;
        }
        let mut data_offset = 0;
        let mut total = at;
        if data_bytes > 0 {
            at = at.next_multiple_of(self.alignment);
            data_offset = at as u8;
            total = at + data_bytes;
            if self.digests.data {
                flags |= FLAG_DATA_DIGEST;
                total += DIGEST_BYTES;
            }
        }
        let common = Common {
            kind: kind as u8,
            flags,
            header_len: header_bytes as u8,
            data_offset,
            len: U32::new(u32::try_from(total).expect("a PDU is below 4 GiB")),
        };
        let mut head = Head { bytes: [0; HEADER_BYTES_MAX], len: at as u8 };
        let bytes = pdu.as_mut_bytes();
        bytes[..8].copy_from_slice(common.as_bytes());
        head.bytes[..header_bytes].copy_from_slice(bytes);
        if self.digests.header {
            let digest = gf::crc32c(&head.bytes[..header_bytes]);
            head.bytes[header_bytes..header_bytes + DIGEST_BYTES].copy_from_slice(&digest.to_le_bytes());
        }
        head
    }

    /// A command capsule, without the `data_bytes` in it.
    pub fn command(&self, command: Command, data_bytes: usize) -> Head {
        self.head(Kind::CapsuleCmd, 0, CapsuleCmd { common: NO_COMMON, command }, data_bytes)
    }

    /// A response capsule.
    #[inline]
    pub fn response(&self, completion: Completion) -> Head {
        self.head(Kind::CapsuleResp, 0, CapsuleResp { common: NO_COMMON, completion }, 0)
    }

    /// The header of data to the host. `success` replaces the response capsule.
    #[inline]
    pub fn data_to_host(&self, cid: u16, offset: u32, len: u32, last: bool, success: bool) -> Head {
        let flags = if last { FLAG_LAST } else { 0 } | if success { FLAG_SUCCESS } else { 0 };
        self.head(Kind::C2hData, flags, data(cid, 0, offset, len), len as usize)
    }

    /// The header of data to the controller.
    #[inline]
    pub fn data_to_controller(&self, cid: u16, tag: u16, offset: u32, len: u32, last: bool) -> Head {
        let flags = if last { FLAG_LAST } else { 0 };
        self.head(Kind::H2cData, flags, data(cid, tag, offset, len), len as usize)
    }

    /// A controller's request for data.
    pub fn ready_to_transfer(&self, cid: u16, tag: u16, offset: u32, len: u32) -> Head {
        let pdu = ReadyToTransfer {
            common: NO_COMMON,
            cid: cid.into(),
            tag: tag.into(),
            offset: offset.into(),
            len: len.into(),
            reserved: U32::ZERO,
        };
        self.head(Kind::R2t, 0, pdu, 0)
    }
}

const NO_COMMON: Common = Common { kind: 0, flags: 0, header_len: 0, data_offset: 0, len: U32::ZERO };

fn data(cid: u16, tag: u16, offset: u32, len: u32) -> Data {
    Data {
        common: NO_COMMON,
        cid: cid.into(),
        tag: tag.into(),
        offset: offset.into(),
        len: len.into(),
        reserved: U32::ZERO,
    }
}

/// ICReq or ICResp, which have no digest.
pub fn initialize(kind: Kind, alignment: u8, digests: Digests, maximum: u32) -> Head {
    let pdu = Initialize {
        common: NO_COMMON,
        version: U16::ZERO,
        alignment,
        digests: digests.bits(),
        maximum: maximum.into(),
        reserved: [0; 112],
    };
    Writer::default().head(kind, 0, pdu, 0)
}

/// A terminate request, which has no digest: the error, and the header that caused it.
pub fn terminate(kind: Kind, status: u16, information: u32, wrong: &[u8]) -> Vec<u8> {
    let pdu =
        Terminate { common: NO_COMMON, status: status.into(), information: information.into(), reserved: [0; 10] };
    let wrong = &wrong[..wrong.len().min(TERM_DATA_BYTES_MAX)];
    let mut bytes = Writer::default().head(kind, 0, pdu, wrong.len()).to_vec();
    // PDO is reserved here.
    bytes[3] = 0;
    bytes.extend_from_slice(wrong);
    bytes
}

/// Bytes of the header digest; 0 without one.
pub(super) fn header_digest_bytes(digests: Digests) -> usize {
    digests.header_bytes()
}
