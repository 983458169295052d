//! Controllers through which a namespace is reachable: the log page Asymmetric Namespace Access,
//! NVMe Base 2.0, clause 5.16.1.13.

use super::{HostError, Submission, admin};
use crate::Access;

/// Log Page Identifier.
const ACCESS: u8 = 0x0C;

/// Bytes before the groups, and of each group without its namespaces: Base 2.0, figures 219 and
/// 220.
const HEAD_BYTES: usize = 16;
const GROUP_BYTES: usize = 32;

/// The groups of a controller, and the state of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessStates {
    states: Vec<(u32, Access)>,
}

/// Bytes of the log with `groups` groups.
pub fn access_log_bytes(groups: u32) -> u32 {
    groups.saturating_mul(GROUP_BYTES as u32).saturating_add(HEAD_BYTES as u32)
}

/// Get Log Page of the first `len` bytes, without namespaces. `len` is a multiple of four.
pub fn access_log(len: u32) -> Submission {
    /// RGO, bit 0 of LSP, which begins with bit 8.
    const GROUPS_ONLY: u32 = 1 << 8;
    let mut submission = admin::get_log_page(ACCESS, 0, len, false);
    let dword = submission.command.cdw(10);
    submission.command.set_cdw(10, dword | GROUPS_ONLY);
    submission
}

impl AccessStates {
    /// Reads the log as far as it was requested. The inner `Err` has the number of groups if there
    /// are more than fit into `log`.
    ///
    /// # Errors
    /// [`HostError::Malformed`], [`HostError::Short`].
    pub fn of(log: &[u8]) -> Result<Result<AccessStates, u32>, HostError> {
        let short = HostError::Short { command: "Get Log Page", len: log.len() };
        let head = log.get(..HEAD_BYTES).ok_or(short)?;
        let groups = u32::from(u16::from_le_bytes([head[8], head[9]]));
        let Some(list) = log.get(HEAD_BYTES..access_log_bytes(groups) as usize) else { return Ok(Err(groups)) };
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let mut states = Vec::with_capacity(groups as usize);
        for group in list.chunks_exact(GROUP_BYTES) {
            if number(&group[4..8]) != 0 {
                return Err(HostError::Malformed("an ANA group with namespaces, where groups only were asked for"));
            }
            let state = Access::of(group[16] & 0xF);
            let state = state.ok_or(HostError::Malformed("an ANA state that there is not"))?;
            states.push((number(&group[..4]), state));
        }
        Ok(Ok(AccessStates { states }))
    }

    /// The state of a group. A group that is not listed is inaccessible.
    pub fn group(&self, group: u32) -> Access {
        self.states.iter().find(|(id, _)| *id == group).map_or(Access::Inaccessible, |(_, state)| *state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(groups: &[(u32, u8)]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[8] = groups.len() as u8;
        for (id, state) in groups {
            let mut group = [0; GROUP_BYTES];
            group[..4].copy_from_slice(&id.to_le_bytes());
            group[16] = *state;
            bytes.extend_from_slice(&group);
        }
        bytes
    }

    #[test]
    fn groups_have_the_state_that_is_listed_and_others_cannot_be_reached() {
        let states = AccessStates::of(&log(&[(1, 0x1), (7, 0x2), (9, 0xF)])).expect("well formed").expect("whole");
        assert_eq!(states.group(1), Access::Optimized);
        assert_eq!(states.group(7), Access::NonOptimized);
        assert_eq!(states.group(9), Access::Change);
        assert_eq!(states.group(2), Access::Inaccessible);
    }

    #[test]
    fn a_log_that_was_read_in_part_says_how_many_groups_there_are() {
        let whole = log(&[(1, 0x1), (2, 0x3)]);
        assert_eq!(AccessStates::of(&whole[..60]), Ok(Err(2)));
        assert!(matches!(AccessStates::of(&whole[..15]), Err(HostError::Short { .. })));
        assert_eq!(access_log_bytes(2) as usize, whole.len());
    }

    #[test]
    fn states_that_there_are_not_are_refused() {
        assert!(matches!(AccessStates::of(&log(&[(1, 0x7)])), Err(HostError::Malformed(_))));
    }
}
