//! Serves the shared drives: from the start of the daemon to its end, and while drives are pulled
//! and plugged in.

use std::sync::Arc;

use ::drive::Order;
use api::ErrorCode;
use export::{ExportState, Keep, NamespaceOffer, SharedNamespace};
use format::Uuid;
use nvme::target::{Reservations, Subsystem};
use runtime::ShardEnv;

use crate::engine::drives::identity::Present;
use crate::engine::drives::{Consent, RequestedDrive, find};
use crate::engine::errors::stopping;
use crate::engine::exports::namespaces::nqn_of;
use crate::engine::group::shard;
use crate::engine::memory::{DrivePlace, Remembered};
use crate::engine::names::LOOK_UP_WITHIN;
use crate::engine::nvme::hosts::hosts_of;
use crate::engine::nvme::keyring::Keys;
use crate::engine::nvme::{host_keys, host_tls_keys};
use crate::engine::shares::table::{Document, Record, Reserved, Running, id_of};
use crate::engine::{Engine, drives, exports};
use crate::http::{Answer, ControlError};

fn subsystem(uuid: &Uuid) -> Subsystem {
    let serial = uuid.to_string().chars().filter(|char| *char != '-').take(20).collect();
    Subsystem { nqn: nqn_of(uuid), serial, firmware: env!("CARGO_PKG_VERSION").to_owned() }
}

impl Engine {
    /// Adds a shared drive, present or not.
    pub(super) fn add_share(&self, record: Record, drive: Answer<RequestedDrive>) {
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
    pub(super) async fn offer_share(&self, uuid: &Uuid, nsid: u32) -> Answer<()> {
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
                secrets: self.shares.secrets().clone(),
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
    pub(super) async fn withdraw_share(&self, uuid: &Uuid, nsid: u32) {
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
        host_keys::load(self.shares.secrets(), "the shared drives", &secrets);
        host_tls_keys::load(self.shares.secrets(), "the shared drives", &tls_keys);
        {
            let mut all = self.shares.all();
            (all.uuid, all.keys) = (Some(uuid), Keys { secrets, tls_keys });
        }
        for record in shares {
            let nsid = record.nsid;
            let opened =
                drives::open_when_released(&self.opener, &where_it_is(&record.place), Consent::default()).await;
            if let Err(error) = &opened {
                tracing::error!(drive = record.place.drive, %error, "a shared drive is not there");
            }
            self.add_share(record, opened);
            self.serve_share(&uuid, nsid).await;
        }
        Ok(())
    }

    /// Serves a drive, or records why that failed. If its address does not exist yet, it is tried
    /// again ([`crate::engine::exports::retry`]).
    async fn serve_share(&self, uuid: &Uuid, nsid: u32) {
        let offered = self.offer_share(uuid, nsid).await;
        let mut all = self.shares.all();
        let Some(running) = all.running.get_mut(&nsid).filter(|running| running.open.is_some()) else { return };
        let failure = offered.err().map(|error| error.message);
        exports::log_served(&id_of(nsid), running.failure.as_deref(), failure.as_deref());
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

    /// Handles a pulled drive: hosts are notified that it is gone.
    pub(crate) async fn shared_drive_removed(&self, device: (u32, u32)) {
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
    pub(crate) async fn shared_drive_added(&self, present: &Present) -> Answer<bool> {
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
}

/// The current path of a drive, found by its identity.
fn where_it_is(place: &DrivePlace) -> String {
    let alone = Remembered { name: String::new(), uuid: String::new(), drives: vec![place.clone()] };
    let found = find::locate(&alone);
    if let [path] = &found[..] { path.clone() } else { place.drive.clone() }
}
