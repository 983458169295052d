//! Lists the groups that are on drives, running or not. Drives are read, but neither claimed nor
//! written.

use std::collections::BTreeMap;

use ::drive::join_all;
use api::{ScannedDrive, ScannedGroup, ScannedState};
use array::{Assembly, judge};
use format::{Superblock, SuperblockError, Uuid};

use crate::engine::drives::unassigned::{DriveContent, read_content};
use crate::engine::drives::{Consent, READ_WITHIN, find, identity, silent};
use crate::engine::{Engine, drives, view};

/// The contents of a drive.
pub(crate) enum ProbeResult {
    /// A superblock of a group.
    Member { superblock: Box<Superblock>, size_bytes: u64 },
    /// Other content, or the drive could not be read.
    Other(String),
}

/// A drive with a superblock.
struct Candidate {
    drive: String,
    superblock: Superblock,
    size_bytes: u64,
}

impl Engine {
    /// Looks at all block devices of this machine, and at the known places of drives of groups.
    pub(crate) async fn scan_all(&self) -> api::Scanned {
        // The daemon never reads its own volumes: it would wait for its own answer.
        let others = identity::present().into_iter().filter(|present| !self.serves_itself(present.device));
        let mut texts: Vec<String> = others.map(|present| present.path).collect();
        let mut add = |text: String| {
            let real = std::fs::canonicalize(&text);
            let is_known = |other: &String| {
                *other == text || (real.is_ok() && std::fs::canonicalize(other).ok() == real.as_ref().ok().cloned())
            };
            if !texts.iter().any(is_known) {
                texts.push(text);
            }
        };
        let not_started = self.not_started.list().into_iter().map(|group| group.remembered);
        for remembered in not_started.chain(self.stopped.list()) {
            find::locate(&remembered).into_iter().for_each(&mut add);
        }
        for group in self.all() {
            group.drives().iter().flatten().for_each(|drive| add(drive.name.clone()));
        }
        self.scan(texts).await
    }

    pub(super) async fn scan(&self, texts: Vec<String>) -> api::Scanned {
        // In sequence, the timeouts of drives that do not answer would add up.
        let seen = join_all(texts.iter().map(|text| self.probe(text))).await;
        let mut found: BTreeMap<Uuid, Vec<Candidate>> = BTreeMap::new();
        let mut others = Vec::new();
        for (drive, seen) in texts.into_iter().zip(seen) {
            match seen {
                ProbeResult::Member { superblock, size_bytes } => {
                    let candidate = Candidate { drive, superblock: *superblock, size_bytes };
                    found.entry(candidate.superblock.array).or_default().push(candidate);
                }
                ProbeResult::Other(reason) => others.push(ScannedDrive { drive, reason }),
            }
        }
        let mut groups: Vec<ScannedGroup> = found.into_iter().map(|(uuid, found)| self.scanned(uuid, found)).collect();
        groups.sort_by(|one, other| (&one.name, &one.uuid).cmp(&(&other.name, &other.uuid)));
        api::Scanned { groups, others }
    }

    /// Reads a drive without claiming it.
    pub(crate) async fn probe(&self, text: &str) -> ProbeResult {
        let name = match drives::name_of(text) {
            Ok(name) => name,
            Err(error) => return ProbeResult::Other(error.message),
        };
        // A drive that a group has open is read through the group, because memory and remote drives
        // have no path.
        let open = self.all().iter().find_map(|group| {
            let drive = group.drive_id(&name).and_then(|id| group.drive(id))?;
            Some(drive.open)
        });
        if let Some(open) = open {
            let size_bytes = open.info().size_bytes;
            let read = self.shards[0].call(move || drives::probe_open(open));
            return match tokio::time::timeout(READ_WITHIN, read).await {
                Ok(Ok(Ok(probe))) => seen(probe.superblock, size_bytes, &probe.foreign, false),
                Ok(Ok(Err(error))) => ProbeResult::Other(format!("cannot be read: {error}")),
                Ok(Err(_)) => ProbeResult::Other("the daemon is stopping".to_owned()),
                Err(_) => ProbeResult::Other(silent().message),
            };
        }
        if let Err(error) = self.refuse_own_device(text) {
            return ProbeResult::Other(error.message);
        }
        if text.starts_with(api::NVME_TCP) {
            return self.probe_remote(text).await;
        }
        if text.starts_with("mem:") {
            return ProbeResult::Other("memory of the daemon that no group has".to_owned());
        }
        let look = tokio::task::spawn_blocking(move || read_content(&name));
        match tokio::time::timeout(READ_WITHIN, look).await {
            Ok(Ok(Ok(DriveContent { superblock, size_bytes, foreign, empty }))) => {
                seen(superblock, size_bytes, &foreign, empty)
            }
            Ok(Ok(Err(error))) => ProbeResult::Other(format!("cannot be read: {error}")),
            Ok(Err(_)) => ProbeResult::Other("the daemon is stopping".to_owned()),
            Err(_) => ProbeResult::Other(silent().message),
        }
    }

    /// Reads a drive of another machine over a separate connection.
    async fn probe_remote(&self, text: &str) -> ProbeResult {
        let opened = async {
            self.names.look_up_drives(&[text.to_owned()]).await?;
            drives::open(&self.opener, text, Consent::none(true)).await
        };
        let requested = match opened.await {
            Ok(requested) => requested,
            Err(error) => return ProbeResult::Other(error.message),
        };
        let size_bytes = requested.open.info().size_bytes;
        match drives::superblock_of(&self.shards[0], &requested).await {
            Ok(Some(superblock)) => ProbeResult::Member { superblock: Box::new(superblock), size_bytes },
            Ok(None) => ProbeResult::Other("holds no group".to_owned()),
            Err(error) => ProbeResult::Other(error.message),
        }
    }

    /// A group that was found on drives.
    fn scanned(&self, uuid: Uuid, found: Vec<Candidate>) -> ScannedGroup {
        let newest = found.iter().map(|candidate| &candidate.superblock).max_by_key(|superblock| superblock.epoch);
        let newest = newest.expect("a group is found by a superblock").clone();
        let (name, size) = (|index: usize| found[index].drive.clone(), |index: usize| found[index].size_bytes);
        let superblocks = found.iter().map(|candidate| candidate.superblock.clone()).enumerate().collect();
        let judged = judge(superblocks, Vec::new(), &name, &size);
        let is_member = |candidate: &&Candidate| {
            let of_it = |entry: &&format::MemberEntry| entry.uuid == candidate.superblock.drive;
            let entry = newest.members.iter().find(of_it);
            entry.is_some_and(|entry| entry.state.takes_writes())
        };
        let running = self.all().into_iter().find(|group| group.uuid == uuid);
        let (state, reasons) = match &judged {
            _ if running.is_some() => (ScannedState::Running, Vec::new()),
            Ok(assembly) => state_of(assembly, &name),
            Err(error) => (ScannedState::CannotStart, vec![error.to_string()]),
        };
        let can_start = matches!(state, ScannedState::Optimal | ScannedState::Degraded);
        let command = can_start.then(|| self.command(&newest, &found));
        ScannedGroup {
            name: running.map_or(newest.name, |group| group.name.clone()),
            uuid: uuid.to_string(),
            level: view::level(newest.shape.level),
            member_count: u32::from(newest.shape.members),
            found_count: found.iter().filter(is_member).count() as u32,
            drives: found.iter().map(|candidate| candidate.drive.clone()).collect(),
            state,
            reasons,
            command,
        }
    }

    /// The command that starts a group that was found.
    fn command(&self, superblock: &Superblock, found: &[Candidate]) -> String {
        let (name, uuid) = (&superblock.name, superblock.array.to_string());
        let known = self.not_started.named(name).map(|group| group.remembered.uuid);
        let known = known.or_else(|| self.stopped.named(name).map(|remembered| remembered.uuid));
        if known.as_ref() == Some(&uuid) {
            return format!("purlin group start {name}");
        }
        let drives: Vec<&str> = found.iter().map(|candidate| candidate.drive.as_str()).collect();
        let other = if self.check_free(name).is_err() { "--name NEW " } else { "" };
        format!("purlin group assemble {other}{}", drives.join(" "))
    }
}

/// Whether all members of an assembly are present.
fn state_of(assembly: &Assembly, name: &impl Fn(usize) -> String) -> (ScannedState, Vec<String>) {
    let mut reasons: Vec<String> = assembly.missing().map(|place| format!("member {place} is missing")).collect();
    let state = if reasons.is_empty() { ScannedState::Optimal } else { ScannedState::Degraded };
    reasons.extend(assembly.refused.iter().map(|(index, refusal)| format!("{}: {refusal}", name(*index))));
    (state, reasons)
}

fn seen(
    superblock: Result<Superblock, SuperblockError>,
    size_bytes: u64,
    foreign: &[format::foreign::Foreign],
    is_empty: bool,
) -> ProbeResult {
    match superblock {
        Ok(superblock) => ProbeResult::Member { superblock: Box::new(superblock), size_bytes },
        Err(_) if is_empty => ProbeResult::Other("empty".to_owned()),
        Err(SuperblockError::NotPurlin) if foreign.is_empty() => ProbeResult::Other("holds no group".to_owned()),
        Err(SuperblockError::NotPurlin) => {
            let holds: Vec<String> = foreign.iter().map(ToString::to_string).collect();
            ProbeResult::Other(format!("holds {}", holds.join(", ")))
        }
        Err(error) => ProbeResult::Other(error.to_string()),
    }
}
