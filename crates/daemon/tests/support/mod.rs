//! A [`Control`] without drives, for tests of everything in front of it: routes, listeners, metrics and the command.
//!
//! It keeps the rules that a client sees (names, sizes, what is in use, what may be lost), and no data. Drives below
//! `/drives` exist and have 1 GiB, except `/drives/ext4`, which holds something else, and `/drives/gone-*`. Each look at
//! a group moves its jobs on by half. Creating the group `slow` takes a while.

mod drives;
mod hosts;
mod imports;
mod limits;
mod scrubs;
mod shares;
mod state;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};

use api::*;
use async_trait::async_trait;
use daemon::http::{Answer, Control, ControlError, require_confirmation};
use format::Shape;
use state::{NOW, State, drive_bytes, new_group, plain_name, refuse};

/// The name of every subsystem.
const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";

/// Groups, volumes and exports that exist only here.
#[derive(Default)]
pub struct MemoryControl(Mutex<State>);

impl MemoryControl {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics with the lock held")
    }

    /// A client connects to an export.
    #[allow(dead_code, reason = "not every test program has clients")]
    pub fn connect(&self, export: &str) {
        self.state().exports.get_mut(export).expect("the export is there").connection_count += 1;
    }
}

#[async_trait]
impl Control for MemoryControl {
    async fn status(&self) -> Answer<Status> {
        let state = self.state();
        let latency_us = Some(LatencyUs { p50: 84.0, p99: 310.0, max: 1900.0 });
        let group = |group: &Group| GroupStatus {
            name: group.name.clone(),
            level: group.level,
            health: group.health,
            member_count: group.member_count,
            in_sync_count: group.members.iter().filter(|m| m.state == MemberState::InSync).count() as u32,
            spare_count: group.spares.len() as u32,
            volume_count: state.volumes.keys().filter(|v| v.group == group.name).count() as u32,
            losses_left: group.losses_left,
            capacity_bytes: group.capacity_bytes,
            allocated_bytes: group.allocated_bytes,
            used_bytes: group.used_bytes,
            load: Load {
                window_s: 1.0,
                read: LoadSide { ops_per_s: 182_340.0, bytes_per_s: 746_864_640.0, latency_us },
                write: LoadSide::default(),
            },
            io: group.io,
            crash_safety: group.crash_safety.clone(),
            warnings: group.warnings.clone(),
            jobs: group.jobs.clone(),
            scrub: group.scrub.clone(),
        };
        Ok(Status {
            version: "0.1.0".into(),
            uptime_s: 7265,
            pid: 4242,
            resident_bytes: 48 << 20,
            shards: (0..2)
                .map(|shard| ShardStatus { shard, core: Some(shard), busy_percent: 12.5 * f64::from(shard) })
                .collect(),
            groups: state.groups.values().map(group).collect(),
            exports: state.exports.values().cloned().collect(),
            hosts: hosts::hosts(state.exports.values(), &state.limits, &state.keys, &state.tls_keys),
        })
    }

    async fn groups(&self) -> Answer<Vec<Group>> {
        Ok(self.state().groups.values().cloned().collect())
    }

    async fn group(&self, group: &str) -> Answer<Group> {
        let mut state = self.state();
        state.group(group)?;
        state.move_on(group);
        Ok(state.settle(group))
    }

    async fn group_create(&self, request: GroupCreate, shape: Shape) -> Answer<Changed<Group>> {
        if request.name == "slow" {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        let mut state = self.state();
        if state.groups.contains_key(&request.name) {
            return Err(ControlError::group_exists(&request.name));
        }
        for drive in request.drives.iter().chain(&request.spares) {
            state.check_unused(&plain_name(drive))?;
        }
        let group = new_group(&request, &shape)?;
        let written = request.drives.iter().chain(&request.spares);
        let steps = written.map(|drive| format!("write a superblock to {}", plain_name(drive))).collect();
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        state.groups.insert(request.name.clone(), group);
        Ok(Changed::done(steps, state.settle(&request.name)))
    }

    async fn group_assemble(&self, request: GroupAssemble) -> Answer<Changed<Group>> {
        let sizes = request.drives.iter().map(|drive| drive_bytes(drive, None, true));
        sizes.collect::<Answer<Vec<u64>>>()?;
        refuse(
            ErrorCode::NotAssemblable,
            format!("{} carries no superblock of a group", plain_name(&request.drives[0])),
        )
    }

    async fn group_update(&self, group: &str, request: GroupUpdate) -> Answer<Changed<Group>> {
        let mut state = self.state();
        let settings = &mut state.group(group)?.settings;
        let mut after = *settings;
        let mut steps = Vec::new();
        if let Some(us) = request.client_p99_us {
            after.client_p99_us = Some(us).filter(|&us| us > 0);
            steps.push(format!("set client_p99_us to {us}"));
        }
        if let Some(retire) = request.retire_slow {
            after.retire_slow = retire;
            steps.push(format!("set retire_slow to {retire}"));
        }
        if let Some(every) = request.scrub_every_s {
            after.scrub_every_s = Some(every).filter(|&every| every > 0);
            steps.push(format!("set scrub_every_s to {every}"));
        }
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        *settings = after;
        let scrub = &mut state.group(group)?.scrub;
        scrub.next_unix_s = after.scrub_every_s.map(|every| NOW + every);
        Ok(Changed::done(steps, state.settle(group)))
    }

    async fn group_stop(&self, group: &str, request: GroupStop) -> Answer<Changed<Group>> {
        let mut state = self.state();
        state.group(group)?;
        let prefix = format!("{group}/");
        let clients: u32 =
            state.exports.values().filter(|e| e.volume.starts_with(&prefix)).map(|e| e.connection_count).sum();
        if clients > 0 && !request.force {
            return refuse(
                ErrorCode::Busy,
                format!("{clients} clients are connected to volumes of the group {group:?}"),
            );
        }
        let steps = vec![format!("flush and close the drives of {group}")];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        state.exports.retain(|_, export| !export.volume.starts_with(&prefix));
        state.volumes.retain(|name, _| name.group != group);
        state.groups.remove(group);
        Ok(Changed::gone(steps))
    }

    async fn group_delete(&self, group: &str, dry_run: bool) -> Answer<Changed<Group>> {
        let mut state = self.state();
        state.group(group)?;
        let prefix = format!("{group}/");
        if let Some(export) = state.exports.values().find(|e| e.volume.starts_with(&prefix)) {
            let (volume, id) = (&export.volume, &export.id);
            return refuse(ErrorCode::Busy, format!("the volume {volume:?} is exported as {id:?}: delete that first"));
        }
        let steps = vec![format!("erase the superblocks of {group}")];
        if dry_run {
            return Ok(Changed::planned(steps));
        }
        state.volumes.retain(|name, _| name.group != group);
        state.groups.remove(group);
        Ok(Changed::gone(steps))
    }

    async fn scrub(&self, group: &str, request: ScrubRequest) -> Answer<Scrub> {
        scrubs::scrub(&mut self.state(), group, &request)
    }

    async fn imports(&self) -> Answer<Vec<Import>> {
        Ok(self.state().imports.values().cloned().collect())
    }

    async fn import(&self, import: &str) -> Answer<Import> {
        let found = self.state().imports.get(import).cloned();
        found.map_or_else(|| refuse(ErrorCode::ImportNotFound, format!("there is no import {import:?}")), Ok)
    }

    async fn import_md(&self, request: ImportMd) -> Answer<Imported> {
        let imported = imports::import(&request)?;
        if let Some(import) = &imported.object {
            self.state().imports.insert(import.name.clone(), import.clone());
        }
        Ok(imported)
    }

    async fn import_nvme(&self, request: ImportNvme) -> Answer<Changed<Import>> {
        let import = imports::namespace(&request);
        let steps = vec![format!("connect to {}", request.drive)];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        self.state().imports.insert(import.name.clone(), import.clone());
        Ok(Changed::done(steps, import))
    }

    async fn import_forget(&self, import: &str, request: ImportForget) -> Answer<Changed<Import>> {
        self.import(import).await?;
        let steps = vec![format!("let go of the drives of the import {import:?}")];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        self.state().imports.remove(import);
        Ok(Changed::gone(steps))
    }

    async fn drives(&self) -> Answer<Vec<Drive>> {
        drives::list(&self.state())
    }

    async fn drive(&self, drive: &str) -> Answer<DriveDetails> {
        drives::show(&self.state(), drive)
    }

    async fn member_fail(&self, group: &str, slot: u32, request: MemberFail) -> Answer<Changed<Group>> {
        drives::fail(&mut self.state(), group, slot, &request)
    }

    async fn member_replace(&self, group: &str, slot: u32, request: MemberReplace) -> Answer<Changed<Group>> {
        drives::replace(&mut self.state(), group, slot, &request)
    }

    async fn spare_add(&self, group: &str, request: SpareAdd) -> Answer<Changed<Group>> {
        drives::add_spare(&mut self.state(), group, &request)
    }

    async fn spare_remove(&self, group: &str, drive: &str, dry_run: bool) -> Answer<Changed<Group>> {
        drives::remove_spare(&mut self.state(), group, drive, dry_run)
    }

    async fn volumes(&self) -> Answer<Vec<Volume>> {
        Ok(self.state().volumes.values().cloned().collect())
    }

    async fn volume(&self, name: &VolumeName) -> Answer<Volume> {
        self.state().volume(name).cloned()
    }

    async fn volume_create(&self, request: VolumeCreate) -> Answer<Changed<Volume>> {
        let mut state = self.state();
        let name = request.name();
        state.group(&name.group)?;
        let free_bytes = state.settle(&name.group).free_bytes;
        if state.volumes.contains_key(&name) {
            return Err(ControlError::volume_exists(&name));
        }
        let size_bytes = request.size_bytes.next_multiple_of(4096);
        if size_bytes > free_bytes {
            let (needed, free) = (format_bytes(size_bytes), format_bytes(free_bytes));
            let group = &name.group;
            return refuse(
                ErrorCode::NoSpace,
                format!("the volume \"{name}\" needs {needed}, and the group {group:?} has {free} free"),
            );
        }
        let steps = vec![format!("reserve {} in {}", format_bytes(size_bytes), name.group)];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        let volume = Volume {
            name: name.to_string(),
            group: name.group.clone(),
            volume: name.volume.clone(),
            id: state.id(),
            created_unix_s: 1_700_000_000,
            kind: VolumeKind::Direct,
            size_bytes,
            used_bytes: 0,
            exports: vec![],
            io: IoCounters::default(),
            limit: None,
        };
        state.volumes.insert(name.clone(), volume.clone());
        state.settle(&name.group);
        Ok(Changed::done(steps, volume))
    }

    async fn volume_resize(&self, name: &VolumeName, request: VolumeUpdate) -> Answer<Changed<Volume>> {
        let mut state = self.state();
        let volume = state.volume(name)?;
        let size_bytes = request.size_bytes.next_multiple_of(4096);
        if size_bytes < volume.size_bytes && !request.dry_run {
            let lost = format!("the last {} of the volume \"{name}\"", format_bytes(volume.size_bytes - size_bytes));
            require_confirmation(&name.to_string(), &lost, request.confirm.as_deref())?;
        }
        let steps = vec![format!("make {name} {} large", format_bytes(size_bytes))];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        volume.size_bytes = size_bytes;
        let volume = volume.clone();
        state.settle(&name.group);
        Ok(Changed::done(steps, volume))
    }

    async fn volume_limit(&self, name: &VolumeName, request: LimitUpdate) -> Answer<Changed<Volume>> {
        let mut state = self.state();
        let volume = state.volume(name)?;
        let (steps, limit) = limits::updated(volume.limit, &request, &format!("the volume \"{name}\""));
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        volume.limit = limit;
        Ok(Changed::done(steps, volume.clone()))
    }

    async fn volume_delete(&self, name: &VolumeName, dry_run: bool) -> Answer<Changed<Volume>> {
        let mut state = self.state();
        let volume = state.volume(name)?;
        if let Some(id) = volume.exports.first() {
            let message = format!("the volume \"{name}\" is exported as {id:?}: delete that first");
            return refuse(ErrorCode::Busy, message);
        }
        let steps = vec![format!("give {} back to {}", format_bytes(volume.size_bytes), name.group)];
        if dry_run {
            return Ok(Changed::planned(steps));
        }
        state.volumes.remove(name);
        state.settle(&name.group);
        Ok(Changed::gone(steps))
    }

    async fn exports(&self) -> Answer<Vec<Export>> {
        Ok(self.state().exports.values().cloned().collect())
    }

    async fn export_create(
        &self,
        request: ExportCreate,
        name: VolumeName,
        place: ExportPlace,
    ) -> Answer<Changed<Export>> {
        let mut state = self.state();
        let of_import = state.imports.get(&name.group).is_some_and(|import| import.volume == name.to_string());
        if !of_import {
            state.volume(&name)?;
        }
        let address = match &place {
            ExportPlace::Nbd(nbd) => nbd.to_string(),
            ExportPlace::Ublk(device) => format!("/dev/ublkb{}", device.number.unwrap_or_default()),
            ExportPlace::NvmeTcp(address, _) => address.to_string(),
        };
        if let Some(other) = state.exports.values().find(|export| export.address == address) {
            return refuse(ErrorCode::ExportExists, format!("the export {:?} listens on {address} already", other.id));
        }
        let mut nvme = None;
        let (protocol, uri, block_bytes) = match &place {
            ExportPlace::Nbd(NbdAddress::Unix(path)) => {
                (Protocol::Nbd, format!("nbd+unix:///{name}?socket={}", path.display()), None)
            }
            ExportPlace::Nbd(NbdAddress::Tcp { .. }) => (Protocol::Nbd, format!("nbd://{address}/{name}"), None),
            ExportPlace::Ublk(device) => {
                let block_bytes = device.block_bytes.unwrap_or(4096);
                (Protocol::Ublk, format!("/dev/purlin/{name}"), Some(block_bytes))
            }
            ExportPlace::NvmeTcp(_, namespace) => {
                nvme = Some(namespace.clone());
                (Protocol::NvmeTcp, format!("nvme-tcp://{address}/{NQN}?nsid=1"), Some(4096))
            }
        };
        let export = Export {
            id: state.id().to_string(),
            volume: name.to_string(),
            protocol,
            address: address.clone(),
            uri,
            read_only: request.read_only,
            tls: request.tls,
            block_bytes,
            atomic_bytes: block_bytes,
            listening: true,
            message: None,
            connection_count: 0,
            nqn: nvme.as_ref().map(|_| NQN.to_owned()),
            ana: nvme.as_ref().map(|_| AnaState::Optimized),
            nsid: nvme.as_ref().map(|nvme| nvme.nsid.unwrap_or(1)),
            reservation: nvme.as_ref().map(|nvme| hosts::reservation(&nvme.hosts)),
            tls_hosts: state.tls_hosts(Some(&name.group)),
            hosts: nvme.filter(|nvme| !nvme.allow_any_host).map(|nvme| nvme.hosts),
        };
        match state.imports.get_mut(&name.group).filter(|_| of_import) {
            Some(import) => import.exports.push(export.id.clone()),
            None => state.volume(&name)?.exports.push(export.id.clone()),
        }
        state.exports.insert(export.id.clone(), export.clone());
        Ok(Changed::done(vec![format!("listen on {address}")], export))
    }

    async fn export_delete(&self, id: &str) -> Answer<Changed<Export>> {
        let mut state = self.state();
        let export = state.exports.remove(id).ok_or_else(|| ControlError::export_not_found(id))?;
        for volume in state.volumes.values_mut() {
            volume.exports.retain(|other| other != id);
        }
        Ok(Changed::gone(vec![format!("stop listening on {}", export.address)]))
    }

    async fn shares(&self) -> Answer<Vec<Share>> {
        let state = self.state();
        Ok(shares::shown(&state.shares, &state.tls_hosts(None)))
    }

    async fn share_create(&self, request: ShareCreate) -> Answer<Changed<ShareList>> {
        let mut state = self.state();
        let tls_hosts = state.tls_hosts(None);
        shares::create(&mut state.shares, &tls_hosts, &request)
    }

    async fn share_delete(&self, id: &str) -> Answer<Changed<Share>> {
        shares::delete(&mut self.state().shares, id)
    }

    async fn export_set(&self, id: &str, request: ExportUpdate) -> Answer<Changed<Export>> {
        let mut state = self.state();
        let export = state.exports.get_mut(id).ok_or_else(|| ControlError::export_not_found(id))?;
        hosts::set_access(export, request)
    }

    async fn hosts(&self) -> Answer<Vec<Host>> {
        let state = self.state();
        Ok(hosts::hosts(state.exports.values(), &state.limits, &state.keys, &state.tls_keys))
    }

    async fn host_allow(&self, id: &str, host: &str) -> Answer<Changed<Export>> {
        let mut state = self.state();
        let export = state.exports.get_mut(id).ok_or_else(|| ControlError::export_not_found(id))?;
        hosts::set_host(export, host, true)
    }

    async fn host_deny(&self, id: &str, host: &str) -> Answer<Changed<Export>> {
        let mut state = self.state();
        let export = state.exports.get_mut(id).ok_or_else(|| ControlError::export_not_found(id))?;
        hosts::set_host(export, host, false)
    }

    async fn host_limit(&self, id: &str, host: &str, request: LimitUpdate) -> Answer<Changed<Export>> {
        let mut state = self.state();
        let export = state.exports.get(id).cloned().ok_or_else(|| ControlError::export_not_found(id))?;
        let key = (id.to_owned(), host.to_owned());
        let (steps, limit) = limits::updated(state.limits.get(&key).copied(), &request, host);
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        state.limits.remove(&key);
        state.limits.extend(limit.map(|limit| (key, limit)));
        Ok(Changed::done(steps, export))
    }

    async fn referrals(&self) -> Answer<Vec<Referral>> {
        let state = self.state();
        Ok(state.referrals.iter().map(|address| Referral { address: address.to_string() }).collect())
    }

    async fn referral_add(&self, address: SocketAddr) -> Answer<Changed<Referral>> {
        self.state().referrals.insert(address);
        Ok(Changed::done(vec![format!("refer to {address}")], Referral { address: address.to_string() }))
    }

    async fn referral_remove(&self, address: SocketAddr) -> Answer<Changed<Referral>> {
        if !self.state().referrals.remove(&address) {
            return refuse(ErrorCode::Invalid, format!("hosts are not referred to {address}"));
        }
        Ok(Changed::gone(vec![format!("refer to {address} no longer")]))
    }

    async fn host_key_set(&self, group: Option<&str>, host: &str, request: HostKeySet) -> Answer<Changed<HostKey>> {
        let mut state = self.state();
        state.place_of_keys(group)?;
        let (mutual, dh_group) = (request.controller_secret.is_some(), request.dh_group);
        let key = HostKey { group: group.map(str::to_owned), mutual, dh_group };
        state.keys.insert((host.to_owned(), group.map(str::to_owned)), key.clone());
        Ok(Changed::done(vec![format!("{host} authenticates for {group:?}")], key))
    }

    async fn host_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostKey>> {
        let mut state = self.state();
        state.place_of_keys(group)?;
        state.keys.remove(&(host.to_owned(), group.map(str::to_owned)));
        Ok(Changed::gone(vec![format!("let {host} in by its name alone")]))
    }

    async fn host_tls_key_set(
        &self,
        group: Option<&str>,
        host: &str,
        request: HostTlsKeySet,
    ) -> Answer<Changed<HostTlsKey>> {
        let mut state = self.state();
        state.place_of_keys(group)?;
        let key = HostTlsKey { group: group.map(str::to_owned), key_count: 1 + u32::from(request.keep_old) };
        state.tls_keys.insert((host.to_owned(), group.map(str::to_owned)), key.clone());
        Ok(Changed::done(vec![format!("{host} uses TLS for {group:?}")], key))
    }

    async fn host_tls_key_remove(&self, group: Option<&str>, host: &str) -> Answer<Changed<HostTlsKey>> {
        let mut state = self.state();
        state.place_of_keys(group)?;
        state.tls_keys.remove(&(host.to_owned(), group.map(str::to_owned)));
        Ok(Changed::gone(vec![format!("let {host} in without TLS")]))
    }

    async fn upgrade(&self, request: UpgradeRequest) -> Answer<Changed<Upgrade>> {
        let program = request.program.unwrap_or_else(|| "/usr/bin/purlind".to_owned());
        if program.contains("gone") {
            return refuse(ErrorCode::Invalid, format!("cannot upgrade to {program}: No such file or directory"));
        }
        let steps = vec![format!("execute {program}")];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        let upgrade = Upgrade {
            state: UpgradeState::Running,
            program: Some(program),
            from_version: Some("0.1.0".into()),
            to_version: Some("0.2.0".into()),
            pause_us: None,
            message: None,
        };
        self.state().upgrade = upgrade.clone();
        Ok(Changed::done(steps, upgrade))
    }

    /// It takes two looks.
    async fn upgrade_state(&self) -> Answer<Upgrade> {
        let upgrade = &mut self.state().upgrade;
        let shown = upgrade.clone();
        if upgrade.state == UpgradeState::Running {
            (upgrade.state, upgrade.pause_us) = (UpgradeState::Done, Some(84_310));
            if upgrade.program.as_deref().is_some_and(|program| program.contains("broken")) {
                upgrade.state = UpgradeState::Failed;
                upgrade.message = Some("it cannot be executed".into());
            }
        }
        Ok(shown)
    }
}
