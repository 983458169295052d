//! Checksums in the path of reads and writes. Data read from a member is compared with its
//! checksums, and data written to it updates them.
//!
//! Under the lock of a stripe group the checksums in memory are those of the data on the members,
//! so data that does not match is damaged. Without the lock a write may be under way, so a reader
//! that finds a difference checks again under the lock.
//!
//! The checksums on the members may be behind or ahead of the data in two cases only: where a
//! record of the log that needs recovery names the member offsets that were being written, and in a
//! chunk that the allocation map does not have yet. This holds because checksums are durable before
//! a record is reclaimed, and before the map is. A recovery computes the checksums of its records'
//! member offsets again.

use std::rc::Rc;
use std::time::Duration;

use drive::{BlockError, Buf, Drive, DriveError, Env, join_all};
use format::sums::{SUMS_PER_BLOCK, sum_block_offset, sum_of, sum_place};
use format::{BLOCK, Layout, MemberState, Region, superblock_offsets};
use smallvec::SmallVec;

use crate::array::ArrayShard;
use crate::checksums::loading::Claim;
use crate::checksums::saving::{Save, Saving};
use crate::checksums::sums::{Checksums, SumKey};
use crate::drives::retry::{read_retried, write_retried};
use crate::geometry::ranges::Range;
use crate::geometry::{Geometry, MemberIndex, StripeGroup};
use crate::state::cause::Failure;
use crate::state::errors::Failed;
use crate::state::findings::{Fault, Finding, ScrubMode, ScrubReport};
use crate::state::map::AllocationMap;
use crate::state::shared::Shared;
use crate::state::slot::DriveId;

/// How long a task waits before it checks whether another one has loaded or saved the block of
/// checksums that it needs. Doubles after each check, from `LOOK` up to `LOOK_MAX`.
const LOOK: Duration = Duration::from_micros(20);
const LOOK_MAX: Duration = Duration::from_millis(10);

/// Blocks of checksums that are written at the same time. Adjacent blocks are written in one
/// operation.
const SAVES_AT_ONCE: usize = 64;

/// How much data is read at once to compute checksums from it.
const READ_BYTES: u64 = 256 << 10;

/// Checksums of a strip's blocks, in order. Those of a strip of 64 KiB need no allocation.
pub(crate) type Sums = SmallVec<[u32; 16]>;

/// I/O error, by its number in Linux.
const EIO: i32 = 5;

/// The checksums of the blocks of some bytes.
#[inline]
pub(crate) fn sums_of(bytes: &[u8]) -> Sums {
    let mut sums = Sums::from_elem(0, bytes.len() / BLOCK);
    format::sums::sums_of(bytes, &mut sums);
    sums
}

/// A member that could not take its checksums.
pub(crate) type Unsaved = (MemberIndex, DriveId, Failure);

impl<E: Env> ArrayShard<E> {
    /// The place of the checksums for an offset in a drive's data region: their block, and the
    /// index of the first one in it.
    #[inline]
    fn sum_key(&self, id: DriveId, offset: u64) -> (SumKey, usize) {
        let (block, first) = sum_place(&self.shared.layout, offset);
        (SumKey { drive: id, block }, first)
    }

    /// Offset on a member of the checksums for an offset in its data region, to report that they
    /// could not be read.
    pub fn sums_offset(&self, offset: u64) -> u64 {
        let checksums = self.shared.checksums.as_ref();
        let (block, _) = sum_place(&self.shared.layout, offset);
        checksums.map_or(offset, |checksums| sum_block_offset(&checksums.region, block))
    }

    /// The checksums of a place of a drive will be needed. Loads them from the member, or only into
    /// the processor's cache, while its data is read.
    #[inline]
    pub fn expect_sums(self: &Rc<Self>, id: DriveId, offset: u64) {
        let Some(checksums) = &self.shared.checksums else { return };
        let (key, first) = self.sum_key(id, offset);
        if !checksums.table.expects(key, first) {
            let inner = self.clone();
            self.env.spawn(async move {
                let checksums = inner.shared.checksums.as_ref().expect("it was there");
                // If this fails, the task that needs them sees the error.
                let _ = inner.load_sums(checksums, key).await;
            });
        }
    }

    /// Whether the bytes from an offset of a drive's data region on are those last written there,
    /// by the checksums.
    ///
    /// # Errors
    /// [`DriveError`] if the checksums cannot be determined.
    #[inline]
    pub async fn is_genuine(self: &Rc<Self>, id: DriveId, offset: u64, bytes: &[u8]) -> Result<bool, DriveError> {
        if self.shared.checksums.is_none() {
            return Ok(true);
        }
        let sums = self.sums_at(id, offset, bytes.len() / BLOCK).await?;
        Ok(sums_of(bytes) == sums)
    }

    /// Whether the checksums of a place of a drive are in memory, or not needed. Prefetches them.
    #[inline]
    pub fn has_sums(&self, id: DriveId, offset: u64) -> bool {
        self.shared.checksums.as_ref().is_none_or(|checksums| {
            let (key, first) = self.sum_key(id, offset);
            checksums.table.expects(key, first)
        })
    }

    /// Like [`ArrayShard::is_genuine`], with checksums in memory. `None` if they are not there.
    #[inline]
    pub fn is_genuine_now(&self, id: DriveId, offset: u64, bytes: &[u8]) -> Option<bool> {
        let Some(checksums) = &self.shared.checksums else { return Some(true) };
        let (key, first) = self.sum_key(id, offset);
        let mut sums: Sums = SmallVec::from_elem(0, bytes.len() / BLOCK);
        let there = checksums.table.get(key, first, &mut sums);
        there.then(|| sums_of(bytes) == sums)
    }

    /// The checksums of some blocks from an offset of a drive's data region on.
    ///
    /// # Errors
    /// [`DriveError`] if they cannot be determined.
    #[inline]
    pub async fn sums_at(self: &Rc<Self>, id: DriveId, offset: u64, blocks: usize) -> Result<Sums, DriveError> {
        let checksums = self.shared.checksums.as_ref().expect("only asked for where there are some");
        let (key, first) = self.sum_key(id, offset);
        if self.env.buggify("a block of checksums is not in memory any more") {
            checksums.table.forget(key);
        }
        let mut sums: Sums = SmallVec::from_elem(0, blocks);
        while !checksums.table.get(key, first, &mut sums) {
            Box::pin(self.load_sums(checksums, key)).await?;
        }
        Ok(sums)
    }

    /// Updates the checksums of data that was written to a drive. Under the lock of the stripe
    /// group.
    ///
    /// # Errors
    /// [`DriveError`] if the drive's checksums cannot be read.
    pub async fn note_sums(self: &Rc<Self>, id: DriveId, offset: u64, data: &[Buf]) -> Result<(), DriveError> {
        let Some(checksums) = &self.shared.checksums else { return Ok(()) };
        let (key, first) = self.sum_key(id, offset);
        let mut sums = Sums::new();
        for segment in data {
            let start = sums.len();
            sums.resize(start + segment.len() / BLOCK, 0);
            format::sums::sums_of(segment, &mut sums[start..]);
        }
        while !checksums.table.set(key, first, sums.iter().copied()) {
            Box::pin(self.load_sums(checksums, key)).await?;
        }
        let filling = checksums.table.is_filling() || self.env.buggify("the table of checksums fills");
        if filling && !self.saving_sums.replace(true) {
            let inner = self.clone();
            self.env.spawn(async move {
                // A task that needs them durable sees the members that the group cannot do without.
                let _ = inner.save_sums_or_fail().await;
                inner.saving_sums.set(false);
            });
        }
        Ok(())
    }

    /// Brings a block of checksums into memory, at least for a moment.
    async fn load_sums(self: &Rc<Self>, checksums: &Checksums, key: SumKey) -> Result<(), DriveError> {
        let mut look = LOOK;
        let loading = loop {
            match checksums.table.claim(key) {
                Claim::Ready => return Ok(()),
                Claim::Mine(loading) => break loading,
                Claim::Busy => self.env.sleep(look).await,
                Claim::Full => {
                    if Box::pin(self.save_sums_or_fail()).await.is_err() {
                        return Err(DriveError::Os { operation: "saving checksums", errno: EIO });
                    }
                    // Possibly nothing was saved, because other tasks are loading or saving all
                    // ways.
                    self.env.sleep(look).await;
                }
            }
            look = (2 * look).min(LOOK_MAX);
        };
        let drive = self.drive(key.drive).ok_or(DriveError::Gone)?;
        let member = self.shared.held_by(key.drive).ok_or(DriveError::Gone)?;
        let Shared { layout, geometry, map, .. } = &*self.shared;
        let know = (layout, geometry, map);
        let (sums, computed) = read_sums(&self.env, &drive, &checksums.region, know, member, key.block).await?;
        loading.fill(&sums, computed);
        Ok(())
    }

    /// Whether a block of checksums on its drive is the same as in memory. Also true if it is being
    /// changed.
    ///
    /// # Errors
    /// [`DriveError`] if it cannot be read.
    async fn is_saved_right(self: &Rc<Self>, checksums: &Checksums, key: SumKey) -> Result<bool, DriveError> {
        let (Some(before), Some(drive)) = (checksums.table.saved_copy(key), self.drive(key.drive)) else {
            return Ok(true);
        };
        let offset = sum_block_offset(&checksums.region, key.block);
        let found = read_retried(&drive, offset, || self.env.alloc(BLOCK)).await?;
        Ok(*found == *before || checksums.table.saved_copy(key).is_none_or(|after| after != before))
    }

    /// For the first stripe group of a scrub that a block of checksums covers: compares that block,
    /// on each member, with the one in memory. A later load would trust the block on the member.
    pub async fn check_saved_sums(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        mode: ScrubMode,
        report: &mut ScrubReport,
    ) {
        let (shared, geometry) = (&self.shared, &self.shared.geometry);
        let Some(checksums) = &shared.checksums else { return };
        let set = geometry.set(stripe_group);
        let covered = SUMS_PER_BLOCK * BLOCK as u64;
        let block = sum_place(&shared.layout, geometry.drive_offset(stripe_group, 0)).0;
        let first = StripeGroup(block * covered / geometry.stripe_group_bytes * geometry.sets + set);
        if self.next_stripe_group(first, Some(set)) != Some(stripe_group) {
            return;
        }
        let members =
            (0..geometry.strips() as u64).map(|local| MemberIndex((set * geometry.strips() as u64 + local) as u16));
        for (member, slot) in members.map(|member| (member, shared.slot(member))) {
            if slot.state != MemberState::InSync {
                continue;
            }
            let key = SumKey { drive: slot.drive, block };
            let fault = match self.is_saved_right(checksums, key).await {
                Ok(true) => continue,
                Ok(false) => Fault::Checksum,
                Err(_) => Fault::Unreadable,
            };
            // Marked as changed, it is written again.
            let repaired = mode == ScrubMode::Repair && checksums.table.save_again(key);
            report.findings.push(Finding {
                offset: geometry.offset(stripe_group, 0, 0),
                member: Some(member),
                member_offset: sum_block_offset(&checksums.region, block),
                fault,
                repaired,
            });
        }
    }

    /// Writes checksums that were changed before the call to the members that `wanted` selects.
    /// Returns the members that did not take them.
    pub async fn save_sums(&self, wanted: impl Fn(MemberIndex) -> bool) -> Vec<Unsaved> {
        let Some(checksums) = &self.shared.checksums else { return Vec::new() };
        let left = if checksums.table.is_dirty() { checksums.table.unsaved() } else { Vec::new() };
        self.save_ways(checksums, left, wanted).await
    }

    /// Like [`ArrayShard::save_sums`], for these ways of the table.
    async fn save_ways(
        &self,
        checksums: &Checksums,
        mut left: Vec<usize>,
        wanted: impl Fn(MemberIndex) -> bool,
    ) -> Vec<Unsaved> {
        let mut failed = Vec::new();
        let mut look = LOOK;
        while !left.is_empty() {
            let mut busy = Vec::new();
            for ways in left.chunks(SAVES_AT_ONCE) {
                let mut mine = Vec::with_capacity(ways.len());
                for &way in ways {
                    match checksums.table.save(way) {
                        Save::Clean => {}
                        Save::Busy => busy.push(way),
                        Save::Mine(saving) => mine.push(saving),
                    }
                }
                let saves = runs(mine).into_iter().map(|run| self.save_run(checksums, run, &wanted));
                failed.extend(join_all(saves).await.into_iter().filter_map(Result::err));
                if ways.len() == SAVES_AT_ONCE {
                    // Where operations are done at once, other tasks get a turn.
                    self.env.turn_end().await;
                }
            }
            if !busy.is_empty() {
                self.env.sleep(look).await;
                look = (2 * look).min(LOOK_MAX);
            }
            left = busy;
        }
        failed
    }

    /// Writes adjacent blocks of checksums.
    async fn save_run(
        &self,
        checksums: &Checksums,
        run: Vec<Saving<'_>>,
        wanted: impl Fn(MemberIndex) -> bool,
    ) -> Result<(), Unsaved> {
        let SumKey { drive: id, block } = run[0].key;
        // The checksums of a drive that left the group are not needed any more.
        if let (Some(member), Some(drive)) = (self.shared.held_by(id), self.drive(id)) {
            if !wanted(member) {
                return Ok(()); // They stay as unsaved as they were.
            }
            let mut bytes = self.env.alloc(run.len() * BLOCK);
            for (saving, bytes) in run.iter().zip(bytes.chunks_exact_mut(BLOCK)) {
                saving.copy_to(bytes);
            }
            let offset = sum_block_offset(&checksums.region, block);
            if let Err(error) = write_retried(&drive, offset, bytes.freeze(), false).await {
                return Err((member, id, Failure::write(offset, error)));
            }
        }
        run.into_iter().for_each(Saving::saved);
        Ok(())
    }

    /// Like [`ArrayShard::save_sums`]. Members that did not take their checksums leave the group.
    ///
    /// # Errors
    /// [`BlockError`] if the group cannot do without one of them.
    pub async fn save_sums_or_fail(self: &Rc<Self>) -> Result<(), BlockError> {
        let unsaved = self.save_sums(|_| true).await;
        self.fail_unsaved(unsaved).await
    }

    /// Like [`ArrayShard::save_sums_or_fail`], for member offsets of a stripe group on some
    /// members.
    pub async fn save_sums_of(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        offsets: Range,
        members: &[MemberIndex],
    ) -> Result<(), BlockError> {
        let Some(checksums) = &self.shared.checksums else { return Ok(()) };
        let block = |offset| sum_place(&self.shared.layout, self.shared.geometry.drive_offset(stripe_group, offset)).0;
        let blocks = block(offsets.start)..=block(offsets.end - 1);
        let of_member = |&member: &MemberIndex| {
            let drive = self.shared.slot(member).drive;
            blocks.clone().flat_map(move |block| checksums.table.ways_of(SumKey { drive, block }))
        };
        let ways = members.iter().flat_map(of_member).collect();
        let unsaved = self.save_ways(checksums, ways, |_| true).await;
        self.fail_unsaved(unsaved).await
    }

    async fn fail_unsaved(self: &Rc<Self>, unsaved: Vec<Unsaved>) -> Result<(), BlockError> {
        for (member, id, failure) in unsaved {
            self.count_error(member, id, Failed::Write);
            // Boxed, because the leader flushes while it changes the state.
            Box::pin(self.fail_or_refuse(member, id, failure)).await?;
        }
        Ok(())
    }
}

/// Groups blocks that are adjacent on a drive.
fn runs(mut blocks: Vec<Saving<'_>>) -> Vec<Vec<Saving<'_>>> {
    blocks.sort_unstable_by_key(|saving| saving.key);
    let mut runs: Vec<Vec<Saving<'_>>> = Vec::new();
    for saving in blocks {
        let follows = |last: &Saving<'_>| SumKey { block: last.key.block + 1, ..last.key } == saving.key;
        match runs.last_mut() {
            Some(run) if run.last().is_some_and(follows) => run.push(saving),
            _ => runs.push(vec![saving]),
        }
    }
    runs
}

/// Reads a block of checksums of a member. Also returns whether it was computed because the medium
/// could not read it.
///
/// # Errors
/// [`DriveError`], except for those of the medium. While the path to the drive fails, nothing is
/// known of the drive, least of all that its blocks have no right content.
pub(crate) async fn read_sums<E: Env>(
    env: &E,
    drive: &impl Drive,
    region: &Region,
    know: (&Layout, &Geometry, &AllocationMap),
    member: MemberIndex,
    block: u64,
) -> Result<(Vec<u8>, bool), DriveError> {
    // Computed checksums cannot show earlier damage. So an error of the path must not lead to
    // computed ones.
    let offset = sum_block_offset(region, block);
    let read = async || read_retried(drive, offset, || env.alloc(BLOCK)).await;
    let error = match read().await {
        Ok(sums) => return Ok((sums.to_vec(), false)),
        Err(error @ DriveError::Media { .. }) => error,
        Err(error) => return Err(error),
    };
    // The kernel reports errors of the path as medium errors, too. It is a medium error if other
    // blocks can be read before and afterwards.
    if !answers(env, drive).await {
        return Err(error);
    }
    match read().await {
        Ok(sums) => return Ok((sums.to_vec(), false)),
        Err(DriveError::Media { .. }) => {}
        Err(error) => return Err(error),
    }
    let sums = compute_sums(env, drive, know, member, block).await?;
    if answers(env, drive).await { Ok((sums, true)) } else { Err(error) }
}

/// Whether one of the superblocks can be read.
async fn answers<E: Env>(env: &E, drive: &impl Drive) -> bool {
    for offset in superblock_offsets(drive.info().size_bytes).into_iter().flatten() {
        if drive.read(offset, env.alloc(BLOCK)).await.is_ok() {
            return true;
        }
    }
    false
}

/// Computes a block of checksums that could not be read from the data as it is. Readable data is
/// trusted, because there is nothing else to compare it with. A block that its medium cannot read
/// gets a checksum that is wrong for all but one content in 2^32.
///
/// # Errors
/// As for [`read_sums`].
async fn compute_sums<E: Env>(
    env: &E,
    drive: &impl Drive,
    (layout, geometry, map): (&Layout, &Geometry, &AllocationMap),
    member: MemberIndex,
    block: u64,
) -> Result<Vec<u8>, DriveError> {
    let start = layout.data.offset + block * SUMS_PER_BLOCK * BLOCK as u64;
    let end = (start + SUMS_PER_BLOCK * BLOCK as u64).min(layout.data.end());
    let set = u64::from(member.0) / geometry.strips() as u64;
    let mut sums = vec![0; BLOCK];
    let step = READ_BYTES.min(geometry.chunk_bytes);
    for at in (start..end).step_by(step as usize) {
        let from_start = at - layout.data.offset;
        let stripe_group = StripeGroup(from_start / geometry.stripe_group_bytes * geometry.sets + set);
        if !map.get(geometry.chunk_index(stripe_group, from_start % geometry.stripe_group_bytes)) {
            continue;
        }
        let len = step.min(end - at) as usize;
        let whole = match drive.read(at, env.alloc(len)).await {
            Ok(bytes) => Some(bytes),
            Err(DriveError::Media { .. }) => None,
            Err(error) => return Err(error),
        };
        for index in 0..len / BLOCK {
            let sum = match &whole {
                Some(bytes) => Some(sum_of(&bytes[index * BLOCK..][..BLOCK])),
                None => match drive.read(at + (index * BLOCK) as u64, env.alloc(BLOCK)).await {
                    Ok(bytes) => Some(sum_of(&bytes)),
                    Err(DriveError::Media { .. }) => None,
                    Err(error) => return Err(error),
                },
            };
            let entry = sum_place(layout, at).1 + index;
            sums[entry * 4..][..4].copy_from_slice(&sum.unwrap_or(0).to_le_bytes());
        }
    }
    Ok(sums)
}
