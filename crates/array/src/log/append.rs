//! Appends records to the log, and makes room for them.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use drive::{BlockError, Buf, Env, Segments, join_all, oneshot};
use format::log::{FrameHead, PartData, encode_frame_meta, frame_len, frame_meta_len};
use smallvec::SmallVec;

use crate::array::ArrayShard;
use crate::geometry::{MemberIndex, StripeGroup};
use crate::log::{Appended, Log, PARTS_MAX, Pending, Record, Share, part};
use crate::state::slot::DriveId;
use crate::util::semaphore::Turn;

impl<E: Env> ArrayShard<E> {
    /// Begins to make a record durable. The future that it returns waits for that.
    ///
    /// # Errors
    /// [`BlockError`] if a holder failed that the group cannot do without, or no room can be made.
    pub fn append(
        self: &Rc<Self>,
        log: &Rc<Log>,
        mut record: Record,
        turn: Turn,
    ) -> impl Future<Output = Result<Appended, BlockError>> + use<E> {
        let (done, receiver) = oneshot();
        let open = log.begin(&mut record, turn);
        log.pending.borrow_mut().push_back(Pending { record, open, done });
        self.checkpoint_later(log);
        if !log.writing.replace(true) {
            let (inner, log) = (self.clone(), log.clone());
            self.env.spawn(async move {
                // Records that arrive together are gathered. A single record waits for nothing.
                inner.env.turn_end().await;
                loop {
                    let batch = log.batch(if inner.env.buggify("a frame takes one record") { 1 } else { PARTS_MAX });
                    if batch.is_empty() {
                        log.writing.set(false);
                        return;
                    }
                    inner.write_frames(&log, batch).await;
                }
            });
        }
        async move { receiver.await.unwrap_or(Err(BlockError::Stopped)) }
    }

    /// Writes a batch, one frame to each member that holds a part of it.
    async fn write_frames(self: &Rc<Self>, log: &Rc<Log>, batch: Vec<Pending>) {
        let mut shares: Vec<(MemberIndex, DriveId, usize, usize)> = Vec::with_capacity(2 * batch.len());
        for (index, pending) in batch.iter().enumerate() {
            let of = pending.record.shares.iter().enumerate();
            shares.extend(of.map(|(number, share)| (share.member, share.drive, index, number)));
        }
        // By member, and for each member in the order of the records.
        shares.sort_by_key(|(member, ..)| *member);
        let frames = shares.chunk_by(|(one, ..), (other, ..)| one == other).map(|shares| {
            let batch = &batch;
            async move { (shares[0].0, self.write_frame(log, batch, shares).await) }
        });
        let written: Vec<(MemberIndex, Result<bool, BlockError>)> = join_all(frames).await;
        for Pending { record, open, done } in batch {
            let result = |share: &Share| {
                let at = written.binary_search_by_key(&share.member, |(member, _)| *member);
                written[at.expect("each share is in a frame")].1.clone()
            };
            let all = record.shares.iter().map(result).collect::<Result<SmallVec<[bool; 4]>, BlockError>>();
            done.send(all.map(|all| match all.contains(&false) {
                true => Appended::HolderLeft,
                false => Appended::Durable(open),
            }));
        }
        if log.is_filling() {
            self.retire_soon(log);
        }
    }

    /// Writes the parts of a batch that one member holds: `shares` has the member, its drive, the
    /// record and its share. Returns false if the member failed and left the group.
    async fn write_frame(
        self: &Rc<Self>,
        log: &Rc<Log>,
        batch: &[Pending],
        shares: &[(MemberIndex, DriveId, usize, usize)],
    ) -> Result<bool, BlockError> {
        let (member, drive, ..) = shares[0];
        let parts: Vec<PartData<'_>> = shares
            .iter()
            .map(|&(.., index, number)| {
                let Pending { record, open, .. } = &batch[index];
                let holders = record.shares.iter().map(|share| share.role).collect();
                part(open.sequence, record, holders, &record.shares[number])
            })
            .collect();
        let len = frame_len(&parts);
        let stripe_groups: Vec<(StripeGroup, bool)> =
            parts.iter().map(|part| (StripeGroup(part.stripe_group), part.whole)).collect();
        let last = parts.iter().map(|part| part.sequence).max().expect("a frame has parts");
        if self.env.buggify("a ring is full") && log.completed_below() > log.reclaimed() {
            self.flush_for_log(log).await?;
        }
        let offset = loop {
            match log.place(member, len as u64, last, &stripe_groups) {
                Some(offset) => break offset,
                None => self.make_room_in_log(log).await?,
            }
        };
        let mut meta = self.env.alloc(frame_meta_len(&parts));
        let head = FrameHead { offset, tail: log.reclaimed(), ..log.head };
        encode_frame_meta(&log.array, &head, &parts, &mut meta);
        drop(parts);
        // The payloads are written from the buffers in which they were computed.
        let mut left = len - meta.len();
        let mut frame = Segments::with_capacity(shares.len() + 2);
        frame.push(meta.freeze());
        let payloads = shares.iter().map(|&(.., index, number)| &batch[index].record.shares[number].payload);
        for payload in payloads.filter(|payload| !payload.is_empty()) {
            left -= payload.len();
            frame.push(payload.clone());
        }
        if left > 0 {
            frame.push(Buf::zeroes(left));
        }
        let Some(handle) = self.drive(drive) else { return Ok(false) };
        self.write_drive(member, drive, &handle, offset, &frame, true).await
    }

    /// Reclaims records if that is possible, or waits until one is completed.
    async fn make_room_in_log(self: &Rc<Self>, log: &Rc<Log>) -> Result<(), BlockError> {
        if log.completed_below() > log.reclaimed() {
            self.flush_for_log(log).await?;
        } else if !self.incomplete.have_records() {
            // The records of this batch are open as well, but so are older ones, or there would be
            // room.
            let _ = log.wait().await;
        } else if self.retry_writes(|_| true).await.is_err() {
            // Without a flush there is no room either. After it, members that are back may take the
            // writes that they did not take a moment before.
            self.flush_members().await?;
            if self.retry_writes(|_| true).await.is_err() {
                self.incomplete.give_up_records();
            }
        }
        Ok(())
    }

    /// Flushes all members, and informs the log.
    pub async fn flush_for_log(self: &Rc<Self>, log: &Log) -> Result<(), BlockError> {
        let mark = log.flush_begins();
        self.flush_members().await?;
        log.flush_ended(&mark);
        Ok(())
    }

    /// Flushes in the background, for all shards at once, so that there is room before it is
    /// needed.
    fn retire_soon(self: &Rc<Self>, log: &Rc<Log>) {
        if log.completed_below() <= log.reclaimed() || self.shared.retiring.swap(true, Ordering::SeqCst) {
            return;
        }
        let (inner, log) = (self.clone(), log.clone());
        self.env.spawn(async move {
            // After a failure the next write that needs room sees why.
            let _ = inner.flush_for_log(&log).await;
            inner.shared.retiring.store(false, Ordering::SeqCst);
        });
    }
}
