//! Makes the list of lost blocks durable.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use drive::{BlockError, BufMut, Env};
use format::log::{LOST_RANGES_MAX, LOST_SLOTS, LostBlocks, lost_slot_offset};

use crate::array::ArrayShard;

impl<E: Env> ArrayShard<E> {
    /// Writes the list of lost blocks to every member, durably. Blocks in the range `back` (offset
    /// and length in bytes) are left out, and are readable afterwards. Leader only.
    ///
    /// # Errors
    /// [`BlockError`] if too many members do not take it. [`BlockError::NoSpace`] if it would have
    /// too many ranges, because blocks in the middle of ranges come back. Those in `back` are still
    /// lost then.
    pub async fn save_lost(self: &Rc<Self>, back: Option<(u64, u64)>) -> Result<(), BlockError> {
        let leader = self.leader();
        let _turn = leader.lost_lock.enter().await;
        let (offset, len) = back.unwrap_or_default();
        let ranges = self.shared.lost.ranges_without(offset, len);
        if ranges.len() > LOST_RANGES_MAX {
            return Err(BlockError::NoSpace);
        }
        let mut version = leader.lost_version.get();
        let list = LostBlocks { sequence: version.begin(), ranges };
        leader.lost_version.set(version);
        let count = list.ranges.len();
        let bytes = BufMut::copy_of(&list.encode(&self.shared.array)).freeze();
        self.write_everywhere(lost_slot_offset(&leader.layout, list.sequence % LOST_SLOTS), bytes, true).await?;
        version.end();
        leader.lost_version.set(version);
        self.shared.lost.listed.store(count, Ordering::Release);
        // Only after the list says so: a block that was readable once must not be an error after a
        // restart.
        self.shared.lost.written(offset, len);
        Ok(())
    }
}
