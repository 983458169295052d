//! Takes over an assembled group: its allocation map, its log after a crash, and its catalogue.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use drive::{BlockError, Buf, BufMut, Drive, DriveError, Env, Segments, WarmState};
use format::log::{LOST_SLOT_BYTES, LOST_SLOTS, LostBlocks, LostError, lost_slot_offset};
use format::{
    BLOCK, Catalogue, CrashSafety, MAP_SLOTS, MapBlock, MemberState, SlotError, Superblock, Uuid, catalogue_slot_bytes,
    catalogue_slot_offset, decode_slot, encode_slot, map_slot_offset,
};

use crate::array::{Array, ShardPlace};
use crate::assembly::assemble::{AssembleError, Assembly, Refusal, check_enough};
use crate::assembly::probe::superblock_on;
use crate::drives::bounded::Bounded;
use crate::drives::retry::read_retried;
use crate::geometry::{Geometry, MemberIndex};
use crate::recovery::recompute_sums::RecomputedSums;
use crate::recovery::replay::{Replay, Replayed, members};
use crate::state::event::Event;
use crate::state::findings::ScrubMode;
use crate::state::leader::{GroupState, Leader};
use crate::state::lost::LostRanges;
use crate::state::message::Peers;
use crate::state::shared::Shared;
use crate::state::slot::{DriveId, Slot};
use crate::state::warm::{WarmGroup, chunk_count};
use crate::util::semaphore::FairSemaphore;

/// Map blocks read by one operation: bounds the memory that reading the map takes.
const MAP_BLOCKS_AT_ONCE: u64 = 128;

/// A group that was taken over from its drives and can be run.
pub struct Loaded {
    /// The state that all shards share.
    pub shared: Arc<Shared>,
    /// A resync, which is a scrub of the whole group, is due after a crash.
    pub needs_resync: bool,
    /// After a crash: the result of the log's replay.
    pub replayed: Option<Replayed>,
    /// Drives of the group that did not answer, by index, and why they are left out.
    pub left_out: Vec<(usize, Refusal)>,
    leader: RefCell<Option<Leader>>,
}

/// The result of an attempt to take a group over.
struct Taken {
    shared: Shared,
    needs_resync: bool,
    replayed: Option<Replayed>,
    superblock: Superblock,
    identities: BTreeMap<DriveId, Uuid>,
    spares: Vec<DriveId>,
    catalogue: (u64, Catalogue),
    map_sequences: Vec<u64>,
    crash: (Option<Vec<MemberIndex>>, u64),
    /// The warm-restart state, and whether it is of the last run.
    warm: Option<(WarmGroup, bool)>,
}

/// The members that a group's structures are read from.
pub(crate) struct Sources<'a, D> {
    pub drives: Vec<&'a D>,
    /// By drive. A structure that a member being filled does not have may exist all the same.
    pub in_sync: Vec<bool>,
}

impl<D> Sources<'_, D> {
    /// Whether a member that has everything could be read.
    fn is_known<T, E>(&self, reads: &[Result<T, E>]) -> bool {
        reads.iter().zip(&self.in_sync).any(|(read, in_sync)| *in_sync && read.is_ok())
    }
}

/// Takes over map and catalogue of an assembled group. `drives` are those that
/// [`assemble`](crate::assembly::assemble) was given, on shard 0. A drive's index is its
/// [`DriveId`] from now on. `warm` is memory of at least [`warm_words`](crate::warm_words) words,
/// the same for this array every time. With it, a process that was killed loses nothing that was
/// acknowledged. `listener` receives the events of the drives.
///
/// A drive that does not answer any more is left out, as if it had not been among the drives.
///
/// # Errors
/// [`AssembleError`].
pub async fn load<E: Env>(
    env: &E,
    assembly: &Assembly,
    drives: &[E::Drive],
    warm: Option<Arc<dyn WarmState>>,
    listener: Box<dyn Fn(Event)>,
) -> Result<Loaded, AssembleError> {
    let mut assembly = assembly.clone();
    let drives: Vec<Bounded<'_, E>> = drives.iter().map(|drive| Bounded::new(env, drive)).collect();
    let warm = warm.filter(|_| !assembly.superblock.is_read_only()).and_then(|warm| {
        let warm = WarmGroup::new(warm, chunk_count(&assembly.superblock))?;
        let is_of_last_run = warm.is_of(&assembly.superblock.array, assembly.superblock.epoch);
        Some((warm, is_of_last_run))
    });
    let asked = assembly.refused.len();
    loop {
        // Every attempt runs to its end: its operations on the drives that answer must not come
        // after those of the next attempt.
        let announced = RefCell::new(None);
        let taken = take_over(env, &assembly, &drives, warm.as_ref(), &announced).await;
        // Some drives have these superblocks: the next attempt goes on from there.
        assembly.superblock = announced.into_inner().unwrap_or(assembly.superblock);
        if !assembly.leave_out_silent(&drives) {
            let left_out = assembly.refused.split_off(asked);
            return taken.map(|taken| taken.into_loaded(left_out, listener));
        }
        check_enough(&assembly, &|index| drives[index].info().name.clone())?;
    }
}

impl Assembly {
    /// Leaves out drives that do not answer. Returns whether there were any.
    fn leave_out_silent<E: Env>(&mut self, drives: &[Bounded<'_, E>]) -> bool {
        let silence = |index: usize| drives[index].silence().map(|error| (index, Refusal::Drive(error)));
        let used = self.members.iter().copied().flatten().chain(self.spares.iter().copied());
        let silent: Vec<(usize, Refusal)> = used.filter_map(silence).collect();
        let is_silent = |index: usize| silent.iter().any(|(silent, _)| *silent == index);
        for member in &mut self.members {
            *member = member.filter(|index| !is_silent(*index));
        }
        self.spares.retain(|index| !is_silent(*index));
        let any = !silent.is_empty();
        self.refused.extend(silent);
        any
    }
}

async fn take_over<E: Env>(
    env: &E,
    assembly: &Assembly,
    drives: &[Bounded<'_, E>],
    warm: Option<&(WarmGroup, bool)>,
    announced: &RefCell<Option<Superblock>>,
) -> Result<Taken, AssembleError> {
    let superblock = &assembly.superblock;
    let live: Vec<usize> = assembly.members.iter().copied().flatten().collect();
    // Spares count: one of them may have to take part before the group is assembled again.
    let all = live.iter().chain(&assembly.spares);
    let sector = all.map(|&index| drives[index].info().sector_bytes).max().unwrap_or(512);
    let geometry = Geometry::new(&superblock.shape, &superblock.layout, sector);
    let slots = slots_of(assembly);
    let mut shared = Shared::new(superblock, geometry, &slots, drives.len() as u16);
    let in_use: Vec<&Bounded<'_, E>> = live.iter().map(|&index| &drives[index]).collect();
    let is_in_sync = |place: usize| superblock.members[place].state == MemberState::InSync;
    let present = || (0..assembly.members.len()).filter(|&place| assembly.members[place].is_some());
    let sources = Sources { drives: in_use, in_sync: present().map(is_in_sync).collect() };
    let logs = superblock.crash_safety != CrashSafety::Off;
    let sequences = load_map(env, superblock, &sources, &shared).await?;
    // Without a log no block is ever listed as lost.
    let lost = if logs { load_lost(superblock, &sources).await? } else { LostBlocks::default() };
    let crashed = !superblock.clean && !superblock.is_read_only();
    let completed = warm.filter(|(_, is_of_last_run)| crashed && *is_of_last_run).map(|(warm, _)| warm.clone());
    let new_chunks = completed.iter().flat_map(|warm| shared.map.keep_on(warm.clone())).collect::<Vec<_>>();
    let warm = warm.map(|(warm, _)| (warm.clone(), completed.is_some()));
    let runs = superblock.next_runs(present());
    let mut replayed = None;
    let lost = if logs && crashed {
        let members = RefCell::new(members(superblock, &assembly.members, drives));
        let (lost, recomputed, listing) = (RefCell::new(lost), RecomputedSums::default(), FairSemaphore::default());
        let (shared, warm) = (&shared, completed);
        let replay = Replay { env, superblock, shared, members, lost, listing, recomputed, warm, announced, runs };
        replayed = Some(replay.run(&new_chunks).await.map_err(AssembleError::Block)?);
        replay.lost.into_inner()
    } else {
        lost
    };
    let superblock = &announced.borrow().clone().unwrap_or_else(|| superblock.clone());
    shared.lost = LostRanges::new(&lost);
    let catalogue = load_catalogue(superblock, &sources, shared.geometry.capacity()).await?;
    let identities = identities_of(assembly, superblock, drives).await;
    let spares = assembly.spares.iter().map(|&index| DriveId(index as u16)).filter(|id| identities.contains_key(id));
    let spares = spares.collect();
    // A crash can leave one drive an epoch ahead of the others. If that drive is missing now, it
    // must not count as up to date when it comes back.
    let log_generation = if logs { shared.log_generation.load(Ordering::Acquire) } else { superblock.log_generation };
    let ahead = Superblock { epoch: superblock.epoch + 1, log_generation, runs, ..superblock.clone() };
    let failed = crashed.then(|| replayed.iter().flat_map(|replayed| replayed.failed.clone()).collect());
    let crash = (failed, lost.sequence);
    let needs_resync = !logs && !superblock.clean && superblock.shape.survives() > 0;
    shared.set_resync_due(needs_resync);
    let (superblock, map_sequences) = (ahead, sequences);
    Ok(Taken { shared, needs_resync, replayed, superblock, identities, spares, catalogue, map_sequences, crash, warm })
}

/// The slots of the group as its superblock says, with the drives that are there.
fn slots_of(assembly: &Assembly) -> Vec<Slot> {
    let slot = |(entry, index): (&format::MemberEntry, &Option<usize>)| match index {
        Some(index) => Slot { drive: DriveId(*index as u16), state: entry.state },
        None if entry.state == MemberState::Faulty => Slot { drive: DriveId(u16::MAX), state: MemberState::Faulty },
        None => Slot { drive: DriveId(u16::MAX), state: MemberState::Missing },
    };
    assembly.superblock.members.iter().zip(&assembly.members).map(slot).collect()
}

/// The UUIDs of the members and of the spares whose superblock can be read.
async fn identities_of<E: Env>(
    assembly: &Assembly,
    superblock: &Superblock,
    drives: &[Bounded<'_, E>],
) -> BTreeMap<DriveId, Uuid> {
    let identity = |(place, index): (usize, &Option<usize>)| {
        index.map(|index| (DriveId(index as u16), superblock.members[place].uuid))
    };
    let mut identities: BTreeMap<DriveId, Uuid> = assembly.members.iter().enumerate().filter_map(identity).collect();
    for &index in &assembly.spares {
        if let Ok(Ok(own)) = superblock_on(&drives[index]).await {
            identities.insert(DriveId(index as u16), own.drive);
        }
    }
    identities
}

impl Taken {
    fn into_loaded(self, left_out: Vec<(usize, Refusal)>, listener: Box<dyn Fn(Event)>) -> Loaded {
        let Taken { mut shared, superblock, identities, spares, catalogue, map_sequences, crash, warm, .. } = self;
        // Only after everything was read: the attempt after a failed one would trust the state that
        // this one began.
        let epoch = superblock.epoch - 1;
        match warm {
            Some((warm, true)) => warm.found_epoch(epoch),
            Some((warm, false)) => shared.map.keep(warm, &superblock.array, epoch),
            None => {}
        }
        let leader = Leader::new(superblock, identities, spares, catalogue, map_sequences, crash, listener);
        Loaded {
            shared: Arc::new(shared),
            needs_resync: self.needs_resync,
            replayed: self.replayed,
            left_out,
            leader: RefCell::new(Some(leader)),
        }
    }
}

impl Loaded {
    /// The leader: the group on shard 0. After [`Array::start`] it continues interrupted rebuilds,
    /// and after a crash makes the parity fit the data.
    ///
    /// # Panics
    /// If called twice.
    pub fn lead<E: Env>(&self, env: E, drives: Vec<E::Drive>, shards: usize, peers: Rc<dyn Peers>) -> Array<E> {
        let leader = self.leader.borrow_mut().take().expect("a group has one leader");
        let drives = drives.into_iter().map(Some).collect();
        Array::build(env, self.shared.clone(), drives, ShardPlace { shard: 0, shards }, peers, Some(leader))
    }
}

impl<E: Env> Array<E> {
    /// The group on a shard other than the leader's. `drives` are the same as the leader's, in the
    /// same order.
    pub fn follow(env: E, shared: Arc<Shared>, drives: Vec<E::Drive>, place: ShardPlace, peers: Rc<dyn Peers>) -> Self {
        Array::build(env, shared, drives.into_iter().map(Some).collect(), place, peers, None)
    }

    /// Begins background work that is due: interrupted rebuilds, and the resync after a crash.
    /// Leader only, once all shards have the group.
    ///
    /// # Errors
    /// [`BlockError`] if the superblocks cannot be written after a replay of the log.
    pub async fn start(&self, needs_resync: bool) -> Result<(), BlockError> {
        if self.0.leader().superblock.borrow().is_read_only() {
            return Ok(()); // It may be read, and nothing may be written.
        }
        if let Some(failed) = &self.0.leader().failed_in_recovery {
            let (inner, failed) = (self.0.clone(), failed.clone());
            let announce = async move {
                inner.announce_recovery(&failed).await?;
                // A killed process leaves acknowledged writes in the drives' caches, and changes of
                // the map in its warm-restart state.
                inner.persist_map().await
            };
            self.0.run_detached::<(), BlockError>(announce).await?;
        }
        self.0.resume_jobs();
        if needs_resync {
            self.start_scrub(ScrubMode::Resync);
        }
        Ok(())
    }

    /// Lets go of a group that could not be started, on the leader's shard last. The group takes no
    /// more requests, the work under way on this shard ends, and nothing is written afterwards. The
    /// drives are as after a kill.
    pub async fn abandon(&self) {
        self.0.shared.stop();
        self.0.barrier().await;
        self.0.answered().await;
        self.0.jobs_ended().await;
        if let Some(leader) = &self.0.leader {
            // A task that is about to change the superblocks or the map has finished before, or
            // sees that the group has ended.
            drop(leader.owners_lock.enter().await);
            drop((leader.state_lock.enter().await, leader.map_lock.enter().await));
        }
    }

    /// Stops the group: waits for the work under way on this shard, then makes it durable. The
    /// leader is the last of all shards. It also notes in the superblocks that the group was
    /// stopped cleanly.
    ///
    /// # Errors
    /// [`BlockError`] if the last flush failed. Then the group counts as crashed at the next
    /// assembly.
    pub async fn stop(&self) -> Result<(), BlockError> {
        let inner = self.0.clone();
        inner.shared.stop();
        self.0
            .run_detached(async move {
                inner.barrier().await;
                inner.answered().await;
                inner.jobs_ended().await;
                let retried = inner.retry_writes(|_| true).await;
                let Some(leader) = &inner.leader else { return Ok(()) };
                drop(leader.owners_lock.enter().await);
                if inner.shared.incomplete.load(Ordering::SeqCst) > 0 {
                    // Incomplete writes of this shard or another: a recovery has to repair them.
                    let survives = inner.shared.geometry.parity_count;
                    return Err(retried.err().unwrap_or(BlockError::Lost { lost: survives + 1, survives }));
                }
                inner.persist_map().await?;
                let _turn = inner.leader().state_lock.enter().await;
                let state = inner.state();
                let clean = state.clean || !inner.shared.is_resync_due();
                let rebuild = inner.final_checkpoint(&state.slots);
                if (clean, rebuild) == (state.clean, state.rebuild) && !inner.shared.has_superblock_mismatch() {
                    return Ok(());
                }
                inner.commit(GroupState { clean, rebuild, ..state }).await
            })
            .await
    }
}

/// A part of the map, as it is found on the members.
struct MapPart {
    first: u64,
    newest: Vec<Option<MapBlock>>,
    /// By drive and block, the sequence that the drive has.
    have: Vec<Vec<u64>>,
}

impl MapPart {
    fn take(&mut self, array: &Uuid, drive: usize, within: usize, copy: &[u8]) {
        let Ok(block) = MapBlock::decode(copy, array, self.first + within as u64) else { return };
        self.have[drive][within] = self.have[drive][within].max(block.sequence);
        if self.newest[within].as_ref().is_none_or(|other| other.sequence < block.sequence) {
            self.newest[within] = Some(block);
        }
    }
}

/// Reads the map from the members: of each block the copy with the highest sequence. Returns the
/// sequences. A member that lacks that copy gets it: the next version overwrites the older one, and
/// must not be the only one of that member then.
///
/// # Errors
/// If a slot cannot be read from any member in sync: chunks that are not known to be allocated
/// would read as zeroes.
async fn load_map<E: Env>(
    env: &E,
    superblock: &Superblock,
    sources: &Sources<'_, Bounded<'_, E>>,
    shared: &Shared,
) -> Result<Vec<u64>, AssembleError> {
    let (array, layout) = (&superblock.array, &superblock.layout);
    let blocks = shared.map.block_count();
    let mut sequences = vec![0; blocks as usize];
    let read = async |offset, len: usize| {
        let reads = sources.drives.iter().map(|drive| read_retried(*drive, offset, || env.alloc(len)));
        drive::join_all(reads).await
    };
    let mut first = 0;
    while first < blocks {
        let count = MAP_BLOCKS_AT_ONCE.min(blocks - first) as usize;
        let have = vec![vec![0; count]; sources.drives.len()];
        let mut part = MapPart { first, newest: vec![None; count], have };
        let slots = MAP_SLOTS as usize;
        let reads = read(map_slot_offset(layout, first, 0), count * slots * BLOCK).await;
        let is_known = sources.is_known(&reads);
        for (drive, bytes) in reads.into_iter().enumerate() {
            for (position, copy) in bytes.iter().flat_map(|bytes| bytes.chunks_exact(BLOCK)).enumerate() {
                part.take(array, drive, position / slots, copy);
            }
        }
        // Each member may have other sectors that cannot be read, so each block is tried.
        for position in (0..count * slots).filter(|_| !is_known) {
            let (within, slot) = (position / slots, (position % slots) as u64);
            let reads = read(map_slot_offset(layout, first + within as u64, slot), BLOCK).await;
            if !sources.is_known(&reads) {
                return Err(AssembleError::Unreadable("allocation map"));
            }
            for (drive, copy) in reads.iter().enumerate() {
                copy.iter().for_each(|copy| part.take(array, drive, within, copy));
            }
        }
        for (within, block) in part.newest.into_iter().enumerate() {
            let Some(block) = block else { continue };
            sequences[block.index as usize] = block.sequence;
            shared.map.load(block.index, &block.bits);
            let lacking = sources.drives.iter().zip(&part.have).filter(|(_, have)| have[within] < block.sequence);
            let bytes = BufMut::copy_of(&block.encode(array)).freeze();
            let offset = map_slot_offset(layout, block.index, block.sequence % MAP_SLOTS);
            give(lacking.map(|(drive, _)| *drive), offset, &bytes).await;
        }
        first += count as u64;
    }
    Ok(sequences)
}

/// Some bytes of a drive, read block by block if they cannot be read at once.
pub(crate) struct Patched {
    /// Bytes that could not be read are zero.
    pub bytes: BufMut,
    pub is_whole: bool,
    /// The first block could be read.
    pub has_head: bool,
}

/// # Errors
/// If nothing of it can be read.
pub(crate) async fn read_patched<D: Drive>(drive: &D, offset: u64, len: usize) -> Result<Patched, DriveError> {
    let error = match read_retried(drive, offset, || BufMut::zeroed(len)).await {
        Ok(bytes) => return Ok(Patched { bytes, is_whole: true, has_head: true }),
        Err(DriveError::Gone) => return Err(DriveError::Gone),
        Err(error) => error,
    };
    let mut patched = Patched { bytes: BufMut::zeroed(len), is_whole: true, has_head: true };
    let mut any = false;
    for at in (0..len).step_by(BLOCK) {
        match read_retried(drive, offset + at as u64, || BufMut::zeroed(BLOCK)).await {
            Ok(block) => {
                patched.bytes[at..at + BLOCK].copy_from_slice(&block);
                any = true;
            }
            Err(_) => {
                patched.is_whole = false;
                patched.has_head &= at > 0;
            }
        }
    }
    if any { Ok(patched) } else { Err(error) }
}

/// Writes a copy of a structure to the drives that lack it. A drive that does not take it shows
/// that at the next write.
async fn give<'a, D: Drive + 'a>(drives: impl Iterator<Item = &'a D>, offset: u64, bytes: &Buf) {
    drive::join_all(drives.map(|drive| drive.write(offset, Segments::from_iter([bytes.clone()]), true))).await;
}

/// Reads the catalogue with the highest sequence. A group without one has no volumes so far. A
/// member that lacks that copy gets it, as with the map. At least one member in sync has to be able
/// to read each slot, as far as it has content.
async fn load_catalogue<D: Drive>(
    superblock: &Superblock,
    sources: &Sources<'_, D>,
    capacity: u64,
) -> Result<(u64, Catalogue), AssembleError> {
    let mut newest: Option<(u64, Catalogue)> = None;
    let slot_bytes = catalogue_slot_bytes(&superblock.layout) as usize;
    let mut have = vec![0; sources.drives.len()];
    let mut is_known = [false; format::CATALOGUE_SLOTS as usize];
    for (index, drive) in sources.drives.iter().enumerate() {
        for slot in 0..format::CATALOGUE_SLOTS {
            let offset = catalogue_slot_offset(&superblock.layout, slot);
            let Ok(Patched { bytes, is_whole, has_head }) = read_patched(*drive, offset, slot_bytes).await else {
                continue;
            };
            let decoded = decode_slot(&bytes, &superblock.array);
            let is_absent = matches!(decoded, Err(SlotError::NotACatalogue | SlotError::OtherArray { .. }));
            let is_read = is_whole || decoded.is_ok() || (is_absent && has_head);
            is_known[slot as usize] |= is_read && sources.in_sync[index];
            let (sequence, catalogue) = match decoded {
                Ok(found) => found,
                Err(error) if error.is_whole() => return Err(AssembleError::UnknownCatalogue(error)),
                Err(_) => continue,
            };
            have[index] = sequence.max(have[index]);
            if newest.as_ref().is_none_or(|(other, _)| *other < sequence) {
                newest = Some((sequence, catalogue));
            }
        }
    }
    if is_known.contains(&false) {
        return Err(AssembleError::Unreadable("catalogue of volumes"));
    }
    let Some((sequence, catalogue)) = newest else { return Ok((0, Catalogue::default())) };
    catalogue.check(capacity).map_err(|_| AssembleError::Catalogue)?;
    let bytes = encode_slot(&catalogue, &superblock.array, sequence, slot_bytes as u64);
    if let Ok(bytes) = bytes {
        let lacking = sources.drives.iter().zip(&have).filter(|(_, have)| **have < sequence);
        let offset = catalogue_slot_offset(&superblock.layout, sequence % format::CATALOGUE_SLOTS);
        give(lacking.map(|(drive, _)| *drive), offset, &BufMut::copy_of(&bytes).freeze()).await;
    }
    Ok((sequence, catalogue))
}

/// Reads the list from the members: the valid copy with the highest sequence. If there is no valid
/// copy, no list was ever written. At least one member in sync has to be able to read each slot, as
/// far as it has content: lost blocks must not be read.
pub(crate) async fn load_lost<D: Drive>(
    superblock: &Superblock,
    sources: &Sources<'_, D>,
) -> Result<LostBlocks, AssembleError> {
    let mut newest = LostBlocks::default();
    let mut is_known = [false; LOST_SLOTS as usize];
    for (drive, in_sync) in sources.drives.iter().zip(&sources.in_sync) {
        for slot in 0..LOST_SLOTS {
            let offset = lost_slot_offset(&superblock.layout, slot);
            let Ok(patched) = read_patched(*drive, offset, LOST_SLOT_BYTES).await else { continue };
            let decoded = LostBlocks::decode(&patched.bytes, &superblock.array);
            let is_absent = matches!(decoded, Err(LostError::NotAList | LostError::OtherArray));
            let is_read = patched.is_whole || decoded.is_ok() || (is_absent && patched.has_head);
            is_known[slot as usize] |= is_read && *in_sync;
            match decoded {
                Ok(list) if list.sequence > newest.sequence => newest = list,
                _ => {}
            }
        }
    }
    if is_known.contains(&false) { Err(AssembleError::Unreadable("list of lost blocks")) } else { Ok(newest) }
}
