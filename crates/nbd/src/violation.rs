//! Violations of the protocol that close a connection.

use thiserror::Error;

use crate::limits::{DRAIN_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX, STRING_BYTES_MAX};

/// A violation after which the server cannot answer and go on. It ends this connection, and nothing
/// else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// "Client flags": the server MUST drop the connection if the client sets a flag it did not
    /// offer.
    #[error("unknown client flags {flags:#x}")]
    ClientFlags {
        /// The flags as sent.
        flags: u32,
    },
    /// An option that does not begin with `IHAVEOPT`: the stream is out of step.
    #[error("an option begins with {magic:#x}")]
    OptionMagic {
        /// The number found instead.
        magic: u64,
    },
    /// A length that no client sends.
    #[error("option {option} announces {len} bytes, the limit is {OPTION_SKIP_BYTES_MAX}")]
    OptionLength {
        /// The option.
        option: u32,
        /// Its announced length in bytes.
        len: u32,
    },
    /// The client sends options without end.
    #[error("more than {OPTIONS_MAX} options")]
    Options,
    /// "Option types": in non-fixed newstyle `NBD_OPT_EXPORT_NAME` is the only valid option.
    #[error("option {option} without fixed newstyle")]
    NotFixed {
        /// The option.
        option: u32,
    },
    /// `NBD_OPT_EXPORT_NAME` cannot answer with an error: the export is unknown or may not be used.
    #[error("NBD_OPT_EXPORT_NAME of an export that is not there")]
    NoSuchExport,
    /// `NBD_OPT_EXPORT_NAME` with a name that is not a string of at most 4096 bytes.
    #[error("NBD_OPT_EXPORT_NAME with a malformed name of {len} bytes, the limit is {STRING_BYTES_MAX}")]
    ExportName {
        /// Announced length in bytes.
        len: u32,
    },
    /// "FORCEDTLS mode": the session MUST end if `NBD_OPT_EXPORT_NAME` arrives before TLS.
    #[error("NBD_OPT_EXPORT_NAME before TLS, which is required")]
    TlsRequired,
    /// A request that does not begin with its magic: the stream is out of step.
    #[error("a request begins with {magic:#x}")]
    RequestMagic {
        /// The number found instead.
        magic: u32,
    },
    /// "Size constraints": a payload so large that it counts as an attack.
    #[error("a write of {len} bytes, at most {DRAIN_BYTES_MAX} are read and refused")]
    WriteLength {
        /// Announced length in bytes.
        len: u32,
    },
}
