//! Drives and the slots of members.

use format::MemberState;

/// Number of a drive within the group: the index of its handle. It is the same on every shard, and
/// never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriveId(pub u16);

/// A member's drive and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The drive. Meaningless while the member is missing.
    pub drive: DriveId,
    /// Its state.
    pub state: MemberState,
}

impl Slot {
    pub(crate) fn pack(self) -> u32 {
        u32::from(self.drive.0) << 8 | self.state as u32
    }

    pub(crate) fn unpack(bits: u32) -> Self {
        let state = match bits & 0xFF {
            1 => MemberState::InSync,
            2 => MemberState::Rebuilding,
            3 => MemberState::Missing,
            _ => MemberState::Faulty,
        };
        Slot { drive: DriveId((bits >> 8) as u16), state }
    }
}
