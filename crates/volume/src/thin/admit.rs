//! Admission: a piece of a write, within 1 MiB of the volume, waits until there is room, or is
//! refused.
//!
//! It needs room three times. Its blocks may make the volume grow, within the volume's quota and
//! the pool's limit. Its content needs free segments. And its changes of the map have to fit into
//! the next checkpoint. It is refused for the first two reasons, and only if nothing that is under
//! way can change that: pending parts, the collector, and space that the group still has.
//!
//! Growth is counted for the uncompressed size, and computed anew when the blocks are in the map.

use std::time::Duration;

use drive::{BlockError, Env, Nanos, within};
use format::BLOCK;
use format::thin::WINDOW_BLOCKS;
use format::thin::entry::LEAF_BLOCKS;

use super::backing::Backing;
use super::compress::Compression;
use super::pending::{Growth, block_bits};
use super::pool::SpaceWanted;
use super::store::ThinStore;
use super::write::{Piece, split};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// A map takes at most one part in so many of its blocks, unless there are few of them.
const MAP_SHARE: u64 = 64;

/// How a volume uses its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeSettings {
    /// How new blocks are stored.
    pub compression: Compression,
    /// Most bytes of the volume that may have content. `None`: all.
    pub quota_bytes: Option<u64>,
    /// So much of the pool is kept for the volume.
    pub reserve_bytes: u64,
    /// So long a write waits for room before it is refused.
    pub wait: Duration,
    /// Content that was not written for so long is packed again. `None`: never.
    pub repack_after: Option<Duration>,
}

/// The times at which a write found no room.
#[derive(Default)]
struct Refusals {
    /// The next write's number when there was no room for the first time.
    before: Option<u64>,
    /// When there was none for the first time although nothing was under way.
    since: Option<Nanos>,
}

impl<B: Backing> ThinStore<B> {
    /// Sets how a volume uses the store. Blocks that are there stay as they are.
    pub fn set_settings(&self, line: u32, settings: VolumeSettings) {
        self.settings.borrow_mut().insert(line, settings);
        self.progress.raise();
    }

    /// Writes to a volume do not wait for space any more, or they do again.
    pub(super) fn end_waits(&self, line: u32, is_ended: bool) {
        let mut ended = self.ended_waits.borrow_mut();
        if is_ended {
            ended.insert(line);
            self.progress.raise();
        } else {
            ended.remove(&line);
        }
    }

    /// Writes to all volumes do not wait for space any more, or they do again. For a store that is
    /// to stop.
    pub fn end_all_waits(&self, are_ended: bool) {
        self.are_waits_ended.set(are_ended);
        self.progress.raise();
    }

    pub(super) fn settings(&self, line: u32) -> VolumeSettings {
        self.settings.borrow().get(&line).copied().unwrap_or_default()
    }

    /// Waits until there is room for a piece, and its leaf is in memory, if it has one. A hole only
    /// waits for checkpoints.
    pub(super) async fn admit(&self, line: u32, piece: &Piece) -> Result<(), BlockError> {
        let bytes = if piece.content.is_some() { piece.blocks * BLOCK_BYTES } else { 0 };
        let (in_vain, mut refusals) = (self.collected_in_vain.get(), Refusals::default());
        loop {
            self.check_usable()?;
            self.load_leaf(line, piece.block / LEAF_BLOCKS).await?;
            let growth = if bytes > 0 { self.growth(line, piece) } else { Growth::default() };
            if !self.is_within_quota(line, growth) {
                self.wait_a_while(line, &mut refusals).await?;
                continue;
            }
            if !self.has_space_for(line, growth) {
                self.wait_for_space(line, &mut refusals).await?;
                continue;
            }
            let (pending, checkpoint) = (self.pending.borrow().bytes, self.coming_checkpoint_bytes());
            let is_crowded = pending > 0 && pending + bytes > self.tuning.pending_bytes_max;
            let is_dirty = checkpoint > 0 && checkpoint >= self.checkpoint_bytes() / 2;
            let has_room = bytes == 0 || self.has_room_for(bytes);
            if !is_crowded && !is_dirty && has_room {
                return Ok(());
            }
            // The first of two collections may have begun before.
            if !has_room && self.collected_in_vain.get() >= in_vain + 2 {
                if !self.can_grow() {
                    self.wait_a_while(line, &mut refusals).await?;
                    continue;
                }
                self.want_space(SpaceWanted::Now);
                if !is_crowded && !is_dirty {
                    self.progress.changed().await;
                    continue;
                }
            }
            self.waits_for_landing.set(self.waits_for_landing.get() || is_crowded || is_dirty);
            self.waits_for_segments.set(self.waits_for_segments.get() || !has_room);
            self.work.raise();
            self.progress.changed().await;
        }
    }

    /// Whether a volume with this growth has at most as many blocks as its quota.
    fn is_within_quota(&self, line: u32, growth: Growth) -> bool {
        let Some(quota_bytes) = self.settings(line).quota_bytes.filter(|_| growth.blocks > 0) else { return true };
        let growth = growth + self.pending.borrow().growth_of(line);
        self.mapped(line).0.saturating_add_signed(growth.blocks) <= quota_bytes / BLOCK_BYTES
    }

    /// Whether the pool has space for this growth, beside what it keeps for other volumes.
    fn has_space_for(&self, line: u32, growth: Growth) -> bool {
        if growth.bytes <= 0 {
            return true;
        }
        let (space, growth) = (self.space(), growth.bytes as u64);
        // A volume uses its own reserve first.
        let own = self.reserved_for(line, &self.settings(line));
        let reserved = if growth <= own { 0 } else { space.reserved - own };
        space.used() + growth + reserved <= space.limit
    }

    /// Bytes that are kept for a volume beside those that it has stored. Its map needs some, too.
    fn reserved_for(&self, line: u32, settings: &VolumeSettings) -> u64 {
        let stored = self.mapped(line).1.saturating_add_signed(self.pending.borrow().growth_of(line).bytes);
        let left = settings.reserve_bytes.saturating_sub(stored);
        left + left / MAP_SHARE
    }

    /// Bytes that are kept for all volumes beside those that they have stored.
    pub(super) fn reserved_bytes(&self) -> u64 {
        let settings = self.settings.borrow();
        let kept = settings.iter().filter(|(_, settings)| settings.reserve_bytes > 0);
        kept.map(|(line, settings)| self.reserved_for(*line, settings)).sum()
    }

    /// Waits for a change after which there may be more space.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`] if nothing is under way, and the volume's writes wait no longer.
    async fn wait_for_space(&self, line: u32, refusals: &mut Refusals) -> Result<(), BlockError> {
        // Pending parts may take less than it seems: they are compressed, or free more.
        let before = *refusals.before.get_or_insert(self.next_sequence.get());
        let is_settled = self.pending.borrow().lowest().is_none_or(|lowest| lowest >= before);
        self.want_space(SpaceWanted::Now);
        if is_settled && !self.can_grow() {
            return self.wait_a_while(line, refusals).await;
        }
        let changed = self.progress.next();
        if !is_settled {
            self.waits_for_landing.set(true);
            self.work.raise();
        }
        changed.await;
        Ok(())
    }

    /// Waits for any change, as long as the volume's writes wait.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`] if they wait no longer.
    async fn wait_a_while(&self, line: u32, refusals: &mut Refusals) -> Result<(), BlockError> {
        let now = self.env().now();
        // The volume's setting can change meanwhile.
        let is_ended = self.are_waits_ended.get() || self.ended_waits.borrow().contains(&line);
        let wait = if is_ended { Duration::ZERO } else { self.settings(line).wait };
        let deadline = *refusals.since.get_or_insert(now) + wait.as_nanos() as Nanos;
        if now >= deadline {
            return Err(BlockError::NoSpace);
        }
        // If nothing changes until then, the next look is the last one.
        let _ = within(self.env(), Duration::from_nanos(deadline - now), self.progress.next()).await;
        Ok(())
    }

    /// Most that a piece adds to the volume.
    fn growth(&self, line: u32, piece: &Piece) -> Growth {
        let windows = split(piece.block, piece.blocks, WINDOW_BLOCKS);
        let growth = windows.map(|(block, blocks)| {
            let (pending, holes) = self.pending.borrow().bits(line, block / WINDOW_BLOCKS);
            let bits = block_bits((block % WINDOW_BLOCKS) as u8, blocks as u8);
            // Bytes of pending content are counted already, and so is what a pending hole frees.
            let bits = bits & !(pending & !holes);
            self.growth_of(line, block / WINDOW_BLOCKS, bits & !holes, false) + Growth::of_new(bits & holes)
        });
        growth.sum()
    }

    /// Most that blocks of a window grow by when they are mapped anew, or unmapped.
    fn growth_of(&self, line: u32, window: u64, bits: u16, is_hole: bool) -> Growth {
        let trees = self.trees.borrow();
        let within = (window % (LEAF_BLOCKS / WINDOW_BLOCKS)) as u8;
        let freed = trees.leaf(line, window * WINDOW_BLOCKS / LEAF_BLOCKS).map_or(Growth::default(), |leaf| Growth {
            bytes: -(leaf.freed_by(within, bits) as i64),
            blocks: -i64::from((leaf.mapped(within) & bits).count_ones()),
        });
        if is_hole { freed } else { freed + Growth::of_new(bits) }
    }

    /// The map, or what is pending, has changed in a window: computes its growth anew.
    pub(super) fn regrow(&self, line: u32, window: u64) {
        let growth_of = |bits, is_hole| self.growth_of(line, window, bits, is_hole);
        self.pending.borrow_mut().regrow(line, window, growth_of);
        self.note_written(line);
    }
}
