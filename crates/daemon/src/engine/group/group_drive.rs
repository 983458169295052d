//! A drive that a group has open.

use runtime::{DriveKind, OpenDrive};

use crate::engine::drives::identity;
use crate::engine::memory::DrivePlace;

/// A drive that the group has open. Its [`array::DriveId`] is its index.
#[derive(Clone)]
pub(crate) struct GroupDrive {
    pub name: String,
    /// The drive in the form that an operator writes to open it again.
    pub text: String,
    /// The drive's identity under any name, if it reports one.
    pub identity: Option<String>,
    pub open: OpenDrive,
}

impl GroupDrive {
    /// The place that is remembered for this drive.
    pub fn place(&self) -> DrivePlace {
        DrivePlace { drive: self.text.clone(), identity: self.identity.clone() }
    }

    /// Whether it is a drive of another machine.
    pub fn is_remote(&self) -> bool {
        self.open.kind() == DriveKind::Remote
    }

    /// Whether the drive was pulled: the kernel no longer has the device.
    pub fn is_gone(&self) -> bool {
        self.open.device_number().is_some_and(|device| !identity::folder_of(device).exists())
    }
}
