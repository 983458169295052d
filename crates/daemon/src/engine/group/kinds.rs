//! Kinds of volumes, and the volumes that are getting another one.

use api::{ErrorCode, VolumeName};
use format::{VolumeKind, VolumeRecord};

use crate::http::{Answer, ControlError};

/// The name of a kind in messages.
pub(crate) fn kind_name(kind: VolumeKind) -> &'static str {
    match kind {
        VolumeKind::Direct => "direct",
        VolumeKind::Thin => "thin",
    }
}

/// A kind for the API.
pub(crate) fn volume_kind(kind: VolumeKind) -> api::VolumeKind {
    match kind {
        VolumeKind::Direct => api::VolumeKind::Direct,
        VolumeKind::Thin => api::VolumeKind::Thin,
    }
}

/// Refuses a change of a volume that is being converted.
pub(crate) fn refuse_converting(name: &VolumeName, record: &VolumeRecord) -> Answer<()> {
    let Some(conversion) = &record.conversion else { return Ok(()) };
    let to = kind_name(conversion.to);
    let message = format!(
        "the volume \"{name}\" is being converted to {to}: wait until that is done, or stop it with \
         `purlin volume convert {name} --cancel`"
    );
    Err(ControlError::new(ErrorCode::Busy, message))
}
