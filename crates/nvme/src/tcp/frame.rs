//! Splits a byte stream into PDUs, for both sides.

use zerocopy::FromBytes;

use super::pdu::{
    Common, DIGEST_BYTES, Digests, FLAG_DATA_DIGEST, FLAG_HEADER_DIGEST, HEADER_BYTES_MAX, Kind, header_digest_bytes,
};
use super::violation::Violation;

/// The header of a received PDU, after the checks that all PDUs have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub kind: Kind,
    pub flags: u8,
    /// Bytes up to the data, or up to the end of a PDU without data.
    pub head_bytes: usize,
    /// Bytes of data without their digest.
    pub data_bytes: u32,
    /// Whether a digest follows the data.
    pub data_digest: bool,
    bytes: [u8; HEADER_BYTES_MAX],
}

impl Frame {
    /// Reads the header at the front of `input`. `None` if it is incomplete.
    ///
    /// `expects` says which PDUs the other side may send at this point.
    pub fn read(input: &[u8], digests: Digests, expects: impl Fn(Kind) -> bool) -> Result<Option<Frame>, Violation> {
        let Ok((common, _)) = Common::ref_from_prefix(input) else { return Ok(None) };
        let kind = Kind::from_number(common.kind).ok_or(Violation::Kind(common.kind))?;
        if !expects(kind) {
            return Err(Violation::Unexpected(kind));
        }
        let header_bytes = kind.header_bytes();
        if usize::from(common.header_len) != header_bytes {
            return Err(Violation::HeaderLen { kind, len: common.header_len });
        }
        // PDUs that initialize or terminate a connection have no digests.
        let plain = matches!(kind, Kind::IcReq | Kind::IcResp | Kind::H2cTermReq | Kind::C2hTermReq);
        let digests = if plain { Digests::default() } else { digests };
        if (common.flags & FLAG_HEADER_DIGEST != 0) != digests.header {
            return Err(Violation::DigestFlags { kind, flags: common.flags });
        }
        let (flags, data_offset, len) = (common.flags, usize::from(common.data_offset), common.len.get());
        let header_end = header_bytes + header_digest_bytes(digests);
        let bad_len = Violation::Len { kind, len, data_offset: common.data_offset };
        let (head_bytes, data_bytes, data_digest) = if len as usize == header_end {
            (header_end, 0, false)
        } else {
            // Only these carry data.
            let carries =
                matches!(kind, Kind::CapsuleCmd | Kind::H2cData | Kind::C2hData | Kind::H2cTermReq | Kind::C2hTermReq);
            // A terminate request's data follow its header; PDO is reserved there.
            let data_offset = if plain { header_end } else { data_offset };
            let digest = if digests.data { DIGEST_BYTES } else { 0 };
            if !carries || data_offset < header_end || data_offset % 4 != 0 {
                return Err(bad_len);
            }
            if (flags & FLAG_DATA_DIGEST != 0) != digests.data {
                return Err(Violation::DigestFlags { kind, flags });
            }
            match (len as usize).checked_sub(data_offset + digest) {
                Some(data_bytes @ 1..) => (data_offset, data_bytes as u32, digests.data),
                _ => return Err(bad_len),
            }
        };
        if input.len() < head_bytes {
            return Ok(None);
        }
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[..header_bytes].copy_from_slice(&input[..header_bytes]);
        if digests.header {
            let said = u32::from_le_bytes(input[header_bytes..header_end].try_into().expect("four bytes"));
            let counted = gf::crc32c(&input[..header_bytes]);
            if said != counted {
                return Err(Violation::HeaderDigest { said, counted });
            }
        }
        Ok(Some(Frame { kind, flags, head_bytes, data_bytes, data_digest, bytes }))
    }

    /// The header as the structure of its kind.
    ///
    /// # Panics
    /// If that is longer than any header.
    #[inline]
    pub fn as_pdu<P: FromBytes>(&self) -> P {
        P::read_from_prefix(&self.bytes).expect("headers are no longer than that").0
    }
}

/// The header at the front of `input` that caused `violation`: only the bytes needed to detect it,
/// the common part or the whole header. So the result does not depend on how much input follows.
pub(super) fn wrong_header(input: &[u8], violation: &Violation) -> Vec<u8> {
    let kind = input.first().and_then(|number| Kind::from_number(*number));
    let len = match (violation, kind) {
        (
            Violation::Kind(_)
            | Violation::Unexpected(_)
            | Violation::HeaderLen { .. }
            | Violation::Len { .. }
            | Violation::DigestFlags { .. },
            _,
        )
        | (_, None) => size_of::<Common>(),
        (_, Some(kind)) => kind.header_bytes(),
    };
    input[..len.min(input.len())].to_vec()
}

/// The data of a PDU during reception.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body {
    /// Bytes still to come, without the digest.
    pub left: u32,
    /// The CRC-32C of the data received so far; `None` if no digest follows.
    sum: Option<u32>,
}

impl Body {
    pub fn new(frame: &Frame) -> Body {
        Body { left: frame.data_bytes, sum: frame.data_digest.then_some(0) }
    }

    /// Accounts for received data.
    #[inline]
    pub fn arrived(&mut self, data: &[u8]) {
        if let Some(sum) = &mut self.sum {
            *sum = gf::crc32c_append(*sum, data);
        }
        self.left -= data.len() as u32;
    }

    /// Reads the digest behind the last byte. `None` if it is incomplete. Otherwise its length in
    /// bytes, and whether it is right.
    #[inline]
    pub fn finish(&self, input: &[u8]) -> Option<(usize, bool)> {
        let Some(sum) = self.sum else { return Some((0, true)) };
        let digest = input.first_chunk::<DIGEST_BYTES>()?;
        Some((DIGEST_BYTES, u32::from_le_bytes(*digest) == sum))
    }
}
