//! An export that runs.

use std::sync::Arc;

use export::ExportState;
use format::{ExportKind, ExportRecord};

/// An export of the catalogue, and its state.
pub(crate) struct RunningExport {
    pub record: ExportRecord,
    pub state: Arc<ExportState>,
    /// The reason why it is not served, if it is not.
    pub failure: Option<String>,
}

impl RunningExport {
    /// The number of connected clients. Users of a block device are not counted:
    /// [`crate::engine::exports::devices::users`] lists them.
    pub fn clients(&self) -> usize {
        match self.record.kind {
            ExportKind::Nbd { .. } | ExportKind::NvmeTcp { .. } => self.state.connections().len(),
            ExportKind::Ublk { .. } => 0,
        }
    }
}

/// A warning that a power cut may tear the blocks of an export, if they are larger than
/// `atomic_bytes`, which the drives write at once.
pub(crate) fn torn(kind: &ExportKind, atomic_bytes: u32) -> Option<String> {
    let (ExportKind::Ublk { block_bytes, read_only, .. } | ExportKind::NvmeTcp { block_bytes, read_only, .. }) = kind
    else {
        return None;
    };
    (!read_only && *block_bytes > atomic_bytes).then(|| {
        format!("a power cut may leave a block of {block_bytes} bytes partly written: the drives write {atomic_bytes} at once")
    })
}
