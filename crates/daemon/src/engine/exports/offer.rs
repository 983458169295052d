//! The records of new exports, and how the sentences of a request describe them.

use std::sync::Arc;

use api::{ErrorCode, ExportCreate, NbdAddress, UblkCreate, VolumeName};
use format::{ExportKind, TlsFiles, VolumeRecord};

use crate::engine::exports::devices;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::{Engine, Group, view};
use crate::http::{Answer, ControlError};

/// A block device's sentence in plans and logs.
pub(crate) fn device_step(volume: &str, number: u32) -> String {
    let stable = devices::stable_path(volume);
    format!("make the volume \"{volume}\" the block device /dev/ublkb{number}, and {}", stable.display())
}

/// The sentence for the end of an export.
pub(crate) fn end_step(id: &str, kind: &ExportKind) -> String {
    match kind {
        ExportKind::Ublk { number, .. } => format!("remove the block device /dev/ublkb{number} of the export {id}"),
        _ => format!("end the export {id}; its clients lose their connections"),
    }
}

/// Refuses if one of these block devices is in use: its users would lose it.
pub(crate) fn refuse_used_devices<'a>(exports: impl Iterator<Item = &'a Arc<RunningExport>>) -> Answer<()> {
    for running in exports {
        if let (ExportKind::Ublk { number, .. }, None) = (&running.record.kind, &running.failure) {
            devices::refuse_in_use(*number, running.state.name())?;
        }
    }
    Ok(())
}

impl Engine {
    pub(super) fn nbd(
        group: &Group,
        record: &VolumeRecord,
        volume: &VolumeName,
        request: &ExportCreate,
        address: &NbdAddress,
    ) -> Answer<(ExportKind, String)> {
        let address = address.to_string();
        let same = |running: &Arc<RunningExport>| {
            running.record.volume == record.id && running.record.kind.address() == address
        };
        if group.exports().values().any(same) {
            return Err(ControlError::new(
                ErrorCode::ExportExists,
                format!("the volume \"{volume}\" is exported at {address} already"),
            ));
        }
        let step = format!("offer the volume \"{volume}\" over NBD at {address}");
        let files = request.tls.clone();
        let tls = files.map(|tls| TlsFiles { certificate: tls.cert, key: tls.key, client_ca: tls.ca });
        Ok((ExportKind::Nbd { address, read_only: request.read_only, tls }, step))
    }

    pub(super) async fn device(
        &self,
        group: &Group,
        record: &VolumeRecord,
        volume: &VolumeName,
        read_only: bool,
        asked: UblkCreate,
    ) -> Answer<(ExportKind, String)> {
        let exports: Vec<_> =
            group.exports().values().filter(|running| running.record.volume == record.id).cloned().collect();
        let kind = self.device_of(&exports, &volume.to_string(), read_only, asked, group.atomic_bytes()).await?;
        let ExportKind::Ublk { number, .. } = kind else { unreachable!("a device was made") };
        Ok((kind, device_step(&volume.to_string(), number)))
    }

    /// The device for a volume with these exports. `block_bytes`: its block size, unless the
    /// request says otherwise.
    pub(crate) async fn device_of(
        &self,
        exports: &[Arc<RunningExport>],
        volume: &str,
        read_only: bool,
        asked: UblkCreate,
        block_bytes: u32,
    ) -> Answer<ExportKind> {
        // Two devices of one volume would each keep their own cache of it.
        if let Some(other) = exports.iter().find(|running| matches!(running.record.kind, ExportKind::Ublk { .. })) {
            return Err(ControlError::new(
                ErrorCode::ExportExists,
                format!("the volume \"{volume}\" is the block device {} already", other.record.kind.address()),
            ));
        }
        let number = match asked.number {
            Some(number) => number,
            None => {
                // Skip also the numbers of exports whose device could not be made.
                let exports = self.all_exports();
                let in_use: Vec<String> = exports.iter().map(|running| running.record.kind.address()).collect();
                let free = self.devices.free_number().await?;
                (free..).find(|number| !in_use.contains(&format!("/dev/ublkb{number}"))).unwrap_or(free)
            }
        };
        Ok(ExportKind::Ublk {
            number,
            block_bytes: asked.block_bytes.unwrap_or(block_bytes),
            depth: asked.depth.unwrap_or(UblkCreate::DEPTH_DEFAULT),
            read_only,
        })
    }

    /// Refuses a path to a block device of this daemon itself: at the next start it would wait for
    /// itself.
    pub(crate) fn refuse_own_device(&self, text: &str) -> Answer<()> {
        let Ok(path) = std::fs::canonicalize(text) else { return Ok(()) };
        let Some(rest) = path.to_str().and_then(|path| path.strip_prefix("/dev/ublkb")) else { return Ok(()) };
        // Without the partition number.
        let node = format!("/dev/ublkb{}", rest.split('p').next().unwrap_or(rest));
        let own = self.all_exports().into_iter().find(|running| running.record.kind.address() == node);
        own.map_or(Ok(()), |own| {
            let volume = own.state.name();
            Err(ControlError::new(
                ErrorCode::DriveInUse,
                format!("{text} is a block device of this daemon itself, of the volume \"{volume}\""),
            ))
        })
    }

    /// The exports of all groups and imports.
    fn all_exports(&self) -> Vec<Arc<RunningExport>> {
        let mut all = Vec::new();
        self.all().iter().for_each(|group| all.extend(group.exports().values().cloned()));
        self.all_imports().iter().for_each(|import| all.extend(import.exports().values().cloned()));
        all
    }

    pub(crate) fn find_export(&self, id: &str) -> Answer<(Arc<Group>, Arc<RunningExport>)> {
        for group in self.all() {
            let found =
                group.exports().values().find(|running| view::export_id(&group, running.record.id) == id).cloned();
            if let Some(running) = found {
                return Ok((group, running));
            }
        }
        Err(ControlError::export_not_found(id))
    }
}
