//! Content that is to be stored anew, and what is known to find it: see [`super::order`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use drive::Nanos;
use format::BLOCK;
use format::thin::entry::LEAF_BLOCKS;

const LEAF_BYTES: u64 = LEAF_BLOCKS * BLOCK as u64;

/// Reads of fewer bytes are not looked at. A reader in order that cares for speed reads more.
pub(super) const READ_BYTES_MIN: u64 = 16 << 10;

/// Readers that are followed at the same time.
const READERS_MAX: usize = 16;

/// Most leaves that wait to be brought into order. Further ones are found at their next read.
pub(super) const SCATTERED_MAX: usize = 4096;

/// Content that is to be stored anew.
#[derive(Default)]
pub(super) struct Due {
    /// The volumes whose content gets cold.
    pub turns: BTreeMap<u32, Turn>,
    /// Leaves that were read in order, and are scattered.
    pub scattered: BTreeSet<(u32, u64)>,
    /// It is time to store anew what is due.
    pub is_time: bool,
    /// Ranges that were read in order lately.
    readers: VecDeque<Reader>,
}

/// A volume's turn.
pub(super) struct Turn {
    pub began: Nanos,
    /// The number of the next write at that time.
    pub began_at: u64,
    /// Writes below were looked at in earlier turns.
    pub done_below: u64,
    /// Cold writes that are looked at now, and the next leaf.
    pub now: Option<(Range<u64>, u64)>,
}

/// Bytes of a volume that were read in order.
struct Reader {
    line: u32,
    from: u64,
    to: u64,
}

impl Due {
    /// A leaf was not stored anew although it is due: to be put in order, or to be packed again.
    pub fn put_back(&mut self, line: u32, leaf: u64, is_scattered: bool) {
        if is_scattered {
            self.scattered.insert((line, leaf));
        } else if let Some((_, next)) = self.turns.get_mut(&line).and_then(|turn| turn.now.as_mut()) {
            *next = leaf.min(*next);
        }
    }

    /// Notes a read. Returns the leaves that it was the last part of.
    pub fn read(&mut self, line: u32, from: u64, to: u64) -> Range<u64> {
        let place = self.readers.iter().position(|reader| reader.line == line && reader.to == from);
        let reader = match place.and_then(|place| self.readers.remove(place)) {
            Some(reader) => Reader { to, ..reader },
            None => Reader { line, from, to },
        };
        let whole = reader.from.div_ceil(LEAF_BYTES)..to / LEAF_BYTES;
        self.readers.truncate(READERS_MAX - 1);
        self.readers.push_front(reader);
        whole.start.max(from / LEAF_BYTES)..whole.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_read_in_order_once_its_last_part_was_read() {
        let mut due = Due::default();
        let step = LEAF_BYTES / 4;
        assert!(due.read(1, step, 2 * step).is_empty());
        for part in 2..7 {
            assert!(due.read(1, part * step, (part + 1) * step).is_empty(), "{part}");
            assert!(due.read(2, 9 * part * step, 9 * part * step + 1).is_empty());
        }
        assert_eq!(due.read(1, 7 * step, 8 * step), 1..2);
        assert_eq!(due.read(1, 8 * step, 16 * step), 2..4);
        assert!(due.read(1, 16 * step, 17 * step).is_empty());
        assert!(due.read(1, 18 * step, 20 * step).is_empty(), "a part was passed over");
    }
}
