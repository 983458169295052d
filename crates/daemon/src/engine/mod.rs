//! What the daemon does: groups on shards, their volumes and exports, changed one request at a time.
//!
//! Invariants:
//! 1. One change at a time (`changes`). Looking never waits for a change, so that a hanging drive hides nothing.
//! 2. A change is checked whole before anything is written. What it writes last makes it true: the superblocks of a new
//!    group, the catalogue of a volume or export.
//! 3. What is on the drives counts. The state directory only remembers where to look for drives.

mod change;
mod drives;
mod exports;
mod group;
mod look;
mod memory;
mod sampler;
mod shard;
mod view;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Instant, SystemTime};

use api::ErrorCode;
use export::ExportState;
use format::{ExportKind, ExportRecord};
use runtime::{MailboxSender, Runtime, ShardEnv, ShardHandle, mailbox};

use crate::http::{Answer, ControlError};
use drives::Taken;
use exports::{Listeners, RunningExport};
use group::Group;
use memory::{Memory, Remembered};
use sampler::Sampler;
use shard::Mail;

/// The daemon's objects, over the shards of a runtime.
pub struct Engine {
    shards: Vec<ShardHandle>,
    senders: Vec<MailboxSender<Mail>>,
    groups: RwLock<BTreeMap<String, Arc<Group>>>,
    /// Groups that are remembered and could not be started.
    absent: RwLock<Vec<Remembered>>,
    listeners: Listeners,
    memory: Memory,
    sampler: Sampler,
    changes: tokio::sync::Mutex<()>,
    next_key: AtomicU64,
    started: Instant,
}

impl Engine {
    /// An engine on the shards of `runtime`, with what `state` remembers. Nothing is started yet.
    ///
    /// # Errors
    /// If the state directory cannot be used, or another daemon uses it.
    pub async fn new(runtime: &Runtime, state: &Path) -> std::io::Result<Arc<Engine>> {
        let memory = Memory::open(state)?;
        let shards = runtime.shards().to_vec();
        let mut senders = Vec::new();
        for handle in &shards {
            let making = handle.call(|| async {
                let (sender, mailbox) = mailbox::<Mail>();
                shard::start_post(&ShardEnv::current(), mailbox);
                sender
            });
            senders.push(making.await.map_err(|_| std::io::Error::other("a shard has stopped"))?);
        }
        Ok(Arc::new(Engine {
            listeners: Listeners::new(shards.clone()),
            shards,
            senders,
            groups: RwLock::default(),
            absent: RwLock::default(),
            memory,
            sampler: Sampler::default(),
            changes: tokio::sync::Mutex::new(()),
            next_key: AtomicU64::new(1),
            started: Instant::now(),
        }))
    }

    /// Starts every group that is remembered, as far as its drives are there, with its exports.
    ///
    /// # Errors
    /// If what is remembered cannot be read.
    pub async fn start_remembered(self: &Arc<Self>) -> std::io::Result<()> {
        for remembered in self.memory.load()? {
            if remembered.drives.iter().all(|drive| drive.starts_with("mem:")) {
                tracing::warn!(group = remembered.name, "was in memory only, and is gone");
                continue;
            }
            let mut taken = Vec::new();
            for text in remembered.drives.iter().filter(|drive| !drive.starts_with("mem:")) {
                match drives::open(text, None) {
                    Ok(drive) => taken.push(drive),
                    Err(error) => tracing::warn!(group = remembered.name, drive = text, %error, "drive not opened"),
                }
            }
            match self.start_group(taken).await {
                Ok(group) => tracing::info!(group = group.name, "started"),
                Err(error) => {
                    tracing::error!(group = remembered.name, %error, "not started");
                    self.absent.write().unwrap_or_else(PoisonError::into_inner).push(remembered);
                }
            }
        }
        Ok(())
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

    /// Ends all exports and stops all groups in order.
    pub async fn stop(&self) {
        let _one = self.changes.lock().await;
        for group in self.all() {
            self.stop_group(&group).await;
        }
    }

    fn all(&self) -> Vec<Arc<Group>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn find(&self, name: &str) -> Answer<Arc<Group>> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.get(name).cloned().ok_or_else(|| ControlError::group_not_found(name))
    }

    /// Starts the group that is on some drives, with its exports.
    async fn start_group(&self, taken: Vec<Taken>) -> Answer<Arc<Group>> {
        let found = group::look(&self.shards, &taken).await?;
        let name = found.assembly.superblock.name.clone();
        if self.find(&name).is_ok() {
            return Err(ControlError::group_exists(&name));
        }
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let group = group::start(&self.shards, &self.senders, key, taken, found).await?;
        for record in group.catalogue().await?.exports {
            self.start_export(&group, record).await?;
        }
        self.groups.write().unwrap_or_else(PoisonError::into_inner).insert(name, group.clone());
        Ok(group)
    }

    /// Serves an export of the catalogue. What cannot be served now is listed with the reason.
    async fn start_export(&self, group: &Arc<Group>, record: ExportRecord) -> Answer<Arc<RunningExport>> {
        let catalogue = group.catalogue().await?;
        let volume = catalogue.volumes.iter().find(|volume| volume.id == record.volume);
        let name = volume.map(|volume| format!("{}/{}", group.name, volume.name));
        let name = name.ok_or_else(|| ControlError::new(ErrorCode::Internal, "an export without its volume"))?;
        let ExportKind::Nbd { read_only, .. } = record.kind;
        let state = ExportState::new(&name, "", read_only);
        let failure = match self.listeners.offer(&name, group.key, &record, state.clone()).await {
            Ok(()) => None,
            Err(error) => {
                tracing::error!(export = view::export_id(group, record.id), %error, "export is not served");
                Some(error.message)
            }
        };
        let running = Arc::new(RunningExport { record, state, failure });
        group.exports_mut().insert(running.record.id, running.clone());
        Ok(running)
    }

    /// Ends an export's service; its clients lose their connections.
    async fn end_export(&self, group: &Group, running: &RunningExport) {
        if running.failure.is_none() {
            self.listeners.withdraw(running.state.name(), &running.record, &running.state).await;
        }
        group.exports_mut().remove(&running.record.id);
    }

    async fn stop_group(&self, group: &Arc<Group>) {
        let exports: Vec<_> = group.exports().values().cloned().collect();
        for export in exports {
            self.end_export(group, &export).await;
        }
        if let Err(error) = group.stop().await {
            tracing::error!(group = group.name, %error, "could not be stopped in order");
        }
        self.groups.write().unwrap_or_else(PoisonError::into_inner).remove(&group.name);
        self.sampler.forget(&group.name);
    }

    /// Remembers where the drives of all groups are.
    fn remember(&self) {
        let remembered = |group: &Arc<Group>| Remembered {
            name: group.name.clone(),
            uuid: group.uuid.to_string(),
            drives: group.drives().iter().flatten().map(|drive| drive.text.clone()).collect(),
        };
        let mut groups: Vec<Remembered> = self.all().iter().map(remembered).collect();
        let known: Vec<String> = groups.iter().map(|group| group.uuid.clone()).collect();
        let absent = self.absent.read().unwrap_or_else(PoisonError::into_inner);
        groups.extend(absent.iter().filter(|group| !known.contains(&group.uuid)).cloned());
        if let Err(error) = self.memory.save(groups) {
            tracing::error!(%error, "the state directory cannot be written: groups have to be assembled by hand");
        }
    }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
