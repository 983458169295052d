//! How the thin stores of a group get more space: free space of the group, or segments that another
//! store gives up. How they give space back to the group.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use api::{ErrorCode, VolumeName};
use format::{Catalogue, ExtentRecord, ThinStoreRecord};
use tokio::sync::Notify;
use volume::Space;
use volume::thin::{Grid, SpaceWanted};

use crate::engine::group::block_error;
use crate::engine::{Engine, Group, view};
use crate::http::{Answer, ControlError};

/// A store takes the larger of this and one part of the group in [`STEP_SHARE`] at once.
const STEP_BYTES_MIN: u64 = 1 << 30;
const STEP_SHARE: u64 = 256;

/// A step takes at most one part in so many of the free space, if that is enough for a store.
const FREE_SHARE: u64 = 4;

/// Segments without which a store is not worth its reserves.
pub(crate) const SEGMENTS_MIN: u64 = 48;

/// The map of a reserve has one part in so many of it.
const MAP_SHARE: u64 = 32;

/// Stores that got no request for so long are idle.
const IDLE: Duration = Duration::from_secs(10);

/// Extents for a store, in whole segments: `step_bytes`, or fewer if the group has not so much.
pub(crate) fn take(space: Space, used: &[ExtentRecord], segment_bytes: u64, step_bytes: u64) -> Vec<ExtentRecord> {
    let space = Space { align_bytes: segment_bytes, ..space };
    let free = space.free_bytes(used);
    let wanted = step_bytes.min(free) / segment_bytes * segment_bytes;
    let found = if wanted == 0 { None } else { volume::allocate(space, used, wanted) };
    let whole =
        |extent: ExtentRecord| ExtentRecord { len_bytes: extent.len_bytes / segment_bytes * segment_bytes, ..extent };
    found.into_iter().flatten().map(whole).filter(|extent| extent.len_bytes > 0).collect()
}

/// Bytes of the next step of a store. A small group keeps most of its free space.
pub(crate) fn step_bytes(space: &Space, used: &[ExtentRecord], segment_bytes: u64) -> u64 {
    let step = STEP_BYTES_MIN.max(space.capacity_bytes / STEP_SHARE);
    step.min(space.free_bytes(used) / FREE_SHARE).max(SEGMENTS_MIN * segment_bytes)
}

/// Adds extents to those of a store. Adjacent ones become one, so that the catalogue stays short.
/// The first one still begins where it did: the anchors are there.
fn add(extents: &mut Vec<ExtentRecord>, new: &[ExtentRecord]) {
    let Some(first) = extents.first().map(|extent| extent.start_byte) else { return };
    extents.extend_from_slice(new);
    extents.sort_unstable_by_key(|extent| (extent.start_byte != first, extent.start_byte));
    extents.dedup_by(|next, extent| {
        let continues = extent.start_byte + extent.len_bytes == next.start_byte;
        extent.len_bytes += if continues { next.len_bytes } else { 0 };
        continues
    });
}

/// Removes parts of the extents of a store.
fn remove(extents: &mut Vec<ExtentRecord>, gone: &[ExtentRecord]) {
    for gone in gone {
        let gone_end = gone.start_byte + gone.len_bytes;
        let parts = extents.iter().flat_map(|extent| {
            let end = extent.start_byte + extent.len_bytes;
            let before = (extent.start_byte, end.min(gone.start_byte));
            let after = (extent.start_byte.max(gone_end), end);
            [before, after].into_iter().filter(|(start, end)| start < end)
        });
        *extents = parts.map(|(start, end)| ExtentRecord { start_byte: start, len_bytes: end - start }).collect();
    }
}

/// Bytes of content and of the map that it needs.
fn with_map(bytes: u64) -> u64 {
    bytes + bytes / MAP_SHARE
}

/// Bytes of content in so much space, beside its map.
fn without_map(bytes: u64) -> u64 {
    bytes - bytes / (MAP_SHARE + 1)
}

fn sum_bytes(extents: &[ExtentRecord]) -> u64 {
    extents.iter().map(|extent| extent.len_bytes).sum()
}

fn store_mut(catalogue: &mut Catalogue, id: u16) -> Option<&mut ThinStoreRecord> {
    catalogue.thin.as_mut()?.stores.iter_mut().find(|store| store.id == id)
}

impl Group {
    /// Has a store so large that it can keep the rest of a reserve; `stored` bytes are in use.
    /// The caller has the turn to give space. With `dry_run`, only looks whether that can be done.
    pub async fn need_reserve(
        &self,
        volume: &VolumeName,
        store: u16,
        (reserve, stored): (u64, u64),
        dry_run: bool,
    ) -> Answer<()> {
        let bytes = with_map(reserve.saturating_sub(stored));
        loop {
            let catalogue = self.catalogue().await?;
            let segment_bytes = Grid::plan(&self.shared.geometry).segment_bytes;
            let segment_bytes = catalogue.thin.as_ref().map_or(segment_bytes, |pool| pool.segment_bytes);
            // Without the store, this is a dry run.
            let left = self.on_store(store, |store| async move { store.space().unused() }).await?.unwrap_or(0);
            if bytes <= left {
                return Ok(());
            }
            let (group, used) = view::space(self, &catalogue);
            let missing = (bytes - left) * 9 / 8;
            let step = step_bytes(&group, &used, segment_bytes).max(missing.div_ceil(FREE_SHARE));
            let free = group.free_bytes(&used) / segment_bytes * segment_bytes;
            let refuse = || {
                let most = stored + without_map(left + free / 9 * 8);
                let (reserve, most) = (api::format_bytes(reserve), api::format_bytes(most));
                let message = format!("the pool cannot keep {reserve} for \"{volume}\": choose at most about {most}");
                ControlError::new(ErrorCode::NoSpace, message)
            };
            if free < missing {
                return Err(refuse());
            }
            if dry_run {
                return Ok(());
            }
            if !self.add_free_space(&catalogue, store, step).await? {
                return Err(refuse());
            }
        }
    }

    /// Gives space to each store that wants some. A store that gets none refuses writes that wait
    /// for it.
    async fn grow_stores(&self) -> Answer<()> {
        for (store, wanted) in self.on_stores(|store| async move { store.wants_space() }).await? {
            if wanted == SpaceWanted::No {
                continue;
            }
            let search = self.pool_space.begin_search(wanted);
            let grown = self.grow_store(store, wanted).await;
            if !matches!(grown, Ok(true)) {
                self.on_store(store, move |store| async move { store.refuse_space(wanted, search) }).await?;
            }
            grown?;
        }
        Ok(())
    }

    async fn grow_store(&self, store: u16, wanted: SpaceWanted) -> Answer<bool> {
        let _turn = self.space_turn.lock().await;
        let catalogue = self.catalogue().await?;
        let Some(pool) = &catalogue.thin else { return Ok(false) };
        let (space, used) = view::space(self, &catalogue);
        let step = step_bytes(&space, &used, pool.segment_bytes);
        if self.add_free_space(&catalogue, store, step).await? {
            return Ok(true);
        }
        let segments = (step / pool.segment_bytes) as usize;
        if wanted == SpaceWanted::Now && self.move_space(Some(store), segments).await? > 0 {
            return Ok(true);
        }
        // Several stores ask again and again.
        if !self.cannot_grow.swap(true, SeqCst) {
            tracing::warn!(group = self.name, "the pool of thin volumes cannot grow: the group has no free space");
        }
        Ok(false)
    }

    /// Adds so many bytes of the group's free space to a store, or fewer if the group has not so
    /// much. False if it has nothing. The caller has the turn to give space.
    async fn add_free_space(&self, catalogue: &Catalogue, store: u16, step: u64) -> Answer<bool> {
        let Some(pool) = &catalogue.thin else { return Ok(false) };
        let (space, used) = view::space(self, catalogue);
        let extents = take(space, &used, pool.segment_bytes, step);
        if extents.is_empty() {
            return Ok(false);
        }
        self.change_catalogue(|catalogue| {
            if let Some(store) = store_mut(catalogue, store) {
                add(&mut store.extents, &extents);
            }
        })
        .await?;
        self.add_to_store(store, extents.clone()).await?;
        self.cannot_grow.store(false, SeqCst);
        tracing::info!(group = self.name, bytes = sum_bytes(&extents), "the pool of thin volumes has grown");
        Ok(true)
    }

    /// Moves at most so many segments from the store that can do without most to another one, or
    /// to the group. Returns the bytes: 0 if none has any. The caller has the turn to give space.
    pub async fn move_space(&self, to: Option<u16>, segments: usize) -> Answer<u64> {
        for from in self.stores_with_space(to).await? {
            let given = self.on_store(from, move |store| async move { store.give_up(segments).await }).await?;
            let Some(Ok(extents)) = given else { continue };
            if !extents.is_empty() {
                return self.move_extents(from, to, extents).await;
            }
        }
        Ok(0)
    }

    /// Moves at most so many segments that are free now from stores to the group. Returns the
    /// bytes. The caller has the turn to give space.
    pub async fn move_free_space(&self, segments: usize) -> Answer<u64> {
        for from in self.stores_with_space(None).await? {
            let given = self.on_store(from, move |store| async move { store.give_up_free(segments) }).await?;
            let extents = given.unwrap_or_default();
            if !extents.is_empty() {
                return self.move_extents(from, None, extents).await;
            }
        }
        Ok(0)
    }

    /// The stores but one, those with most unused space first.
    async fn stores_with_space(&self, but: Option<u16>) -> Answer<Vec<u16>> {
        let mut stores = self.on_stores(|store| async move { store.space().unused() }).await?;
        stores.retain(|(id, _)| Some(*id) != but);
        stores.sort_unstable_by_key(|(_, unused)| std::cmp::Reverse(*unused));
        Ok(stores.into_iter().map(|(id, _)| id).collect())
    }

    /// Moves extents that a store has given up. Returns their bytes.
    async fn move_extents(&self, from: u16, to: Option<u16>, extents: Vec<ExtentRecord>) -> Answer<u64> {
        let moved = self.change_catalogue(|catalogue| {
            if let Some(store) = store_mut(catalogue, from) {
                remove(&mut store.extents, &extents);
            }
            if let Some(store) = to.and_then(|to| store_mut(catalogue, to)) {
                add(&mut store.extents, &extents);
            }
        });
        if let Err(error) = moved.await {
            self.add_to_store(from, extents).await?;
            return Err(error);
        }
        let bytes = sum_bytes(&extents);
        if let Some(to) = to {
            self.add_to_store(to, extents).await?;
        }
        tracing::debug!(group = self.name, from, to, bytes, "a thin store has given space");
        Ok(bytes)
    }

    async fn add_to_store(&self, store: u16, extents: Vec<ExtentRecord>) -> Answer<()> {
        match self.on_store(store, move |store| async move { store.add_extents(&extents).await }).await? {
            Some(added) => added.map_err(|error| block_error(&self.name, &error)),
            None => Ok(()),
        }
    }
}

impl Engine {
    /// Lets stores of thin volumes grow, for as long as the engine lives.
    pub(crate) async fn grow_pools(engine: Weak<Engine>, growth: Arc<Notify>) {
        let (began, mut next_watch) = (Instant::now(), Duration::ZERO);
        loop {
            let is_wanted = tokio::time::timeout(IDLE, growth.notified()).await.is_ok();
            let Some(engine) = engine.upgrade() else { return };
            if began.elapsed() >= next_watch {
                next_watch = began.elapsed() + IDLE;
                for group in engine.all() {
                    group.tend_stores().await;
                    // An error means that the group is being stopped.
                    let _ = group.watch_pool(began.elapsed().as_secs()).await;
                }
            }
            if !is_wanted {
                continue;
            }
            // Not in turn with requests: one of them may wait for writes that wait for this.
            for group in engine.all() {
                if let Err(error) = group.grow_stores().await {
                    tracing::error!(group = group.name, %error, "the pool of thin volumes could not grow");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start_byte: u64, len_bytes: u64) -> ExtentRecord {
        ExtentRecord { start_byte, len_bytes }
    }

    #[test]
    fn extents_are_joined_and_the_first_one_stays_first() {
        let mut extents = vec![extent(50, 10), extent(10, 10)];
        add(&mut extents, &[extent(60, 5), extent(20, 5), extent(30, 10), extent(45, 5)]);
        assert_eq!(extents, [extent(50, 10), extent(10, 15), extent(30, 10), extent(45, 5), extent(60, 5)]);
        let mut extents = vec![extent(10, 10)];
        add(&mut extents, &[extent(20, 5)]);
        assert_eq!(extents, [extent(10, 15)]);
    }

    #[test]
    fn parts_of_extents_are_removed() {
        let mut extents = vec![extent(50, 20), extent(10, 10)];
        remove(&mut extents, &[extent(60, 5), extent(10, 10)]);
        assert_eq!(extents, [extent(50, 10), extent(65, 5)]);
        remove(&mut extents, &[extent(65, 5), extent(55, 5)]);
        assert_eq!(extents, [extent(50, 5)]);
    }
}
