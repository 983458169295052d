//! Histories of NVM subsystems, for the Persistent Event Log of their hosts.
//!
//! Invariants:
//! 1. A change by an operator is in the state directory before its request is answered. Events of
//!    hosts are written about a second later.
//! 2. A history that cannot be read or written stops nothing. The daemon logs the error, and the
//!    history starts empty or continues in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use export::{SavedHistory, SubsystemHistory};
use format::{ExportKind, ExportRecord, Uuid, VolumeRecord};
use nvme::target::{Happened, Happening, History};
use serde::{Deserialize, Serialize};

use crate::engine::memory::replace;
use crate::engine::{Engine, Group};

/// The power-on time is saved at least this often. A killed daemon loses up to this much of it.
const SAVE_EVERY: Duration = Duration::from_secs(3600);

/// The file format of a history.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    power_cycles: u64,
    power_on_s: u64,
    /// See [`History::noted`].
    noted: u64,
    /// The newest first.
    events: Vec<Record>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    unix_ms: u64,
    firmware: String,
    what: What,
}

/// See [`Happening`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum What {
    PowerOn,
    ControllerReset { cntlid: u16, port: u16, power_cycles: u32, power_on_ms: u64 },
    NamespaceChange { created: bool, nsid: u32, blocks: u64, block_bytes: u32, hosts: Option<BTreeSet<String>> },
}

impl From<Happening> for What {
    fn from(what: Happening) -> What {
        match what {
            Happening::PowerOn => What::PowerOn,
            Happening::ControllerReset { cntlid, port, power_cycles, power_on_ms } => {
                What::ControllerReset { cntlid, port, power_cycles, power_on_ms }
            }
            Happening::NamespaceChange { created, nsid, blocks, block_bytes, hosts } => {
                What::NamespaceChange { created, nsid, blocks, block_bytes, hosts }
            }
        }
    }
}

impl From<What> for Happening {
    fn from(what: What) -> Happening {
        match what {
            What::PowerOn => Happening::PowerOn,
            What::ControllerReset { cntlid, port, power_cycles, power_on_ms } => {
                Happening::ControllerReset { cntlid, port, power_cycles, power_on_ms }
            }
            What::NamespaceChange { created, nsid, blocks, block_bytes, hosts } => {
                Happening::NamespaceChange { created, nsid, blocks, block_bytes, hosts }
            }
        }
    }
}

impl From<SavedHistory> for Document {
    fn from(saved: SavedHistory) -> Document {
        let record = |happened: &Happened| {
            let Happened { unix_ms, firmware, what } = happened.clone();
            Record { unix_ms, firmware, what: what.into() }
        };
        Document {
            power_cycles: saved.power_cycles,
            power_on_s: saved.power_on_s,
            noted: saved.history.noted(),
            events: saved.history.happened().map(record).collect(),
        }
    }
}

impl From<Document> for SavedHistory {
    fn from(document: Document) -> SavedHistory {
        let Document { power_cycles, power_on_s, noted, events } = document;
        let happened = |Record { unix_ms, firmware, what }| Happened { unix_ms, firmware, what: what.into() };
        SavedHistory { history: History::restore(events.into_iter().map(happened), noted), power_cycles, power_on_s }
    }
}

/// The histories of all served subsystems, and the folder where they are stored.
pub(crate) struct Histories {
    folder: PathBuf,
    all: Mutex<BTreeMap<String, Kept>>,
}

struct Kept {
    history: SubsystemHistory,
    saved: Instant,
}

impl Histories {
    pub fn new(state: &Path) -> Histories {
        Histories { folder: state.to_owned(), all: Mutex::default() }
    }

    /// The lock is also held while a file is written, so that no older version replaces it.
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, subsystem: &str) -> PathBuf {
        self.folder.join(format!("history-{subsystem}.json"))
    }

    fn load(&self, subsystem: &str) -> SavedHistory {
        let document = match std::fs::read(self.file(subsystem)) {
            Ok(bytes) => serde_json::from_slice::<Document>(&bytes).map_err(std::io::Error::from),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Document::default()),
            Err(error) => Err(error),
        };
        let begun_anew = |error| {
            tracing::error!(subsystem, %error, "the history of the NVM subsystem cannot be read, and begins anew");
            Document::default()
        };
        document.unwrap_or_else(begun_anew).into()
    }

    fn save(&self, subsystem: &str, kept: &mut Kept) {
        kept.saved = Instant::now();
        kept.history.take_unsaved();
        let document = Document::from(kept.history.saved());
        let written = serde_json::to_vec_pretty(&document).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|bytes| replace(&self.file(subsystem), &bytes)) {
            tracing::warn!(subsystem, %error, "the history of the NVM subsystem cannot be saved");
        }
    }

    /// The history of a group's subsystem, or of the shared drives' subsystem. Powers the subsystem
    /// on if it is off.
    pub fn of(&self, subsystem: &Uuid) -> SubsystemHistory {
        let subsystem = subsystem.to_string();
        let mut all = self.all();
        if let Some(known) = all.get(&subsystem) {
            return known.history.clone();
        }
        let history = SubsystemHistory::power_on(self.load(&subsystem), env!("CARGO_PKG_VERSION"));
        let mut kept = Kept { history: history.clone(), saved: Instant::now() };
        self.save(&subsystem, &mut kept);
        all.insert(subsystem, kept);
        history
    }

    /// Records what an operator did to a subsystem.
    pub fn note(&self, subsystem: &Uuid, what: Happening) {
        self.of(subsystem).note(what);
        let subsystem = subsystem.to_string();
        if let Some(kept) = self.all().get_mut(&subsystem) {
            self.save(&subsystem, kept);
        }
    }

    /// Saves histories that have unsaved events, or were saved more than [`SAVE_EVERY`] ago.
    pub fn keep(&self) {
        for (subsystem, kept) in self.all().iter_mut() {
            if kept.history.take_unsaved() || kept.saved.elapsed() >= SAVE_EVERY {
                self.save(subsystem, kept);
            }
        }
    }

    /// Records that a subsystem is no longer served, as a power-off.
    pub fn power_off(&self, subsystem: &Uuid) {
        let subsystem = subsystem.to_string();
        let mut all = self.all();
        if let Some(mut kept) = all.remove(&subsystem) {
            self.save(&subsystem, &mut kept);
        }
    }

    /// Deletes the history of a subsystem that no longer exists.
    pub fn forget(&self, subsystem: &str) {
        let _all = self.all();
        // The file may never have existed.
        let _ = std::fs::remove_file(self.file(subsystem));
    }
}

impl Engine {
    /// Records that a volume became a namespace with its first NVMe/TCP export, or ceased to be one
    /// with its last.
    pub(crate) fn note_namespace(&self, group: &Group, export: &ExportRecord, volume: &VolumeRecord, created: bool) {
        let ExportKind::NvmeTcp { nsid, block_bytes, hosts, .. } = &export.kind else { return };
        let is_another = |other: &ExportRecord| {
            let is_namespace = matches!(other.kind, ExportKind::NvmeTcp { .. });
            is_namespace && other.id != export.id && other.volume == export.volume
        };
        if group.exports().values().any(|running| is_another(&running.record)) {
            return;
        }
        let what = Happening::NamespaceChange {
            created,
            nsid: *nsid,
            blocks: volume.size_bytes / u64::from(*block_bytes),
            block_bytes: *block_bytes,
            hosts: hosts.as_ref().map(|names| names.iter().cloned().collect()),
        };
        self.histories.note(&group.uuid, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_is_read_and_a_broken_file_begins_anew() {
        let folder = std::env::temp_dir().join(format!("purlin-history-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let subsystem = Uuid::from_bytes([7; 16]);
        let histories = Histories::new(&folder);
        let hosts = Some(BTreeSet::from(["nqn.2026-11.com.example:one".to_owned()]));
        let change = Happening::NamespaceChange { created: true, nsid: 3, blocks: 9, block_bytes: 512, hosts };
        histories.note(&subsystem, change);
        let reset = Happening::ControllerReset { cntlid: 1, port: 2, power_cycles: 3, power_on_ms: 4 };
        histories.of(&subsystem).note(reset);
        // The state that a killed daemon would leave.
        assert_eq!(histories.load(&subsystem.to_string()).history.noted(), 2);
        histories.keep();
        let saved = histories.of(&subsystem).saved();
        assert_eq!((saved.history.noted(), saved.power_cycles), (3, 1));
        assert_eq!(histories.load(&subsystem.to_string()), saved);
        histories.power_off(&subsystem);
        let again = histories.of(&subsystem).saved();
        assert_eq!((again.history.noted(), again.power_cycles), (4, 2));

        histories.power_off(&subsystem);
        std::fs::write(histories.file(&subsystem.to_string()), "{").unwrap();
        assert_eq!(histories.of(&subsystem).saved().power_cycles, 1);
        histories.power_off(&subsystem);
        histories.forget(&subsystem.to_string());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
