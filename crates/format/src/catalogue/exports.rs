//! Which exports are valid.

use super::{Catalogue, CatalogueError, DEVICE_DEPTH_MAX, ExportKind};

/// The highest number of a namespace.
const NAMESPACE_MAX: u32 = 65_535;

impl Catalogue {
    pub(super) fn check_exports(&self) -> Result<(), CatalogueError> {
        // Each volume has an address at most once, and at most one block device.
        let mut places = Vec::with_capacity(self.exports.len());
        let mut devices = Vec::new();
        let mut namespaces: Vec<(u32, u64)> = Vec::new();
        for export in &self.exports {
            if !self.volumes.iter().any(|volume| volume.id == export.volume) {
                return Err(CatalogueError::NoVolume { export: export.id, volume: export.volume });
            }
            match &export.kind {
                ExportKind::Nbd { address, .. } => {
                    if !is_address(address) {
                        return Err(CatalogueError::Address { address: address.clone() });
                    }
                    places.push((export.volume, address.as_str()));
                }
                &ExportKind::Ublk { number, block_bytes, depth, .. } => {
                    if !matches!(block_bytes, 512 | 4096) || !(1..=DEVICE_DEPTH_MAX).contains(&depth) {
                        return Err(CatalogueError::Device { number, block_bytes, depth });
                    }
                    places.push((export.volume, "a block device"));
                    devices.push(number);
                }
                ExportKind::NvmeTcp { address, nsid, block_bytes, hosts, .. } => {
                    if !is_address(address) || address.starts_with("unix:") {
                        return Err(CatalogueError::Address { address: address.clone() });
                    }
                    let (nsid, block_bytes) = (*nsid, *block_bytes);
                    let has_hosts = hosts.as_ref().is_none_or(|hosts| hosts.iter().all(|host| is_host(host)));
                    if !(1..=NAMESPACE_MAX).contains(&nsid) || !matches!(block_bytes, 512 | 4096) || !has_hosts {
                        return Err(CatalogueError::Namespace { nsid, block_bytes });
                    }
                    // A match in one of the two but not in both is a conflict.
                    let other = |known: &&(u32, u64)| (known.0 == nsid) != (known.1 == export.volume);
                    if let Some((nsid, _)) = namespaces.iter().find(other) {
                        return Err(CatalogueError::NamespaceTwice { nsid: *nsid });
                    }
                    namespaces.push((nsid, export.volume));
                    places.push((export.volume, address.as_str()));
                }
            }
        }
        places.sort_unstable();
        devices.sort_unstable();
        if let Some(pair) = devices.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CatalogueError::DeviceTwice { number: pair[0] });
        }
        match places.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(CatalogueError::ExportTwice { volume: pair[0].0, address: pair[0].1.to_owned() }),
            None => Ok(()),
        }
    }
}

/// The name of an NVMe host: NVMe Base 2.0, clause 4.5.
pub(super) fn is_host(name: &str) -> bool {
    name.starts_with("nqn.") && name.len() <= 223 && !name.chars().any(char::is_control)
}

fn is_address(address: &str) -> bool {
    match address.strip_prefix("unix:") {
        Some(path) => !path.is_empty() && !path.contains('\0'),
        None => address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()),
    }
}
