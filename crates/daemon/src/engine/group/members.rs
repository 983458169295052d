//! Requests about members and spares of a group.

use api::{Changed, ErrorCode, MemberFail, MemberReplace, SpareAdd};
use array::{Cause, JoinError};
use async_trait::async_trait;
use format::MemberState;

use crate::engine::drives::Consent;
use crate::engine::errors::new_uuid;
use crate::engine::group::replace::NewDrive;
use crate::engine::group::{Group, join_error};
use crate::engine::memory::Replacing;
use crate::engine::{Engine, drives};
use crate::http::{Answer, ControlError, MemberControl};

/// Refuses to take out a member if its set would lose data without it.
async fn refuse_loss(group: &Group, member: &array::MemberStatus) -> Answer<()> {
    let in_sync = |member: &array::MemberStatus| member.state == format::MemberState::InSync;
    let status = group.status().await?;
    let (shape, index) = (status.superblock.shape, usize::from(member.member.0));
    let set = status.members.chunks(shape.members_per_set()).nth(index / shape.members_per_set()).unwrap_or(&[]);
    let lost = set.iter().filter(|member| !in_sync(member)).count();
    if !in_sync(member) || lost < shape.survives() {
        return Ok(());
    }
    let message = format!("the group {:?} cannot do without slot {index}: data would be lost", group.name);
    Err(ControlError::new(ErrorCode::WouldLoseData, message))
}

#[async_trait]
impl MemberControl for Engine {
    async fn member_fail(&self, name: &str, slot: u32, request: MemberFail) -> Answer<Changed<api::Group>> {
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        let member = self.member(&group, slot).await?;
        refuse_loss(&group, &member).await?;
        let drive = member.drive.and_then(|id| group.drive(id)).map_or("no drive".to_owned(), |drive| drive.name);
        let steps = vec![format!("take member {slot} ({drive}) out of the group {name:?}")];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        tracing::info!(group = name, slot, drive, "an operator takes a member out");
        let (index, drive) = (member.member, member.drive);
        let fail = move |array: array::Array<runtime::ShardEnv>| async move {
            match drive {
                Some(drive) => array.fail_member_on(index, drive, Cause::Operator).await,
                None => array.fail_member(index).await,
            }
        };
        group.lead(fail).await?.map_err(|error| join_error(name, &error))?;
        Ok(Changed::done(steps, self.query_group(&group).await?))
    }

    async fn member_replace(&self, name: &str, slot: u32, request: MemberReplace) -> Answer<Changed<api::Group>> {
        self.opener.remotes.try_all(std::slice::from_ref(&request.with)).await?;
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        let member = self.member(&group, slot).await?;
        if member.state == MemberState::Rebuilding {
            return Err(join_error(name, &JoinError::Busy(member.member.0)));
        }
        let (new, with, mut steps) = self.new_drive(&group, &request).await?;
        let old = member.drive.and_then(|id| group.drive(id));
        steps.push(match (member.state, &old) {
            (MemberState::InSync, Some(old)) => {
                format!(
                    "copy slot {slot} of the group {name:?} from {} to {with}, which takes its place then",
                    old.name
                )
            }
            _ => format!("put {with} in slot {slot} of the group {name:?} and rebuild onto it"),
        });
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        tracing::info!(group = name, slot, drive = with, "an operator replaces a member");
        let id = match new {
            NewDrive::Requested(requested) => Self::put_in_place(&group, &member, requested).await?,
            NewDrive::Spare(id) => {
                Self::give_spare(&group, member.member, id).await?;
                id
            }
        };
        if let (MemberState::InSync, Some(new)) = (member.state, group.drive(id)) {
            let (group, old, new) = (group.uuid.to_string(), old.map(|old| old.place()), new.place());
            let replacing = Replacing { group, slot, old, new, begun: true };
            self.replacements.change(&self.memory, |all| all.push(replacing));
        }
        self.remember();
        Ok(Changed::done(steps, self.query_group(&group).await?))
    }

    async fn spare_add(&self, name: &str, request: SpareAdd) -> Answer<Changed<api::Group>> {
        self.opener.remotes.try_all(std::slice::from_ref(&request.drive)).await?;
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        let consent = Consent {
            create_files_bytes: request.create_files_bytes,
            wipe_foreign: request.wipe_foreign,
            dry_run: request.dry_run,
        };
        let (requested, mut steps) = self.open_joining(&group, &request.drive, consent).await?;
        steps.push(format!("add {} to the group {name:?} as a spare", requested.name));
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        tracing::info!(group = name, drive = requested.name, "an operator adds a spare");
        let (id, identity) = (group.install_drive(requested).await?, new_uuid()?);
        let added = group.lead(move |array| async move { array.add_spare(id, identity).await }).await?;
        if let Err(error) = added {
            group.release_drive(id).await?;
            return Err(join_error(name, &error));
        }
        group.log_torn();
        self.remember();
        Ok(Changed::done(steps, self.query_group(&group).await?))
    }

    async fn spare_remove(&self, name: &str, drive: &str, dry_run: bool) -> Answer<Changed<api::Group>> {
        let _one = self.changes.lock().await;
        let group = self.find(name)?;
        let drive = drives::name_of(drive)?;
        let no_spare = |code| ControlError::new(code, format!("{drive} is not a spare of the group {name:?}"));
        let id = group.drive_id(&drive).ok_or_else(|| no_spare(ErrorCode::DriveNotFound))?;
        if !group.status().await?.spares.contains(&id) {
            return Err(no_spare(ErrorCode::WrongState));
        }
        let steps = vec![format!("take the spare {drive} from the group {name:?} and erase it")];
        if dry_run {
            return Ok(Changed::planned(steps));
        }
        tracing::info!(group = name, drive, "an operator removes a spare");
        let removed = group.lead(move |array| async move { array.remove_spare(id).await }).await?;
        removed.map_err(|error| join_error(name, &error))?;
        let open = group.drive(id).map(|drive| drive.open);
        group.release_drive(id).await?;
        let mut warnings = Vec::new();
        if let Some(open) = open
            && let Err(error) = self.erase(open).await
        {
            warnings.push(format!("not erased: {error}"));
        }
        self.remember();
        Ok(Changed::done(steps, self.query_group(&group).await?).with_warnings(warnings))
    }
}

impl Engine {
    pub(crate) async fn member(&self, group: &Group, slot: u32) -> Answer<array::MemberStatus> {
        let members = group.status().await?.members;
        let count = members.len() as u32;
        members.into_iter().nth(slot as usize).ok_or_else(|| ControlError::member_not_found(&group.name, slot, count))
    }
}
