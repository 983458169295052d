//! ANA states (Asymmetric Namespace Access) that operators choose for exports over NVMe/TCP.

use std::sync::Arc;

use api::{AnaState, Changed, ErrorCode, Export};
use format::{AnaRecord, ExportKind};
use nvme::Access;

use crate::engine::exports::namespaces::nqn_of;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::{Engine, Group, view};
use crate::http::{Answer, ControlError};

/// The state as hosts are notified of it.
pub(crate) fn of(record: AnaRecord) -> Access {
    match record {
        AnaRecord::Optimized => Access::Optimized,
        AnaRecord::NonOptimized => Access::NonOptimized,
        AnaRecord::Inaccessible => Access::Inaccessible,
    }
}

/// The state as the API shows it.
pub(crate) fn shown(record: AnaRecord) -> AnaState {
    match record {
        AnaRecord::Optimized => AnaState::Optimized,
        AnaRecord::NonOptimized => AnaState::NonOptimized,
        AnaRecord::Inaccessible => AnaState::Inaccessible,
    }
}

/// The state as the catalogue keeps it. `None` for a state that cannot be chosen.
fn recorded(state: AnaState) -> Option<AnaRecord> {
    match state {
        AnaState::Optimized => Some(AnaRecord::Optimized),
        AnaState::NonOptimized => Some(AnaRecord::NonOptimized),
        AnaState::Inaccessible => Some(AnaRecord::Inaccessible),
        AnaState::Unknown => None,
    }
}

/// Warnings for an operator who makes the last reachable address of a volume inaccessible.
fn warnings(group: &Group, export: &RunningExport, to: AnaRecord) -> Vec<String> {
    let reaches = |other: &&Arc<RunningExport>| {
        let ExportKind::NvmeTcp { ana, .. } = other.record.kind else { return false };
        let same = other.record.volume == export.record.volume && other.record.id != export.record.id;
        same && other.failure.is_none() && ana != AnaRecord::Inaccessible
    };
    if to != AnaRecord::Inaccessible || group.exports().values().any(|other| reaches(&other)) {
        return Vec::new();
    }
    let name = export.state.name();
    vec![format!("no other address reaches {name}: what hosts ask of it waits, or fails where they do not wait")]
}

impl Engine {
    /// Changes the ANA state of an export while hosts are connected.
    pub(crate) async fn set_access(&self, id: &str, state: AnaState, dry_run: bool) -> Answer<Changed<Export>> {
        let refuse = |message: String| Err(ControlError::new(ErrorCode::Invalid, message));
        let _one = self.changes.lock().await;
        let (group, running) = self.find_export(id)?;
        let ExportKind::NvmeTcp { address, nsid, ana: before, .. } = &running.record.kind else {
            return refuse(format!("the export {id:?} is not one over NVMe/TCP: only those have an ANA state"));
        };
        let Some(after) = recorded(state) else { return refuse(format!("{state} is no ANA state to choose")) };
        let warnings = warnings(&group, &running, after);
        let steps = match *before == after {
            true => Vec::new(),
            false => vec![format!("tell hosts that the export {id} is {state} at {address}")],
        };
        if dry_run {
            return Ok(Changed::planned(steps).with_warnings(warnings));
        }
        if steps.is_empty() {
            let export = view::export(&group, &group.catalogue().await?, &running);
            return Ok(Changed::done(steps, export).with_warnings(warnings));
        }
        let mut record = running.record.clone();
        if let ExportKind::NvmeTcp { ana, .. } = &mut record.kind {
            *ana = after;
        }
        // Record the state before any host acts on it, so that it outlives a restart.
        let stored = record.clone();
        let catalogue = group
            .change_catalogue(|catalogue| {
                let known = catalogue.exports.iter_mut().find(|export| export.id == stored.id);
                known.into_iter().for_each(|export| *export = stored.clone());
            })
            .await?;
        running.state.set_access(of(after));
        self.listeners.access_changed(address, &nqn_of(&group.uuid), *nsid);
        let (state_of, failure) = (running.state.clone(), running.failure.clone());
        let running = Arc::new(RunningExport { record, state: state_of, failure });
        group.exports_mut().insert(running.record.id, running.clone());
        tracing::info!(export = id, %state, "reached in another way");
        Ok(Changed::done(steps, view::export(&group, &catalogue, &running)).with_warnings(warnings))
    }
}
