//! The identity of a block device, regardless of its current name: its world-wide name, or its
//! model and serial number.

use std::fs;
use std::path::{Path, PathBuf};

const BLOCK_CLASS: &str = "/sys/class/block";

/// A block device that the kernel has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Present {
    /// Its path in `/dev`.
    pub path: String,
    /// Major and minor number.
    pub device: (u32, u32),
    /// The kernel's sequence number (`diskseq`), which tells successive disks with this name apart.
    /// Empty on older kernels.
    pub sequence: String,
}

impl Present {
    /// The identity under any name. If the device reports none, its path.
    pub fn identity(&self) -> String {
        of_path(&self.path).unwrap_or_else(|| self.path.clone())
    }
}

/// The text of an attribute, trimmed; `None` if it is missing or empty.
fn attribute(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    // Serial numbers are padded with blanks or zero bytes.
    let text = text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// The sysfs folder of a device by its name below `/dev`.
fn folder(name: &str) -> PathBuf {
    Path::new(BLOCK_CLASS).join(name.replace('/', "!"))
}

/// The sysfs folder of a device by its numbers.
pub(crate) fn folder_of(device: (u32, u32)) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", device.0, device.1))
}

/// The path in `/dev` of a device by its numbers, if it exists.
pub(crate) fn path_of(device: (u32, u32)) -> Option<String> {
    let uevent = attribute(&folder_of(device), "uevent")?;
    uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=")).map(|name| format!("/dev/{name}"))
}

/// The sysfs folder of the whole disk, and the partition's number for a partition.
fn disk(folder: &Path) -> (PathBuf, Option<String>) {
    match attribute(folder, "partition") {
        Some(number) => (folder.join(".."), Some(number)),
        None => (folder.to_owned(), None),
    }
}

/// Whether it is a drive that can be pulled, or a partition of one, and not a device that a program
/// or the kernel builds from others.
fn is_hardware(folder: &Path) -> bool {
    disk(folder).0.join("device").exists()
}

/// An attribute of the whole disk.
pub(crate) fn of_disk(folder: &Path, name: &str) -> Option<String> {
    attribute(&disk(folder).0, name)
}

/// The identity of the device with this sysfs folder, which does not change with its name or slot.
/// `None` if the device reports nothing.
pub(crate) fn of(folder: &Path) -> Option<String> {
    let (disk, partition) = disk(folder);
    let named = attribute(&disk, "wwid").or_else(|| attribute(&disk, "device/wwid"));
    let numbered = || {
        let serial = attribute(&disk, "device/serial").or_else(|| attribute(&disk, "serial"))?;
        Some(format!("{} {serial}", attribute(&disk, "device/model").unwrap_or_default()).trim().to_owned())
    };
    let identity = named.or_else(numbered)?;
    Some(match partition {
        Some(number) => format!("{identity} part {number}"),
        None => identity,
    })
}

/// The model and serial number of the disk, as on its label. `None` if the kernel knows neither.
pub(crate) fn label(folder: &Path) -> Option<String> {
    let disk = disk(folder).0;
    let model = attribute(&disk, "device/model");
    let serial = attribute(&disk, "device/serial").or_else(|| attribute(&disk, "serial"));
    let both = [model, serial.map(|serial| format!("serial {serial}"))];
    let parts: Vec<String> = both.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The identity of the device that a path leads to now, as [`of`] returns it.
pub(crate) fn of_path(path: &str) -> Option<String> {
    let real = fs::canonicalize(path).ok()?;
    of(&folder(real.strip_prefix("/dev").ok()?.to_str()?))
}

/// The NQN of the subsystem of an NVMe namespace, local or on another machine.
pub(crate) fn subsystem_of(folder: &Path) -> Option<String> {
    of_disk(folder, "device/subsysnqn")
}

/// All block devices that can be pulled.
pub(crate) fn present() -> Vec<Present> {
    let Ok(entries) = fs::read_dir(BLOCK_CLASS) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| look(&name.replace('!', "/"))).collect()
}

/// A block device by its name below `/dev`, if it exists and can be pulled.
pub(crate) fn look(name: &str) -> Option<Present> {
    let folder = folder(name);
    if !is_hardware(&folder) {
        return None;
    }
    let (major, minor) = attribute(&folder, "dev")?.split_once(':').map(|(a, b)| (a.parse(), b.parse()))?;
    let sequence = attribute(&disk(&folder).0, "diskseq").unwrap_or_default();
    Some(Present { path: format!("/dev/{name}"), device: (major.ok()?, minor.ok()?), sequence })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(name: &str, files: &[(&str, &str)], act: impl FnOnce(&Path) -> T) -> T {
        let folder = std::env::temp_dir().join(format!("purlin-identity-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let result = act(&folder);
        fs::remove_dir_all(&folder).unwrap();
        result
    }

    #[test]
    fn a_drive_is_its_world_wide_name_or_its_model_and_number() {
        let nvme = [("wwid", "eui.0025385b71b00a55\n"), ("device/serial", "S1 \n"), ("device/model", "M \n")];
        assert_eq!(with("a", &nvme, of).as_deref(), Some("eui.0025385b71b00a55"));
        assert_eq!(with("b", &[("device/wwid", "naa.5000\n")], of).as_deref(), Some("naa.5000"));
        let numbered = [("device/serial", "S1   \n"), ("device/model", "Model X  \n")];
        assert_eq!(with("c", &numbered, of).as_deref(), Some("Model X S1"));
        assert_eq!(with("d", &[("device/model", "Model X\n")], of), None, "all of a model would be one");
        let part = [("wwid", "eui.1\n"), ("p2/partition", "2\n")];
        assert_eq!(with("e", &part, |folder| of(&folder.join("p2"))).as_deref(), Some("eui.1 part 2"));
    }

    #[test]
    fn a_label_has_the_model_and_the_serial_number() {
        let both = [("device/serial", "S1   \n"), ("device/model", "Model X  \n"), ("p2/partition", "2\n")];
        assert_eq!(with("h", &both, label).as_deref(), Some("Model X, serial S1"));
        assert_eq!(with("i", &both, |folder| label(&folder.join("p2"))).as_deref(), Some("Model X, serial S1"));
        assert_eq!(with("j", &[("serial", "S1\n")], label).as_deref(), Some("serial S1"));
        assert_eq!(with("k", &[("size", "8\n")], label), None);
    }

    #[test]
    fn a_namespace_and_its_partitions_are_of_a_subsystem() {
        let files = [("device/subsysnqn", "nqn.2026-11.com.example:a\n"), ("p2/partition", "2\n")];
        let seen = with("f", &files, |folder| [subsystem_of(folder), subsystem_of(&folder.join("p2"))]);
        assert_eq!(seen, [Some("nqn.2026-11.com.example:a".into()), Some("nqn.2026-11.com.example:a".into())]);
        assert_eq!(with("g", &[("device/model", "M\n")], subsystem_of), None);
    }

    #[test]
    fn what_is_no_block_device_has_no_identity() {
        assert_eq!(of_path("/dev/null"), None);
        assert_eq!(of_path("/nowhere/at/all"), None);
        assert_eq!(look("no-such-device"), None);
    }
}
