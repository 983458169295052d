//! Read-only requests.

use std::sync::Arc;

use api::{GroupStatus, ShardStatus, Status};
use array::DriveId;
use drive::Env;
use runtime::ShardEnv;

use crate::engine::drives::unassigned;
use crate::engine::errors::stopping;
use crate::engine::group::Group;
use crate::engine::view::Moment;
use crate::engine::{Engine, view};
use crate::http::{Answer, ControlError};

impl Engine {
    /// The shards' monotonic time, in which jobs are measured.
    async fn shard_now(&self) -> Answer<u64> {
        self.shards[0].call(|| async { ShardEnv::current().now() }).await.map_err(|_| stopping())
    }

    async fn moment(&self) -> Answer<Moment> {
        let (shard_ns, unix_s) = (self.shard_now().await?, self.clock.unix_s());
        Ok(Moment { shard_ns, unix_s, scrubbed: self.scrubbed_now() })
    }

    pub(crate) async fn query_group(&self, group: &Group) -> Answer<api::Group> {
        let (status, catalogue) = (group.status().await?, group.catalogue().await?);
        let mut seen = view::group(group, &status, &catalogue, &self.moment().await?);
        seen.warnings.extend(self.all_warnings(group, &status));
        Ok(seen)
    }

    pub(crate) async fn query_groups(&self) -> Answer<Vec<api::Group>> {
        let mut groups = Vec::new();
        for group in self.all() {
            groups.push(self.query_group(&group).await?);
        }
        Ok(groups)
    }

    pub(crate) async fn query_status(&self) -> Answer<Status> {
        let mut groups = Vec::new();
        let moment = self.moment().await?;
        for group in self.all() {
            let status = group.status().await?;
            let catalogue = group.catalogue().await?;
            let mut seen = view::group(&group, &status, &catalogue, &moment);
            seen.warnings.extend(self.all_warnings(&group, &status));
            let in_sync = |member: &&api::Member| member.state == api::MemberState::InSync;
            groups.push(GroupStatus {
                in_sync_count: seen.members.iter().filter(in_sync).count() as u32,
                name: seen.name,
                level: seen.level,
                health: seen.health,
                member_count: seen.member_count,
                spare_count: seen.spares.len() as u32,
                volume_count: catalogue.volumes.len() as u32,
                losses_left: seen.losses_left,
                capacity_bytes: seen.capacity_bytes,
                allocated_bytes: seen.allocated_bytes,
                used_bytes: seen.used_bytes,
                load: self.sampler.load(&group.name),
                io: seen.io,
                crash_safety: seen.crash_safety,
                warnings: seen.warnings,
                jobs: seen.jobs,
                scrub: seen.scrub,
            });
        }
        let shard = |handle: &runtime::ShardHandle| ShardStatus {
            shard: handle.index() as u32,
            core: Some(handle.core() as u32),
            busy_percent: self.sampler.busy_percent(handle),
        };
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: option_env!("PURLIN_BUILT_FROM").map(str::to_owned),
            uptime_s: self.started.elapsed().as_secs(),
            pid: std::process::id(),
            resident_bytes: resident_bytes(),
            log_lines_dropped: crate::dropped_lines(),
            buffers: self.listeners.buffers(),
            shards: self.shards.iter().map(shard).collect(),
            groups,
            not_started: self.query_not_started(),
            exports: self.query_exports().await?,
            hosts: self.query_hosts().await?,
        })
    }

    pub(crate) async fn query_drives(&self) -> Answer<Vec<api::Drive>> {
        let mut drives = Vec::new();
        for group in self.all() {
            let status = group.status().await?;
            let open = group.drives().clone();
            for (index, drive) in open.iter().enumerate() {
                if let Some(drive) = drive {
                    drives.push(view::drive(&group, &status, DriveId(index as u16), drive));
                }
            }
        }
        drives.extend(self.all_imports().iter().flat_map(|import| import.drives()));
        drives.extend(self.shared_drives());
        drives.extend(self.unassigned_drives.list(&self.all()).iter().map(view::unassigned));
        Ok(drives)
    }

    /// The warnings of a group's drives, and the drives that could help the group.
    fn all_warnings(&self, group: &Group, status: &array::GroupStatus) -> Vec<String> {
        let mut warnings = self.drive_warnings(group, status);
        warnings.extend(self.offers_for(group, status));
        warnings
    }

    /// Offers of unassigned drives that could take the place of a lost member of the group.
    pub(crate) fn offers_for(&self, group: &Group, status: &array::GroupStatus) -> Vec<String> {
        unassigned::offers(group, status, &self.unassigned_drives.list(&self.all()))
    }

    pub(crate) async fn query_volume(&self, group: &Arc<Group>, record: &format::VolumeRecord) -> Answer<api::Volume> {
        let extents = record.extents.clone();
        let used = group.lead(move |array| async move {
            let mut used = 0;
            for extent in extents {
                used += array.used_bytes(extent.start_byte, extent.len_bytes).await;
            }
            used
        });
        Ok(view::volume(group, record, used.await?))
    }

    pub(crate) async fn query_volumes(&self) -> Answer<Vec<api::Volume>> {
        let mut volumes = Vec::new();
        for group in self.all() {
            for record in group.catalogue().await?.volumes {
                volumes.push(self.query_volume(&group, &record).await?);
            }
        }
        volumes.extend(self.all_imports().iter().filter_map(|import| import.volume()));
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(volumes)
    }

    pub(crate) async fn query_exports(&self) -> Answer<Vec<api::Export>> {
        let mut exports = Vec::new();
        for group in self.all() {
            let catalogue = group.catalogue().await?;
            exports.extend(group.exports().values().map(|running| view::export(&group, &catalogue, running)));
        }
        exports.extend(self.import_exports());
        Ok(exports)
    }

    /// The record of a volume and its group.
    pub(crate) async fn find_volume(&self, name: &api::VolumeName) -> Answer<(Arc<Group>, format::VolumeRecord)> {
        let group = self.find(&name.group)?;
        let record = group.catalogue().await?.volumes.into_iter().find(|volume| volume.name == name.volume);
        Ok((group, record.ok_or_else(|| ControlError::volume_not_found(name))?))
    }
}

/// The resident memory of this process in bytes; 0 if the system does not tell.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}
