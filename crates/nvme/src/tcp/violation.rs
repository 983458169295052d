//! Protocol violations by the other side of a connection.

use thiserror::Error;

use super::pdu::Kind;

/// A fatal transport error: the connection ends. TCP Transport 1.0, clause 3.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// A PDU of an unknown type.
    #[error("there is no PDU of type {0:02x}h")]
    Kind(u8),
    /// A PDU that this side never receives, or not at this point.
    #[error("{0:?} was not to come now")]
    Unexpected(Kind),
    /// HLEN does not match the type.
    #[error("{kind:?} with a header of {len} bytes")]
    HeaderLen {
        /// The PDU.
        kind: Kind,
        /// HLEN.
        len: u8,
    },
    /// PLEN and PDO do not match the type or each other.
    #[error("{kind:?} of {len} bytes, with data from byte {data_offset} on")]
    Len {
        /// The PDU.
        kind: Kind,
        /// PLEN.
        len: u32,
        /// PDO.
        data_offset: u8,
    },
    /// Digests are present but were not negotiated, or the other way round.
    #[error("{kind:?} with flags {flags:02x}h: not the digests that were agreed on")]
    DigestFlags {
        /// The PDU.
        kind: Kind,
        /// FLAGS.
        flags: u8,
    },
    /// The header is damaged.
    #[error("header digest {said:08x}h, counted {counted:08x}h")]
    HeaderDigest {
        /// The digest in the PDU.
        said: u32,
        /// The digest computed from the header.
        counted: u32,
    },
    /// An unsupported version of the PDU format.
    #[error("PDU format version {0}")]
    Version(u16),
    /// A data alignment above the maximum.
    #[error("data alignment {0}")]
    Alignment(u8),
    /// MAXH2CDATA is below 4096 or not a multiple of four.
    #[error("at most {0} bytes of data in a PDU")]
    DataMaximum(u32),
    /// Data that were not requested, belong to another command, or do not continue the previous
    /// PDU.
    #[error("data for tag {tag} and command {cid} from byte {offset} on, {len} bytes: not what was asked for")]
    Data {
        /// TTAG.
        tag: u16,
        /// CCCID.
        cid: u16,
        /// DATAO.
        offset: u32,
        /// DATAL.
        len: u32,
    },
    /// A controller requests data that the command does not have, or a range that does not continue
    /// the previous request.
    #[error("command {cid} is asked for {len} bytes from byte {offset} on, with tag {tag}: it does not have them")]
    Request {
        /// TTAG.
        tag: u16,
        /// CCCID.
        cid: u16,
        /// R2TO.
        offset: u32,
        /// R2TL.
        len: u32,
    },
    /// A controller sends more concurrent R2Ts for a command than negotiated.
    #[error("a command is asked for data more than {0} times at the same time")]
    RequestLimit(u32),
    /// A response to a command that is not in flight, or a success although data are missing.
    #[error("a response to command {cid}, which is not in flight or lacks data")]
    Response {
        /// CID.
        cid: u16,
    },
    /// DGST has digests that were not requested.
    #[error("digests {0:02x}h, which were not asked for")]
    Digests(u8),
    /// More data in one PDU, or one capsule, than negotiated.
    #[error("{len} bytes of data in one PDU, where {max} are the limit")]
    DataLimit {
        /// Bytes.
        len: u32,
        /// The limit.
        max: u32,
    },
    /// More commands in flight than the queue has entries.
    #[error("more than {0} commands at the same time")]
    QueueFull(u16),
    /// The other side ended the connection, with this reason.
    #[error("the other side ends the connection: status {status:x}h, information {information:x}h")]
    Terminated {
        /// FES.
        status: u16,
        /// FEI.
        information: u32,
    },
}

impl Violation {
    /// FES and FEI of a terminate request. `None` if none is to be sent. TCP Transport 1.0, figures
    /// 20 and 22.
    pub fn fatal_error(&self) -> Option<(u16, u32)> {
        const INVALID_HEADER_FIELD: u16 = 1;
        const SEQUENCE: u16 = 2;
        const HEADER_DIGEST: u16 = 3;
        const OUT_OF_RANGE: u16 = 4;
        const LIMIT: u16 = 5;
        const UNSUPPORTED: u16 = 6;
        // FEI of an invalid field: its offset in the header.
        Some(match self {
            Violation::Kind(_) => (INVALID_HEADER_FIELD, 0),
            Violation::DigestFlags { .. } => (INVALID_HEADER_FIELD, 1),
            Violation::HeaderLen { .. } => (INVALID_HEADER_FIELD, 2),
            Violation::Len { .. } => (INVALID_HEADER_FIELD, 4),
            Violation::Unexpected(_) | Violation::QueueFull(_) => (SEQUENCE, 0),
            Violation::HeaderDigest { said, .. } => (HEADER_DIGEST, *said),
            Violation::Data { .. } | Violation::Request { .. } => (OUT_OF_RANGE, 0),
            // "Data Transfer Limit Exceeded" to a host, "R2T Limit Exceeded" to a controller.
            Violation::DataLimit { .. } | Violation::RequestLimit(_) => (LIMIT, 0),
            // CID, in bytes 13:12 of the completion.
            Violation::Response { .. } => (INVALID_HEADER_FIELD, 20),
            Violation::Digests(_) => (INVALID_HEADER_FIELD, 11),
            Violation::Version(_) => (UNSUPPORTED, 8),
            Violation::Alignment(_) => (UNSUPPORTED, 10),
            Violation::DataMaximum(_) => (INVALID_HEADER_FIELD, 12),
            // A terminate request is never answered with another.
            Violation::Terminated { .. } => return None,
        })
    }
}
