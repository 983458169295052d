//! The shared drives of this daemon, and the file in the state directory that lists them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::ErrorCode;
use export::{ExportState, HostSecrets, HostUse, SharedNamespace};
use format::{SecretRecord, TlsKeyRecord, Uuid};
use nvme::target::Reservations;
use runtime::OpenDrive;
use serde::{Deserialize, Serialize};

use crate::engine::errors::new_uuid;
use crate::engine::memory::{DrivePlace, read, replace};
use crate::engine::nvme::keyring::Keys;
use crate::engine::nvme::reservations::{recorded, restored};
use crate::http::{Answer, ControlError};

/// The record of a shared drive.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// The number of the namespace.
    pub nsid: u32,
    pub place: DrivePlace,
    /// The UUID of the namespace.
    pub uuid: String,
    pub address: String,
    /// The hosts that may use it; `None` for any host.
    pub hosts: Option<Vec<String>>,
    pub reservations: Option<Reserved>,
}

/// The file format of reservations, with the fields of a volume's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reserved {
    generation: u32,
    registrants: Vec<(String, u64)>,
    held: Option<(u8, Option<String>)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    /// The UUID of the subsystem.
    pub uuid: String,
    pub shares: Vec<Record>,
    /// Secrets of hosts, in plain text. An older daemon refuses a document with them: it would let
    /// in every host that presents such a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRecord>,
    /// TLS keys of hosts, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls_keys: Vec<TlsKeyRecord>,
}

/// A shared drive, served or not.
pub(super) struct Running {
    pub record: Record,
    pub name: String,
    pub open: Option<OpenDrive>,
    pub state: Arc<ExportState>,
    pub shared: Arc<SharedNamespace>,
    /// The reason why it is not served, if it is not.
    pub failure: Option<String>,
}

/// The shared drives of this daemon, by number.
pub(crate) struct Shares {
    file: PathBuf,
    all: Mutex<State>,
    /// The table that connections look up.
    secrets: HostSecrets,
}

#[derive(Default)]
pub(super) struct State {
    pub uuid: Option<Uuid>,
    pub keys: Keys,
    pub running: BTreeMap<u32, Running>,
}

pub(super) fn id_of(nsid: u32) -> String {
    format!("share-{nsid}")
}

impl Reserved {
    pub fn of(saved: &Reservations) -> Reserved {
        let record = recorded(0, saved);
        Reserved {
            generation: record.generation,
            registrants: record.registrants.into_iter().map(|known| (known.host, known.key)).collect(),
            held: record.held.map(|held| (held.kind, held.holder)),
        }
    }

    pub fn restored(self) -> Option<Reservations> {
        let registrants = self.registrants.into_iter().map(|(host, key)| format::RegistrantRecord { host, key });
        restored(&format::ReservationRecord {
            volume: 0,
            generation: self.generation,
            registrants: registrants.collect(),
            held: self.held.map(|(kind, holder)| format::HeldRecord { kind, holder }),
        })
    }
}

impl Shares {
    pub fn new(state: &Path) -> Shares {
        Shares { file: state.join("shares.json"), all: Mutex::default(), secrets: HostSecrets::default() }
    }

    pub(super) fn all(&self) -> MutexGuard<'_, State> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves the list of shared drives.
    pub(super) fn save(&self) -> Answer<()> {
        let document = {
            let all = self.all();
            let Some(uuid) = all.uuid else { return Ok(()) };
            let shares = all.running.values().map(|running| running.record.clone()).collect();
            let Keys { secrets, tls_keys } = all.keys.clone();
            Document { uuid: uuid.to_string(), shares, secrets, tls_keys }
        };
        let failed = |error: std::io::Error| {
            ControlError::new(ErrorCode::Io, format!("cannot write {}: {error}", self.file.display()))
        };
        let bytes = serde_json::to_vec_pretty(&document).map_err(|error| failed(error.into()))?;
        replace(&self.file, &bytes).map_err(failed)
    }

    pub(super) fn load(&self) -> std::io::Result<Option<Document>> {
        if !self.file.try_exists()? {
            return Ok(None);
        }
        // An empty file is an error here, unlike a missing one.
        let document: Option<Document> = read(&self.file, "the drives that it lists are shared again")?;
        Ok(document)
    }

    /// The drives that were shared when the daemon ended, and their addresses.
    pub fn remembered_places(&self) -> std::io::Result<(Vec<String>, Vec<String>)> {
        let records = self.load()?.map(|document| document.shares).unwrap_or_default();
        Ok(records.into_iter().map(|record| (record.place.drive, record.address)).unzip())
    }

    /// The secrets and keys of hosts.
    pub fn keys(&self) -> Keys {
        self.all().keys.clone()
    }

    /// All shared drives, and the hosts that have used them.
    pub fn used(&self) -> Vec<UsedShare> {
        let used = |running: &Running| UsedShare {
            id: id_of(running.record.nsid),
            drive: running.name.clone(),
            hosts: running.record.hosts.clone(),
            used: running.state.hosts(),
        };
        self.all().running.values().map(used).collect()
    }

    /// The table that connections look up.
    pub fn secrets(&self) -> &HostSecrets {
        &self.secrets
    }

    /// Changes secrets and keys, also in the file.
    pub fn change_keys(&self, change: impl FnOnce(&mut Keys)) -> Answer<()> {
        self.uuid()?;
        let before = self.keys();
        change(&mut self.all().keys);
        self.save().inspect_err(|_| self.all().keys = before)
    }

    /// The number of a drive, the hosts that may use it, and its address.
    pub(super) fn hosts(&self, id: &str) -> Answer<(u32, Option<Vec<String>>, String)> {
        let all = self.all();
        let found = all.running.values().map(|running| &running.record).find(|record| id_of(record.nsid) == id);
        let found = found.ok_or_else(|| not_shared(id))?;
        Ok((found.nsid, found.hosts.clone(), found.address.clone()))
    }

    /// Sets the hosts that may use a drive, also in the file.
    pub(super) fn set_hosts(&self, nsid: u32, hosts: Option<Vec<String>>) -> Answer<()> {
        let swap =
            |hosts| self.all().running.get_mut(&nsid).map(|share| std::mem::replace(&mut share.record.hosts, hosts));
        let Some(before) = swap(hosts) else { return Ok(()) };
        self.save().inspect_err(|_| drop(swap(before)))
    }

    /// The subsystem's UUID, if it has one.
    pub fn known_uuid(&self) -> Option<Uuid> {
        self.all().uuid
    }

    /// The subsystem's UUID. It is made with the first drive or key.
    pub(super) fn uuid(&self) -> Answer<Uuid> {
        let mut all = self.all();
        let uuid = all.uuid.map_or_else(new_uuid, Ok)?;
        all.uuid = Some(uuid);
        Ok(uuid)
    }
}

/// A shared drive, and the activity of its hosts.
pub(crate) struct UsedShare {
    pub id: String,
    pub drive: String,
    /// The hosts that may use it; `None` for any host.
    pub hosts: Option<Vec<String>>,
    pub used: BTreeMap<String, HostUse>,
}

pub(super) fn not_shared(id: &str) -> ControlError {
    ControlError::new(ErrorCode::DriveNotFound, format!("no drive is shared as {id:?}"))
}
