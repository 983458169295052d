//! Data that a change destroys, in sentences for its plan: the command shows them before it asks.

use format::Catalogue;
use runtime::OpenDrive;

use crate::engine::drives::{RequestedDrive, identity};
use crate::engine::exports::offer;
use crate::engine::{Group, view};

/// A drive with the text of its label: "/dev/nvme0n1 (Model X, serial S1)". Files and drives of
/// other machines have only their name.
pub(crate) fn described(name: &str, open: &OpenDrive) -> String {
    let label = open.device_number().and_then(|device| identity::label(&identity::folder_of(device)));
    label.map_or_else(|| name.to_owned(), |label| format!("{name} ({label})"))
}

/// One sentence for each drive that is overwritten, or is a file that is created. `holds`: the
/// content recognized on all of them, as [`crate::engine::drives::inspect`] returns it.
pub(crate) fn overwritten(requested: &[RequestedDrive], holds: &[String]) -> Vec<String> {
    let sentence = |drive: &RequestedDrive| {
        if drive.is_new {
            return format!("create {} with {}", drive.name, api::format_bytes(drive.open.info().size_bytes));
        }
        let own: Vec<&str> = holds.iter().filter_map(|text| text.strip_prefix(&format!("{} ", drive.name))).collect();
        let what = if own.is_empty() { "holds nothing that is recognised".to_owned() } else { own.join("; ") };
        format!("overwrite {}: it {what}", described(&drive.name, &drive.open))
    };
    requested.iter().map(sentence).collect()
}

/// One sentence for each volume, export and drive of a group that is deleted.
pub(crate) fn destroyed(group: &Group, catalogue: &Catalogue) -> Vec<String> {
    let volume = |volume: &format::VolumeRecord| {
        let size = api::format_bytes(volume.size_bytes);
        format!("destroy the volume \"{}/{}\" of {size}", group.name, volume.name)
    };
    let mut steps: Vec<String> = catalogue.volumes.iter().map(volume).collect();
    let exports: Vec<_> = group.exports().values().cloned().collect();
    steps.extend(
        exports.iter().map(|running| offer::end_step(&view::export_id(group, running.record.id), &running.record.kind)),
    );
    let drives: Vec<_> = group.drives().iter().flatten().cloned().collect();
    steps.extend(
        drives
            .iter()
            .map(|drive| format!("erase the group {:?} from {}", group.name, described(&drive.name, &drive.open))),
    );
    steps
}
