//! Drives that are plugged in and pulled while the daemon runs.
//!
//! Rules:
//! 1. A drive that is pulled is taken out of its group at once, if the group can do without it.
//! 2. A new drive is used automatically only in its previous place: its group lists it there as
//!    lost, no other drive has the place, and the group's epoch is at least the drive's. All other
//!    drives are only reported.
//! 3. A drive is not claimed before its superblock says that it belongs to Purlin.
//! 4. A group that could not be started is started as soon as its drives are present.
//! 5. The daemon never reads a device that it serves itself: a daemon that is killed while it waits
//!    for its own answer cannot end.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::ErrorCode;
use array::{Cause, MemberStatus};
use format::{Superblock, SuperblockError};
use runtime::{UEVENT_BYTES_MAX, UeventSocket};
use tokio::io::unix::AsyncFd;

use crate::engine::drives::identity::Present;
use crate::engine::drives::uevent::{Action, Uevent};
use crate::engine::drives::unassigned::{DriveContent, DriveFinding, Unassigned, read_content};
use crate::engine::drives::{Consent, RequestedDrive, find, identity};
use crate::engine::errors::stopping;
use crate::engine::group::{Group, join_error};
use crate::engine::memory::DrivePlace;
use crate::engine::{Engine, drives};
use crate::http::{Answer, ControlError};

/// How often the present drives are listed, in case an event was lost.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The same interval where there are no events.
const LOOK_EVERY_ALONE: Duration = Duration::from_secs(5);

/// How long a new drive is looked at again if it cannot be read or claimed yet, or other drives of
/// its group are still coming.
const PLACE_WITHIN: Duration = Duration::from_secs(10);

/// The time between two looks.
const PLACE_RETRY: Duration = Duration::from_millis(250);

/// A drive that cannot be read within this time is reported and left alone.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// The result of a look at a drive.
#[derive(Debug)]
pub(crate) enum PlacementResult {
    /// A group has the drive.
    Used,
    /// The drive is in no group.
    Known(DriveFinding),
    /// The result may change in a moment. The text is the result if it does not.
    NotYet(String),
}

fn unused(why: impl Into<String>) -> PlacementResult {
    PlacementResult::Known(DriveFinding::Unused(why.into()))
}

/// The present drives, and the source of events about changes.
struct Watch {
    socket: Option<AsyncFd<UeventSocket>>,
    there: BTreeMap<String, Present>,
}

/// A change of the present drives.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Added(Present),
    Removed((u32, u32)),
}

impl Watch {
    fn begin() -> Watch {
        // The socket comes first: a drive that comes between the two calls is seen twice, not
        // missed.
        #[expect(
            deprecated,
            reason = "its successor is unsafe code; this descriptor is the socket's own, and stays the same"
        )]
        let socket = UeventSocket::open().and_then(AsyncFd::new);
        if let Err(error) = &socket {
            tracing::warn!(%error, "the kernel does not tell which drives come and go: it is looked every few seconds");
        }
        Watch { socket: socket.ok(), there: by_path(identity::present()) }
    }

    /// Waits for possible changes, and returns those that happened.
    async fn next(&mut self) -> Vec<Change> {
        let Some(socket) = &self.socket else {
            tokio::time::sleep(LOOK_EVERY_ALONE).await;
            return self.compare();
        };
        let Ok(ready) = tokio::time::timeout(LOOK_EVERY, socket.readable()).await else { return self.compare() };
        let (mut changes, mut buf) = (Vec::new(), vec![0; UEVENT_BYTES_MAX]);
        let mut lost = false;
        let Ok(mut ready) = ready else { return self.compare() };
        loop {
            match ready.get_inner().receive(&mut buf) {
                Ok(len) => changes.extend(Uevent::parse(&buf[..len])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // ENOBUFS: some of too many events were lost.
                    tracing::debug!(%error, "events of drives were lost");
                    lost = true;
                    break;
                }
            }
        }
        ready.clear_ready();
        drop(ready);
        let mut changes: Vec<Change> = changes.into_iter().filter_map(|event| self.apply(&event)).collect();
        if lost {
            changes.extend(self.compare());
        }
        changes
    }

    fn apply(&mut self, event: &Uevent) -> Option<Change> {
        let path = format!("/dev/{}", event.name);
        match event.action {
            Action::Add => {
                let present = identity::look(&event.name)?;
                let before = self.there.insert(path, present.clone());
                (before.as_ref() != Some(&present)).then_some(Change::Added(present))
            }
            Action::Remove => {
                self.there.remove(&path);
                Some(Change::Removed(event.device))
            }
        }
    }

    fn compare(&mut self) -> Vec<Change> {
        let now = by_path(identity::present());
        let removed = self.there.iter().filter(|(path, present)| now.get(*path) != Some(*present));
        let mut changes: Vec<Change> = removed.map(|(_, present)| Change::Removed(present.device)).collect();
        let added = now.iter().filter(|(path, present)| self.there.get(*path) != Some(*present));
        changes.extend(added.map(|(_, present)| Change::Added(present.clone())));
        self.there = now;
        changes
    }
}

fn by_path(present: Vec<Present>) -> BTreeMap<String, Present> {
    present.into_iter().map(|present| (present.path.clone(), present)).collect()
}

impl Engine {
    /// Starts following which drives come and go, for as long as the engine lives.
    pub fn start_hotplug(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        let mut watch = Watch::begin();
        tokio::spawn(async move {
            loop {
                let changes = watch.next().await;
                let Some(engine) = engine.upgrade() else { return };
                for change in changes {
                    // Each change has its own task: one drive that hangs delays no other.
                    let engine = engine.clone();
                    match change {
                        Change::Added(present) => drop(tokio::spawn(async move { engine.drive_added(&present).await })),
                        Change::Removed(device) => {
                            drop(tokio::spawn(async move { engine.drive_removed(device).await }))
                        }
                    }
                }
            }
        });
    }

    /// Handles a pulled drive: its groups continue without it.
    async fn drive_removed(&self, device: (u32, u32)) {
        self.unassigned_drives.forget(device);
        self.is_unknown_now(device);
        for group in self.all() {
            if let Err(error) = self.leave(&group, device).await {
                tracing::error!(group = group.name, %error, "a drive was pulled, and the group cannot do without it");
            }
        }
        self.shared_drive_removed(device).await;
    }

    async fn leave(&self, group: &Group, device: (u32, u32)) -> Answer<()> {
        let Some((id, drive)) = group.find_device(device) else { return Ok(()) };
        let status = group.status().await?;
        let Some(member) = status.members.iter().find(|member| member.drive == Some(id)) else {
            tracing::warn!(group = group.name, drive = drive.name, "a spare was pulled");
            return Ok(());
        };
        if !member.state.takes_writes() {
            return Ok(());
        }
        let index = member.member;
        tracing::warn!(group = group.name, slot = index.0, drive = drive.name, "a member was pulled");
        let failed =
            group.lead(move |array| async move { array.fail_member_on(index, id, Cause::Pulled).await }).await?;
        failed.map_err(|error| join_error(&group.name, &error))
    }

    /// Handles a new drive: reads it until its state is clear.
    pub(crate) async fn drive_added(&self, present: &Present) {
        let began = Instant::now();
        let path = &present.path;
        loop {
            let last = began.elapsed() >= PLACE_WITHIN;
            let outcome = self.place(present, last).await;
            // By now the name has another device or none, which has its own event.
            if identity::look(path.trim_start_matches("/dev/")).as_ref() != Some(present) {
                self.unassigned_drives.forget(present.device);
                return;
            }
            let found = match outcome {
                Ok((PlacementResult::Used, _)) => {
                    self.are_known_now([present.clone()]);
                    return self.unassigned_drives.forget(present.device);
                }
                Ok((PlacementResult::Known(found), size_bytes)) => (found, size_bytes),
                Ok((PlacementResult::NotYet(_), _)) if !last => {
                    tokio::time::sleep(PLACE_RETRY).await;
                    continue;
                }
                Ok((PlacementResult::NotYet(why), size_bytes)) => (DriveFinding::Unused(why), size_bytes),
                Err(error) if error.code == ErrorCode::Unavailable => return,
                Err(error) => (DriveFinding::Unused(error.message), None),
            };
            self.is_unknown_now(present.device);
            let folder = identity::folder_of(present.device);
            let unassigned = Unassigned {
                device: present.device,
                path: path.clone(),
                size_bytes: found.1,
                sector_bytes: identity::of_disk(&folder, "queue/logical_block_size")
                    .and_then(|bytes| bytes.parse().ok()),
                found: found.0,
            };
            if self.unassigned_drives.note(unassigned.clone()) {
                tracing::info!(drive = path, note = unassigned.note(), "a drive came");
                self.log_offers().await;
            }
            return;
        }
    }

    /// Logs which drives could help groups that lack a member.
    async fn log_offers(&self) {
        for group in self.all() {
            if let Ok(status) = group.status().await {
                for offer in self.offers_for(&group, &status) {
                    tracing::warn!(group = group.name, offer, "a member is lost, and there is no spare");
                }
            }
        }
    }

    /// Looks once at a new drive and acts on what it finds. Also returns its size if it can be
    /// read.
    async fn place(&self, present: &Present, last: bool) -> Answer<(PlacementResult, Option<u64>)> {
        if self.is_shared(present.device) || self.shared_drive_added(present).await? {
            return Ok((PlacementResult::Used, None));
        }
        if self.serves_itself(present.device) {
            return Ok((unused("is served by this daemon"), None));
        }
        let path = present.path.clone();
        let look = tokio::time::timeout(READ_WITHIN, tokio::task::spawn_blocking(move || read_content(&path))).await;
        let seen = match look {
            Ok(Ok(Ok(seen))) => seen,
            Ok(Ok(Err(error))) => return Ok((PlacementResult::NotYet(format!("cannot be read: {error}")), None)),
            Ok(Err(_)) => return Err(stopping()),
            Err(_) => return Ok((unused(format!("was not read within {} s", READ_WITHIN.as_secs())), None)),
        };
        let size_bytes = Some(seen.size_bytes);
        let outcome = match &seen.superblock {
            Ok(own) => self.place_member(present, own, last).await?,
            Err(error) => classify_foreign(&seen, error),
        };
        Ok((outcome, size_bytes))
    }

    /// Whether a device is a namespace that this machine uses as a host of this daemon.
    pub(crate) fn serves_itself(&self, device: (u32, u32)) -> bool {
        let subsystem = identity::subsystem_of(&identity::folder_of(device)).and_then(|nqn| nqn.parse().ok());
        subsystem.is_some_and(|subsystem| self.listeners.serves(&subsystem))
    }

    /// Handles a drive with a superblock.
    async fn place_member(&self, present: &Present, own: &Superblock, last: bool) -> Answer<PlacementResult> {
        if let Some(absent) = self.not_started.of_uuid(&own.array.to_string()) {
            let drives: Vec<String> = absent.remembered.drives.into_iter().map(|place| place.drive).collect();
            // A machine that cannot be reached counts as missing.
            let _ = self.opener.remotes.try_all(&drives).await;
        }
        let _one = self.changes.lock().await;
        if self.unassigned_drives.has_ended() {
            return Err(stopping());
        }
        let groups = self.all();
        if groups.iter().any(|group| group.has_device(present.device)) {
            return Ok(PlacementResult::Used);
        }
        if let Some(group) = groups.iter().find(|group| group.uuid == own.array) {
            return self.return_to_slot(group, present, own).await;
        }
        let uuid = own.array.to_string();
        if self.not_started.of_uuid(&uuid).is_some() {
            return self.start_absent(present, own, last).await;
        }
        Ok(unused(format!("belongs to the Purlin array {} ({uuid}), which does not run here", own.name)))
    }

    /// The previous place of a drive of a running group, if it is still free.
    pub(crate) async fn place_of(
        &self,
        group: &Group,
        own: &Superblock,
    ) -> Answer<Result<MemberStatus, PlacementResult>> {
        let (name, status) = (&group.name, group.status().await?);
        let (epoch, newest) = (own.epoch, status.superblock.epoch);
        if epoch > newest {
            return Ok(Err(unused(format!(
                "was used for the group {name:?} elsewhere: it is at epoch {epoch}, the group at {newest}"
            ))));
        }
        let Some(slot) = status.superblock.members.iter().position(|entry| entry.uuid == own.drive) else {
            return Ok(Err(unused(format!("left the group {name:?}, which has no place for it any more"))));
        };
        let member = &status.members[slot];
        if member.state.takes_writes() {
            let gone = member.drive.filter(|id| group.drive(*id).is_none_or(|drive| drive.is_gone()));
            let Some(id) = gone else {
                return Ok(Err(unused(format!(
                    "has the identity of member {slot} of the group {name:?}: one is a copy"
                ))));
            };
            // The drive came back before its removal was noticed.
            let index = member.member;
            let failed =
                group.lead(move |array| async move { array.fail_member_on(index, id, Cause::Pulled).await }).await?;
            return Ok(Err(match failed {
                Ok(()) => PlacementResult::NotYet(format!("member {slot} of the group {name:?}, whose place is taken")),
                Err(_) => unused(format!(
                    "member {slot} of the group {name:?}, which cannot do without it: stop the group and assemble it again"
                )),
            }));
        }
        Ok(Ok(member.clone()))
    }

    /// Puts a drive of a running group into its previous place, if it is still free.
    async fn return_to_slot(&self, group: &Arc<Group>, present: &Present, own: &Superblock) -> Answer<PlacementResult> {
        let member = match self.place_of(group, own).await? {
            Ok(member) => member,
            Err(outcome) => return Ok(outcome),
        };
        let (name, slot) = (&group.name, member.member.0);
        let requested = match self.claim(group, &present.path, own).await {
            Ok(requested) => requested,
            Err(error) if error.code == ErrorCode::DriveInUse => return Ok(PlacementResult::NotYet(error.message)),
            Err(error) => return Err(error),
        };
        if !self.unassigned_drives.may_return(&present.identity()) {
            return Ok(unused(format!(
                "member {slot} of the group {name:?}, but it comes and goes too often: \
                 purlin drive replace {name} {slot} --with {} --wipe-foreign",
                present.path
            )));
        }
        Self::put_in_place(group, &member, requested).await?;
        self.remember();
        tracing::info!(group = name, slot, drive = present.path, "a drive is back in its place");
        Ok(PlacementResult::Used)
    }

    /// Opens a drive. Its superblock has to be the same as at the first look.
    async fn claim(&self, group: &Group, path: &str, own: &Superblock) -> Answer<RequestedDrive> {
        group.release_if_unused(path).await?;
        let requested = drives::open(&self.opener, path, Consent::default()).await?;
        let open = requested.open.clone();
        let found = self.shards[0].call(move || drives::probe_open(open));
        let found = tokio::time::timeout(READ_WITHIN, found).await;
        match found.map(|found| found.map(|found| found.map(|probe| probe.superblock))) {
            Ok(Ok(Ok(Ok(superblock)))) if superblock == *own => Ok(requested),
            Ok(Err(_)) => Err(stopping()),
            _ => Err(ControlError::new(ErrorCode::Io, format!("{path} changes while it is looked at"))),
        }
    }

    /// Starts a group that could not be started, once all of its drives are present or no more are
    /// coming.
    async fn start_absent(&self, present: &Present, own: &Superblock, last: bool) -> Answer<PlacementResult> {
        let uuid = own.array.to_string();
        let place = DrivePlace { drive: present.path.clone(), identity: identity::of_path(&present.path) };
        let remembered = self.not_started.change(&uuid, |remembered| {
            let is_known = |known: &DrivePlace| {
                known.drive == place.drive || (place.identity.is_some() && known.identity == place.identity)
            };
            if !remembered.drives.iter().any(is_known) {
                remembered.drives.push(place);
            }
        });
        let Some(remembered) = remembered else {
            return Ok(PlacementResult::NotYet("its group was started meanwhile".into()));
        };
        let waits = || PlacementResult::NotYet(format!("waits for the other drives of the group {:?}", own.name));
        let there = find::locate(&remembered).iter().filter(|path| std::path::Path::new(path).exists()).count();
        if !last && there < remembered.drives.iter().filter(|place| !place.is_memory()).count() {
            return Ok(waits());
        }
        let opened = find::open_all(&self.shards[0], &self.opener, &remembered, Consent::default()).await;
        match self.start_absent_with(&remembered, opened).await {
            Ok(()) => Ok(PlacementResult::Used),
            Err(error) if last => Ok(unused(format!("the group {:?} is not started: {error}", own.name))),
            Err(_) => Ok(waits()),
        }
    }
}

/// Classifies a drive without a usable superblock.
fn classify_foreign(seen: &DriveContent, error: &SuperblockError) -> PlacementResult {
    if seen.empty {
        return PlacementResult::Known(DriveFinding::Empty);
    }
    if *error != SuperblockError::NotPurlin {
        return unused(error.to_string());
    }
    let holds: Vec<String> = seen.foreign.iter().map(ToString::to_string).collect();
    if holds.is_empty() { unused("holds something unknown") } else { unused(format!("holds {}", holds.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(name: &str, sequence: &str) -> Present {
        Present { path: format!("/dev/{name}"), device: (259, 1), sequence: sequence.into() }
    }

    fn watch(there: &[Present]) -> Watch {
        Watch { socket: None, there: by_path(there.to_vec()) }
    }

    #[test]
    fn an_event_of_a_device_that_has_vanished_already_adds_nothing() {
        let mut watch = watch(&[]);
        let event = Uevent { action: Action::Add, name: "no-such-device".into(), device: (259, 1) };
        assert_eq!(watch.apply(&event), None);
        assert!(watch.there.is_empty());
    }

    #[test]
    fn the_removal_of_an_unknown_device_is_reported() {
        let mut watch = watch(&[present("purlin-x", "1")]);
        let event = |name: &str| Uevent { action: Action::Remove, name: name.into(), device: (259, 1) };
        assert_eq!(watch.apply(&event("purlin-x")), Some(Change::Removed((259, 1))));
        assert_eq!(watch.apply(&event("purlin-y")), Some(Change::Removed((259, 1))));
        assert!(watch.there.is_empty());
    }

    #[test]
    fn a_comparison_finds_changes_without_events() {
        let mut watch = watch(&[present("purlin-x", "1")]);
        assert!(watch.compare().contains(&Change::Removed((259, 1))), "no kernel has such a device");
        assert_eq!(watch.compare(), [], "reported once");
    }
}
