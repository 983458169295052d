//! A running group: its drives, and its objects on every shard.

pub(crate) mod assembly;
mod content;
pub(crate) mod conversion_state;
pub(crate) mod conversions;
mod convert;
mod create;
mod direct_room;
pub(crate) mod disconnected;
pub(crate) mod event_log;
pub(crate) mod findings;
pub(crate) mod group_drive;
pub(crate) mod kinds;
pub(crate) mod lost;
pub(crate) mod maintenance;
pub(crate) mod maintenance_state;
mod members;
pub(crate) mod not_started;
pub(crate) mod owners;
pub(crate) mod presence;
pub(crate) mod presence_state;
pub(crate) mod rename;
pub(crate) mod replace;
mod requests;
pub(crate) mod sampler;
pub(crate) mod scan;
pub(crate) mod schedule;
pub(crate) mod scrub;
pub(crate) mod served;
pub(crate) mod shard;
pub(crate) mod start;
pub(crate) mod stopped;
pub(crate) mod thin;
mod thin_growth;
pub(crate) mod thin_settings;
mod thin_trend;
pub(crate) mod thin_volume;
pub(crate) mod volumes;
pub(crate) mod wipe;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use api::ErrorCode;
use array::{Array, AssembleError, DriveId, GroupStatus, JoinError, Refusal, Shared};
use drive::{BlockError, Env};
use export::{HostSecrets, Limiter, SharedNamespace};
use format::{Catalogue, ExtentRecord, SettingsRecord, Uuid, VolumeRecord};
use runtime::{ShardEnv, ShardHandle};
use volume::thin::PoolSpace;

use crate::engine::drives::RequestedDrive;
use crate::engine::errors::stopping;
use crate::engine::exports::running_export::{RunningExport, torn};
use crate::engine::group::content::ContentPlace;
use crate::engine::group::conversion_state::Conversions;
use crate::engine::group::disconnected::DisconnectedDrive;
pub(crate) use crate::engine::group::group_drive::GroupDrive;
use crate::engine::group::maintenance_state::Maintenance;
use crate::engine::group::presence_state::Presence;
use crate::engine::group::shard::GroupKey;
use crate::engine::memory::DrivePlace;
use crate::engine::settings;
use crate::http::{Answer, ControlError};

/// The maximum of bytes that one release request gives back, which bounds its memory.
const RELEASE_STEP_BYTES: u64 = 64 << 20;

/// The smallest blocks that drives and exports have.
const BLOCK_BYTES_MIN: u32 = 512;

/// A running group under its current name. Under a new name it is another value with the same body.
pub(crate) struct Group {
    pub name: String,
    body: Arc<GroupBody>,
}

impl Deref for Group {
    type Target = GroupBody;

    fn deref(&self) -> &GroupBody {
        &self.body
    }
}

/// The parts of a running group that do not depend on its name.
pub(crate) struct GroupBody {
    pub key: GroupKey,
    pub uuid: Uuid,
    /// Its name in log messages about its drives.
    logged_name: Arc<RwLock<String>>,
    pub shared: Arc<Shared>,
    pub shards: Vec<ShardHandle>,
    drives: Arc<RwLock<Vec<Option<GroupDrive>>>>,
    /// Drives of other machines that cannot be reached now.
    disconnected: Mutex<Vec<DisconnectedDrive>>,
    /// Drives that were left out at the start of the group because they could not be read or
    /// written.
    pub left_out: Vec<LeftOut>,
    /// The file of the warm-restart state, which outlives a killed daemon.
    warm_path: PathBuf,
    exports: RwLock<BTreeMap<u64, Arc<RunningExport>>>,
    /// The state that all namespaces of a volume share, by the volume's identity.
    pub namespaces: Mutex<BTreeMap<u64, Arc<SharedNamespace>>>,
    /// The rate limiter of a volume for all its exports, by the volume's identity.
    pub limiters: Mutex<BTreeMap<u64, Arc<Limiter>>>,
    /// Secrets of NVMe hosts, at all addresses.
    pub secrets: HostSecrets,
    /// A task that reads the catalogue in order to change it holds this lock.
    catalogue_turn: tokio::sync::Mutex<()>,
    /// A task that gives space of the group to a volume or pool holds this lock, from the look at
    /// the catalogue to its change.
    pub space_turn: tokio::sync::Mutex<()>,
    pub maintenance: Maintenance,
    pub presence: Mutex<Presence>,
    /// How stores of the pool of thin volumes ask for space.
    pool_space: Arc<PoolSpace>,
    /// Streams of the intent log, for as long as a thin store is open.
    thin_streams: AtomicUsize,
    /// The conversions of its volumes.
    pub conversions: Conversions,
    /// How the pool of thin volumes fills.
    thin_trend: Mutex<thin_trend::Trend>,
    /// The log says already that the pool cannot grow.
    cannot_grow: AtomicBool,
    /// Why the thin volumes could not be started.
    thin_failure: Mutex<Option<String>>,
}

/// A drive that could not be used when its group was started.
pub(crate) struct LeftOut {
    pub drive: String,
    pub place: DrivePlace,
    pub reason: Refusal,
}

fn not_assemblable(error: AssembleError) -> ControlError {
    ControlError::new(ErrorCode::NotAssemblable, error.to_string())
}

impl Group {
    /// Writes another name to its drives. Returns the group under that name.
    pub async fn renamed(&self, name: &str) -> Answer<Arc<Group>> {
        let new = name.to_owned();
        let done = self.lead(move |array| async move { array.rename(new).await }).await?;
        done.map_err(|error| block_error(&self.name, &error))?;
        name.clone_into(&mut self.logged_name.write().unwrap_or_else(PoisonError::into_inner));
        Ok(Arc::new(Group { name: name.to_owned(), body: self.body.clone() }))
    }

    /// The parts of the group that keep their identity, for tasks that do not keep it running.
    fn weak(&self) -> Weak<GroupBody> {
        Arc::downgrade(&self.body)
    }

    pub fn drives(&self) -> RwLockReadGuard<'_, Vec<Option<GroupDrive>>> {
        self.drives.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn drives_mut(&self) -> RwLockWriteGuard<'_, Vec<Option<GroupDrive>>> {
        self.drives.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives of other machines that cannot be reached now, and are looked for.
    pub fn disconnected(&self) -> MutexGuard<'_, Vec<DisconnectedDrive>> {
        self.disconnected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn exports(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Arc<RunningExport>>> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn exports_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Arc<RunningExport>>> {
        self.exports.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The drive of an index, if the group has it open.
    pub fn drive(&self, id: DriveId) -> Option<GroupDrive> {
        self.drives().get(usize::from(id.0)).cloned().flatten()
    }

    /// The largest write in bytes that all present drives, spares included, complete or omit as a
    /// whole at a power cut: 512 to 4096. It limits the block size that exports can promise to be
    /// atomic.
    pub fn atomic_bytes(&self) -> u32 {
        let of_drive = |drive: &GroupDrive| drive.open.info().atomic_bytes;
        self.drives().iter().flatten().map(of_drive).min().unwrap_or(BLOCK_BYTES_MIN)
    }

    /// Logs which exports have blocks that a power cut may tear. Their block size stays, because
    /// clients rely on it.
    pub fn log_torn(&self) {
        let atomic_bytes = self.atomic_bytes();
        for running in self.exports().values() {
            if let Some(torn) = torn(&running.record.kind, atomic_bytes) {
                tracing::warn!(group = self.name, volume = running.state.name(), "{torn}");
            }
        }
    }

    /// The index of a drive by name.
    pub fn drive_id(&self, name: &str) -> Option<DriveId> {
        let drives = self.drives();
        let at = drives.iter().position(|drive| drive.as_ref().is_some_and(|drive| drive.name == name));
        at.map(|index| DriveId(index as u16))
    }

    /// The drive with this device number.
    pub fn find_device(&self, device: (u32, u32)) -> Option<(DriveId, GroupDrive)> {
        let drives = self.drives();
        let is = |drive: &&GroupDrive| drive.open.device_number() == Some(device);
        let mut found =
            drives.iter().enumerate().filter_map(|(index, drive)| Some((index, drive.as_ref().filter(is)?)));
        found.next().map(|(index, drive)| (DriveId(index as u16), drive.clone()))
    }

    /// Whether the group has this block device open.
    pub fn has_device(&self, device: (u32, u32)) -> bool {
        self.find_device(device).is_some()
    }

    /// Runs `act` with the group on its leading shard.
    pub async fn lead<T, F>(&self, act: impl FnOnce(Array<ShardEnv>) -> F + Send + 'static) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let key = self.key;
        let call = self.shards[0].call(move || async move {
            match shard::group(key) {
                Some(array) => Some(act(array).await),
                None => None,
            }
        });
        call.await.ok().flatten().ok_or_else(stopping)
    }

    /// Runs `act` on every shard, one after the other.
    pub async fn on_all(&self, act: impl Fn() + Clone + Send + 'static) -> Answer<()> {
        self.await_all(move || {
            act();
            std::future::ready(())
        })
        .await
    }

    /// Like [`Group::on_all`], for asynchronous work.
    pub async fn await_all<F: Future<Output = ()> + 'static>(
        &self,
        act: impl Fn() -> F + Clone + Send + 'static,
    ) -> Answer<()> {
        for handle in &self.shards {
            handle.call(act.clone()).await.map_err(|_| stopping())?;
        }
        Ok(())
    }

    pub async fn status(&self) -> Answer<GroupStatus> {
        self.lead(|array| async move { array.status() }).await
    }

    pub async fn catalogue(&self) -> Answer<Catalogue> {
        self.lead(|array| async move { array.catalogue() }).await
    }

    /// Applies an operator's settings to the engine.
    pub async fn configure(&self, record: &SettingsRecord) -> Answer<()> {
        let settings = settings::of_engine(record);
        self.lead(move |array| async move { array.configure(settings) }).await
    }

    /// Brings a volume to the state of its record on all shards.
    pub async fn set_volume(&self, record: &VolumeRecord) -> Answer<()> {
        self.change_volume(record, &self.serving_shard(record)).await
    }

    /// The shard that has a volume's store. It alone serves the volume if that is thin or being
    /// converted.
    pub fn serving_shard(&self, record: &VolumeRecord) -> ShardHandle {
        record.store().map_or_else(|| self.shards[0].clone(), |store| self.store_shard(store))
    }

    /// As [`Group::set_volume`], on the shard `first` before the others. It has to be the one that
    /// converts the volume: the others send their requests there until they are told.
    pub async fn change_volume(&self, record: &VolumeRecord, first: &ShardHandle) -> Answer<()> {
        let (key, line, serving) = (self.key, record.id as u32, self.serving_shard(record));
        let written_bytes = match record.store() {
            Some(store) => self.on_store(store, move |store| async move { store.written_counter(line) }).await?,
            None => None,
        };
        let written_bytes = written_bytes.unwrap_or_default();
        let others = self.shards.iter().filter(|shard| shard.index() != first.index());
        for handle in std::iter::once(first).chain(others) {
            let attention = self.conversions.attention.clone();
            let place = ContentPlace { serving: serving.clone(), written_bytes: written_bytes.clone(), attention };
            let record = record.clone();
            let set = handle.call(move || shard::set_volume(key, record, place));
            set.await.map_err(|_| stopping())?.map_err(|error| block_error(&self.name, &error))?;
        }
        Ok(())
    }

    /// Changes the catalogue, and makes the change durable.
    pub async fn change_catalogue(&self, change: impl FnOnce(&mut Catalogue)) -> Answer<Catalogue> {
        let _turn = self.catalogue_turn.lock().await;
        let mut catalogue = self.catalogue().await?;
        change(&mut catalogue);
        self.set_catalogue(catalogue.clone()).await?;
        Ok(catalogue)
    }

    /// Like [`Group::change_catalogue`], but leaves nothing of the old catalogue on the drives.
    pub async fn replace_catalogue(&self, change: impl FnOnce(&mut Catalogue)) -> Answer<()> {
        let _turn = self.catalogue_turn.lock().await;
        let mut catalogue = self.catalogue().await?;
        change(&mut catalogue);
        let done = self.lead(move |array| async move { array.replace_catalogue(catalogue).await }).await?;
        self.saved(done)
    }

    async fn set_catalogue(&self, catalogue: Catalogue) -> Answer<()> {
        let done = self.lead(move |array| async move { array.set_catalogue(catalogue).await }).await?;
        self.saved(done)
    }

    fn saved(&self, done: Result<(), BlockError>) -> Answer<()> {
        done.map_err(|error| match error {
            BlockError::NoSpace => ControlError::new(
                ErrorCode::NoSpace,
                format!("the table of volumes and exports of {:?} has no room for more", self.name),
            ),
            error => block_error(&self.name, &error),
        })
    }

    /// Gives ranges of the group back: discards all that is allocated in them.
    pub async fn release(&self, extents: Vec<ExtentRecord>) -> Answer<()> {
        let release = move |array: Array<ShardEnv>| async move {
            for extent in extents {
                let (mut at, end) = (extent.start_byte, extent.start_byte + extent.len_bytes);
                while at < end {
                    for part in array.extents(at, end - at)? {
                        let (next, mut from) = (at + part.len, at);
                        while part.allocated && from < next {
                            let step = (next - from).min(RELEASE_STEP_BYTES);
                            array.discard(from, step).await?;
                            from += step;
                        }
                        at = next;
                    }
                    ShardEnv::current().turn_end().await;
                }
            }
            Ok(())
        };
        self.lead(release).await?.map_err(|error: BlockError| block_error(&self.name, &error))
    }

    /// Opens a drive on all shards. It belongs to the group as soon as the leader uses it.
    pub async fn install_drive(&self, requested: RequestedDrive) -> Answer<DriveId> {
        let id = self.shared.new_drive();
        let drive = requested.keep();
        let (key, attached) = (self.key, drive.open.clone());
        self.on_all(move || shard::install_drive(key, id, &attached)).await?;
        let mut drives = self.drives_mut();
        drives.resize(usize::from(id.0) + 1, None);
        drives[usize::from(id.0)] = Some(drive);
        Ok(id)
    }

    /// Removes a drive from all shards, which closes it.
    pub async fn release_drive(&self, id: DriveId) -> Answer<()> {
        let key = self.key;
        self.on_all(move || shard::uninstall_drive(key, id)).await?;
        if let Some(drive) = self.drives_mut().get_mut(usize::from(id.0)) {
            *drive = None;
        }
        Ok(())
    }

    /// Closes a drive of this name if it no longer belongs to the group, so that it can be used
    /// again.
    pub async fn release_if_unused(&self, name: &str) -> Answer<()> {
        let Some(id) = self.drive_id(name) else { return Ok(()) };
        let status = self.status().await?;
        let member = status.members.iter().any(|member| member.drive == Some(id) && member.state.takes_writes());
        if member || status.spares.contains(&id) {
            return Err(ControlError::new(
                ErrorCode::DriveInUse,
                format!("{name} is part of the group {:?} already", self.name),
            ));
        }
        self.release_drive(id).await
    }

    /// Ends the group on all shards, the leader last, and closes its drives. If `in_order`, written
    /// data are made durable. Otherwise nothing is written. Returns the error if they could not be
    /// made durable.
    async fn leave_shards(&self, in_order: bool) -> Answer<Option<BlockError>> {
        let key = self.key;
        self.stop_conversions(in_order).await?;
        let mut failed = if in_order { self.stop_stores().await? } else { None };
        for handle in self.shards.iter().rev() {
            let leave = handle.call(move || async move {
                match shard::group(key) {
                    Some(array) if in_order => array.stop().await,
                    Some(array) => {
                        array.abandon().await;
                        Ok(())
                    }
                    None => Ok(()),
                }
            });
            if let Err(error) = leave.await.map_err(|_| stopping())? {
                failed = Some(error);
            }
        }
        self.on_all(move || shard::remove_group(key)).await?;
        self.drives_mut().clear();
        Ok(failed)
    }

    /// Stops the group on all shards, the leader last, and closes its drives.
    pub async fn stop(&self) -> Answer<()> {
        match self.leave_shards(true).await? {
            None => {
                // All data are on the drives. A file that remains has no effect.
                let _ = std::fs::remove_file(&self.warm_path);
                Ok(())
            }
            Some(error) => Err(block_error(&self.name, &error)),
        }
    }
}

/// An error of the data path as an error of the API.
pub(crate) fn block_error(group: &str, error: &BlockError) -> ControlError {
    ControlError::new(ErrorCode::Io, format!("the group {group:?}: {error}"))
}

/// The reason why a drive cannot join, as an error of the API.
pub(crate) fn join_error(group: &str, error: &JoinError) -> ControlError {
    let code = match error {
        JoinError::TooSmall { .. } | JoinError::Sector { .. } => ErrorCode::DriveUnfit,
        JoinError::NoMember(_) => ErrorCode::MemberNotFound,
        JoinError::Replacing(_) | JoinError::Busy(_) | JoinError::NoRedundancy | JoinError::TooManySpares(_) => {
            ErrorCode::WrongState
        }
        JoinError::NotASpare => ErrorCode::DriveNotFound,
        JoinError::Block(BlockError::Lost { .. }) => ErrorCode::WouldLoseData,
        JoinError::Block(_) => ErrorCode::Io,
    };
    ControlError::new(code, format!("the group {group:?}: {error}"))
}
