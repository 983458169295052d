//! Reads the intent log of a group that was assembled.

use std::collections::BTreeMap;

use drive::{BlockError, Drive, Env, join_all};
use format::intent_log::{IntentFrame, IntentHead};
use format::{BLOCK, MemberState, Region};

use crate::array::{Array, ArrayShard};
use crate::drives::window::Window;
use crate::geometry::MemberIndex;

/// Members whose logs are read at the same time. Bounds the memory.
const MEMBERS_AT_ONCE: usize = 4;

/// A frame that was found, on one or several members.
#[derive(Debug, Clone)]
pub struct FoundIntent {
    /// The stream that wrote it.
    pub stream: u32,
    /// Its number in the stream.
    pub sequence: u64,
    /// Where its copies are: the members, and the offsets on them.
    copies: Vec<(MemberIndex, u64)>,
    len: u64,
}

impl<E: Env> Array<E> {
    /// The frames of a generation, by stream and sequence.
    ///
    /// # Errors
    /// [`BlockError::Lost`] if so many members of a set are lost, or have a log that cannot be read
    /// completely, that all copies of a frame may be among them.
    pub async fn intent_frames(&self, generation: u64) -> Result<Vec<FoundIntent>, BlockError> {
        let Some(region) = self.0.shared.intent_region() else { return Ok(Vec::new()) };
        let geometry = &self.0.shared.geometry;
        let strips = geometry.strips();
        let mut lost: Vec<usize> = (0..geometry.sets).map(|set| self.0.shared.lost_in_set(set)).collect();
        let slots = self.0.shared.slots().filter(|(_, slot)| slot.state == MemberState::InSync);
        let members: Vec<MemberIndex> = slots.map(|(member, _)| member).collect();
        let mut found: BTreeMap<(u32, u64), FoundIntent> = BTreeMap::new();
        for together in members.chunks(MEMBERS_AT_ONCE) {
            let scans = together.iter().map(|&member| self.0.scan_intents(member, region, generation));
            for (&member, (heads, is_readable)) in together.iter().zip(join_all(scans).await) {
                lost[usize::from(member.0) / strips] += usize::from(!is_readable);
                for (head, len) in heads {
                    let IntentHead { stream, sequence, offset, .. } = head;
                    let new = || FoundIntent { stream, sequence, copies: Vec::new(), len };
                    found.entry((stream, sequence)).or_insert_with(new).copies.push((member, offset));
                }
            }
        }
        let survives = geometry.parity_count;
        match lost.into_iter().max().filter(|&lost| lost > survives) {
            Some(lost) => Err(BlockError::Lost { lost, survives }),
            None => Ok(found.into_values().collect()),
        }
    }

    /// The body of a frame, from the first copy that can be read.
    ///
    /// # Errors
    /// [`BlockError::Lost`] if no copy can be read any more.
    pub async fn intent_body(&self, generation: u64, found: &FoundIntent) -> Result<Vec<u8>, BlockError> {
        for &(member, offset) in &found.copies {
            let Some(drive) = self.0.drive(self.0.shared.slot(member).drive) else { continue };
            let Ok(bytes) = drive.read(offset, self.0.env.alloc(found.len as usize)).await else { continue };
            if let Ok(frame) = IntentFrame::decode(&bytes, &self.0.shared.array, generation, offset) {
                return Ok(bytes[frame.body].to_vec());
            }
        }
        Err(BlockError::Lost { lost: found.copies.len(), survives: self.0.shared.geometry.parity_count })
    }
}

impl<E: Env> ArrayShard<E> {
    /// The heads of the valid frames on a member, with the lengths of the frames, and whether all
    /// of its log could be read.
    async fn scan_intents(
        &self,
        member: MemberIndex,
        region: Region,
        generation: u64,
    ) -> (Vec<(IntentHead, u64)>, bool) {
        let Some(drive) = self.drive(self.shared.slot(member).drive) else { return (Vec::new(), false) };
        let array = &self.shared.array;
        let mut window = Window::new(&self.env, &drive, region);
        let mut heads = Vec::new();
        let mut at = region.offset;
        while at < region.end() {
            let head = window.bytes(at, BLOCK as u64).await;
            let len = IntentFrame::announced_len(head, array, generation, at).filter(|&len| len <= region.end() - at);
            let frame = match len {
                Some(len) => IntentFrame::decode(window.bytes(at, len).await, array, generation, at).ok(),
                None => None,
            };
            at += frame.as_ref().map_or(BLOCK as u64, |frame| frame.len as u64);
            heads.extend(frame.map(|frame| (frame.head, frame.len as u64)));
        }
        (heads, window.readable)
    }
}
