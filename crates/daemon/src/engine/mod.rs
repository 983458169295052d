//! The engine of the daemon: groups on shards, their volumes and exports, changed one request at a
//! time.
//!
//! Invariants:
//! 1. Only one change runs at a time (`changes`). Read-only requests never wait for a change, so a
//!    hanging drive hides nothing.
//! 2. A change is checked completely before anything is written. Its last write makes it effective:
//!    the superblocks of a new group, the catalogue of a volume or export.
//! 3. The drives hold the truth. The state directory only remembers where to look for drives. Of
//!    imports it holds everything, because their drives are not written.

mod clock;
mod drives;
mod errors;
mod exports;
mod group;
mod imports;
mod memory;
mod names;
mod nvme;
mod settings;
mod shares;
mod upgrade;
mod view;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use api::ErrorCode;
use export::{Budget, ExportState};
use format::{ExportKind, ExportRecord};
use runtime::{MailboxSender, Runtime, ShardEnv, ShardHandle, mailbox};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use crate::engine::drives::arrivals::Known;
use crate::engine::drives::health::Healths;
use crate::engine::drives::remote::Remotes;
use crate::engine::drives::unassigned::UnassignedDrives;
use crate::engine::drives::{Consent, Opener, RequestedDrive, find};
use crate::engine::exports::devices::{Backing, DeviceEnd, Devices};
use crate::engine::exports::running_export::RunningExport;
use crate::engine::exports::{Listeners, limits};
use crate::engine::group::disconnected::DisconnectedDrive;
use crate::engine::group::group_drive::GroupDrive;
use crate::engine::group::not_started::{AllNotStarted, NotStarted};
use crate::engine::group::owners::Balance;
use crate::engine::group::replace::Replacements;
use crate::engine::group::sampler::Sampler;
use crate::engine::group::shard::{GroupMessage, Offer};
use crate::engine::group::stopped::Stopped;
use crate::engine::group::{Group, LeftOut, owners, sampler, shard};
use crate::engine::imports::Imports;
use crate::engine::memory::{DrivePlace, Memory, Remembered};
use crate::engine::names::Names;
use crate::engine::nvme::announce::Announcer;
use crate::engine::nvme::history::Histories;
use crate::engine::shares::table::Shares;
use crate::handover::Handover;
use crate::http::{Answer, ControlError};

pub use self::nvme::announce::Interfaces;
pub use clock::WallClock;

/// How long the start of a group waits for all host names of its exports together.
const NAMES_WITHIN: Duration = Duration::from_secs(1);

/// The daemon's objects, over the shards of a runtime.
pub struct Engine {
    shards: Vec<ShardHandle>,
    senders: Vec<MailboxSender<GroupMessage>>,
    groups: RwLock<BTreeMap<String, Arc<Group>>>,
    /// Remembered groups that could not be started.
    not_started: AllNotStarted,
    /// Groups that were stopped on request.
    stopped: Stopped,
    replacements: Replacements,
    imports: Imports,
    names: Arc<Names>,
    listeners: Listeners,
    devices: Devices,
    unassigned_drives: UnassignedDrives,
    known: Known,
    healths: Healths,
    opener: Opener,
    shares: Arc<Shares>,
    histories: Histories,
    handover: Arc<Handover>,
    memory: Memory,
    sampler: Sampler,
    changes: tokio::sync::Mutex<()>,
    /// Notified when the pool of thin volumes of a group wants more space.
    thin_growth: Arc<Notify>,
    /// Notified when the conversion of a volume has to be saved or ended.
    attention: Arc<Notify>,
    next_key: AtomicU64,
    started: Instant,
    clock: WallClock,
}

impl Engine {
    /// Makes an engine on the shards of `runtime`, with the state directory `state`. Nothing is
    /// started yet.
    ///
    /// # Errors
    /// If the state directory cannot be used, or another daemon uses it.
    pub async fn new(runtime: &Runtime, state: &Path) -> std::io::Result<Arc<Engine>> {
        Engine::with_clock(runtime, state, WallClock::system()).await
    }

    /// Like [`Engine::new`], with another clock.
    ///
    /// # Errors
    /// As for [`Engine::new`].
    pub async fn with_clock(runtime: &Runtime, state: &Path, clock: WallClock) -> std::io::Result<Arc<Engine>> {
        Engine::with_handover(runtime, state, clock, Arc::new(Handover::alone())).await
    }

    /// Like [`Engine::with_clock`], with sockets from the previous process and for the next one.
    ///
    /// # Errors
    /// As for [`Engine::new`].
    pub async fn with_handover(
        runtime: &Runtime,
        state: &Path,
        clock: WallClock,
        handover: Arc<Handover>,
    ) -> std::io::Result<Arc<Engine>> {
        let memory = Memory::open(state)?;
        let shards = runtime.shards().to_vec();
        let mut senders = Vec::new();
        for handle in &shards {
            let making = handle.call(|| async {
                let (sender, mailbox) = mailbox::<GroupMessage>();
                shard::start_delivery(&ShardEnv::current(), mailbox);
                sender
            });
            senders.push(making.await.map_err(|_| std::io::Error::other("a shard has stopped"))?);
        }
        let names = Arc::new(Names::default());
        let remotes = Remotes::new(shards[0].clone(), names.clone(), state);
        let budget = Budget::new(runtime::arena_stats().expect("the runtime has one").size_bytes as u64);
        let listeners = Listeners::new(shards.clone(), handover.clone(), names.clone(), budget.clone());
        listeners.refer(memory.load_referrals()?);
        let (thin_growth, attention) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let engine = Arc::new(Engine {
            names,
            listeners,
            devices: Devices::new(shards.clone(), budget),
            unassigned_drives: UnassignedDrives::default(),
            known: Known::default(),
            healths: Healths::default(),
            opener: Opener { remotes, passthrough: runtime.passthrough() },
            shares: Arc::new(Shares::new(state)),
            histories: Histories::new(state),
            handover,
            shards,
            senders,
            groups: RwLock::default(),
            not_started: AllNotStarted::default(),
            stopped: Stopped::load(&memory)?,
            replacements: Replacements::load(&memory)?,
            imports: Imports::default(),
            memory,
            sampler: Sampler::default(),
            changes: tokio::sync::Mutex::new(()),
            thin_growth: thin_growth.clone(),
            attention: attention.clone(),
            next_key: AtomicU64::new(1),
            started: Instant::now(),
            clock,
        });
        tokio::spawn(Engine::grow_pools(Arc::downgrade(&engine), thin_growth));
        tokio::spawn(Engine::conduct_conversions(Arc::downgrade(&engine), attention));
        Ok(engine)
    }

    /// Starts every remembered group and import whose drives are present, with its exports.
    ///
    /// # Errors
    /// If the state directory cannot be read.
    pub async fn start_remembered(self: &Arc<Self>) -> std::io::Result<()> {
        self.look_up_remembered().await?;
        // Drives that come meanwhile wait until the missing drives are known.
        let _one = self.changes.lock().await;
        let mut all_there = true;
        for remembered in self.memory.load()? {
            if remembered.drives.iter().all(DrivePlace::is_memory) {
                tracing::warn!(group = remembered.name, "was in memory only, and is gone");
                self.histories.forget(&remembered.uuid);
                continue;
            }
            let opened = find::open_all(&self.shards[0], &self.opener, &remembered, Consent::default()).await;
            let missing_drives = opened.missing(&remembered);
            let there = opened.requested.len() + opened.disconnected.len();
            all_there &= there == remembered.drives.iter().filter(|place| !place.is_memory()).count();
            match self.start_group(opened.requested).await {
                Ok(group) => {
                    tracing::info!(group = group.name, "started");
                    group.disconnected().extend(opened.disconnected.into_iter().map(DisconnectedDrive::new));
                }
                Err(error) => {
                    tracing::error!(group = remembered.name, %error, "not started");
                    self.not_started.note(NotStarted { remembered, reason: error.message, missing_drives });
                }
            }
        }
        // Save the current device paths. If a drive is missing, keep its remembered path and
        // identity.
        if all_there {
            self.remember();
        }
        self.start_remembered_shares().await?;
        self.start_remembered_imports().await
    }

    /// Starts announcing by multicast DNS where discovery services of NVMe/TCP listen. Must be
    /// called before anything is started. A failure is only logged.
    pub fn start_announcing(&self, interfaces: Interfaces) {
        match Announcer::new(interfaces) {
            Ok(announcer) => self.listeners.announce_with(announcer),
            Err(error) => tracing::error!(%error, "discovery services are not announced"),
        }
    }

    /// Samples the load once a second, for as long as the engine lives.
    pub fn start_sampling(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(sampler::PERIOD);
            loop {
                ticks.tick().await;
                let Some(engine) = engine.upgrade() else { return };
                engine.sampler.sample_shards();
                for group in engine.all() {
                    engine.sampler.sample(&group.name, view::group_counters(&group));
                }
            }
        });
    }

    /// Balances the ownership of stripe groups over the shards, for as long as the engine lives.
    pub fn start_balancing(self: &Arc<Self>) {
        if self.shards.len() == 1 {
            return;
        }
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut balance = Balance::default();
            let mut ticks = tokio::time::interval(owners::PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(engine) = engine.upgrade() else { return };
                balance.look(&engine.shards, &engine.all()).await;
            }
        });
    }

    /// Ends all exports and stops all groups in order. Sockets that are handed over keep listening.
    /// Block devices stay, and requests to them wait for the next daemon.
    pub async fn stop(&self) {
        let _one = self.changes.lock().await;
        self.unassigned_drives.end();
        if self.handover.keeps() {
            self.listeners.release().await;
        } else {
            self.listeners.leave_hosts().await;
        }
        for group in self.all() {
            // A device that stays may be in use: that is no error.
            if let Err(error) = self.stop_group(&group, DeviceEnd::Stays).await {
                tracing::error!(group = group.name, %error, "could not be stopped in order");
            }
        }
        self.stop_imports().await;
        self.stop_shares().await;
        self.listeners.end_announcing().await;
        self.opener.remotes.closed().await;
    }

    fn all(&self) -> Vec<Arc<Group>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn find(&self, name: &str) -> Answer<Arc<Group>> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.get(name).cloned().ok_or_else(|| match self.find_import(name) {
            None => self.not_started_error(name).unwrap_or_else(|| ControlError::group_not_found(name)),
            Some(_) => ControlError::new(
                ErrorCode::WrongState,
                format!("{name:?} is an import, not a group: see `purlin import show {name}`"),
            ),
        })
    }

    /// Whether a group of this name runs.
    fn groups_named(&self, name: &str) -> bool {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// Refuses a name that a group or an import has.
    fn check_free(&self, name: &str) -> Answer<()> {
        if self.find_import(name).is_some() {
            return Err(ControlError::new(ErrorCode::GroupExists, format!("there is an import {name:?} already")));
        }
        if let Some(group) = self.not_started.named(name) {
            let message = format!(
                "there is a group {name:?} ({}) already, which is not started: {}",
                group.remembered.uuid, group.reason
            );
            return Err(ControlError::new(ErrorCode::GroupExists, message));
        }
        if self.find(name).is_ok() { Err(ControlError::group_exists(name)) } else { Ok(()) }
    }

    fn is_running(&self, group: &Arc<Group>) -> bool {
        self.all().iter().any(|running| Arc::ptr_eq(running, group))
    }

    fn new_key(&self) -> shard::GroupKey {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts the group that is on some drives, with its exports.
    async fn start_group(&self, requested: Vec<RequestedDrive>) -> Answer<Arc<Group>> {
        let found = group::start::look(&self.shards, &requested).await?;
        self.start_found(requested, found, None).await
    }

    /// Refuses to start a group that runs already, or whose name is taken. `name`: its new name, if
    /// it gets one.
    fn check_startable(&self, found: &group::start::FoundGroup, name: Option<&str>) -> Answer<()> {
        let superblock = &found.assembly.superblock;
        if let Some(group) = self.all().iter().find(|group| group.uuid == superblock.array) {
            let message = format!("the group {:?} ({}) runs already: these drives are a copy", group.name, group.uuid);
            return Err(ControlError::new(ErrorCode::GroupExists, message));
        }
        let (name, uuid) = (name.unwrap_or(&superblock.name), superblock.array.to_string());
        // The group's own entry among those not started does not count as taken.
        if self.not_started.named(name).is_some_and(|group| group.remembered.uuid == uuid) {
            return Ok(());
        }
        self.check_free(name).map_err(|error| {
            let message = format!("{}; `purlin group assemble --name NEW` gives this one another name", error.message);
            ControlError::new(error.code, message)
        })
    }

    /// Like [`Engine::start_group`], after the drives were looked at. `new_name`: the group is
    /// renamed to it.
    async fn start_found(
        &self,
        requested: Vec<RequestedDrive>,
        found: group::start::FoundGroup,
        new_name: Option<&str>,
    ) -> Answer<Arc<Group>> {
        self.check_startable(&found, new_name)?;
        let uuid = found.assembly.superblock.array;
        let key = self.new_key();
        let warm_path = self.memory.warm_path(&uuid);
        let mut group = group::start::start(
            &self.shards,
            &self.senders,
            key,
            requested,
            found,
            (warm_path, self.thin_growth.clone(), self.attention.clone()),
        )
        .await?;
        let served = match new_name {
            Some(name) => group.renamed(name).await.map(|renamed| group = renamed),
            None => Ok(()),
        };
        let served = match served {
            Ok(()) => self.serve_group(&group).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            if let Err(error) = self.stop_group(&group, DeviceEnd::Stays).await {
                tracing::error!(group = group.name, %error, "could not be stopped in order");
            }
            return Err(error);
        }
        self.groups.write().unwrap_or_else(PoisonError::into_inner).insert(group.name.clone(), group.clone());
        // Its store or a conversion may have asked before the group was found.
        self.thin_growth.notify_one();
        self.attention.notify_one();
        // The group is no longer tried again.
        self.not_started.forget(&uuid.to_string());
        self.stopped.forget(&uuid.to_string(), &self.memory);
        Ok(group)
    }

    /// Serves the exports of a group.
    async fn serve_group(&self, group: &Arc<Group>) -> Answer<()> {
        let catalogue = group.catalogue().await?;
        group.limit_volumes(&catalogue);
        // Host names for which a DNS server does not answer must not delay the start.
        let until = Instant::now() + NAMES_WITHIN;
        for record in catalogue.exports {
            let left = until.saturating_duration_since(Instant::now());
            match self.names.look_up_export(&record.kind.address(), left).await {
                Ok(()) => self.start_export(group, record).await?,
                Err(error) => self.note_export(group, record, Err(error)).await?,
            };
        }
        group.log_torn();
        Ok(())
    }

    /// Serves an export of the catalogue. If it cannot be served now, it is listed with the reason
    /// and tried again.
    async fn start_export(&self, group: &Arc<Group>, record: ExportRecord) -> Answer<Arc<RunningExport>> {
        self.note_export(group, record, Ok(())).await
    }

    /// Like [`Engine::start_export`]. If `known` is an error, the export is only listed with it.
    async fn note_export(
        &self,
        group: &Arc<Group>,
        record: ExportRecord,
        known: Answer<()>,
    ) -> Answer<Arc<RunningExport>> {
        let catalogue = group.catalogue().await?;
        let volume = catalogue.volumes.iter().find(|volume| volume.id == record.volume);
        let name = volume.map(|volume| format!("{}/{}", group.name, volume.name));
        let name = name.ok_or_else(|| ControlError::new(ErrorCode::Internal, "an export without its volume"))?;
        let state = ExportState::limited(&name, "", record.kind.read_only(), group.limiter(record.volume));
        for (host, limit) in limits::of_hosts(&catalogue, record.id) {
            state.limit_host(&host, Some(limit));
        }
        let offered = match &record.kind {
            _ if known.is_err() => known,
            ExportKind::Nbd { address, tls, .. } => {
                let offer = Offer { key: group.key, volume: record.volume, state: state.clone() };
                self.listeners.offer(&name, address, tls, offer).await
            }
            ExportKind::Ublk { .. } => match Backing::of_volume(group, record.volume).await {
                Ok(backing) => self.devices.offer(&backing, &record, &state).await,
                Err(error) => Err(error),
            },
            ExportKind::NvmeTcp { .. } => self.offer_namespace(group, &record, &state).await,
        };
        let failure = offered.err().map(|error| error.message);
        let before = group.exports().get(&record.id).and_then(|before| before.failure.clone());
        exports::log_served(&view::export_id(group, record.id), before.as_deref(), failure.as_deref());
        let running = Arc::new(RunningExport { record, state, failure });
        group.exports_mut().insert(running.record.id, running.clone());
        Ok(running)
    }

    /// Ends an export's service; its clients lose their connections. A block device is removed, or
    /// stays for the next daemon.
    async fn end_export(&self, group: &Group, running: &RunningExport, device: DeviceEnd) -> Answer<()> {
        let record = &running.record;
        match (&record.kind, &running.failure) {
            (ExportKind::Nbd { address, .. }, None) => self.listeners.withdraw(address, &running.state).await,
            (ExportKind::Ublk { number, .. }, None) => self.devices.withdraw(*number, &running.state, device).await?,
            (ExportKind::NvmeTcp { .. }, None) => self.withdraw_namespace(group, record, &running.state).await,
            // Requests to a device that a previous daemon left would wait for ever if the device is
            // not served again.
            (ExportKind::Ublk { .. }, Some(_)) if device == DeviceEnd::Goes => {
                self.devices.discard(&group.uuid, record, running.state.name()).await?;
            }
            (_, Some(_)) => {}
        }
        group.exports_mut().remove(&running.record.id);
        Ok(())
    }

    /// Ends the service of all exports of a group and stops it.
    ///
    /// # Errors
    /// If a block device cannot be removed. The group continues then, with the remaining exports.
    async fn stop_group(&self, group: &Arc<Group>, device: DeviceEnd) -> Answer<()> {
        let exports: Vec<_> = group.exports().values().cloned().collect();
        group.end_waits(true).await?;
        for export in exports {
            if let Err(error) = self.end_export(group, &export, device).await {
                group.end_waits(false).await?;
                return Err(error);
            }
        }
        if let Err(error) = self.note_scrub_at_stop(group).await {
            tracing::warn!(group = group.name, %error, "how far the scrub is could not be noted");
        }
        if let Err(error) = group.stop().await {
            tracing::error!(group = group.name, %error, "could not be stopped in order");
        }
        self.histories.power_off(&group.uuid);
        self.groups.write().unwrap_or_else(PoisonError::into_inner).remove(&group.name);
        self.sampler.forget(&group.name);
        Ok(())
    }

    /// Saves where the drives of all groups are. Returns a warning if that fails.
    fn remember(&self) -> Vec<String> {
        let mut groups: Vec<Remembered> = self.all().iter().map(|group| remembered(group)).collect();
        let known: Vec<String> = groups.iter().map(|group| group.uuid.clone()).collect();
        let not_started = self.not_started.list().into_iter().map(|group| group.remembered);
        groups.extend(not_started.filter(|group| !known.contains(&group.uuid)));
        let saved = self.memory.save(groups);
        self.know_drives_of_groups();
        let Err(error) = saved else { return Vec::new() };
        tracing::error!(%error, "the state directory cannot be written: groups have to be assembled by hand");
        vec![format!("the state directory cannot be written ({error}): after a restart, assemble the groups by hand")]
    }
}

/// Where the drives of a group are.
fn remembered(group: &Group) -> Remembered {
    let mut drives: Vec<DrivePlace> = group.drives().iter().flatten().map(GroupDrive::place).collect();
    drives.extend(group.disconnected().iter().map(|drive| drive.place.clone()));
    // Local drives that were left out may answer at the next start. Remote ones are in
    // `disconnected` or back.
    for LeftOut { place, .. } in group.left_out.iter().filter(|left_out| !left_out.place.is_remote()) {
        if !drives.iter().any(|known| known.is_same(place)) {
            drives.push(place.clone());
        }
    }
    Remembered { name: group.name.clone(), uuid: group.uuid.to_string(), drives }
}
