//! Modes, findings and reports of scrubs.

use crate::geometry::MemberIndex;

/// The reaction to a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubMode {
    /// Differences are reported. Only blocks that cannot be read from the medium are computed from
    /// the other strips and written again.
    Report,
    /// The wrong strip is computed from the others, if parity can identify it. Otherwise it is only
    /// reported, because either side may be right.
    Repair,
    /// Parity is made to fit the data. Correct only after a crash, when the parity of writes that
    /// were under way is known to be stale.
    Resync,
}

/// The kind of error in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The block is not what was written there: its checksum does not match.
    Damaged,
    /// It cannot be read from the medium.
    Unreadable,
    /// The block fits the other strips, but its checksum does not match.
    Checksum,
    /// The strips of the stripe contradict each other, and no checksum shows which is wrong.
    Contradiction,
}

/// A place with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finding {
    /// Offset in the group of the first byte of the part of the stripe that disagrees. If a data
    /// strip was identified as wrong: of that strip.
    pub offset: u64,
    /// The member with the wrong strip, if checksums or parity identify it.
    pub member: Option<MemberIndex>,
    /// Offset on each member, in bytes.
    pub member_offset: u64,
    /// The kind of error.
    pub fault: Fault,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// The result of a scrub of one stripe group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes of each member that were compared.
    pub bytes: u64,
    /// Ranges that could not be compared because strips are lost or unreadable.
    pub unchecked: u64,
    /// The differences.
    pub findings: Vec<Finding>,
}
