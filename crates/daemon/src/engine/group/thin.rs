//! The thin pool of a group, and the thin stores in it.
//!
//! A store owns the maps of some thin volumes, on one shard. The first store comes with the first
//! thin volume. Further volumes get stores on other shards, as long as the group has room for that,
//! and then share the stores. A store goes with its last volume, and the pool with its last store.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use api::ErrorCode;
use drive::{BlockError, Env, join_all};
use format::{
    Catalogue, ExtentRecord, THIN_STORES_MAX, ThinPoolRecord, ThinStoreRecord, ThinVolumeRecord, VolumeRecord,
};
use runtime::{ShardEnv, ShardHandle};
use volume::thin::{ArrayBacking, Grid, OpenThinError, ThinCounts, ThinSpace, ThinStore, Tuning};

use crate::engine::Group;
use crate::engine::errors::{new_uuid, stopping};
use crate::engine::group::thin_growth::{SEGMENTS_MIN, step_bytes, take};
use crate::engine::group::{block_error, shard, thin_trend};
use crate::engine::{settings, view};
use crate::http::{Answer, ControlError};

/// A further store is made if the group has free space for so many.
const FREE_STORES_MIN: u64 = 8;

pub(crate) type Store = ThinStore<ArrayBacking<ShardEnv>>;

impl Group {
    /// The shard of a store.
    pub fn store_shard(&self, store: u16) -> ShardHandle {
        self.shards[usize::from(store) % self.shards.len()].clone()
    }

    /// Runs `act` with a store on its shard. `None`: it could not be opened.
    pub async fn on_store<T, F>(&self, id: u16, act: impl FnOnce(Rc<Store>) -> F + Send + 'static) -> Answer<Option<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let key = self.key;
        let call = self.store_shard(id).call(move || async move {
            match shard::store(key, id) {
                Some(store) => Some(act(store).await),
                None => None,
            }
        });
        call.await.map_err(|_| stopping())
    }

    /// Runs `act` with every store, on all shards at once.
    pub async fn on_stores<T, F>(&self, act: impl Fn(Rc<Store>) -> F + Clone + Send + 'static) -> Answer<Vec<(u16, T)>>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let key = self.key;
        let calls = self.shards.iter().map(|shard| {
            let act = act.clone();
            shard.call(move || async move {
                let stores = shard::stores(key).into_iter();
                join_all(stores.map(|(id, store)| {
                    let acted = act(store);
                    async move { (id, acted.await) }
                }))
                .await
            })
        });
        let answers: Result<Vec<_>, _> = join_all(calls.collect::<Vec<_>>()).await.into_iter().collect();
        Ok(answers.map_err(|_| stopping())?.into_iter().flatten().collect())
    }

    /// Opens the thin stores, if the group has some, and frees what deleted volumes have left
    /// there. From then on drives can get in sync. If one cannot be opened, none is: its writes in
    /// the intent log would be overwritten by those of the others.
    pub async fn open_stores(&self, catalogue: &Catalogue) -> Answer<Option<OpenThinError>> {
        let stores = catalogue.thin.iter().flat_map(|pool| &pool.stores);
        let first_unused = stores.clone().map(|store| usize::from(store.id) + 1).max();
        // As many as the group may get stores, so that the rings stay where they are.
        let wanted = self.shards.len().min(THIN_STORES_MAX);
        let streams = self.lead(move |array| async move { array.intent_streams(wanted) }).await?;
        self.thin_streams.store(streams.max(first_unused.unwrap_or(0)), SeqCst);
        let opened = join_all(stores.map(|store| self.open_store(catalogue, store)).collect::<Vec<_>>()).await;
        let failed = opened.into_iter().collect::<Answer<Vec<_>>>()?.into_iter().flatten().next();
        let key = self.key;
        if failed.is_some() {
            self.on_all(move || shard::stores(key).iter().for_each(|(id, _)| shard::remove_store(key, *id))).await?;
        }
        let shards = self.shards.clone();
        self.lead(move |array| async move {
            array.before_in_sync(Rc::new(move || Box::pin(reclaim_intents(key, shards.clone()))));
        })
        .await?;
        Ok(failed)
    }

    /// Opens a store on its shard.
    async fn open_store(&self, catalogue: &Catalogue, store: &ThinStoreRecord) -> Answer<Option<OpenThinError>> {
        let Some(segment_bytes) = catalogue.thin.as_ref().map(|pool| pool.segment_bytes) else { return Ok(None) };
        let is_in = |volume: &&VolumeRecord| volume.store() == Some(store.id);
        let known: Vec<u32> = catalogue.volumes.iter().filter(is_in).map(|volume| volume.id as u32).collect();
        let (key, store, space) = (self.key, store.clone(), self.pool_space.clone());
        let stream = (usize::from(store.id), self.thin_streams.load(SeqCst));
        let opened = self.store_shard(store.id).call(move || async move {
            let Some(array) = shard::group(key) else { return Err(BlockError::Stopped.into()) };
            let uuid = array.shared().array;
            let grid = Grid::of(&array.shared().geometry, segment_bytes).ok_or(OpenThinError::NoRoom)?;
            let backing = ArrayBacking::new(ShardEnv::current(), array, stream);
            let opened = Store::open(backing, uuid, grid, &store.extents, Tuning::default()).await?;
            opened.join(space);
            free_orphans(&opened, &known);
            shard::add_store(key, store.id, opened);
            Ok(())
        });
        Ok(opened.await.map_err(|_| stopping())?.err())
    }

    /// Chooses space for a store.
    fn plan_store(&self, catalogue: &Catalogue) -> Answer<(u64, Vec<ExtentRecord>)> {
        let (space, used) = view::space(self, catalogue);
        let planned = Grid::plan(&self.shared.geometry).segment_bytes;
        let segment_bytes = catalogue.thin.as_ref().map_or(planned, |pool| pool.segment_bytes);
        let extents = take(space, &used, segment_bytes, step_bytes(&space, &used, segment_bytes));
        let segments: u64 = extents.iter().map(|extent| extent.len_bytes / segment_bytes).sum();
        if segments < SEGMENTS_MIN {
            let message = format!(
                "the first thin volume needs {} for its pool, and the group {:?} has {} free",
                api::format_bytes(SEGMENTS_MIN * segment_bytes),
                self.name,
                api::format_bytes(space.free_bytes(&used)),
            );
            return Err(ControlError::new(ErrorCode::NoSpace, message));
        }
        Ok((segment_bytes, extents))
    }

    /// Makes a store: first on the drives, then in the catalogue.
    async fn make_store(&self, id: u16, (segment_bytes, extents): (u64, Vec<ExtentRecord>)) -> Answer<()> {
        let is_added = self.lead(|array| async move { array.add_intent_log().await }).await?;
        if !is_added.map_err(|error| block_error(&self.name, &error))? {
            let message = format!("the group {:?} is busy with its drives: try again in a moment", self.name);
            return Err(ControlError::new(ErrorCode::Busy, message));
        }
        let (made, secret) = (extents.clone(), *new_uuid()?.as_bytes());
        let created = self.lead(move |array| async move {
            let shared = array.shared().clone();
            let grid = Grid::of(&shared.geometry, segment_bytes).ok_or(OpenThinError::NoRoom)?;
            // It is used by no store yet, so it appends nothing.
            let backing = ArrayBacking::new(ShardEnv::current(), array, (0, 1));
            Store::create(&backing, shared.array, secret, grid, &made).await
        });
        created.await?.map_err(|error| thin_error(&self.name, &error))?;
        let record = ThinStoreRecord { id, extents };
        let added = record.clone();
        let catalogue = self
            .change_catalogue(|catalogue| match &mut catalogue.thin {
                Some(pool) => pool.stores.push(added),
                None => catalogue.thin = Some(ThinPoolRecord { segment_bytes, stores: vec![added] }),
            })
            .await?;
        let is_first = catalogue.thin.as_ref().is_some_and(|pool| pool.stores.len() == 1);
        let opened =
            if is_first { self.open_stores(&catalogue).await? } else { self.open_store(&catalogue, &record).await? };
        match opened {
            Some(error) => Err(thin_error(&self.name, &error)),
            None => Ok(()),
        }
    }

    /// Chooses the store of a new volume, and makes it if it does not exist yet. Refuses if the
    /// stores could not be opened. With `dry_run`, only looks whether that can be done.
    pub async fn need_store(&self, catalogue: &Catalogue, dry_run: bool) -> Answer<u16> {
        let Some(pool) = &catalogue.thin else {
            let planned = self.plan_store(catalogue)?;
            if !dry_run {
                self.make_store(0, planned).await?;
            }
            return Ok(0);
        };
        self.check_stores().await?;
        let volumes_of = |id: u16| catalogue.volumes.iter().filter(|volume| volume.store() == Some(id)).count();
        let used: BTreeSet<u16> = pool.stores.iter().map(|store| store.id).collect();
        let emptiest = used.iter().copied().min_by_key(|id| volumes_of(*id)).unwrap_or_default();
        let streams = self.thin_streams.load(SeqCst).min(self.shards.len());
        let unused = (0..streams as u16).find(|id| !used.contains(id));
        let (space, extents) = view::space(self, catalogue);
        let has_room = space.free_bytes(&extents) >= FREE_STORES_MIN * SEGMENTS_MIN * pool.segment_bytes;
        match unused.filter(|_| has_room && volumes_of(emptiest) > 0) {
            Some(id) if !dry_run => {
                self.make_store(id, self.plan_store(catalogue)?).await?;
                Ok(id)
            }
            Some(id) => Ok(id),
            None => Ok(emptiest),
        }
    }

    /// Refuses if the group has thin stores that could not be opened.
    pub async fn check_stores(&self) -> Answer<()> {
        match self.thin_state().await? {
            Some(_) => Ok(()),
            None => Err(ControlError::new(
                ErrorCode::WrongState,
                format!("the thin volumes of the group {:?} could not be started: see `purlin group show`", self.name),
            )),
        }
    }

    /// Gives the space of stores back that have no volume.
    pub async fn drop_unused_stores(&self) -> Answer<()> {
        let catalogue = self.catalogue().await?;
        let used: BTreeSet<u16> = catalogue.volumes.iter().filter_map(VolumeRecord::store).collect();
        let stores = catalogue.thin.iter().flat_map(|pool| &pool.stores);
        for id in stores.map(|store| store.id).filter(|id| !used.contains(id)) {
            let key = self.key;
            let stopped = self.store_shard(id).call(move || async move {
                let Some(store) = shard::store(key, id) else { return Ok(()) };
                shard::remove_store(key, id);
                store.stop().await
            });
            // It has nothing that anybody needs.
            let _ = stopped.await.map_err(|_| stopping())?;
            let mut extents = Vec::new();
            self.change_catalogue(|catalogue| {
                let pool = catalogue.thin.as_mut();
                let gone = pool.into_iter().flat_map(|pool| pool.stores.extract_if(.., |store| store.id == id));
                extents.extend(gone.flat_map(|store| store.extents));
                if catalogue.thin.as_ref().is_some_and(|pool| pool.stores.is_empty()) {
                    catalogue.thin = None;
                }
            })
            .await?;
            self.release(extents).await?;
            self.pool_space.freed();
        }
        Ok(())
    }

    /// Frees the content that a volume has left in a store, and the store if that was its last one.
    pub async fn delete_thin(&self, id: u64, store: u16) -> Answer<()> {
        self.drop_unused_stores().await?;
        self.on_store(store, move |store| async move { spawn_deletion(store, id as u32) }).await?;
        Ok(())
    }

    /// The stores, their space, and their work. `None`: there is none, or it could not be
    /// opened.
    async fn thin_state(&self) -> Answer<Option<(u16, ThinSpace, ThinCounts)>> {
        let states = self.on_stores(|store| async move { (store.space(), store.counts()) }).await?;
        let mut sum = (states.len() as u16, ThinSpace::default(), ThinCounts::default());
        for (_, (space, counts)) in states {
            sum.1 += space;
            sum.2 += counts;
        }
        Ok(Some(sum).filter(|(stores, ..)| *stores > 0))
    }

    /// Bytes of a thin volume with content, and the bytes that they take.
    pub async fn thin_bytes(&self, record: &VolumeRecord) -> Answer<(u64, u64)> {
        self.line_bytes(record.id, &record.thin).await
    }

    /// As [`Self::thin_bytes`], of what a volume has in the pool that is being made thin.
    pub async fn coming_thin_bytes(&self, record: &VolumeRecord) -> Answer<(u64, u64)> {
        match &record.conversion {
            Some(conversion) => self.line_bytes(record.id, &conversion.thin).await,
            None => Ok((0, 0)),
        }
    }

    async fn line_bytes(&self, id: u64, thin: &ThinVolumeRecord) -> Answer<(u64, u64)> {
        let used = self.on_store(thin.store, move |store| async move { store.used(id as u32) }).await?;
        Ok(used.unwrap_or_default())
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
        let space = &state.1;
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
    pub async fn watch_pool(&self, now_s: u64) -> Answer<()> {
        let catalogue = self.catalogue().await?;
        let Some((_, space, _)) = self.thin_state().await? else { return Ok(()) };
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

    /// Writes do not wait for space any more, because the group is to stop. Or they do again.
    pub async fn end_waits(&self, are_ended: bool) -> Answer<()> {
        self.on_stores(move |store| async move { store.end_all_waits(are_ended) }).await.map(|_| ())
    }

    /// Ends the stores in order, before the group stops.
    pub async fn stop_stores(&self) -> Answer<Option<BlockError>> {
        let stopped = self.on_stores(|store| async move { store.stop().await.err() }).await?;
        Ok(stopped.into_iter().find_map(|(_, error)| error))
    }

    /// Has the stores bring their maps up to date on the drives, if they were idle since the last
    /// call. So discarded space is free, and the next start is quick. Has them look for content
    /// that is to be stored anew, too.
    pub async fn tend_stores(&self) {
        let tend = |store: Rc<Store>| async move {
            store.look_for_work();
            store.settle_if_idle().await.is_ok()
        };
        // An error means that the group is being stopped, or the store has failed.
        let _ = self.on_stores(tend).await;
    }
}

fn thin_error(group: &str, error: &OpenThinError) -> ControlError {
    ControlError::new(ErrorCode::Io, format!("the thin volumes of the group {group:?}: {error}"))
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
async fn reclaim_intents(key: shard::GroupKey, shards: Vec<ShardHandle>) -> Result<(), BlockError> {
    for handle in shards {
        let reclaimed = handle.call(move || async move {
            for (_, store) in shard::stores(key) {
                let _ = store.reclaim_all_intents().await;
            }
        });
        reclaimed.await.map_err(|_| BlockError::Stopped)?;
    }
    Ok(())
}
