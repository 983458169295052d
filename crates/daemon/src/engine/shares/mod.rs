//! Shared drives: drives of this machine that other machines use. Each is a namespace without a
//! group.
//!
//! Invariants:
//! 1. A shared drive is claimed, like a group's drive: no other program on this machine uses it.
//! 2. All shared drives of this daemon are namespaces of one subsystem. A drive keeps its number
//!    and UUID for as long as it is shared, wherever it is plugged in.
//! 3. A share is in the state directory before a host may use it. So are persistent reservations,
//!    and the secrets and keys of hosts, which apply to all shared drives.

pub(crate) mod raw;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::drive::Order;
use api::{Changed, ErrorCode, NvmeTcpCreate, Share, ShareCreate, ShareList};
use export::{ExportState, HostSecrets, HostUse, Keep, NamespaceOffer, SharedNamespace};
use format::{SecretRecord, TlsKeyRecord, Uuid};
use nvme::target::{Happening, NAMESPACES_MAX, Reservations, Subsystem};
use runtime::{OpenDrive, ShardEnv};
use serde::{Deserialize, Serialize};

use crate::engine::drives;
use crate::engine::drives::find;
use crate::engine::drives::identity::Present;
use crate::engine::drives::{Consent, Taken};
use crate::engine::errors::{new_uuid, stopping};
use crate::engine::exports::namespaces::nqn_of;
use crate::engine::group::shard;
use crate::engine::memory::{Place, Remembered, read, replace};
use crate::engine::names::LOOK_UP_WITHIN;
use crate::engine::nvme::hosts::{Offered, hosts_after, hosts_of};
use crate::engine::nvme::keyring::Keys;
use crate::engine::nvme::reservations::{recorded, restored};
use crate::engine::nvme::{host_keys, host_tls_keys};
use crate::engine::{Engine, exports, view};
use crate::http::{Answer, ControlError};

/// The record of a shared drive.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// The number of the namespace.
    nsid: u32,
    place: Place,
    /// The UUID of the namespace.
    uuid: String,
    address: String,
    /// The hosts that may use it; `None` for any host.
    hosts: Option<Vec<String>>,
    reservations: Option<Reserved>,
}

/// The file format of reservations, with the fields of a volume's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reserved {
    generation: u32,
    registrants: Vec<(String, u64)>,
    held: Option<(u8, Option<String>)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// The UUID of the subsystem.
    uuid: String,
    shares: Vec<Record>,
    /// Secrets of hosts, in plain text. An older daemon refuses a document with them: it would let
    /// in every host that presents such a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    secrets: Vec<SecretRecord>,
    /// TLS keys of hosts, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tls_keys: Vec<TlsKeyRecord>,
}

/// A shared drive, served or not.
struct Running {
    record: Record,
    name: String,
    open: Option<OpenDrive>,
    state: Arc<ExportState>,
    shared: Arc<SharedNamespace>,
    /// The reason why it is not served, if it is not.
    failure: Option<String>,
}

/// The shared drives of this daemon, by number.
pub(crate) struct Shares {
    file: PathBuf,
    all: Mutex<State>,
    /// The table that connections look up.
    secrets: HostSecrets,
}

#[derive(Default)]
struct State {
    uuid: Option<Uuid>,
    keys: Keys,
    running: BTreeMap<u32, Running>,
}

fn id_of(nsid: u32) -> String {
    format!("share-{nsid}")
}

impl Reserved {
    fn of(saved: &Reservations) -> Reserved {
        let record = recorded(0, saved);
        Reserved {
            generation: record.generation,
            registrants: record.registrants.into_iter().map(|known| (known.host, known.key)).collect(),
            held: record.held.map(|held| (held.kind, held.holder)),
        }
    }

    fn restored(self) -> Option<Reservations> {
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

    fn all(&self) -> MutexGuard<'_, State> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves the list of shared drives.
    fn save(&self) -> Answer<()> {
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

    fn load(&self) -> std::io::Result<Option<Document>> {
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
    pub fn used(&self) -> Vec<Used> {
        let used = |running: &Running| Used {
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
    fn hosts(&self, id: &str) -> Answer<(u32, Option<Vec<String>>, String)> {
        let all = self.all();
        let found = all.running.values().map(|running| &running.record).find(|record| id_of(record.nsid) == id);
        let found = found.ok_or_else(|| not_shared(id))?;
        Ok((found.nsid, found.hosts.clone(), found.address.clone()))
    }

    /// Sets the hosts that may use a drive, also in the file.
    fn set_hosts(&self, nsid: u32, hosts: Option<Vec<String>>) -> Answer<()> {
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
    fn uuid(&self) -> Answer<Uuid> {
        let mut all = self.all();
        let uuid = all.uuid.map_or_else(new_uuid, Ok)?;
        all.uuid = Some(uuid);
        Ok(uuid)
    }
}

fn not_shared(id: &str) -> ControlError {
    ControlError::new(ErrorCode::DriveNotFound, format!("no drive is shared as {id:?}"))
}

fn subsystem(uuid: &Uuid) -> Subsystem {
    let serial = uuid.to_string().chars().filter(|char| *char != '-').take(20).collect();
    Subsystem { nqn: nqn_of(uuid), serial, firmware: env!("CARGO_PKG_VERSION").to_owned() }
}

fn shown(uuid: &Uuid, running: &Running, keys: &Keys) -> Share {
    let Running { record, name, open, state, failure, .. } = running;
    let nqn = nqn_of(uuid).to_string();
    let info = open.as_ref().map(OpenDrive::info);
    let may_use = |host: &&String| record.hosts.as_ref().is_none_or(|hosts| hosts.contains(host));
    Share {
        id: id_of(record.nsid),
        drive: name.clone(),
        url: format!("{}{}/{nqn}?nsid={}", api::NVME_TCP, reachable(&record.address), record.nsid),
        address: record.address.clone(),
        nqn,
        nsid: record.nsid,
        size_bytes: info.map(|info| info.size_bytes),
        sector_bytes: info.map(|info| info.sector_bytes),
        hosts: record.hosts.clone(),
        tls_hosts: keys.tls_keys.iter().map(|key| &key.host).filter(may_use).cloned().collect(),
        queue_count: state.hosts().values().map(|used| used.queues).sum(),
        io: view::io(&state.counters()),
        failure: failure.clone(),
    }
}

/// A shared drive, and the activity of its hosts.
pub(crate) struct Used {
    pub id: String,
    pub drive: String,
    /// The hosts that may use it; `None` for any host.
    pub hosts: Option<Vec<String>>,
    pub used: BTreeMap<String, HostUse>,
}

/// An address for other machines: a wildcard address is replaced by the machine's name.
fn reachable(address: &str) -> String {
    let Some((host, port)) = address.rsplit_once(':') else { return address.to_owned() };
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match (host, name.trim()) {
        (_, "") | (_, "(none)") => address.to_owned(),
        ("0.0.0.0" | "[::]", name) => format!("{name}:{port}"),
        _ => address.to_owned(),
    }
}

impl Engine {
    pub(crate) fn look_at_shares(&self) -> Vec<Share> {
        let all = self.shares.all();
        all.uuid.iter().flat_map(|uuid| all.running.values().map(|running| shown(uuid, running, &all.keys))).collect()
    }

    pub(crate) async fn share_drives(&self, request: ShareCreate) -> Answer<Changed<ShareList>> {
        let address = request.address.clone().unwrap_or_else(|| NvmeTcpCreate::ADDRESS_DEFAULT.to_owned());
        self.names.look_up_export(&address, LOOK_UP_WITHIN).await?;
        self.opener.remotes.try_all(&request.drives).await?;
        let _one = self.changes.lock().await;
        let any = Consent { wipe_foreign: true, ..Consent::none(request.dry_run) };
        let (mut taken, mut steps, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        for text in &request.drives {
            let drive = drives::open(&self.opener, text, any).await?;
            let holds = drives::inspect(&self.shards[0], &drive, any).await?;
            warnings.extend(holds.into_iter().map(|holds| format!("{holds}: hosts can overwrite it")));
            steps.push(format!("offer the drive {} over NVMe/TCP at {address}", drive.name));
            taken.push(drive);
        }
        if request.dry_run {
            return Ok(Changed::planned(steps).with_warnings(warnings));
        }
        let uuid = self.shares.uuid()?;
        let mut new = Vec::new();
        for drive in taken {
            if let Some(device) = drive.open.device_number() {
                self.unassigned_drives.forget(device);
            }
            let nsid = {
                let all = self.shares.all();
                (1..=NAMESPACES_MAX).find(|nsid| !all.running.contains_key(nsid))
            };
            let nsid = nsid
                .ok_or_else(|| ControlError::new(ErrorCode::TooLarge, "as many drives are shared as there can be"))?;
            let record = Record {
                nsid,
                place: Place { drive: drive.text.clone(), identity: drive.identity.clone() },
                uuid: new_uuid()?.to_string(),
                address: address.clone(),
                hosts: (!request.allow_any_host).then(|| request.hosts.clone()),
                reservations: None,
            };
            new.push(nsid);
            self.add_share(record, Ok(drive));
        }
        let mut done = self.shares.save();
        for nsid in &new {
            if done.is_ok() {
                done = self.offer_share(&uuid, *nsid).await;
            }
        }
        if let Err(error) = done {
            // All drives are shared, or none.
            for nsid in &new {
                self.withdraw_share(&uuid, *nsid).await;
                self.shares.all().running.remove(nsid);
            }
            self.shares.save()?;
            return Err(error);
        }
        let shares: Vec<Share> = self.look_at_shares().into_iter().filter(|share| new.contains(&share.nsid)).collect();
        shares.iter().for_each(|share| self.note_share(&uuid, share, true));
        tracing::info!(drives = request.drives.join(","), address, "shared");
        Ok(Changed::done(steps, ShareList { shares }).with_warnings(warnings))
    }

    pub(crate) async fn unshare_drive(&self, id: &str) -> Answer<Changed<Share>> {
        let _one = self.changes.lock().await;
        let known = self.look_at_shares().into_iter().find(|share| share.id == id);
        let known = known.ok_or_else(|| not_shared(id))?;
        let uuid = self.shares.uuid()?;
        self.withdraw_share(&uuid, known.nsid).await;
        let gone = self.shares.all().running.remove(&known.nsid);
        drop(gone);
        self.shares.save()?;
        self.note_share(&uuid, &known, false);
        tracing::info!(drive = known.drive, "shared no longer");
        Ok(Changed::gone(vec![format!("offer the drive {} no longer; hosts lose it", known.drive)]))
    }

    /// Allows a host to use a shared drive, or revokes that.
    pub(crate) async fn set_share_host(&self, id: &str, host: &str, allow: bool) -> Answer<Changed<Share>> {
        let _one = self.changes.lock().await;
        let (nsid, hosts, address) = self.shares.hosts(id)?;
        let (names, step) = hosts_after(Offered::Share(id), &hosts, host, allow)?;
        let hosts = Some(names);
        // The change takes effect after it is recorded: an allowed host gets in, a denied host is
        // out.
        self.shares.set_hosts(nsid, hosts.clone())?;
        self.listeners.allow_hosts(&address, &nqn_of(&self.shares.uuid()?), nsid, hosts_of(&hosts));
        tracing::info!(share = id, host, allow, "hosts changed");
        let share = self.look_at_shares().into_iter().find(|share| share.nsid == nsid).ok_or_else(|| not_shared(id))?;
        Ok(Changed::done(vec![step], share))
    }

    /// Records in the history that a drive became a namespace, or ceased to be one.
    fn note_share(&self, uuid: &Uuid, share: &Share, created: bool) {
        // The size of an absent drive is unknown.
        let (size_bytes, block_bytes) = (share.size_bytes.unwrap_or(0), share.sector_bytes.unwrap_or(512));
        let what = Happening::NamespaceChange {
            created,
            nsid: share.nsid,
            blocks: size_bytes / u64::from(block_bytes),
            block_bytes,
            hosts: share.hosts.as_ref().map(|names| names.iter().cloned().collect()),
        };
        self.histories.note(uuid, what);
    }

    /// Adds a shared drive, present or not.
    fn add_share(&self, record: Record, drive: Answer<Taken>) {
        let saved = record.reservations.clone().and_then(Reserved::restored).unwrap_or_default();
        let shared = SharedNamespace::new(saved, self.keeps_share_reservations(record.nsid));
        let (name, open, failure) = match drive {
            Ok(drive) => {
                let drive = drive.keep();
                (drive.name, Some(drive.open), None)
            }
            Err(error) => (record.place.drive.clone(), None, Some(error.message)),
        };
        let state = ExportState::new(&name, "", false);
        let running = Running { record, name, open, state, shared, failure };
        self.shares.all().running.insert(running.record.nsid, running);
    }

    fn keeps_share_reservations(&self, nsid: u32) -> Keep {
        let shares = Arc::downgrade(&self.shares);
        Box::new(move |saved: Option<Reservations>| {
            let shares = shares.clone();
            Box::pin(async move {
                let shares = shares.upgrade().ok_or("the daemon is stopping")?;
                if let Some(running) = shares.all().running.get_mut(&nsid) {
                    running.record.reservations = saved.as_ref().map(Reserved::of);
                }
                shares.save().map_err(|error| error.message)
            })
        })
    }

    /// Serves an open drive.
    async fn offer_share(&self, uuid: &Uuid, nsid: u32) -> Answer<()> {
        let history = self.histories.of(uuid);
        let (open, offer, address) = {
            let all = self.shares.all();
            let Some(Running { record, open: Some(open), state, shared, .. }) = all.running.get(&nsid) else {
                return Ok(());
            };
            let own: Uuid = record.uuid.parse().map_err(|_| {
                ControlError::new(ErrorCode::Internal, format!("{:?} is no UUID of a shared drive", record.uuid))
            })?;
            let offer = NamespaceOffer {
                block_bytes: open.info().sector_bytes,
                uuid: *own.as_bytes(),
                hosts: hosts_of(&record.hosts),
                state: state.clone(),
                open: Arc::new(move || shard::shared_drive(nsid)),
                shared: shared.clone(),
                secrets: self.shares.secrets.clone(),
                history,
            };
            (open.clone(), offer, record.address.clone())
        };
        let order = Order::new();
        for handle in &self.shards {
            let (open, order) = (open.clone(), order.clone());
            let attaching = handle.call(move || async move {
                shard::add_shared_drive(nsid, ShardEnv::current().attach(&open), order);
            });
            attaching.await.map_err(|_| stopping())?;
        }
        self.listeners.offer_namespace(&address, subsystem(uuid), nsid, offer).await
    }

    /// Ends the service of a drive, and closes it.
    async fn withdraw_share(&self, uuid: &Uuid, nsid: u32) {
        let (state, address) = {
            let mut all = self.shares.all();
            let Some(running) = all.running.get_mut(&nsid) else { return };
            running.open = None;
            (running.state.clone(), running.record.address.clone())
        };
        self.listeners.withdraw_namespace(&address, &nqn_of(uuid), nsid, &state).await;
        for handle in &self.shards {
            // A shard that has stopped has released everything.
            let _ = handle.call(move || async move { shard::remove_shared_drive(nsid) }).await;
        }
    }

    /// Shares the drives again that were shared when the daemon ended, if they are present.
    pub(crate) async fn start_remembered_shares(&self) -> std::io::Result<()> {
        let Some(Document { uuid, shares, secrets, tls_keys }) = self.shares.load()? else { return Ok(()) };
        let uuid: Uuid = uuid.parse().map_err(|_| std::io::Error::other("shares.json: its uuid is none"))?;
        // Load the keys before any drive is served.
        host_keys::load(&self.shares.secrets, "the shared drives", &secrets);
        host_tls_keys::load(&self.shares.secrets, "the shared drives", &tls_keys);
        {
            let mut all = self.shares.all();
            (all.uuid, all.keys) = (Some(uuid), Keys { secrets, tls_keys });
        }
        for record in shares {
            let nsid = record.nsid;
            let opened = drives::open_let_go(&self.opener, &where_it_is(&record.place), Consent::default()).await;
            if let Err(error) = &opened {
                tracing::error!(drive = record.place.drive, %error, "a shared drive is not there");
            }
            self.add_share(record, opened);
            self.serve_share(&uuid, nsid).await;
        }
        Ok(())
    }

    /// Serves a drive, or records why that failed. If its address does not exist yet, it is tried
    /// again ([`crate::engine::retry`]).
    async fn serve_share(&self, uuid: &Uuid, nsid: u32) {
        let offered = self.offer_share(uuid, nsid).await;
        let mut all = self.shares.all();
        let Some(running) = all.running.get_mut(&nsid).filter(|running| running.open.is_some()) else { return };
        let failure = offered.err().map(|error| error.message);
        exports::tell(&id_of(nsid), running.failure.as_deref(), failure.as_deref());
        running.failure = failure;
    }

    /// Tries again to offer drives that are present and not offered.
    pub(crate) async fn retry_shares(&self) {
        let due: Vec<(u32, String)> = {
            let all = self.shares.all();
            let is_due = |running: &&Running| running.open.is_some() && running.failure.is_some();
            let due = all.running.values().filter(is_due);
            due.map(|running| (running.record.nsid, running.record.address.clone())).collect()
        };
        for (nsid, address) in due {
            if self.names.look_up_export(&address, LOOK_UP_WITHIN).await.is_err() {
                continue;
            }
            let _one = self.changes.lock().await;
            if self.unassigned_drives.has_ended() {
                return;
            }
            let uuid = {
                let all = self.shares.all();
                // Meanwhile it may have been pulled, unshared, or replaced by another share.
                let is_due = |running: &Running| {
                    running.open.is_some() && running.failure.is_some() && running.record.address == address
                };
                all.uuid.filter(|_| all.running.get(&nsid).is_some_and(is_due))
            };
            let Some(uuid) = uuid else { continue };
            self.serve_share(&uuid, nsid).await;
        }
    }

    pub(crate) async fn stop_shares(&self) {
        let (uuid, all) = {
            let all = self.shares.all();
            (all.uuid, all.running.keys().copied().collect::<Vec<u32>>())
        };
        let Some(uuid) = uuid else { return };
        for nsid in all {
            self.withdraw_share(&uuid, nsid).await;
        }
        self.shares.all().running.clear();
        self.histories.power_off(&uuid);
    }

    /// Handles a pulled drive: hosts are told that it is gone.
    pub(crate) async fn shared_went(&self, device: (u32, u32)) {
        let _one = self.changes.lock().await;
        let found = {
            let mut all = self.shares.all();
            let uuid = all.uuid;
            let is =
                |running: &&mut Running| running.open.as_ref().is_some_and(|open| open.device_number() == Some(device));
            all.running.values_mut().find(is).map(|running| {
                running.failure = Some("the drive was pulled".to_owned());
                (uuid, running.record.nsid, running.name.clone())
            })
        };
        if let Some((Some(uuid), nsid, drive)) = found {
            tracing::error!(drive, "a shared drive was pulled");
            self.withdraw_share(&uuid, nsid).await;
        }
    }

    /// Handles a new drive: serves it if it is to be shared.
    pub(crate) async fn shared_came(&self, present: &Present) -> Answer<bool> {
        let _one = self.changes.lock().await;
        let identity = crate::engine::drives::identity::of_path(&present.path);
        let found = {
            let all = self.shares.all();
            let uuid = all.uuid;
            let is = |running: &&Running| {
                let place = &running.record.place;
                let same = place.identity.is_some() && place.identity == identity;
                running.open.is_none() && (same || (place.identity.is_none() && place.drive == present.path))
            };
            all.running.values().find(is).map(|running| (uuid, running.record.clone()))
        };
        let Some((Some(uuid), record)) = found else { return Ok(false) };
        if self.unassigned_drives.has_ended() {
            return Err(stopping());
        }
        let (nsid, drive) = (record.nsid, drives::open(&self.opener, &present.path, Consent::default()).await?);
        self.add_share(record, Ok(drive));
        self.serve_share(&uuid, nsid).await;
        tracing::info!(drive = present.path, "a shared drive is back");
        Ok(true)
    }

    /// The shared drives, as drives of the API.
    pub(crate) fn shared_drives(&self) -> Vec<api::Drive> {
        let all = self.shares.all();
        let shown = |running: &Running| {
            let note = Some(format!("offered to other machines as {}", id_of(running.record.nsid)));
            Some(api::Drive { note, ..view::opened(&running.name, running.open.as_ref()?) })
        };
        all.running.values().filter_map(shown).collect()
    }

    /// Whether this device is shared.
    pub(crate) fn is_shared(&self, device: (u32, u32)) -> bool {
        let all = self.shares.all();
        all.running
            .values()
            .filter_map(|running| running.open.as_ref())
            .any(|open| open.device_number() == Some(device))
    }
}

/// The current path of a drive, found by its identity.
fn where_it_is(place: &Place) -> String {
    let alone = Remembered { name: String::new(), uuid: String::new(), drives: vec![place.clone()] };
    let found = find::locate(&alone);
    if let [path] = &found[..] { path.clone() } else { place.drive.clone() }
}
