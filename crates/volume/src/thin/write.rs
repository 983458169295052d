//! Accepts writes: numbers them, makes them visible to reads, and acknowledges them once they are
//! in the log or in a run.
//!
//! The writes of a turn are treated together. If they fill whole runs, they are written there at
//! once, and the log has nothing of them. Otherwise one frame of the log has them all.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use drive::{BlockError, Buf, BufMut, Env, Receiver, Sender, join_all, oneshot};
use format::BLOCK;
use format::thin::batch::{BatchRecords, ContentCursor, encode_index};
use format::thin::entry::LEAF_BLOCKS;
use format::thin::record::{FragmentRecord, HoleRecord};
use format::thin::{Codec, WINDOW_BLOCKS};
use gf::crc32c;

use super::backing::{Backing, INTENT_BASE};
use super::compress::{Compression, PACKED_BLOCKS_MAX};
use super::pending::{Part, PartId};
use super::runs::RunResult;
use super::store::ThinStore;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Writes and holes of this turn.
#[derive(Default)]
pub(super) struct Arrived {
    requests: Vec<ArrivedRequest>,
    bytes: u64,
}

struct ArrivedRequest {
    parts: Vec<PartId>,
    fua: bool,
    done: Sender<Result<(), BlockError>>,
}

/// A block that is read to be changed in part.
pub(super) struct PartialBlock {
    line: u32,
    block: u64,
    /// Another write to the block was accepted since it was read.
    is_stale: Cell<bool>,
}

/// Blocks of one leaf with their new content.
pub(super) struct Piece {
    pub block: u64,
    pub blocks: u64,
    /// `None`: a hole.
    pub content: Option<Buf>,
}

impl<B: Backing> ThinStore<B> {
    /// Writes `data` at a byte of a volume.
    pub(super) async fn write(self: &Rc<Self>, line: u32, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let end = offset + data.len() as u64;
        let inner = offset.next_multiple_of(BLOCK_BYTES).min(end)..(end / BLOCK_BYTES * BLOCK_BYTES).max(offset);
        if inner.start >= inner.end {
            return self.write_in_blocks(line, offset, &data, fua).await;
        }
        let part = |from: u64, to: u64| data.slice((from - offset) as usize..(to - offset) as usize);
        let (head, tail) = (part(offset, inner.start), part(inner.end, end));
        let blocks = (inner.end - inner.start) / BLOCK_BYTES;
        let pieces = split(inner.start / BLOCK_BYTES, blocks, self.piece_blocks_max()).map(|(block, blocks)| {
            let content = part(block * BLOCK_BYTES, (block + blocks) * BLOCK_BYTES);
            self.write_piece(line, Piece { block, blocks, content: Some(content) }, fua)
        });
        let ends = async {
            self.write_in_blocks(line, offset, &head, fua).await?;
            self.write_in_blocks(line, inner.end, &tail, fua).await
        };
        let middle = join_all(pieces.collect::<Vec<_>>());
        ends.await?;
        middle.await.into_iter().collect()
    }

    /// Most blocks of a piece: it is in one leaf, and waits for at most two segments.
    fn piece_blocks_max(&self) -> u64 {
        LEAF_BLOCKS.min(1 << (self.grid.segment_bytes / BLOCK_BYTES).ilog2())
    }

    /// Makes a range read as zeroes.
    pub(super) async fn punch(self: &Rc<Self>, line: u32, offset: u64, len: u64, fua: bool) -> Result<(), BlockError> {
        let end = offset + len;
        let inner = offset.next_multiple_of(BLOCK_BYTES).min(end)..(end / BLOCK_BYTES * BLOCK_BYTES).max(offset);
        if inner.start >= inner.end {
            return self.zero_in_blocks(line, offset, len, fua).await;
        }
        let (mut block, last) = (inner.start / BLOCK_BYTES, inner.end / BLOCK_BYTES);
        while let Some(next) = self.next_used(line, block, last).await? {
            let end = last.min((next / LEAF_BLOCKS + 1) * LEAF_BLOCKS);
            self.write_piece(line, Piece { block: next, blocks: end - next, content: None }, fua).await?;
            block = end;
        }
        self.zero_in_blocks(line, offset, inner.start - offset, fua).await?;
        self.zero_in_blocks(line, inner.end, end - inner.end, fua).await
    }

    /// The first block in `block..end` whose leaf has mapped or pending blocks.
    pub(super) async fn next_used(&self, line: u32, block: u64, end: u64) -> Result<Option<u64>, BlockError> {
        let leaf = self.next_leaf(line, block / LEAF_BLOCKS).await?;
        let window = self.pending.borrow().next_window(line, block / WINDOW_BLOCKS);
        let leaf = leaf.into_iter().chain(window.map(|window| window * WINDOW_BLOCKS / LEAF_BLOCKS)).min();
        Ok(leaf.map(|leaf| block.max(leaf * LEAF_BLOCKS)).filter(|&next| next < end))
    }

    /// Zeroes bytes that cover none of their blocks completely. Blocks without content stay so.
    async fn zero_in_blocks(self: &Rc<Self>, line: u32, offset: u64, len: u64, fua: bool) -> Result<(), BlockError> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let block = at / BLOCK_BYTES;
            let to = end.min((block + 1) * BLOCK_BYTES);
            self.load_leaf(line, block / LEAF_BLOCKS).await?;
            if self.has_content(line, block) {
                self.write_in_blocks(line, at, &Buf::zeroes((to - at) as usize), fua).await?;
            }
            at = to;
        }
        Ok(())
    }

    /// Writes bytes that cover none of their blocks completely.
    async fn write_in_blocks(self: &Rc<Self>, line: u32, offset: u64, data: &Buf, fua: bool) -> Result<(), BlockError> {
        let (mut at, end) = (offset, offset + data.len() as u64);
        while at < end {
            let block = at / BLOCK_BYTES;
            let to = end.min((block + 1) * BLOCK_BYTES);
            let bytes = data.slice((at - offset) as usize..(to - offset) as usize);
            self.write_in_block(line, block, at % BLOCK_BYTES, &bytes, fua).await?;
            at = to;
        }
        Ok(())
    }

    async fn write_in_block(
        self: &Rc<Self>,
        line: u32,
        block: u64,
        from: u64,
        bytes: &Buf,
        fua: bool,
    ) -> Result<(), BlockError> {
        loop {
            let partial = Rc::new(PartialBlock { line, block, is_stale: Cell::new(false) });
            self.partial.borrow_mut().push(Rc::downgrade(&partial));
            match self.change_block(line, block, from, bytes, fua, &partial).await? {
                Some(acknowledged) => return acknowledged.await.unwrap_or(Err(BlockError::Stopped)),
                None => continue,
            }
        }
    }

    /// Reads a block, changes it, and has it written. `None` if another write came between.
    async fn change_block(
        self: &Rc<Self>,
        line: u32,
        block: u64,
        from: u64,
        bytes: &Buf,
        fua: bool,
        partial: &PartialBlock,
    ) -> Result<Option<Receiver<Result<(), BlockError>>>, BlockError> {
        let mut content: BufMut = self.read(line, block * BLOCK_BYTES, self.env().alloc(BLOCK)).await?;
        content[from as usize..from as usize + bytes.len()].copy_from_slice(bytes);
        let piece = Piece { block, blocks: 1, content: Some(content.freeze()) };
        self.admit(line, &piece).await?;
        if partial.is_stale.get() {
            return Ok(None);
        }
        Ok(Some(self.accept(line, piece, fua)))
    }

    async fn write_piece(self: &Rc<Self>, line: u32, piece: Piece, fua: bool) -> Result<(), BlockError> {
        self.admit(line, &piece).await?;
        self.accept(line, piece, fua).await.unwrap_or(Err(BlockError::Stopped))
    }

    /// Numbers a piece and makes it visible. It is acknowledged through the receiver.
    fn accept(self: &Rc<Self>, line: u32, piece: Piece, fua: bool) -> Receiver<Result<(), BlockError>> {
        let sequence = self.take_sequence();
        let birth = self.trees.borrow().lines.get(&line).map_or(1, |line| line.epoch);
        self.partial.borrow_mut().retain(|partial| {
            let Some(partial) = partial.upgrade() else { return false };
            let is_hit = partial.line == line && (piece.block..piece.block + piece.blocks).contains(&partial.block);
            partial.is_stale.set(partial.is_stale.get() | is_hit);
            true
        });
        let mut parts = Vec::new();
        let windows = split(piece.block, piece.blocks, WINDOW_BLOCKS);
        let most = self.part_blocks_max(self.settings(line).compression);
        // Blocks are counted from the window on, which begins at a multiple of any such number.
        for (block, blocks) in windows.flat_map(|(block, blocks)| split(block, blocks, most)) {
            let (window, first) = (block / WINDOW_BLOCKS, (block % WINDOW_BLOCKS) as u8);
            let from = ((block - piece.block) * BLOCK_BYTES) as usize;
            let content = piece.content.as_ref().map(|all| all.slice(from..from + blocks as usize * BLOCK));
            let part = Part::new(sequence, birth, (first, blocks as u8), content);
            let id = PartId { line, window, sequence, first };
            self.queue.borrow_mut().push(id, &part);
            self.pending.borrow_mut().insert(line, window, part);
            self.regrow(line, window);
            parts.push(id);
        }
        let (done, acknowledged) = oneshot();
        let mut arrived = self.arrived.borrow_mut();
        if arrived.requests.is_empty() {
            let store = self.clone();
            self.env().spawn(async move {
                store.env().turn_end().await;
                store.write_arrived().await;
            });
        }
        arrived.bytes += if piece.content.is_some() { piece.blocks * BLOCK_BYTES } else { 0 };
        arrived.requests.push(ArrivedRequest { parts, fua, done });
        drop(arrived);
        self.offer_space();
        acknowledged
    }

    /// Writes the requests of a turn to runs, to the log, or to both.
    async fn write_arrived(self: &Rc<Self>) {
        let Arrived { requests, bytes } = self.arrived.take();
        let is_bulk = bytes >= self.grid.unit_bytes && !requests.iter().any(|request| request.fua);
        let runs: Vec<Rc<RunResult>> = if is_bulk { self.write_runs(false) } else { Vec::new() };
        let in_runs = |part: &PartId| runs.iter().any(|run| run.has(*part));
        let parts = requests.iter().flat_map(|request| &request.parts);
        let all: BTreeSet<PartId> = parts.flat_map(|part| self.parts_of(*part)).collect();
        let logged = all.into_iter().filter(|part| !in_runs(part)).collect();
        let fua = requests.iter().any(|request| request.fua);
        let mut result = self.log_parts(logged, fua).await;
        for run in &runs {
            result = result.and(run.written().await);
        }
        // Only now: a flush that began before cannot have made these runs durable.
        self.unlogged.set(self.unlogged.get() || !runs.is_empty());
        if let Err(error) = &result {
            self.fail(error);
        }
        requests.into_iter().for_each(|request| request.done.send(result.clone()));
        // Only now: to compress takes time.
        self.write_runs(false);
        if self.backing.intents_are_filling() {
            self.work.raise();
        }
    }

    /// The parts of the same write in the same window. There are more if one was divided.
    fn parts_of(&self, id: PartId) -> Vec<PartId> {
        let pending = self.pending.borrow();
        let same = pending.window(id.line, id.window).iter().filter(|part| part.sequence == id.sequence);
        same.map(|part| PartId { first: part.first, ..id }).collect()
    }

    /// Appends parts to the log, in as many frames as they need.
    fn log_parts(
        self: &Rc<Self>,
        parts: Vec<PartId>,
        fua: bool,
    ) -> impl Future<Output = Result<(), BlockError>> + use<B> {
        let mut frames = Vec::new();
        let mut left = &parts[..];
        while !left.is_empty() {
            let count = self.parts_of_a_frame(left);
            let (now, later) = left.split_at(count);
            frames.push(self.frame_of(now));
            left = later;
        }
        let store = self.clone();
        async move {
            for (frame, meta, payload) in frames {
                if store.backing.intents_are_filling() {
                    store.work.raise();
                }
                let number = store.backing.append_intent(meta, payload, fua).await?;
                frame.appended(number);
                store.counts.borrow_mut().frames += 1;
            }
            Ok(())
        }
    }

    /// Most blocks of a part, so that a frame can hold it, and that it makes a good fragment.
    fn part_blocks_max(&self, compression: Compression) -> u64 {
        let blocks = ((self.backing.intent_bytes_max() + INTENT_BASE) / BLOCK).saturating_sub(1).max(1);
        let fragment = if compression == Compression::Off { WINDOW_BLOCKS } else { PACKED_BLOCKS_MAX };
        fragment.min(1 << blocks.ilog2())
    }

    /// How many of these parts fit into a frame, at least one.
    fn parts_of_a_frame(&self, parts: &[PartId]) -> usize {
        let max = self.backing.intent_bytes_max();
        let pending = self.pending.borrow();
        let mut bytes = INTENT_BASE + format::thin::batch::BATCH_HEAD_BYTES + BLOCK;
        let fits = |id: &&PartId| {
            let part = pending.get(**id).expect("the part is pending");
            bytes += format::thin::record::RECORD_BYTES + part.content.as_ref().map_or(0, |content| content.len());
            bytes <= max
        };
        parts.iter().take_while(fits).count().max(1)
    }

    fn frame_of(&self, parts: &[PartId]) -> (Rc<super::frames::Frame>, Vec<u8>, Vec<Buf>) {
        let frame = self.frames.begin(self.backing.next_intent(), parts.len());
        let mut pending = self.pending.borrow_mut();
        let (mut records, mut payload) = (BatchRecords::default(), Vec::new());
        for id in parts {
            let part = pending.get_mut(*id).expect("the part is pending");
            part.frame = Some(frame.clone());
            match &part.content {
                Some(content) => {
                    records.fragments.push(fragment_record(*id, part, Codec::Plain, content));
                    payload.push(content.clone());
                }
                None => records.holes.push(hole_record(*id, part)),
            }
        }
        let mut cursor = ContentCursor::new(INTENT_BASE, records.index_bytes());
        for record in &records.fragments {
            cursor.next(Codec::Plain, record.stored_bytes);
        }
        let meta = encode_index(&self.key, 0, cursor.end(), &records);
        (frame, meta, payload)
    }
}

/// The record of a part that is stored like this.
pub(super) fn fragment_record(id: PartId, part: &Part, codec: Codec, content: &[u8]) -> FragmentRecord {
    FragmentRecord {
        sequence: id.sequence,
        line: id.line,
        block: id.window * WINDOW_BLOCKS + u64::from(part.first),
        blocks: part.blocks,
        codec,
        stored_bytes: content.len() as u32,
        crc32c: crc32c(content),
        birth: part.birth,
        joined: false,
    }
}

pub(super) fn hole_record(id: PartId, part: &Part) -> HoleRecord {
    HoleRecord {
        sequence: id.sequence,
        line: id.line,
        block: id.window * WINDOW_BLOCKS + u64::from(part.first),
        blocks: u64::from(part.blocks),
        birth: part.birth,
    }
}

/// Divides blocks at the multiples of `step`: the first block and the number of each part.
pub(super) fn split(block: u64, blocks: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = block + blocks;
    let starts = std::iter::successors(Some(block), move |at| Some((at / step + 1) * step));
    starts.take_while(move |at| *at < end).map(move |at| (at, ((at / step + 1) * step).min(end) - at))
}
