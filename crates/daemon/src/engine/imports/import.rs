//! Imports: Linux md arrays that are read in place, their drives opened for reading only, and
//! namespaces of other machines.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use api::{DriveReason, MdArray, MdMember, Volume, VolumeKind};
use array::probe;
use export::Counters;
use format::foreign::Foreign;
use format::{BLOCK, Uuid};
use initiator::{Known, PathStatus};
use md::{Assembly, Assessment, Candidate, NotMember, Refusal, SECTOR, SuperblockError};
use runtime::{OpenDrive, ShardEnv, ShardHandle};

use crate::engine::drives::RequestedDrive;
use crate::engine::drives::remote::Remote;
use crate::engine::errors::{new_uuid, stopping};
use crate::engine::exports::devices::{Backing, io_opt_bytes};
use crate::engine::exports::running_export::RunningExport;
use crate::engine::group::served::Served;
use crate::engine::group::shard;
use crate::engine::group::shard::GroupKey;
use crate::engine::memory::RememberedImport;
use crate::engine::view;
use crate::http::Answer;

/// The only volume of an import: its names, which tell the type of the import, and its number.
const MD_VOLUME: &str = "md";
const NAMESPACE_VOLUME: &str = "nvme";
pub(crate) const VOLUME_ID: u64 = 0;

/// A drive of an import.
pub(crate) struct ImportDrive {
    pub name: String,
    pub slot: u32,
    pub open: OpenDrive,
}

/// The source from which an import is served.
pub(crate) enum Source {
    Md(Box<Running>),
    Namespace(Arc<Remote>),
}

/// An array that is read.
pub(crate) struct Running {
    pub array: MdArray,
    pub size_bytes: u64,
    /// The data bytes of a row of chunks.
    pub stripe_bytes: u64,
    pub drives: Vec<ImportDrive>,
}

/// An import: running, or with the reason why it is not.
pub(crate) struct Import {
    pub key: GroupKey,
    /// The current exports are not here, but in `exports`.
    pub remembered: RememberedImport,
    /// Identifies its block devices.
    pub owner: Uuid,
    pub running: Result<Source, String>,
    /// The size of what is served. For a namespace, the size that all shards know.
    size_bytes: AtomicU64,
    /// The reason why the last attempt to connect failed.
    noted: Mutex<String>,
    exports: RwLock<BTreeMap<u64, Arc<RunningExport>>>,
    next_id: RwLock<u64>,
}

impl Import {
    /// Makes an import from its record, without exports yet. Generates an `owner` if the record has
    /// none.
    ///
    /// # Errors
    /// If there are no random numbers.
    pub fn new(key: GroupKey, mut remembered: RememberedImport, running: Result<Source, String>) -> Answer<Import> {
        let owner = remembered.owner.as_deref().and_then(|owner| owner.parse().ok()).map_or_else(new_uuid, Ok)?;
        remembered.owner = Some(owner.to_string());
        let next_id = RwLock::new(remembered.next_id);
        let size_bytes = AtomicU64::new(match &running {
            Ok(Source::Md(running)) => running.size_bytes,
            Ok(Source::Namespace(remote)) => remote.known().info().bytes(),
            Err(_) => 0,
        });
        let (noted, exports) = (Mutex::default(), RwLock::default());
        Ok(Import { key, remembered, owner, running, size_bytes, noted, exports, next_id })
    }

    pub fn name(&self) -> &str {
        &self.remembered.name
    }

    /// Whether it is a namespace of another machine.
    pub fn is_namespace(&self) -> bool {
        self.remembered.namespace.is_some()
    }

    /// The name of its volume within the import.
    pub fn volume_part(&self) -> &'static str {
        if self.is_namespace() { NAMESPACE_VOLUME } else { MD_VOLUME }
    }

    /// The full name of its volume.
    pub fn volume_name(&self) -> String {
        format!("{}/{}", self.name(), self.volume_part())
    }

    /// The size of what it serves; 0 while it serves nothing.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// Sets the new size of a namespace, after all shards know it.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// The reason why it is not served; `None` if it is.
    pub fn reason(&self) -> Option<String> {
        let reason = self.running.as_ref().err()?;
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        Some(if noted.is_empty() { reason.clone() } else { format!("out of reach: {noted}") })
    }

    /// Records why it could not be connected. Returns whether the reason is new.
    pub fn note(&self, why: &str) -> bool {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *noted != why;
        *noted = why.to_owned();
        is_new
    }

    /// The identifier of an export.
    pub fn export_id(&self, id: u64) -> String {
        format!("{}-{id}", self.name())
    }

    pub fn exports(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Arc<RunningExport>>> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn exports_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Arc<RunningExport>>> {
        self.exports.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no export had.
    pub fn new_export(&self) -> u64 {
        let mut next = self.next_id.write().unwrap_or_else(PoisonError::into_inner);
        *next += 1;
        *next - 1
    }

    /// The properties of a block device of this import, and the block size that its users know;
    /// `None` while it is not served.
    pub fn backing(&self) -> Option<(Backing, u32)> {
        let backing = Backing {
            owner: self.owner,
            key: self.key,
            volume: VOLUME_ID,
            size_bytes: self.size_bytes(),
            physical_block_bytes: 0,
            io_min_bytes: 0,
            io_opt_bytes: 0,
            discard_granularity_bytes: 0,
            has_discard: false,
            has_write_zeroes: false,
        };
        let (backing, block_bytes) = match self.running.as_ref().ok()? {
            Source::Md(running) => {
                let sectors = running.drives.iter().map(|drive| drive.open.info().sector_bytes);
                // The block size of md: a file system that was made for smaller blocks cannot be
                // mounted on larger ones.
                let block_bytes = sectors.max().unwrap_or(BLOCK as u32);
                let chunk = running.array.chunk_bytes.and_then(|chunk| u32::try_from(chunk).ok());
                let io_min_bytes = chunk.filter(|chunk| chunk.is_power_of_two()).unwrap_or(BLOCK as u32);
                let io_opt_bytes = io_opt_bytes(running.stripe_bytes, io_min_bytes);
                (Backing { io_min_bytes, io_opt_bytes, ..backing }, block_bytes)
            }
            Source::Namespace(remote) => {
                let (info, about) = (remote.known().info(), remote.known().about());
                let best =
                    info.optimal_write_bytes.map_or(info.block_bytes, |best| io_opt_bytes(best, info.block_bytes));
                let backing = Backing {
                    io_min_bytes: best,
                    io_opt_bytes: best,
                    has_discard: about.has_dataset_management(),
                    has_write_zeroes: about.has_write_zeroes(),
                    ..backing
                };
                (backing, info.block_bytes)
            }
        };
        let block = block_bytes;
        Some((Backing { physical_block_bytes: block, discard_granularity_bytes: block, ..backing }, block_bytes))
    }

    /// The bytes that a power cut leaves either old or new, never mixed: a block of the namespace.
    /// `None` for an array, which is not written, and while it is not served.
    pub fn atomic_bytes(&self) -> Option<u32> {
        self.backing().filter(|_| self.is_namespace()).map(|(_, block_bytes)| block_bytes)
    }

    /// Whether writes are refused: always for an array, for a namespace if it says so.
    pub fn is_read_only(&self) -> bool {
        self.known().is_none_or(|known| known.info().read_only)
    }

    /// The current record for the state directory.
    pub fn to_remember(&self) -> RememberedImport {
        RememberedImport {
            next_id: *self.next_id.read().unwrap_or_else(PoisonError::into_inner),
            exports: self.exports().values().map(|running| running.record.clone()).collect(),
            ..self.remembered.clone()
        }
    }

    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for export in self.exports().values() {
            sum.add(&export.state.counters());
        }
        sum
    }

    fn export_ids(&self) -> Vec<String> {
        self.exports().keys().map(|id| self.export_id(*id)).collect()
    }

    /// The array, while it is read.
    fn array(&self) -> Option<&Running> {
        match &self.running {
            Ok(Source::Md(running)) => Some(running),
            _ => None,
        }
    }

    /// The properties that a namespace reported, while it is connected.
    fn known(&self) -> Option<&Known> {
        match &self.running {
            Ok(Source::Namespace(remote)) => Some(remote.known()),
            _ => None,
        }
    }

    fn health(&self, paths: &[PathStatus]) -> api::GroupHealth {
        let usable = paths.iter().filter(|path| path.state.is_usable()).count();
        let missing = |running: &Running| running.array.members.iter().any(|member| member.drive.is_none());
        match &self.running {
            Err(_) => api::GroupHealth::Failed,
            Ok(Source::Md(running)) if missing(running) => api::GroupHealth::Degraded,
            Ok(Source::Namespace(_)) if usable == 0 => api::GroupHealth::Failed,
            Ok(Source::Namespace(_)) if usable < paths.len() => api::GroupHealth::Degraded,
            Ok(_) => api::GroupHealth::Optimal,
        }
    }

    /// The import as the API shows it. `paths`: the paths to a namespace.
    pub fn shown(&self, paths: &[PathStatus]) -> api::Import {
        let health = self.health(paths);
        let out_of_reach = || {
            let errors =
                paths.iter().filter_map(|path| Some(format!("{}: {}", path.address, path.last_error.as_ref()?)));
            let errors = errors.collect::<Vec<_>>().join("; ");
            let errors = if errors.is_empty() { "not connected yet".to_owned() } else { errors };
            (self.known().is_some() && health == api::GroupHealth::Failed).then(|| format!("out of reach: {errors}"))
        };
        api::Import {
            name: self.name().to_owned(),
            volume: self.volume_name(),
            health,
            message: self.reason().or_else(out_of_reach),
            uuid: self.remembered.uuid.clone(),
            array: self.array().map(|running| running.array.clone()),
            namespace: self.shown_namespace(paths),
            drives: self.remembered.drives.clone(),
            allow_inconsistent: self.remembered.allow_inconsistent,
            exports: self.export_ids(),
            io: view::io(&self.counters()),
        }
    }

    fn shown_namespace(&self, paths: &[PathStatus]) -> Option<api::ImportedNamespace> {
        if !self.is_namespace() {
            return None;
        }
        let drive: api::NvmeDrive = self.remembered.drives.first()?.parse().ok()?;
        let info = self.known().map(Known::info);
        let path = |path: &PathStatus| api::NamespacePath {
            address: path.address.to_string(),
            state: path.state.name().to_owned(),
            connect_count: path.connects,
            last_error: path.last_error.clone(),
        };
        Some(api::ImportedNamespace {
            subsystem: drive.subsystem,
            nsid: drive.nsid,
            size_bytes: info.map(|_| self.size_bytes()),
            block_bytes: info.map(|info| info.block_bytes),
            read_only: info.is_some_and(|info| info.read_only),
            paths: paths.iter().map(path).collect(),
        })
    }

    /// Its volume, if it is served.
    pub fn volume(&self) -> Option<Volume> {
        let size_bytes = self.size_bytes();
        let (created_unix_s, kind) = match self.running.as_ref().ok()? {
            Source::Md(running) => (running.array.created_unix_s, VolumeKind::Md),
            Source::Namespace(_) => {
                let since = self.remembered.namespace.as_ref().map_or(0, |namespace| namespace.connected_unix_s);
                (since, VolumeKind::Nvme)
            }
        };
        Some(Volume {
            name: self.volume_name(),
            group: self.name().to_owned(),
            volume: self.volume_part().to_owned(),
            id: VOLUME_ID,
            created_unix_s,
            kind,
            size_bytes,
            used_bytes: size_bytes,
            stored_bytes: None,
            exports: self.export_ids(),
            io: view::io(&self.counters()),
            limit: None,
            conversion: None,
            thin: None,
        })
    }

    /// Its drives on this machine.
    pub fn drives(&self) -> Vec<api::Drive> {
        let shown = |drive: &ImportDrive| api::Drive {
            role: api::DriveRole::Member,
            group: Some(self.name().to_owned()),
            slot: Some(drive.slot),
            ..view::opened(&drive.name, &drive.open)
        };
        self.array().into_iter().flat_map(|running| &running.drives).map(shown).collect()
    }
}

/// An array on some drives.
pub(crate) struct FoundMdArray {
    pub shown: MdArray,
    /// The data to read the array from, and its members by slot, as indices of the drives looked
    /// at.
    pub assembly: Result<(Assembly, Vec<Option<usize>>), Refusal>,
}

/// The arrays and other content on some drives.
pub(crate) struct Looked {
    pub arrays: Vec<FoundMdArray>,
    pub others: Vec<DriveReason>,
}

/// Reads the contents of some drives, without starting anything.
pub(crate) async fn look(
    shard: &ShardHandle,
    requested: &[RequestedDrive],
    allow_inconsistent: bool,
) -> Answer<Looked> {
    let opens: Vec<OpenDrive> = requested.iter().map(|requested| requested.open.clone()).collect();
    let examining = shard.call(move || async move {
        let mut examined = Vec::new();
        for open in &opens {
            examined.push(examine(open).await);
        }
        examined
    });
    let examined: Vec<Result<Candidate, String>> = examining.await.map_err(|_| stopping())?;
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for (index, examined) in examined.iter().enumerate() {
        match examined {
            Ok(candidate) => found.push((index, candidate)),
            Err(reason) => others.push(DriveReason { drive: requested[index].name.clone(), reason: reason.clone() }),
        }
    }
    let candidates: Vec<&Candidate> = found.iter().map(|(_, candidate)| *candidate).collect();
    let array = |set: Vec<usize>| {
        let assessment = md::assess(&set.iter().map(|&at| candidates[at]).collect::<Vec<_>>(), allow_inconsistent);
        let drives: Vec<usize> = set.iter().map(|&at| found[at].0).collect();
        found_array(assessment, &drives, requested)
    };
    Ok(Looked { arrays: md::sets(&candidates).into_iter().map(array).collect(), others })
}

/// The md member on a drive, or why there is none.
async fn examine(open: &OpenDrive) -> Result<Candidate, String> {
    let env = ShardEnv::current();
    let drive = env.attach(open);
    let reason = match md::examine(&drive).await {
        Ok(candidate) => return Ok(candidate),
        Err(reason) => reason,
    };
    if reason == NotMember::Superblock(SuperblockError::NotMd)
        && let Ok(probe) = probe(&env, &drive).await
        && !probe.foreign.is_empty()
    {
        let holds: Vec<String> = probe.foreign.iter().map(Foreign::to_string).collect();
        // These are also arrays of md, with other metadata.
        let array = |foreign: &Foreign| {
            matches!(foreign.what, "Linux md 0.90 member" | "DDF RAID member" | "Intel Matrix RAID member")
        };
        let note = if probe.foreign.iter().any(array) { "; only metadata 1.0, 1.1 and 1.2 are read" } else { "" };
        return Err(format!("it holds {}{note}", holds.join(", ")));
    }
    Err(reason.to_string())
}

/// `drives` are the indices, in `requested`, of the assessment's candidates.
fn found_array(assessment: Assessment, drives: &[usize], requested: &[RequestedDrive]) -> FoundMdArray {
    let Assessment { description, left_out, assembly } = assessment;
    let name = |candidate: usize| requested[drives[candidate]].name.clone();
    let candidates_by_slot: Vec<Option<usize>> = match &assembly {
        Ok(assembly) => assembly.members.iter().map(|member| Some(member.as_ref()?.candidate)).collect(),
        Err(_) => Vec::new(),
    };
    let some = |value: u64| (value > 0).then(|| value * SECTOR);
    let member =
        |(slot, candidate): (usize, &Option<usize>)| MdMember { slot: slot as u32, drive: candidate.map(name) };
    let reason = |(candidate, reason): &(usize, md::LeftOut)| DriveReason {
        drive: name(*candidate),
        reason: reason.to_string(),
    };
    let shown = MdArray {
        uuid: description.array.to_string(),
        name: description.name,
        metadata: description.version.to_string(),
        level: description.level,
        layout: Some(description.layout).filter(|layout| !layout.is_empty()),
        chunk_bytes: some(description.chunk_sectors),
        size_bytes: some(description.sectors),
        clean: description.clean,
        event_count: description.events,
        created_unix_s: description.created_unix_s,
        updated_unix_s: description.updated_unix_s,
        members: candidates_by_slot.iter().enumerate().map(member).collect(),
        left_out: left_out.iter().map(reason).collect(),
        refusal: assembly.as_ref().err().map(Refusal::to_string),
    };
    let places = candidates_by_slot.iter().map(|place| place.map(|candidate| drives[candidate])).collect();
    FoundMdArray { shown, assembly: assembly.map(|assembly| (assembly, places)) }
}

/// Starts reading an array on all shards. Drives that are not part of it are closed.
pub(crate) async fn start(
    shards: &[ShardHandle],
    key: GroupKey,
    requested: &[RequestedDrive],
    shown: MdArray,
    assembly: Assembly,
    places: Vec<Option<usize>>,
) -> Answer<Running> {
    let member = |(slot, place): (usize, &Option<usize>)| {
        let requested = &requested[(*place)?];
        Some(ImportDrive { name: requested.name.clone(), slot: slot as u32, open: requested.open.clone() })
    };
    let drives: Vec<ImportDrive> = places.iter().enumerate().filter_map(member).collect();
    let (size_bytes, stripe_bytes) =
        (assembly.geometry.sectors() * SECTOR, assembly.geometry.stripe_sectors() * SECTOR);
    // By candidate number, as the assembly counts them.
    let opens: BTreeMap<usize, OpenDrive> = assembly
        .members
        .iter()
        .zip(&places)
        .filter_map(|(member, place)| Some((member.as_ref()?.candidate, requested[(*place)?].open.clone())))
        .collect();
    for handle in shards {
        let (assembly, opens) = (assembly.clone(), opens.clone());
        let start = handle.call(move || async move {
            let env = ShardEnv::current();
            let array = md::Array::new(env.clone(), &assembly, |candidate| env.attach(&opens[&candidate]));
            shard::add_import(key, Served::Import(array));
        });
        start.await.map_err(|_| stopping())?;
    }
    Ok(Running { array: shown, size_bytes, stripe_bytes, drives })
}
