//! The accounting of a store's space.

use volume::thin::{Backing, ThinStore};

/// Every byte of a store of `capacity_bytes` is live, garbage or free. Live bytes are those of
/// blocks or of metadata, and the maps of the volumes have the former. The reserve of the collector
/// and of checkpoints is a part of the free bytes, so the limit of live bytes is below the
/// capacity.
///
/// # Panics
/// If the store counts otherwise.
pub(super) fn check_sums<B: Backing>(store: &ThinStore<B>, capacity_bytes: u64) {
    let (space, counted) = (store.space(), store.count_segments());
    let sums = space.segments;
    assert_eq!(sums, counted, "the sums are those of the segments");
    assert_eq!(sums.live_data + sums.live_nodes + sums.garbage + sums.free, capacity_bytes, "{sums:?}");
    let mapped: u64 = store.lines().into_iter().map(|line| store.mapped(line).1).sum();
    assert_eq!(sums.live_data, mapped, "segments and maps agree");
    assert!(space.limit < capacity_bytes, "the reserve is beyond the limit: {space:?}");
}
