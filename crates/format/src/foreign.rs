//! Foreign content of a drive: partition tables, file systems, members of other arrays.
//!
//! Signatures are searched where their specifications place them, near the head and the tail of the
//! drive. Finding nothing proves nothing, but a finding is a reason to ask before writing.

mod arrays;
mod filesystems;
mod medium;
mod partitions;

use std::fmt;

use medium::Medium;

/// Bytes of the head and of the tail of a drive that [`inspect`] can use. The signature furthest
/// from the head is that of VMFS, at 1 MiB. The signature furthest from the tail is in the third
/// ZFS label, less than 1 MiB from the end.
pub const INSPECT_BYTES: usize = (1 << 20) + 4096;

/// Something that a drive holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The kind of content: `ext4 file system`, `GPT partition table`.
    pub what: &'static str,
    /// Label, identity and the like, for display. May be empty.
    pub detail: String,
    /// Where its signature lies, in bytes from the start of the drive.
    pub at: u64,
}

impl fmt::Display for Foreign {
    /// `ext4 file system at byte 1080 (label "home", uuid ...)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} at byte {}", self.what, self.at)?;
        if self.detail.is_empty() { Ok(()) } else { write!(formatter, " ({})", self.detail) }
    }
}

/// Looks for every known signature in the first and the last bytes of a drive.
///
/// `head` and `tail` are up to [`INSPECT_BYTES`] each; they overlap on a small drive. With fewer
/// bytes, or none, fewer signatures are found. The findings are sorted by address.
pub fn inspect(head: &[u8], tail: &[u8], drive_bytes: u64) -> Vec<Foreign> {
    let medium = Medium::new(head, tail, drive_bytes);
    let mut found = Vec::new();
    partitions::inspect(&medium, &mut found);
    filesystems::inspect(&medium, &mut found);
    arrays::inspect(&medium, &mut found);
    found.sort_by_key(|foreign| foreign.at);
    found
}

/// Joins a label and an identity, omitting empty ones.
fn named(label: &str, identity: &str) -> String {
    let label = if label.is_empty() { String::new() } else { format!("label \"{label}\"") };
    let identity = if identity.is_empty() { String::new() } else { format!("uuid {identity}") };
    let separator = if label.is_empty() || identity.is_empty() { "" } else { ", " };
    label + separator + &identity
}
