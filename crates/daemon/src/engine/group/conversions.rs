//! Conversions of volumes that are under way: their copying, progress, and end.
//!
//! The copying runs on the shard of the volume's store ([`volume::convert`]). Here its progress is
//! saved in the catalogue, and a conversion that is complete is ended.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use drive::{BlockError, Env};
use format::{Catalogue, ConversionRecord, VolumeKind, VolumeRecord};
use runtime::ShardEnv;
use tokio::sync::Notify;
use volume::convert::{ConvertTuning, Hold, Progress};

use crate::engine::errors::stopping;
use crate::engine::group::content::{Content, LocalConverting};
use crate::engine::group::conversion_state::Noted;
use crate::engine::group::kinds::volume_kind;
use crate::engine::group::{GroupBody, block_error, shard, thin_settings};
use crate::engine::{Engine, Group};
use crate::http::Answer;

/// Conversions are looked at this often, or when one of them asks for it.
const PERIOD: Duration = Duration::from_secs(1);

/// The progress is saved this often, or when so many bytes were copied. After a restart, that much
/// is copied again.
const SAVE_EVERY: Duration = Duration::from_secs(10);
const SAVE_BYTES: u64 = 1 << 30;

/// A copy leaves so much of a pool that cannot grow any more, in percent, to writes of clients.
const ROOM_PERCENT: u64 = 5;

/// A conversion as its shard has it.
#[derive(Clone)]
pub(crate) struct ConversionLook {
    pub copied_bytes: u64,
    pub trouble: Option<BlockError>,
    wants_saving: bool,
    is_copied: bool,
}

fn local(key: shard::GroupKey, volume: u64) -> Option<LocalConverting> {
    match shard::local_content(key, volume) {
        Some(Content::Converting(converting)) => Some(converting),
        _ => None,
    }
}

/// Whether the pool of a group has room for a copy. Without a pool there is no such copy.
fn has_room(key: shard::GroupKey, store: u16) -> bool {
    let Some(store) = shard::store(key, store) else { return false };
    let space = store.space();
    store.can_grow() || space.unused() > space.limit * ROOM_PERCENT / 100
}

/// Requests of clients to a group.
fn requests_of_clients(body: &Weak<GroupBody>) -> u64 {
    let Some(body) = body.upgrade() else { return 0 };
    let exports = body.exports.read().unwrap_or_else(PoisonError::into_inner);
    exports.values().map(|export| export.state.counters().requests.iter().sum::<u64>()).sum()
}

impl Group {
    /// Starts to copy a volume that is to be converted, once all shards know of that.
    pub async fn start_conversion(&self, record: &VolumeRecord) -> Answer<()> {
        let Some(conversion) = &record.conversion else { return Ok(()) };
        let (key, id, body) = (self.key, record.id, self.weak());
        let store = conversion.thin.store;
        let to_thin = conversion.to == VolumeKind::Thin;
        let serving = self.serving_shard(record);
        let (saved, saved_bytes) = (Instant::now(), conversion.copied_bytes);
        let noted = Noted { serving: serving.clone(), saved, saved_bytes, trouble: None };
        let begun = serving.call(move || async move {
            let converting = local(key, id);
            if let Some(converting) = &converting {
                let converting = converting.clone();
                ShardEnv::current().spawn(async move {
                    converting.copy(|| requests_of_clients(&body), || !to_thin || has_room(key, store)).await;
                });
            }
            converting.is_some()
        });
        if begun.await.map_err(|_| stopping())? {
            self.conversions.noted().insert(id, noted);
        }
        Ok(())
    }

    /// Runs `act` with a conversion that was started, on its shard. `None`: it is not there any
    /// more.
    async fn on_conversion<T, F>(
        &self,
        volume: u64,
        act: impl FnOnce(LocalConverting) -> F + Send + 'static,
    ) -> Answer<Option<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let serving = self.conversions.noted().get(&volume).map(|noted| noted.serving.clone());
        let (Some(serving), key) = (serving, self.key) else { return Ok(None) };
        let call = serving.call(move || async move {
            match local(key, volume) {
                Some(converting) => Some(act(converting).await),
                None => None,
            }
        });
        call.await.map_err(|_| stopping())
    }

    /// Has conversions to thin start over, because their pool could not be opened: changes go to
    /// the direct volumes alone now.
    pub async fn restart_conversions(&self, catalogue: Catalogue) -> Answer<Catalogue> {
        let is_to_thin = |it: &ConversionRecord| it.to == VolumeKind::Thin;
        if !catalogue.volumes.iter().any(|volume| volume.conversion.as_ref().is_some_and(is_to_thin)) {
            return Ok(catalogue);
        }
        self.change_catalogue(|catalogue| {
            let conversions = catalogue.volumes.iter_mut().filter_map(|volume| volume.conversion.as_mut());
            for conversion in conversions.filter(|it| is_to_thin(it)) {
                (conversion.copied_bytes, conversion.stale) = (0, Vec::new());
            }
        })
        .await
    }

    /// The conversion of a volume, as its shard has it.
    pub async fn look_at_conversion(&self, volume: u64) -> Answer<Option<ConversionLook>> {
        self.on_conversion(volume, |converting| async move {
            ConversionLook {
                copied_bytes: converting.copied_bytes(),
                trouble: converting.trouble(),
                wants_saving: converting.wants_saving(),
                is_copied: converting.is_copied(),
            }
        })
        .await
    }

    /// Saves the progress of a conversion. With `flush`, all that is copied.
    async fn save_conversion(&self, volume: u64, flush: bool) -> Answer<()> {
        let known = self.catalogue().await?.volumes.into_iter().find(|record| record.id == volume);
        let Some(conversion) = known.and_then(|record| record.conversion) else { return Ok(()) };
        let progress = self.on_conversion(volume, move |converting| async move { converting.progress(flush).await });
        let Some(progress) = progress.await? else { return Ok(()) };
        let saved = match progress.map_err(|error| block_error(&self.name, &error)) {
            Ok(progress) => self.record_progress(volume, conversion.id, progress).await,
            Err(error) => Err(error),
        };
        let result = if saved.is_ok() { Ok(()) } else { Err(BlockError::ReadOnly { reason: "its drives fail" }) };
        self.on_conversion(volume, move |converting| async move { converting.saved(result) }).await?;
        if let (Ok(copied_bytes), Some(noted)) = (&saved, self.conversions.noted().get_mut(&volume))
            && flush
        {
            (noted.saved, noted.saved_bytes) = (Instant::now(), *copied_bytes);
        }
        saved.map(|_| ())
    }

    /// Returns the bytes that are copied.
    async fn record_progress(&self, volume: u64, conversion: u64, progress: Progress) -> Answer<u64> {
        let copied_bytes = progress.copied_bytes;
        self.change_catalogue(|catalogue| {
            let record = catalogue.volumes.iter_mut().find(|record| record.id == volume);
            // It may have ended meanwhile.
            let known = record.and_then(|record| record.conversion.as_mut()).filter(|known| known.id == conversion);
            if let Some(known) = known {
                (known.copied_bytes, known.stale) = (progress.copied_bytes, progress.stale);
            }
        })
        .await?;
        Ok(copied_bytes)
    }

    /// Stops the copying before the group stops. If `in_order`, the progress is saved.
    pub(super) async fn stop_conversions(&self, in_order: bool) -> Answer<()> {
        for volume in self.conversions.volumes() {
            // Regions that were changed before the first save are stale in it, not in the second.
            for _ in 0..if in_order { 2 } else { 0 } {
                if let Err(error) = self.save_conversion(volume, true).await {
                    tracing::warn!(group = self.name, %error, "how far a conversion is could not be saved");
                }
            }
            self.on_conversion(volume, move |converting| async move {
                converting.stop();
                if in_order {
                    converting.drained().await;
                }
            })
            .await?;
            self.forget_conversion(volume);
        }
        Ok(())
    }

    /// A conversion is no longer under way.
    pub fn forget_conversion(&self, volume: u64) {
        self.conversions.noted().remove(&volume);
    }

    /// Lets changes go on that waited for the end of a conversion.
    async fn resume_changes(&self, volume: u64) -> Answer<()> {
        self.on_conversion(volume, |converting| async move { converting.resume() }).await.map(|_| ())
    }

    /// Holds back changes once all is copied. False if that is not so any more.
    async fn hold_changes(&self, volume: u64) -> Answer<bool> {
        loop {
            let held = self.on_conversion(volume, |converting| async move { converting.hold().await });
            match held.await?.unwrap_or(Ok(Hold::Incomplete)).map_err(|error| block_error(&self.name, &error))? {
                Hold::Complete => return Ok(true),
                Hold::Incomplete => return Ok(false),
                Hold::SaveFirst => self.save_conversion(volume, false).await?,
            }
        }
    }

    /// Frees the content that a volume does not have any more: in a store, or in extents.
    pub async fn free_content(
        &self,
        id: u64,
        kind: VolumeKind,
        extents: Vec<format::ExtentRecord>,
        store: u16,
    ) -> Answer<()> {
        match kind {
            VolumeKind::Thin => self.delete_thin(id, store).await,
            VolumeKind::Direct => self.free_extents(extents).await,
        }
    }

    /// Gives space back that a direct volume has left, also to the pool of thin volumes.
    pub async fn free_extents(&self, extents: Vec<format::ExtentRecord>) -> Answer<()> {
        if extents.is_empty() {
            return Ok(());
        }
        self.release(extents).await?;
        self.pool_space.freed();
        Ok(())
    }
}

impl Engine {
    /// Attends to the conversions of all groups, for as long as the engine lives.
    pub(crate) async fn conduct_conversions(engine: Weak<Engine>, attention: Arc<Notify>) {
        loop {
            let _ = tokio::time::timeout(PERIOD, attention.notified()).await;
            let Some(engine) = engine.upgrade() else { return };
            for group in engine.all() {
                let conversions = &group.conversions;
                if conversions.noted().is_empty() || conversions.is_attended.swap(true, Ordering::AcqRel) {
                    continue;
                }
                let engine = engine.clone();
                // A group whose drives do not answer does not hold up the others.
                tokio::spawn(async move {
                    let is_wanted = engine.attend_to_conversions(&group).await;
                    group.conversions.is_attended.store(false, Ordering::Release);
                    if is_wanted {
                        group.conversions.attention.notify_one();
                    }
                });
            }
        }
    }

    /// Returns whether one of them needs attention again at once.
    async fn attend_to_conversions(&self, group: &Arc<Group>) -> bool {
        let mut is_wanted = false;
        for volume in group.conversions.volumes() {
            if let Err(error) = self.attend_to_conversion(group, volume).await {
                // A group that is being stopped does not answer.
                tracing::debug!(group = group.name, volume, %error, "a conversion was not attended to");
            }
            let look = group.look_at_conversion(volume).await;
            is_wanted |= matches!(look, Ok(Some(look)) if look.wants_saving);
        }
        is_wanted
    }

    async fn attend_to_conversion(&self, group: &Arc<Group>, volume: u64) -> Answer<()> {
        let Some(look) = group.look_at_conversion(volume).await? else { return Ok(()) };
        let Some(noted) = group.conversions.noted().get(&volume).cloned() else { return Ok(()) };
        log_trouble(group, volume, &noted, &look);
        if look.wants_saving {
            group.save_conversion(volume, false).await?;
        }
        if look.is_copied {
            return self.end_conversion(group, volume).await;
        }
        let copied = look.copied_bytes.abs_diff(noted.saved_bytes);
        let is_due = noted.saved.elapsed() >= SAVE_EVERY;
        if copied >= SAVE_BYTES || is_due {
            group.save_conversion(volume, true).await?;
        }
        Ok(())
    }

    /// Makes the target of a conversion the content of its volume, and frees the old content.
    async fn end_conversion(&self, group: &Arc<Group>, volume: u64) -> Answer<()> {
        // Not in turn with requests: one of them may wait for changes that wait for this task.
        let Ok(_one) = self.changes.try_lock() else { return Ok(()) };
        let is_held = group.hold_changes(volume).await;
        if !matches!(is_held, Ok(true)) {
            group.resume_changes(volume).await?;
            return is_held.map(|_| ());
        }
        let mut before: Option<VolumeRecord> = None;
        let changed = group
            .change_catalogue(|catalogue| {
                let record = catalogue.volumes.iter_mut().find(|record| record.id == volume);
                if let Some((record, conversion)) = record.and_then(|it| it.conversion.clone().map(|to| (it, to))) {
                    before = Some(record.clone());
                    (record.kind, record.extents, record.thin) = (conversion.to, conversion.extents, conversion.thin);
                    record.conversion = None;
                }
            })
            .await;
        let catalogue = match changed {
            Ok(catalogue) => catalogue,
            Err(error) => {
                group.resume_changes(volume).await?;
                tracing::error!(group = group.name, %error, "a conversion could not be ended: it is tried again");
                return Err(error);
            }
        };
        let after = catalogue.volumes.iter().find(|record| record.id == volume);
        let (Some(before), Some(after)) = (before, after) else { return Ok(()) };
        group.change_volume(after, &group.serving_shard(&before)).await?;
        group.forget_conversion(volume);
        let (name, kind) = (format!("{}/{}", group.name, after.name), after.kind);
        tracing::info!(volume = name, ?kind, "converted");
        self.notify_changed(group, volume);
        group.free_content(volume, before.kind, before.extents, before.thin.store).await
    }
}

/// Logs trouble of a conversion when it begins, changes and ends.
fn log_trouble(group: &Group, volume: u64, noted: &Noted, look: &ConversionLook) {
    if noted.trouble == look.trouble {
        return;
    }
    match &look.trouble {
        Some(BlockError::NoSpace) => tracing::warn!(
            group = group.name,
            volume,
            "a conversion waits for space, or because of its quota: discard data, delete a volume, or cancel it"
        ),
        Some(error) => tracing::warn!(group = group.name, volume, %error, "a conversion does not go on: it is retried"),
        None => tracing::info!(group = group.name, volume, "a conversion goes on"),
    }
    if let Some(noted) = group.conversions.noted().get_mut(&volume) {
        noted.trouble.clone_from(&look.trouble);
    }
}

/// A conversion for the API. `written_bytes`: those of the coming thin volume.
pub(crate) fn shown(
    record: &VolumeRecord,
    look: Option<&ConversionLook>,
    written_bytes: u64,
) -> Option<api::Conversion> {
    let conversion = record.conversion.as_ref()?;
    // A window is refused as a whole.
    let is_at_quota = |quota: u64| written_bytes + ConvertTuning::default().window_bytes > quota;
    let total_bytes = record.size_bytes;
    let done_bytes = look.map_or(conversion.copied_bytes, |look| look.copied_bytes);
    let message = match look {
        None => Some("the thin volumes of the group are not started".to_owned()),
        Some(look) => look.trouble.as_ref().map(|error| match error {
            BlockError::NoSpace if conversion.thin.quota_bytes.is_some_and(is_at_quota) => {
                "it waits because of its quota: discard data, or cancel it and choose a larger quota".to_owned()
            }
            BlockError::NoSpace => "it waits for space in the pool: discard data, or delete a volume".to_owned(),
            error => format!("it is retried: {error}"),
        }),
    };
    Some(api::Conversion {
        to: volume_kind(conversion.to),
        done_bytes,
        total_bytes,
        done_percent: (done_bytes as f64 / total_bytes.max(1) as f64 * 1000.0).round().min(1000.0) / 10.0,
        message,
        thin: (conversion.to == VolumeKind::Thin).then(|| thin_settings::shown(&conversion.thin)),
    })
}
