//! Renames groups and volumes while they run.
//!
//! A group's name is in its superblocks, a volume's in the catalogue. Clients know volumes in three
//! ways:
//! - NVMe hosts use constant numbers (UUIDs of the group and the volume): they notice nothing.
//! - Block devices of this machine stay, and requests to them wait for a moment. Their link below
//!   `/dev/purlin` gets the new name.
//! - NBD clients use the name. A connection could continue, but a client that reconnects would not
//!   find its volume. So a rename is refused while NBD clients are connected. If it is forced,
//!   their connections are closed.

use std::sync::Arc;

use api::{ErrorCode, VolumeName};
use format::ExportKind;

use crate::engine::exports::devices;
use crate::engine::exports::devices::DeviceEnd;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::{Engine, Group, view};
use crate::http::{Answer, ControlError};

impl Engine {
    /// Restarts exports under the new names of their volumes. NVMe hosts are not affected: they use
    /// numbers.
    pub(super) async fn offer_under_new_names(&self, group: &Arc<Group>, exports: &[Arc<RunningExport>]) -> Answer<()> {
        for running in exports {
            match running.record.kind {
                ExportKind::NvmeTcp { .. } => continue,
                ExportKind::Nbd { .. } => {}
                ExportKind::Ublk { number, .. } => devices::unlink(running.state.name(), number),
            }
            self.end_export(group, running, DeviceEnd::Stays).await?;
            self.start_export(group, running.record.clone()).await?;
        }
        Ok(())
    }
}

/// The name, within its group, of the volume that an export was started for.
pub(super) fn volume_of(running: &RunningExport) -> &str {
    running.state.name().split_once('/').map_or("", |(_, volume)| volume)
}

/// How clients of an export find its volume under the new name; empty if they need no name.
pub(super) fn known_as(running: &RunningExport, volume: &VolumeName) -> String {
    match &running.record.kind {
        ExportKind::Nbd { address, .. } => format!(", which NBD clients find at {address} as \"{volume}\""),
        ExportKind::Ublk { .. } => {
            let stable = devices::stable_path(&volume.to_string());
            format!(", the block device {} or {}", running.record.kind.address(), stable.display())
        }
        ExportKind::NvmeTcp { .. } => String::new(),
    }
}

/// Refuses while NBD clients are connected, unless they may lose their connections.
pub(super) fn refuse_named_clients(group: &Group, exports: &[Arc<RunningExport>], force: bool) -> Answer<()> {
    let is_used =
        |running: &&Arc<RunningExport>| matches!(running.record.kind, ExportKind::Nbd { .. }) && running.clients() > 0;
    let used: Vec<String> =
        exports.iter().filter(is_used).map(|running| view::export_id(group, running.record.id)).collect();
    if used.is_empty() || force {
        return Ok(());
    }
    Err(ControlError::new(
        ErrorCode::Busy,
        format!(
            "NBD clients are connected to {}, and know the volume by its old name: disconnect them, or say --force, \
             which ends their connections",
            used.join(", ")
        ),
    ))
}
