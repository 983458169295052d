//! Puts other drives in the places of members. A lost member is rebuilt; a working one is copied.
//!
//! While a working member is copied, its new drive is a spare to the array, and the copy ends with
//! the group. So the state directory records the copy as a hint, and the copy starts again after a
//! restart.

use std::sync::{Mutex, MutexGuard, PoisonError};

use api::MemberReplace;
use array::{Array, DriveId, JoinError, MemberIndex, MemberStatus};
use format::MemberState;
use runtime::ShardEnv;

use crate::engine::drives::{Consent, RequestedDrive};
use crate::engine::errors::new_uuid;
use crate::engine::group::join_error;
use crate::engine::memory::{DrivePlace, Memory, Replacing};
use crate::engine::{Engine, Group, drives};
use crate::http::Answer;

/// All copies of members.
#[derive(Debug, Default)]
pub(crate) struct Replacements(Mutex<Vec<Replacing>>);

impl Replacements {
    /// The copies that a previous daemon with this state directory had not finished.
    pub fn load(memory: &Memory) -> std::io::Result<Replacements> {
        Ok(Replacements(Mutex::new(memory.load_replacements()?)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Replacing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, memory: &Memory, change: impl FnOnce(&mut Vec<Replacing>)) {
        let mut all = self.lock();
        let before = all.clone();
        change(&mut all);
        if *all != before
            && let Err(error) = memory.save_replacements(all.clone())
        {
            tracing::error!(%error, "the state directory cannot be written: a restart ends copies to other drives");
        }
    }
}

/// The drive that a member gets.
pub(super) enum NewDrive {
    /// A drive that is no part of the group.
    Requested(RequestedDrive),
    /// One of the group's spares.
    Spare(DriveId),
}

impl Engine {
    /// The drive that a request names, its name in sentences, and what is lost on it.
    pub(super) async fn new_drive(
        &self,
        group: &Group,
        request: &MemberReplace,
    ) -> Answer<(NewDrive, String, Vec<String>)> {
        let name = drives::name_of(&request.with)?;
        if let Some(id) = group.drive_id(&name)
            && group.status().await?.free_spares().any(|&spare| spare == id)
        {
            return Ok((NewDrive::Spare(id), format!("the spare {name}"), Vec::new()));
        }
        let consent = Consent {
            create_files_bytes: request.create_files_bytes,
            wipe_foreign: request.wipe_foreign,
            dry_run: request.dry_run,
        };
        let (requested, steps) = self.open_joining(group, &request.with, consent).await?;
        let name = requested.name.clone();
        Ok((NewDrive::Requested(requested), name, steps))
    }

    /// Puts a drive in the place of a member. If the member is lost, its old drive is closed. If it
    /// works, it is copied first.
    pub(crate) async fn put_in_place(
        group: &Group,
        member: &MemberStatus,
        requested: RequestedDrive,
    ) -> Answer<DriveId> {
        let (id, identity) = (group.install_drive(requested).await?, new_uuid()?);
        let (index, was_lost) = (member.member, member.state != MemberState::InSync);
        let replace = move |array: Array<ShardEnv>| async move {
            if was_lost && array.shared().slot(index).state == MemberState::InSync {
                return Err(JoinError::Busy(index.0)); // A spare was faster.
            }
            array.replace(index, id, identity).await
        };
        if let Err(error) = group.lead(replace).await? {
            group.release_drive(id).await?;
            return Err(join_error(&group.name, &error));
        }
        if let Some(old) = member.drive.filter(|_| was_lost) {
            group.release_drive(old).await?;
        }
        group.log_torn();
        Ok(id)
    }

    pub(super) async fn give_spare(group: &Group, member: MemberIndex, spare: DriveId) -> Answer<()> {
        let given = group.lead(move |array| async move { array.replace_with_spare(member, spare).await }).await?;
        given.map_err(|error| join_error(&group.name, &error))
    }

    /// Checks the progress of the copies: closes drives that were replaced, and restarts copies
    /// that a restart of the daemon ended.
    pub(crate) async fn look_after_replacements(&self) {
        let all = self.replacements.lock().clone();
        for replacing in all {
            let Some(group) = self.all().into_iter().find(|group| group.uuid.to_string() == replacing.group) else {
                continue; // Until it is started.
            };
            match self.look_after_replacement(&group, &replacing).await {
                Ok(true) => {}
                Ok(false) => self.replacements.change(&self.memory, |all| {
                    all.retain(|other| (&other.group, other.slot) != (&replacing.group, replacing.slot));
                }),
                Err(error) => tracing::debug!(group = group.name, %error, "not looked after"),
            }
        }
    }

    /// Returns false if the copy needs no more attention.
    async fn look_after_replacement(&self, group: &Group, replacing: &Replacing) -> Answer<bool> {
        let _one = self.changes.lock().await;
        let status = group.status().await?;
        let id = |place: &DrivePlace| {
            let drives = group.drives();
            let is_it = |drive: &Option<crate::engine::GroupDrive>| {
                drive.as_ref().is_some_and(|drive| drive.place().is_same(place))
            };
            drives.iter().position(is_it).map(|index| DriveId(index as u16))
        };
        let (Some(new), Some(member)) = (id(&replacing.new), status.members.get(replacing.slot as usize)) else {
            return Ok(false);
        };
        if status.replacement == Some((member.member, new)) {
            return Ok(true);
        }
        if member.drive == Some(new) {
            let is_used = |drive| status.members.iter().any(|member| member.drive == Some(drive));
            if let Some(old) = replacing.old.as_ref().and_then(id).filter(|&old| !is_used(old)) {
                group.release_drive(old).await?;
            }
            self.remember();
            return Ok(false);
        }
        let may_begin = !replacing.begun && member.state == MemberState::InSync && status.spares.contains(&new);
        if may_begin {
            Self::give_spare(group, member.member, new).await?;
            tracing::info!(group = group.name, slot = replacing.slot, "a copy that a restart ended starts again");
            self.replacements.change(&self.memory, |all| {
                all.iter_mut().filter(|other| *other == replacing).for_each(|other| other.begun = true);
            });
        }
        Ok(may_begin)
    }
}
