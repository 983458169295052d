//! The server's knowledge about its exports.

use crate::wire::flag;

/// The exports that one connection may see. An export that it may not see does not exist for it.
pub trait Directory {
    /// The server's state of an export that a client has chosen.
    type Export;

    /// Names and descriptions of the exports, for `NBD_OPT_LIST`.
    fn list(&self) -> Vec<Listed>;

    /// Finds an export by name. The empty name is the default export.
    ///
    /// # Errors
    /// [`Refusal`], which the client is told.
    fn find(&self, name: &str) -> Result<(Self::Export, ExportInfo), Refusal>;
}

/// One line of the list of exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name by which clients choose it.
    pub name: String,
    /// Text for people; may be empty.
    pub description: String,
}

/// The reason why an export cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// There is no export of that name, or the client may not know of it: `NBD_REP_ERR_UNKNOWN`.
    Unknown,
    /// It is being stopped: `NBD_REP_ERR_SHUTDOWN`.
    ShuttingDown,
    /// The server's rules forbid it now: `NBD_REP_ERR_POLICY`.
    Forbidden,
}

/// The attributes of an export that a client is told, and against which its requests are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// Canonical name (`NBD_INFO_NAME`).
    pub name: String,
    /// Text for people (`NBD_INFO_DESCRIPTION`); may be empty.
    pub description: String,
    /// Size in bytes (`NBD_INFO_EXPORT`).
    pub size_bytes: u64,
    /// Every change is refused with `NBD_EPERM`.
    pub read_only: bool,
    /// A flush on one connection covers completed writes of all (`NBD_FLAG_CAN_MULTI_CONN`).
    pub multi_conn: bool,
    /// Request size and alignment that avoid a read-modify-write, in bytes (`NBD_INFO_BLOCK_SIZE`):
    /// a power of 2, at least 512.
    pub block_bytes_preferred: u32,
}

impl ExportInfo {
    /// Transmission flags ("Transmission flags"). `NBD_FLAG_SEND_DF` MUST be clear without
    /// structured replies. The medium is never reported as rotational: a group of drives has no
    /// single head to schedule for.
    pub fn flags(&self, structured: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if self.multi_conn {
            flags |= flag::CAN_MULTI_CONN;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        flags
    }
}
