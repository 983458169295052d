//! The interface between the daemon's HTTP side and its engine.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use api::{
    Changed, Drive, DriveDetails, DriveHealth, DriveWipe, ErrorCode, Export, ExportCreate, ExportPlace, ExportUpdate,
    Group, GroupAssemble, GroupCreate, GroupForget, GroupNotStarted, GroupScan, GroupStart, GroupStop, GroupUpdate,
    Host, HostKey, HostKeySet, HostTlsKey, HostTlsKeySet, Import, ImportForget, ImportMd, ImportNvme, Imported,
    LimitUpdate, MemberFail, MemberReplace, Referral, Rename, Scanned, Scrub, ScrubRequest, Share, ShareCreate,
    ShareList, SpareAdd, Status, ThinUpdate, Upgrade, UpgradeRequest, Volume, VolumeConvert, VolumeCreate, VolumeName,
    VolumeUpdate, WipedDrive,
};
use async_trait::async_trait;
use format::Shape;
use thiserror::Error;

use super::metrics::metrics_text;

/// The reason why the daemon refused or failed: a code for programs, which decides the HTTP status,
/// and one sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ControlError {
    /// Programs decide by this code.
    pub code: ErrorCode,
    /// One sentence without a full stop. It names the refused object and the reason.
    pub message: String,
}

impl ControlError {
    /// Makes an error from a code and a sentence.
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

/// The answer of an operation.
pub type Answer<T> = Result<T, ControlError>;

/// Refuses unless `confirm` names the object that would lose data.
///
/// # Errors
/// [`ErrorCode::ConfirmationNeeded`], with a sentence about the data that would be lost.
pub fn require_confirmation(name: &str, what_is_lost: &str, confirm: Option<&str>) -> Answer<()> {
    if confirm == Some(name) {
        return Ok(());
    }
    Err(ControlError::new(
        ErrorCode::ConfirmationNeeded,
        format!("this destroys {what_is_lost}: confirm it with the name {name:?}"),
    ))
}

/// Operations on groups.
#[async_trait]
pub trait GroupControl: Send + Sync + 'static {
    /// All running groups, by name.
    async fn groups(&self) -> Answer<Vec<Group>>;

    /// Groups that could not be started.
    async fn groups_not_started(&self) -> Answer<Vec<GroupNotStarted>>;

    /// One group.
    async fn group(&self, group: &str) -> Answer<Group>;

    /// Creates a group of drives, usable at once. `shape` results from its level, drives and
    /// numbers.
    async fn group_create(&self, request: GroupCreate, shape: Shape) -> Answer<Changed<Group>>;

    /// Starts a group from its drives.
    async fn group_assemble(&self, request: GroupAssemble) -> Answer<Changed<Group>>;

    /// Starts a group by its name, from known or found drives.
    async fn group_start(&self, group: &str, request: GroupStart) -> Answer<Changed<Group>>;

    /// Lists the groups on drives. Changes nothing.
    async fn group_scan(&self, request: GroupScan) -> Answer<Scanned>;

    /// Renames a running group.
    async fn group_rename(&self, group: &str, request: Rename) -> Answer<Changed<Group>>;

    /// Stops using a group's drives.
    async fn group_stop(&self, group: &str, request: GroupStop) -> Answer<Changed<Group>>;

    /// Gives up starting a group that could not be started.
    async fn group_forget(&self, group: &str, request: GroupForget) -> Answer<Changed<Group>>;

    /// Destroys a group with its volumes.
    async fn group_delete(&self, group: &str, dry_run: bool) -> Answer<Changed<Group>>;

    /// Changes settings of a running group.
    async fn group_update(&self, group: &str, request: GroupUpdate) -> Answer<Changed<Group>>;

    /// Starts, pauses, resumes or stops a scrub, or returns its state.
    async fn scrub(&self, group: &str, request: ScrubRequest) -> Answer<Scrub>;
}

/// Operations on the members and spares of a group.
#[async_trait]
pub trait MemberControl: Send + Sync + 'static {
    /// Stops using a member.
    async fn member_fail(&self, group: &str, slot: u32, request: MemberFail) -> Answer<Changed<Group>>;

    /// Puts another drive in a slot: it is rebuilt, or copied first from a working member.
    async fn member_replace(&self, group: &str, slot: u32, request: MemberReplace) -> Answer<Changed<Group>>;

    /// Adds a hot spare.
    async fn spare_add(&self, group: &str, request: SpareAdd) -> Answer<Changed<Group>>;

    /// Removes a hot spare.
    async fn spare_remove(&self, group: &str, drive: &str, dry_run: bool) -> Answer<Changed<Group>>;
}

/// Operations on imports.
#[async_trait]
pub trait ImportControl: Send + Sync + 'static {
    /// All imports, by name.
    async fn imports(&self) -> Answer<Vec<Import>>;

    /// One import.
    async fn import(&self, import: &str) -> Answer<Import>;

    /// Finds the md array on some drives and reads it. A dry run lists what is found, even if
    /// nothing can be read.
    async fn import_md(&self, request: ImportMd) -> Answer<Imported>;

    /// Connects to a namespace of another machine.
    async fn import_nvme(&self, request: ImportNvme) -> Answer<Changed<Import>>;

    /// Releases an import's drives, which stay as they are.
    async fn import_forget(&self, import: &str, request: ImportForget) -> Answer<Changed<Import>>;
}

/// Operations on drives.
#[async_trait]
pub trait DriveControl: Send + Sync + 'static {
    /// All drives.
    async fn drives(&self) -> Answer<Vec<Drive>>;

    /// One drive, with its current health.
    async fn drive(&self, drive: &str) -> Answer<DriveDetails>;

    /// The last health reports of drives, by drive name. Does not ask the drives.
    async fn drive_healths(&self) -> Answer<BTreeMap<String, DriveHealth>>;

    /// Erases the superblocks of a drive that no running group has.
    async fn drive_wipe(&self, drive: &str, request: DriveWipe) -> Answer<Changed<WipedDrive>>;
}

/// Operations on volumes.
#[async_trait]
pub trait VolumeControl: Send + Sync + 'static {
    /// All volumes, by full name.
    async fn volumes(&self) -> Answer<Vec<Volume>>;

    /// One volume.
    async fn volume(&self, name: &VolumeName) -> Answer<Volume>;

    /// Creates a volume, usable at once. It reads as zeroes.
    async fn volume_create(&self, request: VolumeCreate) -> Answer<Changed<Volume>>;

    /// Grows or shrinks a volume. Shrinking needs confirmation unless it is a dry run.
    async fn volume_resize(&self, name: &VolumeName, request: VolumeUpdate) -> Answer<Changed<Volume>>;

    /// Changes how a thin volume uses the pool.
    async fn volume_thin(&self, name: &VolumeName, request: ThinUpdate) -> Answer<Changed<Volume>>;

    /// Converts a volume to thin or direct while it is in use, or stops that.
    async fn volume_convert(&self, name: &VolumeName, request: VolumeConvert) -> Answer<Changed<Volume>>;

    /// Changes the rate limit of a volume, for all its exports together.
    async fn volume_limit(&self, name: &VolumeName, request: LimitUpdate) -> Answer<Changed<Volume>>;

    /// Renames a volume within its group.
    async fn volume_rename(&self, name: &VolumeName, request: Rename) -> Answer<Changed<Volume>>;

    /// Destroys a volume. Refused while it is exported.
    async fn volume_delete(&self, name: &VolumeName, dry_run: bool) -> Answer<Changed<Volume>>;
}

/// Operations on exports, and what NVMe hosts may do with them.
#[async_trait]
pub trait ExportControl: Send + Sync + 'static {
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

    /// Changes an export while clients are connected.
    async fn export_set(&self, id: &str, request: ExportUpdate) -> Answer<Changed<Export>>;

    /// Allows an NVMe host to use an export.
    async fn host_allow(&self, id: &str, host: &str) -> Answer<Changed<Export>>;

    /// Denies an NVMe host an export. It loses the namespace at once.
    async fn host_deny(&self, id: &str, host: &str) -> Answer<Changed<Export>>;

    /// Changes the rate limit of an NVMe host at an export, for all its queues together.
    async fn host_limit(&self, id: &str, host: &str, request: LimitUpdate) -> Answer<Changed<Export>>;
}

/// Operations on shared drives.
#[async_trait]
pub trait ShareControl: Send + Sync + 'static {
    /// The drives that other machines may use, by number.
    async fn shares(&self) -> Answer<Vec<Share>>;

    /// Shares drives with other machines, all or none.
    async fn share_create(&self, request: ShareCreate) -> Answer<Changed<ShareList>>;

    /// Stops sharing a drive.
    async fn share_delete(&self, id: &str) -> Answer<Changed<Share>>;

    /// Allows an NVMe host to use a shared drive.
    async fn share_host_allow(&self, id: &str, host: &str) -> Answer<Changed<Share>>;

    /// Denies an NVMe host a shared drive. It loses the namespace at once.
    async fn share_host_deny(&self, id: &str, host: &str) -> Answer<Changed<Share>>;
}

/// Operations on NVMe hosts, their secrets and keys.
#[async_trait]
pub trait HostControl: Send + Sync + 'static {
    /// NVMe hosts that exports or shared drives name, that are connected or have used one, or that
    /// have a secret or a key, by name.
    async fn hosts(&self) -> Answer<Vec<Host>>;

    /// Sets the secrets of an NVMe host, which count from its next authentication on: for the
    /// exports of a group, or for the shared drives.
    async fn host_key_set(&self, group: Option<&str>, host: &str, request: HostKeySet) -> Answer<Changed<HostKey>>;

    /// Removes the secrets of an NVMe host. Its name suffices from now on.
    async fn host_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostKey>>;

    /// Sets the TLS key of an NVMe host, which it has to use from its next connection on.
    async fn host_tls_key_set(
        &self,
        group: Option<&str>,
        host: &str,
        request: HostTlsKeySet,
    ) -> Answer<Changed<HostTlsKey>>;

    /// Removes the TLS keys of an NVMe host. It may connect without TLS from now on.
    async fn host_tls_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostTlsKey>>;
}

/// Operations on referrals to other discovery services.
#[async_trait]
pub trait ReferralControl: Send + Sync + 'static {
    /// The referrals to other discovery services, by address.
    async fn referrals(&self) -> Answer<Vec<Referral>>;

    /// Adds a referral to another discovery service.
    async fn referral_add(&self, address: SocketAddr) -> Answer<Changed<Referral>>;

    /// Removes a referral to another discovery service.
    async fn referral_remove(&self, address: SocketAddr) -> Answer<Changed<Referral>>;
}

/// Replacing the daemon by another program.
#[async_trait]
pub trait UpgradeControl: Send + Sync + 'static {
    /// Has the daemon replaced by another program, soon after the answer.
    async fn upgrade(&self, request: UpgradeRequest) -> Answer<Changed<Upgrade>>;

    /// The state of the upgrade in progress, or of the one that started this daemon.
    async fn upgrade_state(&self) -> Answer<Upgrade>;
}

/// The operations of the daemon, in a trait for each kind of object.
///
/// Before a method is called, the routes have checked the request with its `validate`, and the
/// confirmation of every deletion. Only a shrinking [`VolumeControl::volume_resize`] has to check
/// the confirmation itself, with [`require_confirmation`].
///
/// A method is never dropped halfway. Methods that start long operations return at once; the jobs
/// of [`GroupControl::group`] show the progress. With `dry_run` a method checks all it can, changes
/// nothing, and answers [`Changed::planned`]. A refused method has changed nothing.
#[async_trait]
pub trait Control:
    GroupControl
    + MemberControl
    + ImportControl
    + DriveControl
    + VolumeControl
    + ExportControl
    + ShareControl
    + HostControl
    + ReferralControl
    + UpgradeControl
{
    /// An overview of everything on one screen.
    async fn status(&self) -> Answer<Status>;

    /// All metrics, in OpenMetrics text.
    async fn metrics(&self) -> Answer<String> {
        let (status, groups, drives) = (self.status().await?, self.groups().await?, self.drives().await?);
        Ok(metrics_text(&status, &groups, &drives, &self.volumes().await?, &self.drive_healths().await?))
    }
}
