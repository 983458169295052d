//! The properties of a namespace without its connections.

use drive::DriveInfo;
use nvme::Nqn;
use nvme::host::{ControllerInfo, NamespaceInfo};

use crate::Options;
use crate::network::Address;

/// A namespace that was connected once: all data to connect to it again, and to no other one. It
/// may be sent to other threads, where each has its own connections
/// ([`Namespace::attach`](crate::Namespace::attach)).
#[derive(Debug, Clone)]
pub struct Known {
    pub(crate) addresses: Vec<Address>,
    pub(crate) options: Options,
    pub(crate) info: NamespaceInfo,
    pub(crate) about: ControllerInfo,
    pub(crate) drive: DriveInfo,
    /// Most data of one command, in bytes.
    pub(crate) transfer_bytes_max: u64,
}

impl Known {
    pub(crate) fn new(
        addresses: &[Address],
        first: usize,
        options: Options,
        info: NamespaceInfo,
        about: ControllerInfo,
        transfer_bytes_max: u64,
    ) -> Known {
        let drive = DriveInfo {
            name: format!("nvme-tcp://{}/{}?nsid={}", addresses[first], options.subsystem, info.nsid),
            size_bytes: info.bytes(),
            sector_bytes: info.block_bytes,
            // AWUPF is at least one logical block (NVM Command Set 1.0, clause 2.1.4).
            atomic_bytes: info.block_bytes,
            discards: about.has_dataset_management(),
        };
        Known { addresses: addresses.to_vec(), options, info, about, drive, transfer_bytes_max }
    }

    /// Name of its subsystem.
    pub fn subsystem(&self) -> &Nqn {
        &self.options.subsystem
    }

    /// Properties that the namespace reported.
    pub fn info(&self) -> &NamespaceInfo {
        &self.info
    }

    /// Properties that its controller reported.
    pub fn about(&self) -> &ControllerInfo {
        &self.about
    }

    /// Its properties as a drive.
    pub fn drive(&self) -> &DriveInfo {
        &self.drive
    }

    /// An identifier that is the same on every path and for every host: the world-wide name, in the
    /// form in which Linux shows it (`wwid`), or model, serial number and NSID if it has none.
    pub fn identity(&self) -> String {
        let NamespaceInfo { uuid, nguid, eui64, nsid, .. } = &self.info;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        match (uuid, nguid, eui64) {
            (Some(uuid), ..) => {
                let parts = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex);
                format!("uuid.{}", parts.join("-"))
            }
            (None, Some(nguid), _) => format!("eui.{}", hex(nguid)),
            (None, None, Some(eui64)) => format!("eui.{}", hex(eui64)),
            (None, None, None) => format!("{} {} namespace {nsid}", self.about.model, self.about.serial),
        }
    }
}
