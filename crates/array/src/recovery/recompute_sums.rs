//! Checksums during the replay of the log: read to find the strips to trust, and computed again for
//! the member offsets that were being written.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem;

use drive::{BlockError, BufMut, Drive, DriveError, Env, join_all};
use format::sums::{sum_block_offset, sum_place};
use format::{BLOCK, Region};

use crate::checksums::verify::{read_sums, sums_of};
use crate::drives::bounded::Bounded;
use crate::drives::retry::read_retried;
use crate::geometry::MemberIndex;
use crate::recovery::replay::Replay;
use crate::util::semaphore::FairSemaphore;

/// Most blocks of checksums in memory. Then changed blocks are written, and all blocks are dropped.
const BLOCKS_MAX: usize = 4096;

/// A block of checksums, and whether it changed.
type Sums = (Vec<u8>, bool);

/// Blocks of checksums in memory, for a replay.
#[derive(Default)]
pub(crate) struct RecomputedSums {
    /// By member and block number.
    blocks: RefCell<BTreeMap<(MemberIndex, u64), Sums>>,
    /// How often blocks were dropped. Blocks that were read from drives before that may be older
    /// than the blocks that were written.
    forgotten: Cell<u64>,
    /// Held by a task that writes them.
    saving: FairSemaphore,
}

impl<E: Env> Replay<'_, E> {
    /// Whether the bytes are the ones last written to the member there, by its checksums. Valid for
    /// strips that no record names there. Bytes without readable checksums count as not genuine.
    pub async fn is_genuine(&self, member: MemberIndex, drive: &Bounded<'_, E>, offset: u64, bytes: &[u8]) -> bool {
        self.genuine_blocks(member, drive, offset, bytes).await.into_iter().all(|is_genuine| is_genuine)
    }

    /// Like [`Replay::is_genuine`], for each block
    /// ([`Geometry::sector`](crate::geometry::Geometry::sector)).
    pub async fn genuine_blocks(
        &self,
        member: MemberIndex,
        drive: &Bounded<'_, E>,
        offset: u64,
        bytes: &[u8],
    ) -> Vec<bool> {
        let blocks = bytes.len() / self.shared.geometry.sector_bytes as usize;
        let Some(region) = self.superblock.layout.checksums else { return vec![true; blocks] };
        let (block, first) = sum_place(&self.superblock.layout, offset);
        if self.load(region, member, drive, block).await.is_err() {
            return vec![false; blocks];
        }
        let recomputed = self.recomputed.blocks.borrow();
        let (sums, _) = &recomputed[&(member, block)];
        let sums = sums[first * 4..].chunks_exact(4);
        sums_of(bytes).iter().zip(sums).map(|(sum, bytes)| sum.to_le_bytes() == bytes).collect()
    }

    /// Updates the checksums of a member for bytes from an offset of its data region on.
    ///
    /// # Errors
    /// [`BlockError`] if the member failed and the group cannot do without it.
    pub async fn note_sums(&self, member: MemberIndex, offset: u64, bytes: &[u8]) -> Result<(), BlockError> {
        let Some(region) = self.superblock.layout.checksums else { return Ok(()) };
        let Some(drive) = self.drive(member, None) else { return Ok(()) };
        let most = if self.env.buggify("a recovery has many checksums") { 1 } else { BLOCKS_MAX };
        if self.recomputed.blocks.borrow().len() >= most {
            self.make_room(most).await?;
        }
        let (block, first) = sum_place(&self.superblock.layout, offset);
        if self.load(region, member, drive, block).await.is_err() {
            return self.give_up(member);
        }
        let mut recomputed = self.recomputed.blocks.borrow_mut();
        let (sums, changed) = recomputed.get_mut(&(member, block)).expect("it was loaded");
        for (place, sum) in sums[first * 4..].chunks_exact_mut(4).zip(sums_of(bytes)) {
            *changed |= place != sum.to_le_bytes();
            place.copy_from_slice(&sum.to_le_bytes());
        }
        Ok(())
    }

    /// Computes the checksums of an allocation chunk again from the data on its members. Returns
    /// the bytes on each of them. Blocks that cannot be read keep their checksums.
    ///
    /// # Errors
    /// As for [`Replay::note_sums`].
    pub async fn recompute_chunk(&self, chunk: u64) -> Result<u64, BlockError> {
        if self.superblock.layout.checksums.is_none() {
            return Ok(0);
        }
        let geometry = &self.shared.geometry;
        let (stripe_group, offsets) = geometry.chunk_place(chunk);
        let offset = geometry.drive_offset(stripe_group, offsets.start);
        let members: Vec<MemberIndex> =
            (0..geometry.strips()).map(|role| geometry.member(stripe_group, offsets.start, role)).collect();
        let found = join_all(members.iter().map(|&member| self.read_chunk(member, offset, offsets.len()))).await;
        for (member, pieces) in members.into_iter().zip(found) {
            for (at, bytes) in pieces? {
                self.note_sums(member, at, &bytes).await?;
            }
        }
        Ok(offsets.len())
    }

    /// Reads a member from an offset on. Returns pieces with their offsets, as far as they can be
    /// read.
    ///
    /// # Errors
    /// [`BlockError`] if the member is gone and the group cannot do without it.
    async fn read_chunk(&self, member: MemberIndex, offset: u64, len: u64) -> Result<Vec<(u64, BufMut)>, BlockError> {
        let Some(drive) = self.drive(member, None) else { return Ok(Vec::new()) };
        if let Ok(bytes) = read_retried(drive, offset, || self.env.alloc(len as usize)).await {
            return Ok(vec![(offset, bytes)]);
        }
        let mut pieces = Vec::new();
        for at in (offset..offset + len).step_by(BLOCK) {
            let mut piece = drive.read(at, self.env.alloc(BLOCK)).await;
            if piece.is_err() {
                // A bad sector keeps its checksum. But a drive that is gone, or was for a moment,
                // is no reason to keep wrong checksums.
                self.look_after(member).await?;
                if self.drive(member, None).is_none() {
                    break;
                }
                piece = drive.read(at, self.env.alloc(BLOCK)).await;
            }
            pieces.extend(piece.ok().map(|bytes| (at, bytes)));
        }
        Ok(pieces)
    }

    /// Writes the blocks of checksums that changed.
    ///
    /// # Errors
    /// As for [`Replay::note_sums`].
    pub async fn save_sums(&self) -> Result<(), BlockError> {
        let _turn = self.recomputed.saving.enter().await;
        self.write_changed().await
    }

    /// With `most` blocks or more, writes the changed ones, and drops all that did not change again
    /// meanwhile.
    async fn make_room(&self, most: usize) -> Result<(), BlockError> {
        let _turn = self.recomputed.saving.enter().await;
        // The previous holder of the lock may have made room already.
        if self.recomputed.blocks.borrow().len() >= most {
            self.write_changed().await?;
            self.recomputed.blocks.borrow_mut().retain(|_, (_, changed)| *changed);
            self.recomputed.forgotten.set(self.recomputed.forgotten.get() + 1);
        }
        Ok(())
    }

    async fn write_changed(&self) -> Result<(), BlockError> {
        let Some(region) = self.superblock.layout.checksums else { return Ok(()) };
        // By member. Each member writes its blocks one after the other.
        let mut taken: BTreeMap<MemberIndex, Vec<(u64, BufMut)>> = BTreeMap::new();
        for (&(member, block), (sums, changed)) in self.recomputed.blocks.borrow_mut().iter_mut() {
            if mem::take(changed) {
                taken.entry(member).or_default().push((block, BufMut::copy_of(sums)));
            }
        }
        let written = taken.into_iter().map(|(member, blocks)| async move {
            for (block, sums) in blocks {
                self.write(member, sum_block_offset(&region, block), sums.freeze(), false).await?;
            }
            Ok(())
        });
        join_all(written).await.into_iter().collect()
    }

    async fn load(
        &self,
        region: Region,
        member: MemberIndex,
        drive: &Bounded<'_, E>,
        block: u64,
    ) -> Result<(), DriveError> {
        while !self.recomputed.blocks.borrow().contains_key(&(member, block)) {
            let forgotten = self.recomputed.forgotten.get();
            let know = (&self.superblock.layout, &self.shared.geometry, &self.shared.map);
            let (mut sums, mut computed) = read_sums(self.env, drive, &region, know, member, block).await?;
            if computed {
                // If the drive was gone for a moment, computed checksums would replace correct
                // ones.
                self.look_after(member).await.map_err(|_| DriveError::Gone)?;
                (sums, computed) = read_sums(self.env, drive, &region, know, member, block).await?;
            }
            if self.recomputed.forgotten.get() == forgotten {
                self.recomputed.blocks.borrow_mut().entry((member, block)).or_insert((sums, computed));
            }
        }
        Ok(())
    }
}
