//! Starts a group that was found on drives: on the leading shard first, then on the others.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use array::{
    Array, AssembleError, Assembly, DriveId, Event, Refusal, Replayed, ShardPlace, Shared, assemble, load, warm_words,
};
use drive::WarmState;
use export::HostSecrets;
use runtime::{MailboxSender, OpenDrive, ShardEnv, ShardHandle, warm_file};
use tokio::sync::Notify;
use volume::thin::PoolSpace;

use crate::engine::drives::RequestedDrive;
use crate::engine::errors::stopping;
use crate::engine::group::conversion_state::Conversions;
use crate::engine::group::disconnected::DisconnectedDrive;
use crate::engine::group::group_drive::GroupDrive;
use crate::engine::group::maintenance_state::Maintenance;
use crate::engine::group::shard::{GroupKey, GroupMessage, ShardPeers};
use crate::engine::group::{Group, GroupBody, LeftOut, event_log, not_assemblable, shard};
use crate::engine::nvme::{host_keys, host_tls_keys};
use crate::http::Answer;

/// The group that was found on some drives.
pub(crate) struct FoundGroup {
    pub assembly: Assembly,
    pub refused: Vec<(String, Refusal)>,
}

/// Reads a group's state from drives, without starting anything.
pub(crate) async fn look(shards: &[ShardHandle], requested: &[RequestedDrive]) -> Answer<FoundGroup> {
    let opens: Vec<OpenDrive> = requested.iter().map(|requested| requested.open.clone()).collect();
    let assembly = shards[0].call(move || async move {
        let env = ShardEnv::current();
        let drives: Vec<_> = opens.iter().map(|open| env.attach(open)).collect();
        assemble(&env, &drives).await
    });
    let assembly = assembly.await.map_err(|_| stopping())?.map_err(not_assemblable)?;
    let refused = assembly.refused.iter().map(|(index, refusal)| (requested[*index].name.clone(), refusal.clone()));
    Ok(FoundGroup { refused: refused.collect(), assembly })
}

/// Starts a group on all shards. Drives that are not part of it are closed. The file `warm_path`
/// preserves its warm-restart state if the daemon is killed.
pub(crate) async fn start(
    shards: &[ShardHandle],
    senders: &[MailboxSender<GroupMessage>],
    key: GroupKey,
    requested: Vec<RequestedDrive>,
    found: FoundGroup,
    (warm_path, thin_growth, attention): (PathBuf, Arc<Notify>, Arc<Notify>),
) -> Answer<Arc<Group>> {
    let FoundGroup { assembly, refused } = found;
    let (name, uuid) = (assembly.superblock.name.clone(), assembly.superblock.array);
    refused.iter().for_each(|(drive, refusal)| log_left_out(&name, drive, refusal));
    let starting =
        Starting { shards, senders, key, opens: requested.iter().map(|requested| requested.open.clone()).collect() };
    let (drives, mut left_out) = divide(&assembly, requested);
    let drives = Arc::new(RwLock::new(drives));
    let logged_name = Arc::new(RwLock::new(name.clone()));
    let listener = event_log::log_events(logged_name.clone(), drives.clone());
    let warm = warm_state(&warm_path, &assembly);
    let Led { shared, needs_resync, replayed, left_out: late } = starting.lead(assembly, warm, listener).await?;
    for (index, refusal) in &late {
        let drive = drives.write().unwrap_or_else(PoisonError::into_inner)[*index].take();
        log_left_out(&name, drive.as_ref().map_or("unknown", |drive| &drive.name), refusal);
        left_out.extend(drive.and_then(|drive| left_out_of(drive, refusal)));
    }
    // Drives of other machines are looked for.
    let disconnected = left_out
        .iter()
        .map(|drive| &drive.place)
        .filter(|place| place.is_remote())
        .cloned()
        .map(DisconnectedDrive::new)
        .collect();
    starting.follow(&shared).await?;
    let body = Arc::new(GroupBody {
        key,
        uuid,
        logged_name,
        shared,
        shards: shards.to_vec(),
        drives,
        disconnected: Mutex::new(disconnected),
        left_out,
        warm_path,
        exports: RwLock::default(),
        namespaces: Mutex::default(),
        limiters: Mutex::default(),
        secrets: HostSecrets::default(),
        catalogue_turn: tokio::sync::Mutex::default(),
        space_turn: tokio::sync::Mutex::default(),
        maintenance: Maintenance::default(),
        presence: Mutex::default(),
        pool_space: PoolSpace::new(move || thin_growth.notify_one()),
        thin_streams: AtomicUsize::new(0),
        conversions: Conversions::new(attention),
        thin_trend: Mutex::default(),
        cannot_grow: AtomicBool::new(false),
        thin_failure: Mutex::default(),
    });
    let group = Arc::new(Group { name, body });
    match group.begin(needs_resync, replayed).await {
        Ok(()) => Ok(group),
        Err(error) => {
            // End as after a kill: the next attempt finds the same state as this one.
            if let Err(error) = group.leave_shards(false).await {
                tracing::error!(group = group.name, %error, "could not be let go of");
            }
            Err(error)
        }
    }
}

fn log_left_out(group: &str, drive: &str, reason: &Refusal) {
    tracing::warn!(group, drive, %reason, "drive left out");
}

/// The entry of a drive that is left out because it could not be read or written. `None` if it is
/// left out for another reason.
fn left_out_of(drive: GroupDrive, reason: &Refusal) -> Option<LeftOut> {
    let failed = matches!(reason, Refusal::Drive(_));
    failed.then(|| LeftOut { place: drive.place(), drive: drive.name, reason: reason.clone() })
}

/// Divides the drives that were read: those of the group, each at its index, and those that could
/// not be used. All others are closed.
fn divide(assembly: &Assembly, requested: Vec<RequestedDrive>) -> (Vec<Option<GroupDrive>>, Vec<LeftOut>) {
    let mut drives: Vec<_> = requested.into_iter().map(|requested| Some(requested.keep())).collect();
    let refused = assembly.refused.iter();
    let left_out = refused.filter_map(|(index, reason)| left_out_of(drives[*index].take()?, reason)).collect();
    let in_group: Vec<usize> =
        assembly.members.iter().copied().flatten().chain(assembly.spares.iter().copied()).collect();
    let is_part = |index: usize| in_group.contains(&index);
    drives.iter_mut().enumerate().filter(|(index, _)| !is_part(*index)).for_each(|(_, drive)| *drive = None);
    (drives, left_out)
}

/// The memory of the warm-restart state. A group starts without it if the file cannot be used.
fn warm_state(path: &Path, assembly: &Assembly) -> Option<Arc<dyn WarmState>> {
    let memory = warm_file(path, warm_words(&assembly.superblock));
    if let Err(error) = &memory {
        let (group, file) = (&assembly.superblock.name, path.display());
        tracing::warn!(group, %file, %error, "nothing is kept: a kill costs first writes that were not flushed");
    }
    memory.ok()
}

/// A group that is being started on the shards.
struct Starting<'a> {
    shards: &'a [ShardHandle],
    senders: &'a [MailboxSender<GroupMessage>],
    key: GroupKey,
    /// All drives that were read, in the order of the assembly's indices.
    opens: Vec<OpenDrive>,
}

/// The result of starting a group on its leading shard.
struct Led {
    shared: Arc<Shared>,
    needs_resync: bool,
    replayed: Option<Replayed>,
    /// Drives that did not answer meanwhile, by index.
    left_out: Vec<(usize, Refusal)>,
}

impl Starting<'_> {
    fn peers(&self) -> ShardPeers {
        ShardPeers { key: self.key, senders: self.senders.to_vec() }
    }

    /// Loads the group on the leading shard.
    async fn lead(
        &self,
        assembly: Assembly,
        warm: Option<Arc<dyn WarmState>>,
        listener: Box<dyn Fn(Event) + Send>,
    ) -> Answer<Led> {
        let (key, peers, opens, shard_count) = (self.key, self.peers(), self.opens.clone(), self.shards.len());
        let leading = self.shards[0].call(move || async move {
            let env = ShardEnv::current();
            let drives: Vec<_> = opens.iter().map(|open| env.attach(open)).collect();
            let loaded = load(&env, &assembly, &drives, warm, listener).await?;
            let array = loaded.lead(env, drives, shard_count, Rc::new(peers));
            shard::add_group(key, array);
            Ok(Led {
                shared: loaded.shared.clone(),
                needs_resync: loaded.needs_resync,
                replayed: loaded.replayed,
                left_out: loaded.left_out,
            })
        });
        leading.await.map_err(|_| stopping())?.map_err(not_assemblable)
    }

    /// Adds the group to all other shards.
    async fn follow(&self, shared: &Arc<Shared>) -> Answer<()> {
        let (key, shard_count) = (self.key, self.shards.len());
        for (index, handle) in self.shards.iter().enumerate().skip(1) {
            let (shared, opens, peers) = (shared.clone(), self.opens.clone(), self.peers());
            let following = handle.call(move || async move {
                let env = ShardEnv::current();
                let drives = opens.iter().map(|open| env.attach(open)).collect();
                let place = ShardPlace { shard: index, shards: shard_count };
                shard::add_group(key, Array::follow(env, shared, drives, place, Rc::new(peers)));
            });
            following.await.map_err(|_| stopping())?;
        }
        Ok(())
    }
}

impl Group {
    /// Starts the group's work, after all shards have it.
    async fn begin(&self, needs_resync: bool, replayed: Option<Replayed>) -> Answer<()> {
        let group = &self.name;
        self.release_unlisted_drives().await?;
        if let Some(Replayed { records, lost, contradictory, .. }) = replayed {
            tracing::warn!(group, records, "was not stopped in order: its log was replayed");
            if lost > 0 {
                tracing::error!(group, bytes = lost, "blocks under way at the crash were on a drive that is gone");
            }
            if contradictory > 0 {
                tracing::error!(
                    group,
                    records = contradictory,
                    "parts of the log contradict each other and were not applied: scrub the group"
                );
            }
        }
        if needs_resync {
            tracing::warn!(group, "was not stopped in order: its parity is being made to fit its data");
        }
        self.lead(move |array| async move { array.start(needs_resync).await })
            .await?
            .map_err(|error| not_assemblable(AssembleError::Block(error)))?;
        let catalogue = self.catalogue().await?;
        self.configure(&catalogue.settings).await?;
        host_keys::load(&self.secrets, group, &catalogue.secrets);
        host_tls_keys::load(&self.secrets, group, &catalogue.tls_keys);
        let mut catalogue = catalogue;
        if let Some(error) = self.open_stores(&catalogue).await? {
            tracing::error!(group, %error, "the thin volumes are not started");
            self.thin_failure.lock().unwrap_or_else(PoisonError::into_inner).replace(error.to_string());
            catalogue = self.restart_conversions(catalogue).await?;
        }
        for volume in &catalogue.volumes {
            self.set_volume(volume).await?;
        }
        for volume in &catalogue.volumes {
            self.start_conversion(volume).await?;
        }
        Ok(())
    }

    /// Closes drives that were looked at and are not part of the group.
    async fn release_unlisted_drives(&self) -> Answer<()> {
        let strangers: Vec<usize> =
            self.drives().iter().enumerate().filter(|(_, drive)| drive.is_none()).map(|(index, _)| index).collect();
        for index in strangers {
            self.release_drive(DriveId(index as u16)).await?;
        }
        Ok(())
    }
}
