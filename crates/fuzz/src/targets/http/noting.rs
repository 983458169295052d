//! A control that does nothing but count the changes that it is asked for. It shows the effect of a
//! client's bytes behind the API.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use api::{
    Changed, Drive, DriveDetails, DriveHealth, DriveWipe, Export, ExportCreate, ExportPlace, ExportUpdate, Group,
    GroupAssemble, GroupCreate, GroupForget, GroupNotStarted, GroupScan, GroupStart, GroupStop, GroupUpdate, Host,
    HostKey, HostKeySet, HostTlsKey, HostTlsKeySet, Import, ImportForget, ImportMd, ImportNvme, Imported, LimitUpdate,
    MemberFail, MemberReplace, Referral, Rename, Scanned, Scrub, ScrubRequest, ScrubSchedule, Share, ShareCreate,
    ShareList, SpareAdd, Status, ThinUpdate, Upgrade, UpgradeRequest, Volume, VolumeConvert, VolumeCreate, VolumeName,
    VolumeUpdate, WipedDrive,
};
use async_trait::async_trait;
use daemon::http::{
    Answer, Control, ControlError, DriveControl, ExportControl, GroupControl, HostControl, ImportControl,
    MemberControl, ReferralControl, ShareControl, UpgradeControl, VolumeControl,
};
use format::Shape;

/// A control that only counts changes.
#[derive(Default)]
pub(super) struct Noting {
    changes: AtomicU64,
}

impl Noting {
    /// Number of changes that it was asked for.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn note(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// A part of the control: methods that change something, where each call is counted and answered as
/// planned, and its other methods.
macro_rules! control {
    ($part:ident { $($name:ident($($argument:ident: $kind:ty),*) -> $what:ty;)* } $($other:item)*) => {
        #[async_trait]
        impl $part for Noting {
            $(
                async fn $name(&self, $($argument: $kind),*) -> Answer<Changed<$what>> {
                    let _ = ($($argument,)*);
                    self.note();
                    Ok(Changed::planned(vec![stringify!($name).to_owned()]))
                }
            )*

            $($other)*
        }
    };
}

control! {
    GroupControl {
        group_create(request: GroupCreate, shape: Shape) -> Group;
        group_assemble(request: GroupAssemble) -> Group;
        group_start(group: &str, request: GroupStart) -> Group;
        group_rename(group: &str, request: Rename) -> Group;
        group_stop(group: &str, request: GroupStop) -> Group;
        group_forget(group: &str, request: GroupForget) -> Group;
        group_delete(group: &str, dry_run: bool) -> Group;
        group_update(group: &str, request: GroupUpdate) -> Group;
    }

    async fn scrub(&self, group: &str, request: ScrubRequest) -> Answer<Scrub> {
        let _ = (group, request);
        self.note();
        let schedule =
            ScrubSchedule { last: None, next_unix_s: None, active: false, paused: false, waits_for: None };
        Ok(Scrub { job: None, schedule })
    }

    async fn group_scan(&self, request: GroupScan) -> Answer<Scanned> {
        let _ = request;
        Ok(Scanned::default())
    }

    async fn groups_not_started(&self) -> Answer<Vec<GroupNotStarted>> {
        Ok(Vec::new())
    }

    async fn group(&self, group: &str) -> Answer<Group> {
        Err(ControlError::group_not_found(group))
    }

    async fn groups(&self) -> Answer<Vec<Group>> {
        Ok(Vec::new())
    }
}

control! {
    MemberControl {
        member_fail(group: &str, slot: u32, request: MemberFail) -> Group;
        member_replace(group: &str, slot: u32, request: MemberReplace) -> Group;
        spare_add(group: &str, request: SpareAdd) -> Group;
        spare_remove(group: &str, drive: &str, dry_run: bool) -> Group;
    }
}

control! {
    ImportControl {
        import_nvme(request: ImportNvme) -> Import;
        import_forget(import: &str, request: ImportForget) -> Import;
    }

    async fn import_md(&self, request: ImportMd) -> Answer<Imported> {
        self.note();
        let (steps, warnings, found, others) = Default::default();
        Ok(Imported { dry_run: request.dry_run, steps, warnings, found, others, object: None })
    }

    async fn import(&self, import: &str) -> Answer<Import> {
        Err(ControlError::group_not_found(import))
    }

    async fn imports(&self) -> Answer<Vec<Import>> {
        Ok(Vec::new())
    }
}

control! {
    DriveControl {
        drive_wipe(drive: &str, request: DriveWipe) -> WipedDrive;
    }

    async fn drive(&self, drive: &str) -> Answer<DriveDetails> {
        Err(ControlError::drive_not_found(drive))
    }

    async fn drives(&self) -> Answer<Vec<Drive>> {
        Ok(Vec::new())
    }

    async fn drive_healths(&self) -> Answer<BTreeMap<String, DriveHealth>> {
        Ok(BTreeMap::new())
    }
}

control! {
    VolumeControl {
        volume_create(request: VolumeCreate) -> Volume;
        volume_resize(name: &VolumeName, request: VolumeUpdate) -> Volume;
        volume_thin(name: &VolumeName, request: ThinUpdate) -> Volume;
        volume_convert(name: &VolumeName, request: VolumeConvert) -> Volume;
        volume_limit(name: &VolumeName, request: LimitUpdate) -> Volume;
        volume_rename(name: &VolumeName, request: Rename) -> Volume;
        volume_delete(name: &VolumeName, dry_run: bool) -> Volume;
    }

    async fn volume(&self, name: &VolumeName) -> Answer<Volume> {
        Err(ControlError::volume_not_found(name))
    }

    async fn volumes(&self) -> Answer<Vec<Volume>> {
        Ok(Vec::new())
    }
}

control! {
    ExportControl {
        export_create(request: ExportCreate, volume: VolumeName, place: ExportPlace) -> Export;
        export_delete(id: &str) -> Export;
        export_set(id: &str, request: ExportUpdate) -> Export;
        host_allow(id: &str, host: &str) -> Export;
        host_deny(id: &str, host: &str) -> Export;
        host_limit(id: &str, host: &str, request: LimitUpdate) -> Export;
    }

    async fn exports(&self) -> Answer<Vec<Export>> {
        Ok(Vec::new())
    }
}

control! {
    ShareControl {
        share_create(request: ShareCreate) -> ShareList;
        share_delete(id: &str) -> Share;
        share_host_allow(id: &str, host: &str) -> Share;
        share_host_deny(id: &str, host: &str) -> Share;
    }

    async fn shares(&self) -> Answer<Vec<Share>> {
        Ok(Vec::new())
    }
}

control! {
    HostControl {
        host_key_set(group: Option<&str>, host: &str, request: HostKeySet) -> HostKey;
        host_key_remove(group: Option<&str>, host: &str) -> HostKey;
        host_tls_key_set(group: Option<&str>, host: &str, request: HostTlsKeySet) -> HostTlsKey;
        host_tls_key_remove(group: Option<&str>, host: &str) -> HostTlsKey;
    }

    async fn hosts(&self) -> Answer<Vec<Host>> {
        Ok(Vec::new())
    }
}

control! {
    ReferralControl {
        referral_add(address: SocketAddr) -> Referral;
        referral_remove(address: SocketAddr) -> Referral;
    }

    async fn referrals(&self) -> Answer<Vec<Referral>> {
        Ok(Vec::new())
    }
}

control! {
    UpgradeControl {
        upgrade(request: UpgradeRequest) -> Upgrade;
    }

    async fn upgrade_state(&self) -> Answer<Upgrade> {
        Ok(Upgrade::default())
    }
}

#[async_trait]
impl Control for Noting {
    async fn status(&self) -> Answer<Status> {
        Ok(Status {
            version: "0".to_owned(),
            commit: None,
            uptime_s: 0,
            pid: 1,
            resident_bytes: 0,
            log_lines_dropped: 0,
            buffers: api::Buffers::default(),
            shards: Vec::new(),
            groups: Vec::new(),
            not_started: Vec::new(),
            exports: Vec::new(),
            hosts: Vec::new(),
        })
    }
}
