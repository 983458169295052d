//! Volumes as namespaces for NVMe hosts: their subsystem, number and identity.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{ErrorCode, NbdAddress, NvmeTcpCreate, VolumeName};
use export::{ExportState, NamespaceOffer};
use format::{AnaRecord, ExportKind, ExportRecord, Uuid, VolumeRecord};
use nvme::Nqn;
use nvme::target::{NAMESPACES_MAX, Subsystem};

use crate::engine::exports::access;
use crate::engine::group::shard;
use crate::engine::nvme::hosts::hosts_of;
use crate::engine::{Engine, Group};
use crate::http::{Answer, ControlError};

/// The NQN of a group's subsystem. All its volumes are namespaces of one subsystem.
pub(crate) fn nqn_of(group: &Uuid) -> Nqn {
    Nqn::of_uuid(group.as_bytes())
}

fn subsystem_of(group: &Group) -> Subsystem {
    // SN has 20 characters. The first 20 digits of the UUID are used.
    let serial = group.uuid.to_string().chars().filter(|char| *char != '-').take(20).collect();
    Subsystem { nqn: nqn_of(&group.uuid), serial, firmware: env!("CARGO_PKG_VERSION").to_owned() }
}

/// A namespace's UUID, constant for a volume: its group's UUID combined with the volume's number.
/// Version 8, "vendor-specific" (RFC 9562, clause 5.8).
fn uuid_of(group: &Uuid, volume: u64) -> [u8; 16] {
    let mut bytes = *group.as_bytes();
    for (byte, number) in bytes[8..].iter_mut().zip(volume.to_be_bytes()) {
        *byte ^= number;
    }
    bytes[6] = bytes[6] & 0x0F | 0x80;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    bytes
}

impl Engine {
    /// The export record of a volume that becomes a namespace, and a sentence that describes it.
    pub(crate) fn namespace(
        group: &Group,
        record: &VolumeRecord,
        volume: &VolumeName,
        read_only: bool,
        address: &NbdAddress,
        asked: NvmeTcpCreate,
    ) -> Answer<(ExportKind, String)> {
        let address = address.to_string();
        let mut in_use: BTreeSet<u32> = BTreeSet::new();
        let mut own = None;
        for running in group.exports().values() {
            let ExportKind::NvmeTcp { address: known, nsid, block_bytes, .. } = &running.record.kind else { continue };
            if running.record.volume != record.id {
                in_use.insert(*nsid);
                continue;
            }
            own = Some((*nsid, *block_bytes));
            if *known == address {
                return Err(ControlError::new(
                    ErrorCode::ExportExists,
                    format!("the volume \"{volume}\" is a namespace at {address} already"),
                ));
            }
        }
        // One number at all addresses: hosts see one namespace on several paths.
        let nsid = match (own, asked.nsid) {
            (Some((own, _)), Some(asked)) if own != asked => {
                let message =
                    format!("the volume \"{volume}\" is the namespace {own} elsewhere, so it cannot be {asked} here");
                return Err(ControlError::new(ErrorCode::Invalid, message));
            }
            (Some((own, _)), _) => own,
            (None, _) if in_use.len() >= NAMESPACES_MAX as usize => {
                let message = format!(
                    "{NAMESPACES_MAX} volumes of the group \"{}\" are namespaces: there can be no more",
                    group.name
                );
                return Err(ControlError::new(ErrorCode::TooLarge, message));
            }
            (None, Some(asked)) if in_use.contains(&asked) => {
                let message = format!("the namespace {asked} is another volume of the group \"{}\"", group.name);
                return Err(ControlError::new(ErrorCode::Invalid, message));
            }
            (None, Some(asked)) => asked,
            (None, None) => (1..=NvmeTcpCreate::NSID_MAX).find(|nsid| !in_use.contains(nsid)).ok_or_else(|| {
                ControlError::new(ErrorCode::Invalid, format!("the group \"{}\" has no free namespace", group.name))
            })?,
        };
        let block_bytes = match (own, asked.block_bytes) {
            (Some((_, own)), Some(asked)) if own != asked => {
                let message = format!(
                    "the volume \"{volume}\" has blocks of {own} bytes elsewhere, so it cannot have {asked} here"
                );
                return Err(ControlError::new(ErrorCode::Invalid, message));
            }
            (Some((_, own)), _) => own,
            (None, asked) => asked.unwrap_or_else(|| group.atomic_bytes()),
        };
        let step = format!("offer the volume \"{volume}\" over NVMe/TCP at {address}, as namespace {nsid}");
        let kind = ExportKind::NvmeTcp {
            address,
            nsid,
            block_bytes,
            read_only,
            hosts: (!asked.allow_any_host).then_some(asked.hosts),
            ana: AnaRecord::Optimized,
        };
        Ok((kind, step))
    }

    pub(crate) async fn offer_namespace(
        &self,
        group: &Arc<Group>,
        record: &ExportRecord,
        state: &Arc<ExportState>,
    ) -> Answer<()> {
        let ExportKind::NvmeTcp { address, nsid, block_bytes, hosts, ana, .. } = &record.kind else { return Ok(()) };
        state.set_access(access::of(*ana));
        let (key, volume) = (group.key, record.volume);
        let offer = NamespaceOffer {
            block_bytes: *block_bytes,
            uuid: uuid_of(&group.uuid, volume),
            hosts: hosts_of(hosts),
            state: state.clone(),
            open: Arc::new(move || shard::served(key, volume)),
            shared: group.shared_namespace(volume).await?,
            secrets: group.secrets.clone(),
            history: self.histories.of(&group.uuid),
        };
        self.listeners.offer_namespace(address, subsystem_of(group), *nsid, offer).await
    }

    pub(crate) async fn withdraw_namespace(&self, group: &Group, record: &ExportRecord, state: &ExportState) {
        if let ExportKind::NvmeTcp { address, nsid, .. } = &record.kind {
            self.listeners.withdraw_namespace(address, &nqn_of(&group.uuid), *nsid, state).await;
        }
    }

    /// Sets the hosts that may use an export.
    pub(crate) fn allow_hosts(&self, group: &Group, record: &ExportRecord) {
        if let ExportKind::NvmeTcp { address, nsid, hosts, .. } = &record.kind {
            self.listeners.allow_hosts(address, &nqn_of(&group.uuid), *nsid, hosts_of(hosts));
        }
    }

    /// Notifies NVMe hosts that a volume has another size, quota or kind: they read Identify
    /// Namespace again.
    pub(crate) fn notify_changed(&self, group: &Group, volume: u64) {
        for running in group.exports().values().filter(|running| running.record.volume == volume) {
            if let ExportKind::NvmeTcp { address, nsid, .. } = &running.record.kind {
                self.listeners.namespace_resized(address, &nqn_of(&group.uuid), *nsid);
            }
        }
    }
}
