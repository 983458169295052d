//! Appends frames to a stream of the intent log.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use drive::{BlockError, Buf, Env, Segments, join_all};
use format::intent_log::{INTENT_HEAD_BYTES, IntentHead, encode_intent_head, intent_frame_len};
use format::{BLOCK, MemberState, Region};
use smallvec::SmallVec;

use crate::array::{Array, ArrayShard};
use crate::geometry::MemberIndex;
use crate::log::rings::Rings;
use crate::state::leader::BeforeInSync;
use crate::state::message::Request;
use crate::state::slot::DriveId;

/// A frame takes at most this part of its ring, so that the next ones can be written while it is
/// needed.
const FRAMES_OF_A_RING: u64 = 4;

/// Interval of the checks whether appends may go on, or whether there is room.
const LOOK: Duration = Duration::from_millis(1);

/// A stream of the intent log on its shard. Only one may exist for each stream.
pub struct IntentLog<E: Env> {
    shard: Rc<ArrayShard<E>>,
    generation: u64,
    stream: u32,
    /// The ring of this stream, the same on every member.
    place: Region,
    rings: RefCell<Rings>,
    next: Cell<u64>,
    /// Appends that write.
    writing: Cell<usize>,
}

/// A member that gets a copy of a frame.
type Holder = (MemberIndex, DriveId);

impl<E: Env> Array<E> {
    /// Opens stream `stream` of `streams` for frames of `generation`, numbered from `first` on.
    /// `None` if the group has no intent log, or no room for so many streams.
    pub fn intent_log(
        &self,
        generation: u64,
        (stream, streams): (usize, usize),
        first: u64,
    ) -> Option<Rc<IntentLog<E>>> {
        let region = self.0.shared.intent_region()?;
        let place = format::intent_log::intent_ring(&region, stream, streams)?;
        Some(Rc::new(IntentLog {
            shard: self.0.clone(),
            generation,
            stream: stream as u32,
            place,
            rings: RefCell::new(Rings::new(place.len, first)),
            next: Cell::new(first),
            writing: Cell::new(0),
        }))
    }

    /// The number of streams for `wanted` writers: as many as the group's intent log has room for.
    pub fn intent_streams(&self, wanted: usize) -> usize {
        let region = format::intent_log::intent_region(&self.0.shared.layout);
        let has_room = |count: &usize| format::intent_log::intent_ring(&region, 0, *count).is_some();
        (1..=wanted).rev().find(has_room).unwrap_or(1)
    }

    /// Sets what runs before a drive that was filled is called in sync. It has to reclaim all
    /// frames that were appended, on all shards, and must not append any: appends wait meanwhile.
    /// From then on more members may be lost than those frames have copies. Leader only. Until this
    /// is set, no drive of a group with an intent log is called in sync.
    pub fn before_in_sync(&self, reclaim: BeforeInSync) {
        self.0.leader().before_in_sync.replace(Some(reclaim));
    }
}

impl<E: Env> ArrayShard<E> {
    /// Has the intent log reclaimed, before a drive is called in sync. Appends have to wait.
    pub async fn reclaim_intents(&self) -> Result<(), BlockError> {
        while self.shared.has_intent_log() {
            let reclaim = self.leader().before_in_sync.borrow().clone();
            match reclaim {
                Some(reclaim) => return reclaim().await,
                None if self.shared.is_stopped() => return Err(BlockError::Stopped),
                None => self.env.sleep(LOOK).await,
            }
        }
        Ok(())
    }
}

impl<E: Env> IntentLog<E> {
    /// Most bytes of a frame's body.
    pub fn body_bytes_max(&self) -> usize {
        (self.place.len / FRAMES_OF_A_RING) as usize / BLOCK * BLOCK - INTENT_HEAD_BYTES
    }

    /// Writes a frame: `meta`, zeroes up to a whole block, and `payload`, whose parts are whole
    /// blocks. Returns its sequence once it is on the drives, and durable there with `fua`. Waits
    /// while there is no room. Runs to its end even if the future is dropped.
    ///
    /// # Errors
    /// [`BlockError`] if more members are lost than the level survives, or the group is stopped.
    ///
    /// # Panics
    /// If the body is longer than [`IntentLog::body_bytes_max`].
    pub async fn append(self: &Rc<Self>, meta: Vec<u8>, payload: Vec<Buf>, fua: bool) -> Result<u64, BlockError> {
        let log = self.clone();
        self.shard.run_detached(async move { log.append_frame(&meta, &payload, fua).await }).await
    }

    async fn append_frame(&self, meta: &[u8], payload: &[Buf], fua: bool) -> Result<u64, BlockError> {
        let head_len = intent_frame_len(meta.len());
        let len = head_len + payload.iter().map(|part| part.len()).sum::<usize>();
        assert!(len - INTENT_HEAD_BYTES <= self.body_bytes_max(), "a body of {} bytes", len - INTENT_HEAD_BYTES);
        // From the choice of the holders to the start of the writes without waiting. Else a holder
        // could have failed and been replaced meanwhile, and its copy would be missing.
        let (sequence, holders) = loop {
            self.until_open().await?;
            let sequence = self.next.get();
            let holders = self.holders(sequence)?;
            if holders.iter().all(|&(member, _)| self.rings.borrow().has_room(member, len as u64)) {
                break (sequence, holders);
            }
            self.shard.env.sleep(LOOK).await;
        };
        self.next.set(sequence + 1);
        let write = |&(member, drive): &Holder| {
            let start = self.rings.borrow_mut().place(member, len as u64, sequence, &[]).expect("there is room");
            let offset = self.place.offset + start;
            let head = IntentHead { generation: self.generation, offset, sequence, stream: self.stream };
            let frame = self.frame(&head, head_len, meta, payload);
            async move {
                let Some(handle) = self.shard.drive(drive) else { return Ok(false) };
                self.shard.write_drive(member, drive, &handle, offset, &frame, fua).await
            }
        };
        self.writing.set(self.writing.get() + 1);
        let written = join_all(holders.iter().map(write)).await;
        self.writing.set(self.writing.get() - 1);
        // A holder that left the group is no gap: the superblocks say so, and the group survives
        // one loss less.
        written.into_iter().try_for_each(|copy| copy.map(|_| ()))?;
        Ok(sequence)
    }

    /// Frees the space of the frames below `below`: a recovery does without them.
    pub fn reclaim(&self, below: u64) {
        self.rings.borrow_mut().reclaim(below);
    }

    /// Whether more than half of a ring waits to be reclaimed.
    pub fn is_filling(&self) -> bool {
        self.rings.borrow().is_filling()
    }

    /// The sequence of the next frame.
    pub fn next(&self) -> u64 {
        self.next.get()
    }

    /// Waits until no frame is being written. While appends wait, none is from then on.
    pub async fn until_quiet(&self) {
        while self.writing.get() > 0 {
            self.shard.env.sleep(LOOK).await;
        }
    }

    /// Makes all frames durable that were appended before.
    ///
    /// # Errors
    /// [`BlockError`] if more members fail to flush than the level survives.
    pub async fn flush(&self) -> Result<(), BlockError> {
        self.shard.flush_members().await
    }

    fn frame(&self, head: &IntentHead, head_len: usize, meta: &[u8], payload: &[Buf]) -> Segments {
        let mut first = self.shard.env.alloc(head_len);
        first[INTENT_HEAD_BYTES..][..meta.len()].copy_from_slice(meta);
        first[INTENT_HEAD_BYTES + meta.len()..].fill(0);
        let body = std::iter::once(&first[INTENT_HEAD_BYTES..]).chain(payload.iter().map(|part| &part[..]));
        let bytes = encode_intent_head(&self.shard.shared.array, head, body);
        first[..INTENT_HEAD_BYTES].copy_from_slice(&bytes);
        let mut frame = Segments::with_capacity(1 + payload.len());
        frame.push(first.freeze());
        frame.extend(payload.iter().cloned());
        frame
    }

    /// The members that get a frame: m+1 that are in sync, of one set. Frames take turns among sets
    /// and members.
    fn holders(&self, sequence: u64) -> Result<SmallVec<[Holder; 4]>, BlockError> {
        let geometry = &self.shard.shared.geometry;
        let strips = geometry.strips() as u64;
        let (set, first) = (sequence % geometry.sets, sequence / geometry.sets % strips);
        let member = |place: u64| MemberIndex((set * strips + (first + place) % strips) as u16);
        let in_sync = (0..strips).map(member).filter_map(|member| {
            let slot = self.shard.shared.slot(member);
            (slot.state == MemberState::InSync).then_some((member, slot.drive))
        });
        let holders: SmallVec<[Holder; 4]> = in_sync.take(geometry.parity_count + 1).collect();
        if holders.is_empty() {
            return Err(BlockError::Lost { lost: geometry.strips(), survives: geometry.parity_count });
        }
        Ok(holders)
    }

    /// Waits until appends may go on, and the superblocks say that the group is being written to,
    /// and without which members.
    async fn until_open(&self) -> Result<(), BlockError> {
        let shared = &self.shard.shared;
        loop {
            if shared.is_stopped() {
                return Err(BlockError::Stopped);
            } else if shared.intents_wait() {
                self.shard.env.sleep(LOOK).await;
            } else if !shared.is_marked_dirty() {
                self.shard.on_leader(Request::MarkDirty).await?;
            } else {
                return Ok(());
            }
        }
    }
}
