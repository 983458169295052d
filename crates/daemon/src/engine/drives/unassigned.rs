//! Unassigned drives: drives that came while the daemon runs and that no group has. Their content
//! is read without changing or claiming them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use array::GroupStatus;
use format::foreign::{self, Foreign};
use format::{BLOCK, MemberState, Superblock, SuperblockError, newest, superblock_offsets};

use crate::engine::group::Group;

/// A drive that has returned to its group this often within [`RETURNS_WITHIN`] is left alone: a
/// loose cable would keep its group busy for ever.
const RETURNS_MAX: usize = 5;
const RETURNS_WITHIN: Duration = Duration::from_secs(3600);

/// The content of a drive, as far as its two ends show.
#[derive(Debug)]
pub(crate) struct DriveContent {
    pub size_bytes: u64,
    pub superblock: Result<Superblock, SuperblockError>,
    pub foreign: Vec<Foreign>,
    /// Both ends hold only zeroes.
    pub empty: bool,
}

/// Reads both ends of a drive. Does not claim it: another program can mount it meanwhile.
pub(crate) fn read_content(path: &str) -> io::Result<DriveContent> {
    let mut file = File::open(path)?;
    let size_bytes = file.seek(SeekFrom::End(0))?;
    let [_, tail_at] = superblock_offsets(size_bytes)
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, format!("it has {size_bytes} bytes only")))?;
    let span = (foreign::INSPECT_BYTES as u64).min(size_bytes / BLOCK as u64 * BLOCK as u64);
    let mut read = |offset, len: u64| {
        let mut bytes = vec![0; len as usize];
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut bytes).map(|()| bytes)
    };
    let (head, tail) = (read(0, span)?, read(size_bytes - span, span)?);
    let last = read(tail_at, BLOCK as u64)?;
    Ok(DriveContent {
        size_bytes,
        superblock: newest(&head[..BLOCK], &last).map(|copies| copies.superblock),
        foreign: foreign::inspect(&head, &tail, size_bytes),
        empty: head.iter().chain(&tail).all(|&byte| byte == 0),
    })
}

/// The state of a drive that no group has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DriveFinding {
    /// It can be used: both ends are empty.
    Empty,
    /// The reason why it is not used.
    Unused(String),
}

/// An unassigned drive: it came, and no group has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unassigned {
    pub device: (u32, u32),
    pub path: String,
    pub size_bytes: Option<u64>,
    pub sector_bytes: Option<u32>,
    pub found: DriveFinding,
}

impl Unassigned {
    /// The drive's state as text.
    pub fn note(&self) -> String {
        match &self.found {
            DriveFinding::Empty => "new and empty".to_owned(),
            DriveFinding::Unused(why) => why.clone(),
        }
    }
}

/// All unassigned drives, by device.
#[derive(Debug, Default)]
pub(crate) struct UnassignedDrives {
    there: Mutex<BTreeMap<(u32, u32), Unassigned>>,
    /// When each drive returned to its group.
    returned: Mutex<BTreeMap<String, Vec<Instant>>>,
    ended: AtomicBool,
}

impl UnassignedDrives {
    fn there(&self) -> MutexGuard<'_, BTreeMap<(u32, u32), Unassigned>> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a drive. Returns false if the same was known of it.
    pub fn note(&self, unassigned: Unassigned) -> bool {
        self.there().insert(unassigned.device, unassigned.clone()) != Some(unassigned)
    }

    pub fn forget(&self, device: (u32, u32)) {
        self.there().remove(&device);
    }

    /// The drives that still are in no group.
    pub fn list(&self, groups: &[std::sync::Arc<Group>]) -> Vec<Unassigned> {
        let mut there = self.there();
        there.retain(|device, _| !groups.iter().any(|group| group.has_device(*device)));
        there.values().cloned().collect()
    }

    /// Counts a return of a drive. Returns false if it has returned too often.
    pub fn may_return(&self, identity: &str) -> bool {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        let times = returned.entry(identity.to_owned()).or_default();
        times.retain(|time| time.elapsed() < RETURNS_WITHIN);
        let may = times.len() < RETURNS_MAX;
        if may {
            times.push(Instant::now());
        }
        may
    }

    /// The engine stops: nothing is started any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Commands that an operator could run for a group that lacks a member and has no spare.
pub(crate) fn offers(group: &Group, status: &GroupStatus, unassigned_drives: &[Unassigned]) -> Vec<String> {
    let lost = |state| matches!(state, MemberState::Faulty | MemberState::Missing);
    let Some(member) = status.members.iter().find(|member| lost(member.state)) else { return Vec::new() };
    if status.free_spares().next().is_some() || status.superblock.shape.survives() == 0 {
        return Vec::new();
    }
    let fits = |unassigned: &&Unassigned| {
        unassigned.found == DriveFinding::Empty
            && unassigned.size_bytes.is_some_and(|size| size >= status.superblock.layout.member_bytes)
            && unassigned.sector_bytes.is_some_and(|sector| u64::from(sector) <= group.shared.geometry.sector_bytes)
    };
    let offer = |unassigned: &Unassigned| {
        let (slot, path, group) = (member.member.0, &unassigned.path, &group.name);
        format!("{path} is new and empty: purlin drive replace {group} {slot} --with {path}")
    };
    unassigned_drives.iter().filter(fits).map(offer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_that_comes_and_goes_all_the_time_is_left_alone() {
        let unassigned_drives = UnassignedDrives::default();
        let returns: Vec<bool> = (0..7).map(|_| unassigned_drives.may_return("eui.1")).collect();
        assert_eq!(returns, [true, true, true, true, true, false, false]);
        assert!(unassigned_drives.may_return("eui.2"));
    }

    #[test]
    fn the_content_of_a_drive_is_empty_foreign_or_too_small() {
        let path = std::env::temp_dir().join(format!("purlin-content-{}", std::process::id()));
        let name = path.to_str().unwrap();
        let mut bytes = vec![0u8; 3 << 20];
        std::fs::write(&path, &bytes).unwrap();
        let seen = read_content(name).unwrap();
        assert!(seen.empty && seen.foreign.is_empty() && seen.superblock == Err(SuperblockError::NotPurlin));
        *bytes.last_mut().unwrap() = 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(!read_content(name).unwrap().empty, "unknown, so possibly in use");
        bytes[1080] = 0x53;
        bytes[1081] = 0xef;
        std::fs::write(&path, &bytes).unwrap();
        assert!(!read_content(name).unwrap().empty);
        std::fs::write(&path, [0; 8191]).unwrap();
        assert_eq!(read_content(name).unwrap_err().to_string(), "it has 8191 bytes only");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_content(name).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
