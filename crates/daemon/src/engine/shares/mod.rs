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
mod service;
pub(crate) mod table;

use api::{Changed, ErrorCode, NvmeTcpCreate, Share, ShareCreate, ShareList};
use async_trait::async_trait;
use format::Uuid;
use nvme::target::{Happening, NAMESPACES_MAX};
use runtime::OpenDrive;

use crate::engine::drives::Consent;
use crate::engine::errors::new_uuid;
use crate::engine::exports::namespaces::nqn_of;
use crate::engine::memory::DrivePlace;
use crate::engine::names::LOOK_UP_WITHIN;
use crate::engine::nvme::hosts::{Offered, hosts_after, hosts_of};
use crate::engine::nvme::keyring::Keys;
use crate::engine::shares::table::{Record, Running, id_of, not_shared};
use crate::engine::{Engine, drives, view};
use crate::http::{Answer, ControlError, ShareControl};

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

#[async_trait]
impl ShareControl for Engine {
    async fn shares(&self) -> Answer<Vec<Share>> {
        Ok(self.query_shares())
    }

    async fn share_create(&self, request: ShareCreate) -> Answer<Changed<ShareList>> {
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
                place: DrivePlace { drive: drive.text.clone(), identity: drive.identity.clone() },
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
        let shares: Vec<Share> = self.query_shares().into_iter().filter(|share| new.contains(&share.nsid)).collect();
        shares.iter().for_each(|share| self.note_share(&uuid, share, true));
        tracing::info!(drives = request.drives.join(","), address, "shared");
        Ok(Changed::done(steps, ShareList { shares }).with_warnings(warnings))
    }

    async fn share_delete(&self, id: &str) -> Answer<Changed<Share>> {
        let _one = self.changes.lock().await;
        let known = self.query_shares().into_iter().find(|share| share.id == id);
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

    async fn share_host_allow(&self, id: &str, host: &str) -> Answer<Changed<Share>> {
        self.set_share_host(id, host, true).await
    }

    async fn share_host_deny(&self, id: &str, host: &str) -> Answer<Changed<Share>> {
        self.set_share_host(id, host, false).await
    }
}

impl Engine {
    pub(crate) fn query_shares(&self) -> Vec<Share> {
        let all = self.shares.all();
        all.uuid.iter().flat_map(|uuid| all.running.values().map(|running| shown(uuid, running, &all.keys))).collect()
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
        let share = self.query_shares().into_iter().find(|share| share.nsid == nsid).ok_or_else(|| not_shared(id))?;
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
