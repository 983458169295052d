//! The parts of a volume that are lost.

use serde::{Deserialize, Serialize};

/// Lost ranges that are kept and shown. Further ranges and their bytes are still counted.
const LOST_RANGES_MAX: usize = 1000;

/// Lost ranges that a sentence names.
const LOST_NAMED: usize = 3;

/// A range of a volume that could be neither read nor computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// First byte, in the volume.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// Lost ranges. Adjacent ranges are merged.
#[derive(Default)]
pub struct Lost {
    pub ranges: Vec<LostRange>,
    pub bytes: u64,
    /// How many of these bytes may never have been written: that cannot be read either.
    pub unknown_bytes: u64,
    /// All ranges, also those that are not kept.
    range_count: u64,
    /// End of the last range.
    end: u64,
}

impl Lost {
    pub fn push(&mut self, start: u64, len: u64) {
        self.bytes += len;
        let continues = self.range_count > 0 && self.end == start;
        let is_room = self.ranges.len() < LOST_RANGES_MAX;
        match self.ranges.last_mut() {
            Some(last) if last.offset_bytes + last.len_bytes == start => last.len_bytes += len,
            _ if is_room => self.ranges.push(LostRange { offset_bytes: start, len_bytes: len }),
            _ => {}
        }
        self.range_count += u64::from(!continues);
        self.end = start + len;
    }

    /// As [`Lost::push`], for bytes that may never have been written.
    pub fn push_unknown(&mut self, start: u64, len: u64) {
        self.unknown_bytes += len;
        self.push(start, len);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// `12288 bytes of tank/db are lost in 2 ranges (4096 to 8192, 65536 to 73728)`: how much of a
    /// volume is lost, and the first ranges.
    pub fn sentence(&self, volume: &str) -> String {
        let named = self.ranges.iter().take(LOST_NAMED);
        let named = named.map(|range| format!("{} to {}", range.offset_bytes, range.offset_bytes + range.len_bytes));
        let named: Vec<String> =
            named.chain((self.range_count > LOST_NAMED as u64).then(|| "...".to_owned())).collect();
        let count = match self.range_count {
            1 => "1 range".to_owned(),
            count => format!("{count} ranges"),
        };
        let unknown = match self.unknown_bytes {
            0 => String::new(),
            bytes => format!("; {bytes} of them may never have been written, as their map is lost"),
        };
        format!("{} bytes of {volume} are lost in {count} ({}){unknown}", self.bytes, named.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranges_are_counted_and_the_first_ones_are_named() {
        let mut lost = Lost::default();
        lost.push(0, 4096);
        lost.push(4096, 4096);
        assert_eq!(lost.sentence("tank/db"), "8192 bytes of tank/db are lost in 1 range (0 to 8192)");
        for number in 1..=2000 {
            lost.push(number * 65536, 512);
            lost.push(number * 65536 + 512, 512);
        }
        assert_eq!((lost.range_count, lost.ranges.len()), (2001, LOST_RANGES_MAX));
        let sentence = lost.sentence("tank/db");
        assert!(sentence.ends_with("in 2001 ranges (0 to 8192, 65536 to 66560, 131072 to 132096, ...)"), "{sentence}");
        lost.push_unknown(1 << 40, 7);
        assert!(lost.sentence("x").ends_with("; 7 of them may never have been written, as their map is lost"));
    }
}
