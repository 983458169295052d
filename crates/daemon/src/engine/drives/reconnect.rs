//! Members on other machines that cannot be reached: how they leave their group, and how they
//! return.
//!
//! Drives of this machine cause kernel events; remote drives are polled instead. The rules are
//! those of [`crate::engine::drives::hotplug`].
//!
//! Groups that could not be started are tried again here, too: no event tells that an adapter works
//! again after a reset.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::drive::join_all;
use api::ErrorCode;
use array::{Array, Cause};
use runtime::ShardEnv;

use crate::engine::drives::hotplug::PlacementResult;
use crate::engine::drives::unassigned::DriveFinding;
use crate::engine::drives::{Consent, find};
use crate::engine::errors::stopping;
pub(crate) use crate::engine::group::disconnected::DisconnectedDrive;
use crate::engine::group::not_started::NotStarted;
use crate::engine::group::{Group, join_error};
use crate::engine::memory::{DrivePlace, Remembered};
use crate::engine::{Engine, drives};
use crate::http::{Answer, ControlError};

/// The polling interval.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Groups that could not be started are tried at every fifth poll.
const ABSENT_EVERY: u64 = 5;

/// A drive that is present but unusable is looked at again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// A group that could not be started although all its drives are present is tried again after this
/// time, then after twice as long, and so on.
const TRY_AGAIN: Duration = Duration::from_secs(5);
const TRY_AGAIN_MAX: Duration = Duration::from_secs(300);

/// The last attempt to start a group.
#[derive(Debug)]
struct Try {
    /// Which of its drives on other machines answered.
    there: Vec<bool>,
    next: Instant,
    wait: Duration,
    /// The last error that was logged.
    logged: String,
}

/// The result of an attempt to reconnect a drive.
enum Reconnect {
    /// The drive has its place again, or has lost its place for good.
    Ended,
    /// Try again later.
    Again { why: String, after: Duration },
}

impl Engine {
    /// Starts polling for drives of other machines, for as long as the engine lives.
    pub fn start_reconnecting(self: &Arc<Self>) {
        self.start_reconnecting_namespaces();
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut tried = BTreeMap::new();
            for look in 0_u64.. {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(engine) = engine.upgrade() else { return };
                for group in engine.all() {
                    if let Err(error) = engine.take_out_lost(&group).await {
                        tracing::debug!(group = group.name, %error, "not looked after");
                    }
                }
                let looks: Vec<_> = engine.all().into_iter().map(|group| engine.reconnect_due(group)).collect();
                join_all(looks).await;
                if look.is_multiple_of(ABSENT_EVERY) {
                    engine.retry_not_started(&mut tried).await;
                }
            }
        });
    }

    /// Fails members that were out of reach for too long. Members that already left because of that
    /// are closed and looked for.
    async fn take_out_lost(&self, group: &Group) -> Answer<()> {
        let remote: Vec<_> = group.drives().iter().flatten().filter(|drive| drive.is_remote()).cloned().collect();
        if remote.is_empty() {
            return Ok(());
        }
        let _one = self.changes.lock().await;
        if self.unassigned_drives.has_ended() {
            return Ok(());
        }
        let status = group.status().await?;
        for drive in remote {
            let Some(id) = group.drive_id(&drive.name) else { continue };
            let reach =
                drive.identity.as_deref().map(|identity| self.opener.remotes.reach(identity)).unwrap_or_default();
            match status.members.iter().find(|member| member.drive == Some(id)) {
                Some(member) if member.state.takes_writes() && reach.is_lost => {
                    let index = member.member;
                    let out = move |array: Array<ShardEnv>| async move {
                        array.fail_member_on(index, id, Cause::OutOfReach).await
                    };
                    let failed = group.lead(out).await?;
                    if let Err(error) = failed {
                        let error = join_error(&group.name, &error);
                        tracing::debug!(group = group.name, drive = drive.name, %error, "out of reach, and needed");
                    }
                }
                // A member that an operator took out stays out.
                Some(member) if !member.state.takes_writes() && reach.was_lost => {
                    group.release_drive(id).await?;
                    group.disconnected().push(DisconnectedDrive::new(drive.place()));
                }
                None if reach.is_lost && status.replacement.is_some_and(|(_, copy)| copy == id) => {
                    let index = status.replacement.expect("it was just seen").0;
                    let out = move |array: Array<ShardEnv>| async move {
                        array.fail_member_on(index, id, Cause::OutOfReach).await
                    };
                    // The member stays. Only the copy ends.
                    let _ = group.lead(out).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn reconnect_due(&self, group: Arc<Group>) {
        let now = Instant::now();
        let due: Vec<DisconnectedDrive> =
            group.disconnected().iter().filter(|drive| drive.not_before <= now).cloned().collect();
        let looks: Vec<_> = due.into_iter().map(|away| self.reconnect_drive(&group, away.place)).collect();
        join_all(looks).await;
    }

    async fn reconnect_drive(&self, group: &Arc<Group>, place: DrivePlace) {
        let look = self.try_reconnect(group, &place).await;
        let look = look.unwrap_or_else(|error| Reconnect::Again { why: error.to_string(), after: Duration::ZERO });
        let mut all = group.disconnected();
        let Some(known) = all.iter_mut().find(|known| known.place == place) else { return };
        match look {
            Reconnect::Ended => all.retain(|known| known.place != place),
            Reconnect::Again { why, after } => {
                if known.logged != why {
                    let (group, drive) = (&group.name, &place.drive);
                    tracing::warn!(group, drive, reason = why, "a drive of another machine is not back");
                }
                known.not_before = Instant::now() + after;
                known.logged = why;
            }
        }
    }

    /// Connects to one drive, and puts it back in its place.
    async fn try_reconnect(&self, group: &Arc<Group>, place: &DrivePlace) -> Answer<Reconnect> {
        self.opener.remotes.answers(&place.drive).await?;
        // The lock comes first: another request that changes the group must find the drive free.
        let _one = self.changes.lock().await;
        if self.unassigned_drives.has_ended() {
            return Err(stopping());
        }
        let drive = drives::open(&self.opener, &place.drive, Consent::default()).await?;
        let again = |why: String| Ok(Reconnect::Again { why, after: LOOK_AGAIN });
        if place.identity.is_some() && drive.identity != place.identity {
            return again("another drive is there now".to_owned());
        }
        let Some(own) = drives::superblock_of(&self.shards[0], &drive).await? else {
            return again("it holds no part of the group any more".to_owned());
        };
        if own.array != group.uuid {
            return again(format!("it belongs to the array {} now", own.name));
        }
        let (group_name, name) = (&group.name, drive.name.clone());
        if !group.status().await?.superblock.members.iter().any(|entry| entry.uuid == own.drive) {
            tracing::warn!(
                group = group_name,
                drive = name,
                "is back, and another drive has its place: not looked for any more"
            );
            return Ok(Reconnect::Ended);
        }
        let member = match self.place_of(group, &own).await? {
            Ok(member) => member,
            Err(PlacementResult::NotYet(why)) => return Ok(Reconnect::Again { why, after: Duration::ZERO }),
            Err(PlacementResult::Known(DriveFinding::Unused(why))) => return again(why),
            Err(PlacementResult::Known(DriveFinding::Empty) | PlacementResult::Used) => return Ok(Reconnect::Ended),
        };
        if !self.unassigned_drives.may_return(drive.identity.as_deref().unwrap_or(&drive.name)) {
            return again(format!("it comes and goes too often to get slot {} again now", member.member.0));
        }
        Self::put_in_place(group, &member, drive).await?;
        group.disconnected().retain(|drive| drive.place != *place);
        self.remember();
        tracing::info!(group = group_name, slot = member.member.0, drive = name, "a drive is back in its place");
        Ok(Reconnect::Ended)
    }

    /// Starts groups that could not be started: at once when more of their drives on other machines
    /// answer than at the last attempt, and periodically while all their drives are present.
    async fn retry_not_started(&self, tried: &mut BTreeMap<String, Try>) {
        let absent: Vec<Remembered> = self.not_started.list().into_iter().map(|group| group.remembered).collect();
        tried.retain(|uuid, _| absent.iter().any(|absent| absent.uuid == *uuid));
        for remembered in absent {
            let places: Vec<&DrivePlace> = remembered.drives.iter().filter(|place| place.is_remote()).collect();
            let asking: Vec<_> = places.iter().map(|place| self.opener.remotes.answers(&place.drive)).collect();
            let there: Vec<bool> = join_all(asking).await.iter().map(Result::is_ok).collect();
            if there.iter().all(|there| !there) && !there.is_empty() {
                continue;
            }
            let is_same = |last: &&Try| last.there == there;
            let last = tried.get(&remembered.uuid);
            let again = last.filter(is_same).map_or(TRY_AGAIN, |last| TRY_AGAIN_MAX.min(last.wait * 2));
            let logged = last.map(|last| last.logged.clone()).unwrap_or_default();
            let is_due = match last {
                // A group with only local drives was already tried when it became absent.
                None if there.is_empty() => {
                    let next = Instant::now() + TRY_AGAIN;
                    tried.insert(remembered.uuid.clone(), Try { there, next, wait: TRY_AGAIN, logged });
                    continue;
                }
                None => true,
                Some(last) if !is_same(&last) => true,
                Some(last) => Instant::now() >= last.next && !there.contains(&false) && find::are_there(&remembered),
            };
            if !is_due {
                continue;
            }
            match self.start_late(&remembered).await {
                Ok(()) => drop(tried.remove(&remembered.uuid)),
                Err(error) => {
                    if error.message != logged {
                        tracing::warn!(group = remembered.name, %error, "some of its drives are there, and it is not started");
                    }
                    let next = Instant::now() + again;
                    tried.insert(remembered.uuid.clone(), Try { there, next, wait: again, logged: error.message });
                }
            }
        }
    }

    async fn start_late(&self, remembered: &Remembered) -> Answer<()> {
        let _one = self.changes.lock().await;
        if self.unassigned_drives.has_ended() || self.not_started.of_uuid(&remembered.uuid).is_none() {
            return Err(ControlError::new(ErrorCode::WrongState, "it was started meanwhile"));
        }
        let opened = find::open_all(&self.shards[0], &self.opener, remembered, Consent::default()).await;
        self.start_absent_with(remembered, opened).await
    }

    /// Starts an absent group with the drives that were opened.
    pub(crate) async fn start_absent_with(&self, remembered: &Remembered, opened: find::Opened) -> Answer<()> {
        let missing_drives = opened.missing(remembered);
        let group = match self.start_group(opened.requested).await {
            Ok(group) => group,
            Err(error) => {
                let (remembered, reason) = (remembered.clone(), error.message.clone());
                self.not_started.note(NotStarted { remembered, reason, missing_drives });
                return Err(error);
            }
        };
        group.disconnected().extend(opened.disconnected.into_iter().map(DisconnectedDrive::new));
        tracing::info!(group = group.name, "its drives are there: started");
        self.remember();
        Ok(())
    }
}
