//! Whether members answer, also those that a group cannot do without.
//!
//! A member that fails leaves its group, and the status shows it. A member that the group needs
//! keeps its place, because without it no data could be read. So each member is asked every ten
//! seconds, and a group is degraded or failed when members do not answer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use array::DriveId;
use drive::{Drive, Env};
use runtime::{DriveKind, ShardEnv};

use crate::engine::Engine;
use crate::engine::group::Group;
use crate::engine::group::group_drive::GroupDrive;
use crate::engine::group::presence_state::{Presence, Silent};

/// How often members are asked: by a read of 4 KiB, or for a remote drive by its connection.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// As long as a group waits for a member that answers nothing.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Bytes that are read of a drive: its first superblock.
const READ_BYTES: usize = 4096;

impl Group {
    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The drives that did not answer the last request, and why.
    pub fn silent(&self) -> Silent {
        self.presence().silent.clone()
    }

    /// Records a drive's answer, and logs it if it differs from the one before.
    fn note_presence(&self, id: DriveId, drive: &str, failure: Option<String>) {
        let mut presence = self.presence();
        let before = match &failure {
            Some(why) => presence.silent.insert(id, why.clone()),
            None => presence.silent.remove(&id),
        };
        match (before, failure) {
            (None, Some(why)) => tracing::error!(group = self.name, drive, why, "a drive does not answer"),
            (Some(_), None) => tracing::info!(group = self.name, drive, "a drive answers again"),
            _ => {}
        }
    }
}

impl Engine {
    /// Starts asking the drives of all groups, for as long as the engine lives.
    pub fn start_asking_members(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(ASK_EVERY).await;
                let Some(engine) = engine.upgrade() else { return };
                engine.all().iter().for_each(|group| engine.query_members(group));
            }
        });
    }

    /// Asks every drive that has answered its previous request.
    fn query_members(&self, group: &Arc<Group>) {
        let drives: BTreeMap<DriveId, GroupDrive> = {
            let drives = group.drives();
            let open = drives.iter().enumerate();
            open.filter_map(|(index, drive)| Some((DriveId(index as u16), drive.clone()?))).collect()
        };
        let asked = {
            let mut presence = group.presence();
            presence.asked.retain(|id, _| drives.contains_key(id));
            presence.silent.retain(|id, _| drives.contains_key(id));
            presence.asked.clone()
        };
        for (id, drive) in drives {
            if drive.is_remote() {
                // A read would wait until the drive is back, so ask for its connection instead.
                let reach = drive.identity.as_deref().map(|identity| self.opener.remotes.reach(identity));
                let is_lost = reach.is_some_and(|reach| reach.is_lost);
                group.note_presence(id, &drive.name, is_lost.then(|| "it is out of reach".to_owned()));
            } else if drive.open.kind() == DriveKind::File && !Path::new(&drive.name).exists() {
                let why = "its file was deleted: what is on it is gone when the group stops".to_owned();
                group.note_presence(id, &drive.name, Some(why));
            } else if let Some(since) = asked.get(&id) {
                if since.elapsed() >= ANSWER_WITHIN {
                    group.note_presence(id, &drive.name, Some("it does not answer".to_owned()));
                }
            } else {
                self.query_member(group.clone(), id, drive);
            }
        }
    }

    fn query_member(&self, group: Arc<Group>, id: DriveId, drive: GroupDrive) {
        let (open, name) = (drive.open, drive.name);
        group.presence().asked.insert(id, Instant::now());
        let answer = self.shards[0].call(move || async move {
            let env = ShardEnv::current();
            let drive = env.attach(&open);
            drive.read(0, env.alloc(READ_BYTES)).await.map(drop).map_err(|error| error.to_string())
        });
        tokio::spawn(async move {
            let answer = answer.await;
            group.presence().asked.remove(&id);
            // A shard that has stopped says nothing about a drive.
            if let Ok(answer) = answer {
                group.note_presence(id, &name, answer.err());
            }
        });
    }
}
