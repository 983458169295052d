//! Where the frames of a log are, and which stripe groups have parts in them.
//!
//! Invariants:
//! 1. A frame's space is written again only when all of its records are reclaimed.
//! 2. A stripe group is known as long as a part of it may be found in some ring.

use std::collections::{BTreeMap, VecDeque};

use crate::geometry::{MemberIndex, StripeGroup};
use crate::util::stripe_group_map::StripeGroupMap;

/// A frame in a ring.
struct Placed {
    start: u64,
    len: u64,
    /// Its last record.
    last: u64,
    /// The stripe groups of its parts, and whether each part is of a whole record.
    stripe_groups: Vec<(StripeGroup, bool)>,
}

/// Numbers of parts that may still be found in rings.
#[derive(Default)]
struct Parts {
    all: u32,
    /// Of whole records.
    whole: u32,
}

/// A member's ring. Frames are in the order in which the head will come to them, the next one
/// first.
#[derive(Default)]
struct Ring {
    head: u64,
    frames: VecDeque<Placed>,
    /// Bytes of the frames that are not reclaimed.
    held: u64,
}

/// The rings of one log, all of one length.
pub(crate) struct Rings {
    len: u64,
    of_member: BTreeMap<MemberIndex, Ring>,
    /// Parts in the rings, by stripe group.
    stripe_groups: StripeGroupMap<Parts>,
    /// Number of parts that are of whole records: none, in most groups.
    whole_parts: u64,
    /// Records below this one are reclaimed.
    reclaimed: u64,
}

impl Rings {
    /// Empty rings of `len` bytes. Records below `reclaimed` are reclaimed.
    pub fn new(len: u64, reclaimed: u64) -> Rings {
        Rings { len, of_member: BTreeMap::new(), stripe_groups: StripeGroupMap::default(), whole_parts: 0, reclaimed }
    }

    /// Records below this one are reclaimed.
    pub fn reclaimed(&self) -> u64 {
        self.reclaimed
    }

    /// Reclaims the records below `below`.
    pub fn reclaim(&mut self, below: u64) {
        self.reclaimed = below;
        for ring in self.of_member.values_mut() {
            let held = ring.frames.iter().filter(|frame| frame.last >= below);
            ring.held = held.map(|frame| frame.len).sum();
        }
    }

    /// Whether parts of records for the stripe group may be found in a ring.
    pub fn has(&self, stripe_group: StripeGroup) -> bool {
        self.stripe_groups.get(stripe_group).is_some()
    }

    /// Whether parts of whole records for the stripe group may be found in a ring.
    pub fn has_whole(&self, stripe_group: StripeGroup) -> bool {
        self.whole_parts > 0 && self.stripe_groups.get(stripe_group).is_some_and(|parts| parts.whole > 0)
    }

    /// Whether no parts may be found in a ring.
    pub fn is_empty(&self) -> bool {
        self.stripe_groups.is_empty()
    }

    /// Whether more than half of a ring waits to be reclaimed.
    pub fn is_filling(&self) -> bool {
        self.of_member.values().any(|ring| ring.held > self.len / 2)
    }

    /// Whether there is room for a frame of `len` bytes in the member's ring, before more is
    /// reclaimed.
    pub fn has_room(&self, member: MemberIndex, len: u64) -> bool {
        let Some(ring) = self.of_member.get(&member) else { return true };
        let start = if ring.head + len > self.len { 0 } else { ring.head };
        let overlaps = |frame: &Placed| frame.start < start + len && start < frame.start + frame.len;
        !ring.frames.iter().any(|frame| overlaps(frame) && frame.last >= self.reclaimed)
    }

    /// Finds room for a frame of `len` bytes in the member's ring, and returns where it starts.
    /// `last` is the last record of the frame. `stripe_groups` has the stripe groups of its parts,
    /// and whether each part is of a whole record. `None` if there is no room before more is
    /// reclaimed.
    pub fn place(
        &mut self,
        member: MemberIndex,
        len: u64,
        last: u64,
        stripe_groups: &[(StripeGroup, bool)],
    ) -> Option<u64> {
        let ring = self.of_member.entry(member).or_default();
        let mut start = ring.head;
        if start + len > self.len {
            // Frames that are passed over at the end stay readable until the head comes by again.
            let passed = ring.frames.iter().take_while(|frame| frame.start >= ring.head).count();
            ring.frames.rotate_left(passed);
            ring.head = 0;
            start = 0;
        }
        let overlaps = |frame: &Placed| frame.start < start + len && start < frame.start + frame.len;
        if ring.frames.iter().take_while(|frame| overlaps(frame)).any(|frame| frame.last >= self.reclaimed) {
            return None;
        }
        while ring.frames.front().is_some_and(overlaps) {
            let gone = ring.frames.pop_front().expect("it is there");
            for (stripe_group, whole) in gone.stripe_groups {
                let parts =
                    self.stripe_groups.get_mut(stripe_group).expect("a part is counted as long as it can be found");
                parts.all -= 1;
                parts.whole -= u32::from(whole);
                self.whole_parts -= u64::from(whole);
                if parts.all == 0 {
                    self.stripe_groups.remove(stripe_group);
                }
            }
        }
        for &(stripe_group, whole) in stripe_groups {
            let parts = self.stripe_groups.or_default(stripe_group);
            parts.all += 1;
            parts.whole += u32::from(whole);
            self.whole_parts += u64::from(whole);
        }
        ring.frames.push_back(Placed { start, len, last, stripe_groups: stripe_groups.to_vec() });
        ring.head = start + len;
        ring.held += len;
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: u64 = 32;

    /// A frame, and how many of its bytes are left.
    struct Written {
        member: usize,
        len: u64,
        left: u64,
        stripe_group: u64,
        whole: bool,
    }

    proptest! {
        /// The model knows for every byte of the rings which frame was written there last. A frame
        /// can be found while all of its bytes are left.
        #[test]
        fn frames_are_written_over_once_reclaimed_and_stripe_groups_known_as_long_as_they_can_be_found(
            steps in proptest::collection::vec((0u16..2, 1u64..12, 0u64..6, any::<bool>(), any::<bool>()), 0..200)
        ) {
            let mut rings = Rings::new(LEN, 0);
            let mut bytes: [[Option<usize>; LEN as usize]; 2] = [[None; LEN as usize]; 2];
            let mut written: Vec<Written> = Vec::new();
            for (member, len, stripe_group, whole, retires) in steps {
                let sequence = written.len();
                if retires {
                    rings.reclaim(sequence as u64);
                }
                let has_room = rings.has_room(MemberIndex(member), len);
                let (ring, reclaimed) = (&mut bytes[usize::from(member)], rings.reclaimed() as usize);
                if let Some(start) = rings.place(MemberIndex(member), len, sequence as u64, &[(StripeGroup(stripe_group), whole)]) {
                    prop_assert!(has_room && start + len <= LEN);
                    for byte in &mut ring[start as usize..(start + len) as usize] {
                        if let Some(before) = byte.replace(sequence) {
                            prop_assert!(before < reclaimed);
                            written[before].left -= 1;
                        }
                    }
                    written.push(Written { member: member.into(), len, left: len, stripe_group, whole });
                } else {
                    prop_assert!(!has_room);
                    prop_assert!(ring.iter().flatten().any(|&sequence| sequence >= reclaimed), "nothing is in the way");
                }
                let found = || written.iter().filter(|frame| frame.left == frame.len);
                let held = |member| written[reclaimed..].iter().filter(move |frame| frame.member == member).map(|frame| frame.len).sum::<u64>();
                prop_assert_eq!(rings.is_filling(), (0..2).any(|member| held(member) > LEN / 2));
                prop_assert_eq!(rings.is_empty(), found().next().is_none());
                for stripe_group in 0..6 {
                    prop_assert_eq!(rings.has(StripeGroup(stripe_group)), found().any(|frame| frame.stripe_group == stripe_group));
                    let is_whole = found().any(|frame| frame.stripe_group == stripe_group && frame.whole);
                    prop_assert_eq!(rings.has_whole(StripeGroup(stripe_group)), is_whole);
                }
            }
        }
    }
}
