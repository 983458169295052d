//! Space of the pool that a store does not have: how a store asks for it, and gives some up.
//!
//! A pool has several stores, on different shards, so that several volumes are written at the same
//! time. Each has segments of its own. A store that will need more says so. It gets free space of
//! the group, or free segments that another store gives up. A write is refused only after neither
//! was possible, and until space is freed again.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};

use drive::BlockError;
use format::ExtentRecord;

use super::backing::Backing;
use super::store::ThinStore;

/// A store gives up segments in at most so many ranges at once, so that the catalogue stays short.
const RANGES_MAX: usize = 16;

/// The part of a pool that its stores share. Any thread may use it.
pub struct PoolSpace {
    /// How often space was freed: in the group, or in a store while another was short of it.
    freed: AtomicU64,
    /// A store asked for space and has got none so far.
    is_short: AtomicBool,
    /// Called when a store wants space, or space was freed.
    notify: Box<dyn Fn() + Send + Sync>,
}

impl PoolSpace {
    /// The space of a pool. `notify` is called when a store wants space, and when space was freed
    /// that such a store may get.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> Arc<PoolSpace> {
        Arc::new(PoolSpace { freed: AtomicU64::new(0), is_short: AtomicBool::new(false), notify: Box::new(notify) })
    }

    /// Space was freed. Stores that were refused ask again.
    pub fn freed(&self) {
        self.is_short.store(false, SeqCst);
        self.freed.fetch_add(1, SeqCst);
        (self.notify)();
    }

    /// Begins to look for space. If none is found, [`ThinStore::refuse_space`] gets the answer. So
    /// space that is freed meanwhile is not overlooked.
    pub fn begin_search(&self, wanted: SpaceWanted) -> u64 {
        self.is_short.fetch_or(wanted == SpaceWanted::Now, SeqCst);
        self.freed.load(SeqCst)
    }
}

/// How urgently a store wants more space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceWanted {
    /// It has enough.
    #[default]
    No,
    /// Free space of the group would be useful soon.
    Soon,
    /// Writes wait for it. Another store should give some up, if the group has none.
    Now,
}

/// Whether a store may get more space.
#[derive(Default)]
pub(super) struct Growth {
    /// Without it, the store has all that it will ever have.
    pool: OnceCell<Arc<PoolSpace>>,
    wanted: Cell<SpaceWanted>,
    /// The kind of space that was refused, and the count of [`PoolSpace::freed`] at that time.
    refused: Cell<(SpaceWanted, u64)>,
    /// Free segments that are to be given up.
    pub giving: Cell<usize>,
}

impl Growth {
    /// Whether there may be space of this kind.
    fn may_have(&self, wanted: SpaceWanted) -> bool {
        let (refused, freed) = self.refused.get();
        // A refusal of urgent need holds for all.
        self.pool.get().is_some_and(|pool| wanted > refused || pool.freed.load(SeqCst) != freed)
    }
}

impl<B: Backing> ThinStore<B> {
    /// From now on, the store may get more space through `pool`. Only the first call counts.
    pub fn join(&self, pool: Arc<PoolSpace>) {
        self.growth.pool.get_or_init(|| pool);
    }

    /// Whether writes may get space that the store does not have yet.
    pub fn can_grow(&self) -> bool {
        self.growth.may_have(SpaceWanted::Now)
    }

    /// Asks for more space, if there may be some.
    pub(super) fn want_space(&self, wanted: SpaceWanted) {
        let growth = &self.growth;
        if wanted > growth.wanted.get() && growth.may_have(wanted) {
            growth.wanted.set(wanted);
            if let Some(pool) = growth.pool.get() {
                (pool.notify)();
            }
        }
    }

    /// How urgently the store wants more space. Writes that wait look again whether they still do.
    pub fn wants_space(&self) -> SpaceWanted {
        self.progress.raise();
        self.growth.wanted.get()
    }

    /// There is no more space of this kind. `search` is the answer of [`PoolSpace::begin_search`].
    pub fn refuse_space(&self, wanted: SpaceWanted, search: u64) {
        self.growth.refused.set((wanted, search));
        self.space_answered();
    }

    /// The store has got space, or was refused. From now on it may ask again.
    pub(super) fn space_answered(&self) {
        self.growth.wanted.set(SpaceWanted::No);
        self.work.raise();
        self.progress.raise();
    }

    /// Tells other stores if there are segments that this one can give up, and they are short.
    pub(super) fn offer_space(&self) {
        if let Some(pool) = self.growth.pool.get()
            && pool.is_short.load(SeqCst)
            && self.spare_segments() > 0
        {
            pool.freed();
        }
    }

    /// Bytes of segments that the store can do without. Some may have to be collected before.
    pub fn spare_bytes(&self) -> u64 {
        self.spare_segments() as u64 * self.grid.segment_bytes
    }

    /// Gives up segments: half of those that the store can do without, at most `most`. Makes them
    /// free before, if it has to. The store does not use them any more, and nothing is stored
    /// there. The caller gives them to another store or to the group, or back with
    /// [`ThinStore::add_extents`].
    ///
    /// # Errors
    /// [`BlockError`] if the store has failed.
    pub async fn give_up(&self, most: usize) -> Result<Vec<ExtentRecord>, BlockError> {
        let most = self.spare_segments().div_ceil(2).min(most);
        self.growth.giving.set(most);
        let in_vain = self.collected_in_vain.get();
        while most > 0 && self.missing_segments(0) > 0 && self.collected_in_vain.get() < in_vain + 2 {
            self.check_usable().inspect_err(|_| self.growth.giving.set(0))?;
            self.waits_for_segments.set(true);
            let changed = self.progress.next();
            self.work.raise();
            changed.await;
        }
        self.growth.giving.set(0);
        // Writes may have come meanwhile.
        Ok(self.give_up_free(most))
    }

    /// As [`ThinStore::give_up`], but only segments that are free now, and all of them that the
    /// store can do without.
    pub fn give_up_free(&self, most: usize) -> Vec<ExtentRecord> {
        let count = most.min(self.spare_segments()).min(self.free_segments());
        let ranges = self.segments.borrow_mut().remove_free(count, RANGES_MAX);
        let extent = |range: std::ops::Range<u64>| ExtentRecord {
            start_byte: self.grid.start(range.start),
            len_bytes: (range.end - range.start) * self.grid.segment_bytes,
        };
        ranges.into_iter().map(extent).collect()
    }
}
