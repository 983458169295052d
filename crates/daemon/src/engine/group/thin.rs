//! The thin pool of a group: its space, and the thin store in it.
//!
//! The pool comes with the first thin volume and goes with the last. It takes space from the group
//! in steps, whenever the store says that it will need more.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use api::{ErrorCode, VolumeName};
use array::Array;
use drive::{BlockError, Env};
use format::{Catalogue, ExtentRecord, ThinPoolRecord, VolumeKind};
use runtime::ShardEnv;
use tokio::sync::Notify;
use volume::Space;
use volume::thin::{ArrayBacking, Grid, OpenThinError, ThinCounts, ThinSpace, ThinStore, Tuning};

use crate::engine::errors::new_uuid;
use crate::engine::group::{block_error, shard, thin_trend};
use crate::engine::{Engine, Group, settings, view};
use crate::http::{Answer, ControlError};

/// The pool takes the larger of this and one part of the group in [`STEP_SHARE`] at once.
const STEP_BYTES_MIN: u64 = 1 << 30;
const STEP_SHARE: u64 = 256;

/// A step takes at most one part in so many of the free space, if that is enough for a pool.
const FREE_SHARE: u64 = 4;

/// Segments without which a pool is not worth its reserves.
const SEGMENTS_MIN: u64 = 48;

/// A store that got no request for so long is idle.
const IDLE: Duration = Duration::from_secs(10);

type Store = ThinStore<ArrayBacking<ShardEnv>>;

/// Extents for a pool, in whole segments: `step_bytes`, or fewer if the group has not so much.
fn take(space: Space, used: &[ExtentRecord], segment_bytes: u64, step_bytes: u64) -> Vec<ExtentRecord> {
    let space = Space { align_bytes: segment_bytes, ..space };
    let free = space.free_bytes(used);
    let wanted = step_bytes.min(free) / segment_bytes * segment_bytes;
    let found = if wanted == 0 { None } else { volume::allocate(space, used, wanted) };
    let whole =
        |extent: ExtentRecord| ExtentRecord { len_bytes: extent.len_bytes / segment_bytes * segment_bytes, ..extent };
    found.into_iter().flatten().map(whole).filter(|extent| extent.len_bytes > 0).collect()
}

/// Bytes of the next step of a pool. A small group keeps most of its free space.
fn step_bytes(space: &Space, used: &[ExtentRecord], segment_bytes: u64) -> u64 {
    let step = STEP_BYTES_MIN.max(space.capacity_bytes / STEP_SHARE);
    step.min(space.free_bytes(used) / FREE_SHARE).max(SEGMENTS_MIN * segment_bytes)
}

/// Opens the store of a pool on the leading shard.
async fn open(array: Array<ShardEnv>, pool: ThinPoolRecord) -> Result<Rc<Store>, OpenThinError> {
    let uuid = array.shared().array;
    let grid = Grid::of(&array.shared().geometry, pool.segment_bytes).ok_or(OpenThinError::NoRoom)?;
    let backing = ArrayBacking::new(ShardEnv::current(), array);
    ThinStore::open(backing, uuid, grid, &pool.extents, Tuning::default()).await
}

impl Group {
    /// Opens the thin store, if the group has one, and frees what deleted volumes have left there.
    /// From then on drives can get in sync.
    pub async fn open_thin_store(&self, catalogue: &Catalogue) -> Answer<Option<OpenThinError>> {
        let (key, pool) = (self.key, catalogue.thin.clone());
        let is_thin = |volume: &&format::VolumeRecord| volume.kind == VolumeKind::Thin;
        let known: Vec<u32> = catalogue.volumes.iter().filter(is_thin).map(|volume| volume.id as u32).collect();
        let growth = self.thin_growth.clone();
        self.lead(move |array| async move {
            let failed = match pool {
                Some(pool) => match open(array.clone(), pool).await {
                    Ok(store) => {
                        offer_store(key, &store, growth);
                        free_orphans(&store, &known);
                        None
                    }
                    Err(error) => Some(error),
                },
                None => None,
            };
            array.before_in_sync(Rc::new(move || Box::pin(reclaim_intents(key))));
            failed
        })
        .await
    }

    /// Chooses space for a pool.
    fn plan_pool(&self, catalogue: &Catalogue) -> Answer<ThinPoolRecord> {
        let (space, used) = view::space(self, catalogue);
        let grid = Grid::plan(&self.shared.geometry);
        let step = step_bytes(&space, &used, grid.segment_bytes);
        let extents = take(space, &used, grid.segment_bytes, step);
        let segments: u64 = extents.iter().map(|extent| extent.len_bytes / grid.segment_bytes).sum();
        if segments < SEGMENTS_MIN {
            let message = format!(
                "the first thin volume needs {} for its pool, and the group {:?} has {} free",
                api::format_bytes(SEGMENTS_MIN * grid.segment_bytes),
                self.name,
                api::format_bytes(space.free_bytes(&used)),
            );
            return Err(ControlError::new(ErrorCode::NoSpace, message));
        }
        Ok(ThinPoolRecord { segment_bytes: grid.segment_bytes, extents })
    }

    /// Makes a pool and its store: first on the drives, then in the catalogue.
    async fn make_pool(&self, pool: ThinPoolRecord) -> Answer<()> {
        let grid = Grid::plan(&self.shared.geometry);
        let is_added = self.lead(|array| async move { array.add_intent_log().await }).await?;
        if !is_added.map_err(|error| block_error(&self.name, &error))? {
            let message = format!("the group {:?} is busy with its drives: try again in a moment", self.name);
            return Err(ControlError::new(ErrorCode::Busy, message));
        }
        let (made, secret) = (pool.clone(), *new_uuid()?.as_bytes());
        let created = self.lead(move |array| async move {
            let uuid = array.shared().array;
            let backing = ArrayBacking::new(ShardEnv::current(), array);
            Store::create(&backing, uuid, secret, grid, &made.extents).await
        });
        created.await?.map_err(|error| thin_error(&self.name, &error))?;
        let catalogue = self.change_catalogue(|catalogue| catalogue.thin = Some(pool)).await?;
        match self.open_thin_store(&catalogue).await? {
            Some(error) => Err(thin_error(&self.name, &error)),
            None => Ok(()),
        }
    }

    /// Makes the pool if there is none. Refuses if it could not be opened. With `dry_run`, only
    /// looks whether that can be done.
    pub async fn need_pool(&self, catalogue: &Catalogue, dry_run: bool) -> Answer<()> {
        if catalogue.thin.is_none() {
            let pool = self.plan_pool(catalogue)?;
            return if dry_run { Ok(()) } else { self.make_pool(pool).await };
        }
        match self.thin_space().await? {
            Some(_) => Ok(()),
            None => Err(ControlError::new(
                ErrorCode::WrongState,
                format!("the thin volumes of the group {:?} could not be started: see `purlin group show`", self.name),
            )),
        }
    }

    /// Gives the pool back, after its last volume.
    async fn drop_pool(&self, pool: ThinPoolRecord) -> Answer<()> {
        let key = self.key;
        let stopped = self.lead(move |_| async move {
            let Some(store) = shard::store(key) else { return Ok(()) };
            shard::remove_store(key);
            store.stop().await
        });
        // It has nothing that anybody needs.
        let _ = stopped.await?;
        self.change_catalogue(|catalogue| catalogue.thin = None).await?;
        self.release(pool.extents).await
    }

    /// Gives the pool back if there is no thin volume. Returns whether there is no pool any more.
    pub async fn drop_unused_pool(&self) -> Answer<bool> {
        let catalogue = self.catalogue().await?;
        if catalogue.volumes.iter().any(|volume| volume.kind == VolumeKind::Thin) {
            return Ok(false);
        }
        if let Some(pool) = catalogue.thin {
            self.drop_pool(pool).await?;
        }
        Ok(true)
    }

    /// Frees the content of a volume that the catalogue does not have any more. Gives the pool back
    /// if it was the last one.
    pub async fn delete_thin(&self, id: u64) -> Answer<()> {
        if self.drop_unused_pool().await? {
            return Ok(());
        }
        let key = self.key;
        self.lead(move |_| async move {
            if let Some(store) = shard::store(key) {
                spawn_deletion(store, id as u32);
            }
        })
        .await
    }

    /// The space of the pool. `None`: there is none, or it could not be opened.
    pub async fn thin_space(&self) -> Answer<Option<ThinSpace>> {
        Ok(self.thin_state().await?.map(|(space, _)| space))
    }

    async fn thin_state(&self) -> Answer<Option<(ThinSpace, ThinCounts)>> {
        let key = self.key;
        self.lead(move |_| async move { shard::store(key).map(|store| (store.space(), store.counts())) }).await
    }

    /// Mapped bytes of a thin volume, and the bytes that they take.
    pub async fn thin_bytes(&self, id: u64) -> Answer<(u64, u64)> {
        let key = self.key;
        let mapped = self.lead(move |_| async move { shard::store(key).map(|store| store.mapped(id as u32)) });
        let (blocks, live_bytes) = mapped.await?.unwrap_or_default();
        Ok((blocks * format::BLOCK as u64, live_bytes))
    }

    /// Adds the pool to a group that is shown, and its warnings.
    pub async fn add_thin(&self, catalogue: &Catalogue, shown: &mut api::Group) -> Answer<()> {
        if catalogue.thin.is_none() {
            return Ok(());
        }
        if let Some(reason) = &*self.thin_failure.lock().unwrap_or_else(PoisonError::into_inner) {
            shown.warnings.push(format!("the thin volumes are not started: {reason}"));
        }
        let Some(state) = self.thin_state().await? else { return Ok(()) };
        let space = &state.0;
        let percent = thin_trend::used_percent(space, shown.free_bytes);
        if settings::warn_levels(&catalogue.settings).iter().any(|level| percent >= *level) {
            shown.warnings.push(format!(
                "thin volumes use {percent}% of the space that they can have: discard data, or delete a volume"
            ));
        }
        let full_in_s = {
            let trend = self.thin_trend.lock().unwrap_or_else(PoisonError::into_inner);
            trend.full_in_s(space, shown.free_bytes)
        };
        shown.thin = Some(thin_trend::shown(&state, percent, full_in_s));
        Ok(())
    }

    /// Takes note of how full the pool is, and reports levels of use that it reaches or leaves.
    async fn watch_pool(&self, now_s: u64) -> Answer<()> {
        let catalogue = self.catalogue().await?;
        let Some(space) = self.thin_space().await? else { return Ok(()) };
        let (group, used) = view::space(self, &catalogue);
        let percent = thin_trend::used_percent(&space, group.free_bytes(&used));
        let new_level = {
            let mut trend = self.thin_trend.lock().unwrap_or_else(PoisonError::into_inner);
            trend.add(now_s, space.used());
            trend.new_level(percent, &settings::warn_levels(&catalogue.settings))
        };
        match new_level {
            Some(0) => tracing::info!(group = self.name, percent, "the pool of thin volumes has space again"),
            Some(level) => tracing::warn!(group = self.name, percent, level, "the pool of thin volumes fills"),
            None => {}
        }
        Ok(())
    }

    /// Has the pool so large that it can keep `bytes` more for a volume. The caller has the turn to
    /// give space. With `dry_run`, only looks whether that can be done.
    pub async fn need_reserve(&self, volume: &VolumeName, bytes: u64, dry_run: bool) -> Answer<()> {
        // The map of the volume needs some as well.
        let bytes = bytes + bytes / 32;
        loop {
            let catalogue = self.catalogue().await?;
            let segment_bytes = Grid::plan(&self.shared.geometry).segment_bytes;
            let segment_bytes = catalogue.thin.as_ref().map_or(segment_bytes, |pool| pool.segment_bytes);
            // Without a pool, this is a dry run.
            let left = self.thin_space().await?.map_or(0, |space| space.unused());
            if bytes <= left {
                return Ok(());
            }
            let (group, used) = view::space(self, &catalogue);
            let missing = (bytes - left) * 9 / 8;
            let step = step_bytes(&group, &used, segment_bytes).max(missing.div_ceil(FREE_SHARE));
            let free = group.free_bytes(&used) / segment_bytes * segment_bytes;
            let refuse = || {
                let (wanted, had) = (api::format_bytes(bytes), api::format_bytes(left + free / 9 * 8));
                let message = format!("to keep {wanted} for \"{volume}\" is not possible: the group has about {had}");
                ControlError::new(ErrorCode::NoSpace, message)
            };
            if free < missing {
                return Err(refuse());
            }
            if dry_run {
                return Ok(());
            }
            if !self.add_step(&catalogue, step).await? {
                return Err(refuse());
            }
        }
    }

    /// Says whether the group may have more space for its pool.
    pub async fn let_pool_grow(&self, can_grow: bool) -> Answer<()> {
        let key = self.key;
        self.lead(move |_| async move {
            if let Some(store) = shard::store(key) {
                store.set_can_grow(can_grow);
            }
        })
        .await
    }

    /// Ends the store in order, before the group stops.
    pub async fn stop_thin_store(&self) -> Answer<Option<BlockError>> {
        let key = self.key;
        self.lead(move |_| async move {
            match shard::store(key) {
                Some(store) => store.stop().await.err(),
                None => None,
            }
        })
        .await
    }

    /// Has the store enter into its map what is pending, if it was idle since the last call. So the
    /// numbers for people are right, and discarded space is free.
    async fn land_if_idle(&self) {
        let (key, last) = (self.key, self.thin_activity.load(Ordering::Relaxed));
        let landed = self.lead(move |_| async move {
            match shard::store(key) {
                Some(store) => store.land_if_idle(last).await.unwrap_or(last),
                None => last,
            }
        });
        // An error means that the group is being stopped.
        if let Ok(seen) = landed.await {
            self.thin_activity.store(seen, Ordering::Relaxed);
        }
    }

    /// Adds a step to the pool if its store wants more space. If that fails, writes that wait for
    /// it are refused.
    async fn grow_pool(&self) -> Answer<()> {
        let grown = self.try_grow_pool().await;
        if grown.is_err() {
            self.let_pool_grow(false).await?;
        }
        grown
    }

    async fn try_grow_pool(&self) -> Answer<()> {
        let key = self.key;
        let is_wanted = self.lead(move |_| async move { shard::store(key).is_some_and(|store| store.wants_space()) });
        if !is_wanted.await? {
            return Ok(());
        }
        let _turn = self.space_turn.lock().await;
        let catalogue = self.catalogue().await?;
        let Some(pool) = &catalogue.thin else { return Ok(()) };
        let (space, used) = view::space(self, &catalogue);
        let step = step_bytes(&space, &used, pool.segment_bytes);
        if self.add_step(&catalogue, step).await? {
            return Ok(());
        }
        tracing::warn!(group = self.name, "the pool of thin volumes cannot grow: the group has no free space");
        self.let_pool_grow(false).await
    }

    /// Adds so many bytes to the pool, or fewer if the group has not so much. False if it has
    /// nothing. The caller has the turn to give space.
    async fn add_step(&self, catalogue: &Catalogue, step: u64) -> Answer<bool> {
        let Some(pool) = &catalogue.thin else { return Ok(false) };
        let (space, used) = view::space(self, catalogue);
        let extents = take(space, &used, pool.segment_bytes, step);
        if extents.is_empty() {
            return Ok(false);
        }
        let added = extents.clone();
        self.change_catalogue(|catalogue| {
            if let Some(pool) = &mut catalogue.thin {
                added.into_iter().for_each(|extent| append(&mut pool.extents, extent));
            }
        })
        .await?;
        let (key, bytes) = (self.key, extents.iter().map(|extent| extent.len_bytes).sum::<u64>());
        let grown = self.lead(move |_| async move {
            match shard::store(key) {
                Some(store) => store.add_extents(&extents).await,
                None => Ok(()),
            }
        });
        grown.await?.map_err(|error| block_error(&self.name, &error))?;
        tracing::info!(group = self.name, bytes, "the pool of thin volumes has grown");
        Ok(true)
    }
}

/// Adds an extent, to the last one if it continues that. So the catalogue stays small.
fn append(extents: &mut Vec<ExtentRecord>, extent: ExtentRecord) {
    match extents.last_mut() {
        Some(last) if last.start_byte + last.len_bytes == extent.start_byte => last.len_bytes += extent.len_bytes,
        _ => extents.push(extent),
    }
}

fn thin_error(group: &str, error: &OpenThinError) -> ControlError {
    ControlError::new(ErrorCode::Io, format!("the thin volumes of the group {group:?}: {error}"))
}

/// Makes a store known on its shard.
fn offer_store(key: shard::GroupKey, store: &Rc<Store>, growth: Arc<Notify>) {
    store.on_space_wanted(Box::new(move || growth.notify_one()));
    store.set_can_grow(true);
    shard::add_store(key, store.clone());
}

/// Deletes the lines of volumes whose deletion a crash has interrupted.
fn free_orphans(store: &Rc<Store>, known: &[u32]) {
    for line in store.lines().into_iter().filter(|line| !known.contains(line)) {
        spawn_deletion(store.clone(), line);
    }
}

fn spawn_deletion(store: Rc<Store>, line: u32) {
    ShardEnv::current().spawn(async move {
        // If it fails, the store has failed. The next start deletes the line again.
        if let Err(error) = store.delete(line).await {
            tracing::warn!(line, %error, "the space of a deleted thin volume is not freed yet");
        }
    });
}

/// Makes the group do without its intent log. A store that has failed does not need it any more.
async fn reclaim_intents(key: shard::GroupKey) -> Result<(), BlockError> {
    match shard::store(key) {
        Some(store) => store.reclaim_all_intents().await.or(Ok(())),
        None => Ok(()),
    }
}

impl Engine {
    /// Lets pools of thin volumes grow, for as long as the engine lives.
    pub(crate) async fn grow_pools(engine: Weak<Engine>, growth: Arc<Notify>) {
        let (began, mut next_watch) = (Instant::now(), Duration::ZERO);
        loop {
            let is_wanted = tokio::time::timeout(IDLE, growth.notified()).await.is_ok();
            let Some(engine) = engine.upgrade() else { return };
            if began.elapsed() >= next_watch {
                next_watch = began.elapsed() + IDLE;
                for group in engine.all() {
                    group.land_if_idle().await;
                    // An error means that the group is being stopped.
                    let _ = group.watch_pool(began.elapsed().as_secs()).await;
                }
            }
            if !is_wanted {
                continue;
            }
            // Not in turn with requests: one of them may wait for writes that wait for this.
            for group in engine.all() {
                if let Err(error) = group.grow_pool().await {
                    tracing::error!(group = group.name, %error, "the pool of thin volumes could not grow");
                }
            }
        }
    }
}
