//! Finds the drives of a remembered group: by identity first, then by their previous path.

use ::drive::join_all;
use format::Superblock;
use runtime::ShardHandle;

use crate::engine::drives;
use crate::engine::drives::{Consent, Opener, READ_WITHIN, RequestedDrive, identity, silent, unassigned};
use crate::engine::memory::{DrivePlace, Remembered};
use crate::http::{Answer, ControlError};

/// The current paths of a remembered drive. Several paths only if several drives report the same
/// identity.
fn paths_of(place: &DrivePlace, present: &[(identity::Present, Option<String>)]) -> Vec<String> {
    let Some(wanted) = place.identity.as_ref().filter(|_| !place.is_remote()) else { return vec![place.drive.clone()] };
    if identity::of_path(&place.drive).as_ref() == Some(wanted) {
        return vec![place.drive.clone()];
    }
    let same = present.iter().filter(|(_, identity)| identity.as_ref() == Some(wanted));
    let found: Vec<String> = same.map(|(present, _)| present.path.clone()).collect();
    // The drive is absent, or no longer reports its identity: the superblock at the old path
    // decides.
    if found.is_empty() { vec![place.drive.clone()] } else { found }
}

/// The paths where the drives of a group may be now.
pub(crate) fn locate(remembered: &Remembered) -> Vec<String> {
    let present = identity::present().into_iter().map(|present| {
        let identity = identity::of_path(&present.path);
        (present, identity)
    });
    let present: Vec<_> = present.collect();
    let mut paths: Vec<String> = Vec::new();
    for place in remembered.drives.iter().filter(|place| !place.is_memory()) {
        for path in paths_of(place, &present) {
            // Two remembered places may lead to one drive: one by identity, the other by its
            // previous path.
            let real = std::fs::canonicalize(&path);
            let known = paths.iter().any(|other| {
                *other == path || (real.is_ok() && std::fs::canonicalize(other).ok() == real.as_ref().ok().cloned())
            });
            if !known {
                paths.push(path);
            }
        }
    }
    paths
}

/// Whether a device or file exists for each drive of this machine.
pub(crate) fn are_there(remembered: &Remembered) -> bool {
    let wanted = remembered.drives.iter().filter(|place| !place.is_memory() && !place.is_remote()).count();
    let exists = |path: &&String| !path.starts_with(api::NVME_TCP) && std::path::Path::new(path).exists();
    locate(remembered).iter().filter(exists).count() >= wanted
}

/// The drives of a remembered group.
pub(crate) struct Opened {
    /// The drives that were opened.
    pub requested: Vec<RequestedDrive>,
    /// Drives of other machines that could not be opened.
    pub disconnected: Vec<DrivePlace>,
}

impl Opened {
    /// The drives that could not be opened, by their remembered text.
    pub fn missing(&self, remembered: &Remembered) -> Vec<String> {
        let is_there = |place: &&DrivePlace| {
            let is_it = |requested: &RequestedDrive| {
                requested.text == place.drive || (place.identity.is_some() && requested.identity == place.identity)
            };
            self.requested.iter().any(is_it)
        };
        let drives = remembered.drives.iter().filter(|place| !place.is_memory());
        drives.filter(|place| !is_there(place)).map(|place| place.drive.clone()).collect()
    }
}

/// Opens the drives of a remembered group, as far as they are present. Drives of another group are
/// left out.
pub(crate) async fn open_all(
    shard: &ShardHandle,
    opener: &Opener,
    remembered: &Remembered,
    consent: Consent,
) -> Opened {
    let mut opened = Opened { requested: Vec::new(), disconnected: Vec::new() };
    let (far, near): (Vec<String>, Vec<String>) =
        locate(remembered).into_iter().partition(|path| path.starts_with(api::NVME_TCP));
    // In sequence, the timeouts of drives that do not answer would add up.
    let superblocks = join_all(near.iter().map(|path| superblock_at(path.clone()))).await;
    for (path, superblock) in near.into_iter().zip(superblocks) {
        match superblock {
            Ok(Some(superblock)) if superblock.array.to_string() != remembered.uuid => {
                log_other_group(remembered, &path, &superblock.name);
                continue;
            }
            // Opening it would wait for it as well.
            Err(silent) => {
                log_missing(remembered, &path, &silent);
                continue;
            }
            Ok(_) => {}
        }
        match drives::open_when_released(opener, &path, consent).await {
            Ok(drive) => opened.requested.push(drive),
            Err(error) => log_missing(remembered, &path, &error),
        }
    }
    // In sequence, the timeouts of drives that do not answer would add up.
    let far: Vec<_> = far.into_iter().map(|text| open_far(shard, opener, text)).collect();
    let places: Vec<DrivePlace> = remembered.drives.iter().filter(|place| place.is_remote()).cloned().collect();
    for (place, found) in places.into_iter().zip(join_all(far).await) {
        match found {
            Ok((drive, Some(superblock))) if superblock.array.to_string() != remembered.uuid => {
                log_other_group(remembered, &drive.name, &superblock.name);
            }
            Ok((drive, _)) => opened.requested.push(drive),
            Err(error) => {
                log_missing(remembered, &place.drive, &error);
                opened.disconnected.push(place);
            }
        }
    }
    opened
}

/// The superblock of a drive of this machine, if it can be read.
async fn superblock_at(path: String) -> Answer<Option<Superblock>> {
    let reading = tokio::task::spawn_blocking(move || unassigned::read_content(&path).map(|seen| seen.superblock));
    match tokio::time::timeout(READ_WITHIN, reading).await {
        // Opening the drive reports why it cannot be read.
        Ok(read) => Ok(read.ok().and_then(Result::ok).and_then(Result::ok)),
        Err(_) => Err(silent()),
    }
}

async fn open_far(shard: &ShardHandle, opener: &Opener, text: String) -> Answer<(RequestedDrive, Option<Superblock>)> {
    let drive = drives::open_when_released(opener, &text, Consent::default()).await?;
    let superblock = drives::superblock_of(shard, &drive).await?;
    Ok((drive, superblock))
}

fn log_other_group(remembered: &Remembered, drive: &str, other: &str) {
    let group = &remembered.name;
    tracing::warn!(group, drive, other, "another group's drive is where one of this group was");
}

fn log_missing(remembered: &Remembered, drive: &str, error: &ControlError) {
    tracing::warn!(group = remembered.name, drive, %error, "drive not opened");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(path: &str, identity: &str) -> (identity::Present, Option<String>) {
        let present = identity::Present { path: path.into(), device: (259, 0), sequence: String::new() };
        (present, Some(identity.into()))
    }

    #[test]
    fn a_drive_is_looked_for_by_what_it_is_then_where_it_was() {
        let there = [present("/dev/b", "eui.1"), present("/dev/c", "eui.2"), present("/dev/d", "eui.2")];
        let place = |identity: Option<&str>| DrivePlace { drive: "/dev/a".into(), identity: identity.map(Into::into) };
        assert_eq!(paths_of(&place(Some("eui.1")), &there), ["/dev/b"]);
        assert_eq!(paths_of(&place(Some("eui.2")), &there), ["/dev/c", "/dev/d"], "what is on them tells");
        assert_eq!(paths_of(&place(Some("eui.3")), &there), ["/dev/a"]);
        assert_eq!(paths_of(&place(None), &there), ["/dev/a"]);
    }
}
