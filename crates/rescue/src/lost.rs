//! The parts of a volume that are lost.

use serde::{Deserialize, Serialize};

/// Lost ranges that are kept and shown. Bytes of further ranges are still counted.
const LOST_RANGES_MAX: usize = 1000;

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
}

impl Lost {
    pub fn push(&mut self, start: u64, len: u64) {
        self.bytes += len;
        let is_room = self.ranges.len() < LOST_RANGES_MAX;
        match self.ranges.last_mut() {
            Some(last) if last.offset_bytes + last.len_bytes == start => last.len_bytes += len,
            _ if is_room => {
                self.ranges.push(LostRange { offset_bytes: start, len_bytes: len });
            }
            _ => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}
