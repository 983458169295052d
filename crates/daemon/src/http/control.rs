//! What the daemon can do: the seam between its HTTP side and its engine.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use api::{
    Changed, Drive, DriveDetails, DriveHealth, DriveWipe, ErrorCode, Export, ExportCreate, ExportPlace, ExportUpdate,
    Group, GroupAssemble, GroupCreate, GroupForget, GroupNotStarted, GroupScan, GroupStart, GroupStop, GroupUpdate,
    Host, HostKey, HostKeySet, HostTlsKey, HostTlsKeySet, Import, ImportForget, ImportMd, ImportNvme, Imported,
    LimitUpdate, MemberFail, MemberReplace, Referral, Rename, Scanned, Scrub, ScrubRequest, Share, ShareCreate,
    ShareList, SpareAdd, Status, Upgrade, UpgradeRequest, Volume, VolumeCreate, VolumeName, VolumeUpdate, WipedDrive,
};
use async_trait::async_trait;
use format::Shape;
use thiserror::Error;

use super::metrics::metrics_text;

/// Why the daemon refused or failed: a code for programs, which decides the HTTP status, and one
/// sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ControlError {
    /// Decide by this.
    pub code: ErrorCode,
    /// One sentence without a full stop, that names what was refused and why.
    pub message: String,
}

impl ControlError {
    /// An error with this code and sentence.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ControlError {
        ControlError { code, message: message.into() }
    }

    /// `there is no group "tank"`.
    pub fn group_not_found(group: &str) -> ControlError {
        ControlError::new(ErrorCode::GroupNotFound, format!("there is no group {group:?}"))
    }

    /// `there is a group "tank" already`.
    pub fn group_exists(group: &str) -> ControlError {
        ControlError::new(ErrorCode::GroupExists, format!("there is a group {group:?} already"))
    }

    /// `there is no volume "tank/db"`.
    pub fn volume_not_found(name: &VolumeName) -> ControlError {
        ControlError::new(ErrorCode::VolumeNotFound, format!("there is no volume \"{name}\""))
    }

    /// `there is a volume "tank/db" already`.
    pub fn volume_exists(name: &VolumeName) -> ControlError {
        ControlError::new(ErrorCode::VolumeExists, format!("there is a volume \"{name}\" already"))
    }

    /// `there is no export "1"`.
    pub fn export_not_found(id: &str) -> ControlError {
        ControlError::new(ErrorCode::ExportNotFound, format!("there is no export {id:?}"))
    }

    /// `the group "tank" has no slot 9: its slots are 0 to 5`.
    pub fn member_not_found(group: &str, slot: u32, member_count: u32) -> ControlError {
        let last = member_count.saturating_sub(1);
        ControlError::new(
            ErrorCode::MemberNotFound,
            format!("the group {group:?} has no slot {slot}: its slots are 0 to {last}"),
        )
    }

    /// `the drive "/dev/sdz" is not known here`.
    pub fn drive_not_found(drive: &str) -> ControlError {
        ControlError::new(ErrorCode::DriveNotFound, format!("the drive {drive:?} is not known here"))
    }
}

impl From<api::Invalid> for ControlError {
    fn from(invalid: api::Invalid) -> ControlError {
        ControlError::new(ErrorCode::Invalid, invalid.0)
    }
}

/// What an operation answers.
pub type Answer<T> = Result<T, ControlError>;

/// Refuses unless `confirm` names the object that would lose data.
///
/// # Errors
/// [`ErrorCode::ConfirmationNeeded`], with a sentence that says what would be lost.
pub fn require_confirmation(name: &str, what_is_lost: &str, confirm: Option<&str>) -> Answer<()> {
    if confirm == Some(name) {
        return Ok(());
    }
    Err(ControlError::new(
        ErrorCode::ConfirmationNeeded,
        format!("this destroys {what_is_lost}: confirm it with the name {name:?}"),
    ))
}

/// What the daemon can do.
///
/// The routes have checked every request with its `validate`, and the confirmation of every
/// deletion, before a method is called; only a shrinking [`Control::volume_resize`] must ask by
/// itself, with [`require_confirmation`].
///
/// A method is never dropped half way. Methods that start long operations return at once; those are
/// followed through the jobs of [`Control::group`]. With `dry_run` a method checks all it can,
/// changes nothing, and answers [`Changed::planned`]. A refused method has changed nothing.
#[async_trait]
pub trait Control: Send + Sync + 'static {
    /// One screen of everything.
    async fn status(&self) -> Answer<Status>;

    /// All groups that run, by name.
    async fn groups(&self) -> Answer<Vec<Group>>;
    /// Groups that could not be started.
    async fn groups_not_started(&self) -> Answer<Vec<GroupNotStarted>>;
    /// One group.
    async fn group(&self, group: &str) -> Answer<Group>;
    /// Makes a group of drives, usable at once. `shape` is what its level, drives and numbers
    /// amount to.
    async fn group_create(&self, request: GroupCreate, shape: Shape) -> Answer<Changed<Group>>;
    /// Starts a group from its drives.
    async fn group_assemble(&self, request: GroupAssemble) -> Answer<Changed<Group>>;
    /// Starts a group by its name, from drives that are known or found.
    async fn group_start(&self, group: &str, request: GroupStart) -> Answer<Changed<Group>>;
    /// Which groups are on drives. Changes nothing.
    async fn group_scan(&self, request: GroupScan) -> Answer<Scanned>;
    /// Gives a running group another name.
    async fn group_rename(&self, group: &str, request: Rename) -> Answer<Changed<Group>>;
    /// Stops using a group's drives.
    async fn group_stop(&self, group: &str, request: GroupStop) -> Answer<Changed<Group>>;
    /// Gives up starting a group that could not be started.
    async fn group_forget(&self, group: &str, request: GroupForget) -> Answer<Changed<Group>>;
    /// Destroys a group with its volumes.
    async fn group_delete(&self, group: &str, dry_run: bool) -> Answer<Changed<Group>>;
    /// Changes settings of a running group.
    async fn group_update(&self, group: &str, request: GroupUpdate) -> Answer<Changed<Group>>;
    /// Starts, pauses, resumes, stops or asks for a scrub.
    async fn scrub(&self, group: &str, request: ScrubRequest) -> Answer<Scrub>;

    /// All imports, by name.
    async fn imports(&self) -> Answer<Vec<Import>>;
    /// One import.
    async fn import(&self, import: &str) -> Answer<Import>;
    /// Finds the md array on some drives and reads it. A dry run says what is there, also where
    /// nothing can be read.
    async fn import_md(&self, request: ImportMd) -> Answer<Imported>;
    /// Connects to a namespace of another machine.
    async fn import_nvme(&self, request: ImportNvme) -> Answer<Changed<Import>>;
    /// Lets go of an import's drives, which stay as they are.
    async fn import_forget(&self, import: &str, request: ImportForget) -> Answer<Changed<Import>>;

    /// All drives.
    async fn drives(&self) -> Answer<Vec<Drive>>;
    /// One drive, asked how it is.
    async fn drive(&self, drive: &str) -> Answer<DriveDetails>;
    /// The last health reports of drives, by their names. Asks none.
    async fn drive_healths(&self) -> Answer<BTreeMap<String, DriveHealth>>;
    /// Stops using a member.
    async fn member_fail(&self, group: &str, slot: u32, request: MemberFail) -> Answer<Changed<Group>>;
    /// Puts another drive in a slot and rebuilds onto it.
    async fn member_replace(&self, group: &str, slot: u32, request: MemberReplace) -> Answer<Changed<Group>>;
    /// Erases the superblocks of a drive that no running group has.
    async fn drive_wipe(&self, drive: &str, request: DriveWipe) -> Answer<Changed<WipedDrive>>;
    /// Adds a hot spare.
    async fn spare_add(&self, group: &str, request: SpareAdd) -> Answer<Changed<Group>>;
    /// Takes a hot spare away.
    async fn spare_remove(&self, group: &str, drive: &str, dry_run: bool) -> Answer<Changed<Group>>;

    /// All volumes, by full name.
    async fn volumes(&self) -> Answer<Vec<Volume>>;
    /// One volume.
    async fn volume(&self, name: &VolumeName) -> Answer<Volume>;
    /// Makes a volume, usable at once; it reads as zeroes.
    async fn volume_create(&self, request: VolumeCreate) -> Answer<Changed<Volume>>;
    /// Grows or shrinks a volume. Shrinking needs confirmation unless it is a dry run.
    async fn volume_resize(&self, name: &VolumeName, request: VolumeUpdate) -> Answer<Changed<Volume>>;
    /// Changes how fast a volume may be used, all its exports together.
    async fn volume_limit(&self, name: &VolumeName, request: LimitUpdate) -> Answer<Changed<Volume>>;
    /// Gives a volume another name in its group.
    async fn volume_rename(&self, name: &VolumeName, request: Rename) -> Answer<Changed<Volume>>;
    /// Destroys a volume. Refused while it is exported.
    async fn volume_delete(&self, name: &VolumeName, dry_run: bool) -> Answer<Changed<Volume>>;

    /// All exports, by identity.
    async fn exports(&self) -> Answer<Vec<Export>>;
    /// One export.
    async fn export(&self, id: &str) -> Answer<Export> {
        let found = self.exports().await?.into_iter().find(|export| export.id == id);
        found.ok_or_else(|| ControlError::export_not_found(id))
    }
    /// Offers a volume to clients. `volume` and `place` are the parts of the request.
    async fn export_create(
        &self,
        request: ExportCreate,
        volume: VolumeName,
        place: ExportPlace,
    ) -> Answer<Changed<Export>>;
    /// Ends an export; its clients lose their connections. Refused while it is a block device in
    /// use.
    async fn export_delete(&self, id: &str) -> Answer<Changed<Export>>;

    /// NVMe hosts that exports name, or that have used one, by name.
    async fn hosts(&self) -> Answer<Vec<Host>>;

    /// The drives that other machines may use, by number.
    async fn shares(&self) -> Answer<Vec<Share>>;

    /// Offers drives, as they are, to other machines: all or none.
    async fn share_create(&self, request: ShareCreate) -> Answer<Changed<ShareList>>;

    /// Offers a drive no longer.
    async fn share_delete(&self, id: &str) -> Answer<Changed<Share>>;

    /// Lets an NVMe host use a shared drive.
    async fn share_host_allow(&self, id: &str, host: &str) -> Answer<Changed<Share>>;

    /// Lets an NVMe host use a shared drive no longer. It loses the namespace at once.
    async fn share_host_deny(&self, id: &str, host: &str) -> Answer<Changed<Share>>;

    /// Changes an export while clients are connected.
    async fn export_set(&self, id: &str, request: ExportUpdate) -> Answer<Changed<Export>>;

    /// Lets an NVMe host use an export.
    async fn host_allow(&self, id: &str, host: &str) -> Answer<Changed<Export>>;

    /// Lets an NVMe host use an export no longer. It loses the namespace at once.
    async fn host_deny(&self, id: &str, host: &str) -> Answer<Changed<Export>>;

    /// Changes how fast an NVMe host may use an export, all its queues together.
    async fn host_limit(&self, id: &str, host: &str, request: LimitUpdate) -> Answer<Changed<Export>>;

    /// Other discovery services that NVMe hosts are told of, by address.
    async fn referrals(&self) -> Answer<Vec<Referral>>;

    /// Tells NVMe hosts of another discovery service.
    async fn referral_add(&self, address: SocketAddr) -> Answer<Changed<Referral>>;

    /// Tells NVMe hosts of another discovery service no longer.
    async fn referral_remove(&self, address: SocketAddr) -> Answer<Changed<Referral>>;

    /// From its next authentication on, an NVMe host has to prove itself with these secrets: for
    /// the exports of a group, or for the shared drives.
    async fn host_key_set(&self, group: Option<&str>, host: &str, request: HostKeySet) -> Answer<Changed<HostKey>>;

    /// An NVMe host is let in by its name alone from now on.
    async fn host_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostKey>>;

    /// From its next connection on, an NVMe host has to use TLS with this key.
    async fn host_tls_key_set(
        &self,
        group: Option<&str>,
        host: &str,
        request: HostTlsKeySet,
    ) -> Answer<Changed<HostTlsKey>>;

    /// An NVMe host needs no TLS any more.
    async fn host_tls_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostTlsKey>>;

    /// Has the daemon replaced by another program, soon after the answer.
    async fn upgrade(&self, request: UpgradeRequest) -> Answer<Changed<Upgrade>>;
    /// How the upgrade stands that is under way, or that this daemon came from.
    async fn upgrade_state(&self) -> Answer<Upgrade>;

    /// All metrics, in OpenMetrics text.
    async fn metrics(&self) -> Answer<String> {
        let (status, groups, drives) = (self.status().await?, self.groups().await?, self.drives().await?);
        Ok(metrics_text(&status, &groups, &drives, &self.volumes().await?, &self.drive_healths().await?))
    }
}
