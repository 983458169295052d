//! What else a drive may hold: partition tables, file systems, members of other arrays.
//!
//! Signatures are looked for where their owners document them, near the head and the tail of the
//! drive. Finding nothing proves nothing, but finding something is a reason to ask before writing.

mod arrays;
mod filesystems;
mod medium;
mod partitions;

use std::fmt;

use medium::Medium;

/// Bytes of the head and of the tail of a drive that [`inspect`] can make use of. The signature
/// furthest from the head is VMFS's at 1 MiB; the one furthest from the tail, the third ZFS
/// label's, is less than that from it.
pub const INSPECT_BYTES: usize = (1 << 20) + 4096;

/// Something that a drive holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// What it is: `ext4 file system`, `GPT partition table`.
    pub what: &'static str,
    /// Label, identity and the like, for people. Maybe empty.
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

/// Looks for everything this crate knows in the first and the last bytes of a drive.
///
/// `head` and `tail` are up to [`INSPECT_BYTES`] each; they overlap on a small drive. Fewer bytes,
/// or none, find less. The findings are in order of address.
pub fn inspect(head: &[u8], tail: &[u8], drive_bytes: u64) -> Vec<Foreign> {
    let medium = Medium::new(head, tail, drive_bytes);
    let mut found = Vec::new();
    partitions::inspect(&medium, &mut found);
    filesystems::inspect(&medium, &mut found);
    arrays::inspect(&medium, &mut found);
    found.sort_by_key(|foreign| foreign.at);
    found
}

/// Joins a label and an identity, leaving out what is empty.
fn named(label: &str, identity: &str) -> String {
    let label = if label.is_empty() { String::new() } else { format!("label \"{label}\"") };
    let identity = if identity.is_empty() { String::new() } else { format!("uuid {identity}") };
    let separator = if label.is_empty() || identity.is_empty() { "" } else { ", " };
    label + separator + &identity
}
