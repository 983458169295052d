//! Reads: pending parts first, then the map.

use std::ops::Range;
use std::rc::Rc;

use drive::{BlockError, BufMut, Env, Extent, join_all, oneshot};
use format::BLOCK;
use format::thin::entry::{LEAF_BLOCKS, MapEntry};
use format::thin::{Codec, StoredRange, WINDOW_BLOCKS};

use super::backing::Backing;
use super::repack::READ_GAP_BYTES;
use super::store::{DAMAGED, Readers, ThinStore};
use super::write::split;

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Most leaves that one [`ThinStore::extents`] call looks at. Bounds its time.
const EXTENT_LEAVES_MAX: usize = 256;

/// Bytes of a fragment that belong to a place of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Transfer {
    fragment: Fragment,
    len: u64,
    to: usize,
}

impl Transfer {
    /// The whole blocks of the group that it needs.
    fn place(&self) -> Range<u64> {
        let bytes = match self.fragment {
            Fragment::Plain(address) => address..address + self.len,
            Fragment::Packed { stored, .. } => stored.address..stored.address + u64::from(stored.bytes),
        };
        bytes.start / BLOCK_BYTES * BLOCK_BYTES..bytes.end.next_multiple_of(BLOCK_BYTES)
    }
}

/// A transfer, and the blocks of the group that it needs.
type PlacedTransfer = (Range<u64>, Transfer);

/// The blocks from the first of some transfers to the last.
fn range_of(group: &[PlacedTransfer]) -> Range<u64> {
    group[0].0.start..group.iter().map(|(place, _)| place.end).max().expect("a group has transfers")
}

/// Where bytes of a fragment are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fragment {
    /// At this byte of the group.
    Plain(u64),
    /// In a compressed fragment with so many blocks, from a byte of its content on.
    Packed { stored: StoredRange, codec: Codec, blocks: u8, from: u64 },
}

impl Fragment {
    /// The bytes of a block's entry from `within`, a byte of the block, on.
    fn of(entry: &MapEntry, block: u64, within: u64) -> Fragment {
        let from = (block % LEAF_BLOCKS - u64::from(entry.first)) * BLOCK_BYTES + within;
        match entry.codec {
            Codec::Plain => Fragment::Plain(entry.stored.address + from),
            codec => Fragment::Packed { stored: entry.stored, codec, blocks: entry.blocks, from },
        }
    }

    /// `bytes` bytes further.
    fn plus(self, bytes: u64) -> Fragment {
        match self {
            Fragment::Plain(address) => Fragment::Plain(address + bytes),
            Fragment::Packed { stored, codec, blocks, from } => {
                Fragment::Packed { stored, codec, blocks, from: from + bytes }
            }
        }
    }
}

impl<B: Backing> ThinStore<B> {
    /// Fills `buf` from a byte of a volume on.
    pub(super) async fn read(&self, line: u32, offset: u64, mut buf: BufMut) -> Result<BufMut, BlockError> {
        self.check_usable()?;
        if buf.is_empty() {
            return Ok(buf);
        }
        let end = offset + buf.len() as u64;
        let first = offset / BLOCK_BYTES;
        let blocks = end.div_ceil(BLOCK_BYTES) - first;
        let in_order = self.note_read(line, offset, end);
        let (mut transfers, readers) = (Vec::new(), self.readers.borrow().clone());
        for (block, blocks) in split(first, blocks, LEAF_BLOCKS) {
            self.load_leaf(line, block / LEAF_BLOCKS).await?;
            let (from, to) = (offset.max(block * BLOCK_BYTES), end.min((block + blocks) * BLOCK_BYTES));
            let part = &mut buf[(from - offset) as usize..(to - offset) as usize];
            let start = transfers.len();
            self.plan(line, from, part, &mut transfers);
            transfers[start..].iter_mut().for_each(|transfer: &mut Transfer| transfer.to += (from - offset) as usize);
            if in_order.contains(&(block / LEAF_BLOCKS)) {
                self.want_order(line, block / LEAF_BLOCKS);
            }
        }
        if let [Transfer { fragment: Fragment::Plain(address), len, to: 0 }] = transfers[..]
            && len == buf.len() as u64
        {
            let result = self.backing.read(address, buf).await;
            drop(readers);
            return result;
        }
        self.fetch(&transfers, &mut buf).await?;
        drop(readers);
        Ok(buf)
    }

    /// Performs transfers. Those that lie close together are read at once.
    async fn fetch(&self, transfers: &[Transfer], buf: &mut [u8]) -> Result<(), BlockError> {
        let mut sorted: Vec<PlacedTransfer> = transfers.iter().map(|transfer| (transfer.place(), *transfer)).collect();
        sorted.sort_by_key(|(place, _)| place.start);
        let are_close =
            |one: &PlacedTransfer, next: &PlacedTransfer| next.0.start <= one.0.end.saturating_add(READ_GAP_BYTES);
        let groups: Vec<&[PlacedTransfer]> = sorted.chunk_by(are_close).collect();
        let read = join_all(groups.iter().map(|group| self.read_range(range_of(group))).collect::<Vec<_>>()).await;
        for (group, bytes) in groups.into_iter().zip(read) {
            let (bytes, start) = match bytes {
                Ok(bytes) => (bytes, range_of(group).start),
                // Something between them may be lost.
                Err(_) if group.len() > 1 => {
                    for transfer in group {
                        let bytes = self.read_range(transfer.0.clone()).await?;
                        self.copy(transfer, (&bytes, transfer.0.start), buf)?;
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            for transfer in group {
                self.copy(transfer, (&bytes, start), buf)?;
            }
        }
        Ok(())
    }

    async fn read_range(&self, range: Range<u64>) -> Result<BufMut, BlockError> {
        self.backing.read(range.start, self.env().alloc((range.end - range.start) as usize)).await
    }

    /// Copies the bytes of a transfer to their place. `bytes` begin at the byte `start`.
    fn copy(
        &self,
        (_, transfer): &PlacedTransfer,
        (bytes, start): (&[u8], u64),
        buf: &mut [u8],
    ) -> Result<(), BlockError> {
        let target = &mut buf[transfer.to..transfer.to + transfer.len as usize];
        match transfer.fragment {
            Fragment::Plain(address) => target.copy_from_slice(&bytes[(address - start) as usize..][..target.len()]),
            Fragment::Packed { stored, codec, blocks, from } => {
                let stored = &bytes[(stored.address - start) as usize..][..stored.bytes as usize];
                let content = self.compressor.borrow_mut().decompress(codec, stored, blocks).ok_or(DAMAGED)?;
                target.copy_from_slice(&content[from as usize..][..target.len()]);
            }
        }
        Ok(())
    }

    /// Copies what is pending, zeroes what is not mapped, and plans to read the rest. All bytes are
    /// of one leaf, which is in memory if it has anything.
    fn plan(&self, line: u32, offset: u64, buf: &mut [u8], transfers: &mut Vec<Transfer>) {
        let end = offset + buf.len() as u64;
        let (pending, trees) = (self.pending.borrow(), self.trees.borrow());
        let leaf = trees.leaf(line, offset / BLOCK_BYTES / LEAF_BLOCKS);
        let mut at = offset;
        while at < end {
            let block = at / BLOCK_BYTES;
            let to = end.min((block + 1) * BLOCK_BYTES);
            let target = &mut buf[(at - offset) as usize..(to - offset) as usize];
            let bit = (block % WINDOW_BLOCKS) as u8;
            let parts = pending.window(line, block / WINDOW_BLOCKS);
            let part = parts.iter().find(|part| part.used & 1 << bit != 0);
            let entry = leaf.and_then(|leaf| leaf.find((block % LEAF_BLOCKS) as u8));
            match (part, entry) {
                (Some(part), _) => match &part.content {
                    Some(content) => {
                        let from = usize::from(bit - part.first) * BLOCK + (at % BLOCK_BYTES) as usize;
                        target.copy_from_slice(&content[from..from + target.len()]);
                    }
                    None => target.fill(0),
                },
                (None, Some(entry)) => {
                    let fragment = Fragment::of(entry, block, at % BLOCK_BYTES);
                    let (len, to) = (target.len() as u64, (at - offset) as usize);
                    let follows =
                        |last: &Transfer| last.fragment.plus(last.len) == fragment && last.to + last.len as usize == to;
                    match transfers.last_mut().filter(|last| follows(last)) {
                        Some(last) => last.len += len,
                        None => transfers.push(Transfer { fragment, len, to }),
                    }
                }
                (None, None) => target.fill(0),
            }
            at = to;
        }
    }

    /// Returns when all reads have ended that began before this call.
    pub(super) async fn earlier_reads(&self) {
        let (sender, ended) = oneshot();
        drop(self.readers.replace(Rc::new(Readers::new(sender))));
        let earlier = self.readers_ended.replace(ended);
        // The sender never sends; it is dropped with the last of those reads.
        let _ = earlier.await;
    }

    /// Which parts of a range have content. Covers less than the range if that takes long.
    pub(super) async fn extents(&self, line: u32, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.check_usable()?;
        let (mut extents, mut at, end) = (Vec::<Extent>::new(), offset, offset + len);
        let mut add = |len: u64, allocated: bool| match extents.last_mut() {
            Some(last) if last.allocated == allocated => last.len += len,
            _ if len > 0 => extents.push(Extent { len, allocated }),
            _ => {}
        };
        for _ in 0..EXTENT_LEAVES_MAX {
            if at == end {
                break;
            }
            let last = end.div_ceil(BLOCK_BYTES);
            let next = self.next_used(line, at / BLOCK_BYTES, last).await?;
            let used = next.map_or(end, |block| (block * BLOCK_BYTES).max(at));
            add(used - at, false);
            at = used;
            if at < end {
                let leaf = at / BLOCK_BYTES / LEAF_BLOCKS;
                self.load_leaf(line, leaf).await?;
                let to = end.min((leaf + 1) * LEAF_BLOCKS * BLOCK_BYTES);
                while at < to {
                    let block = at / BLOCK_BYTES;
                    let step = ((block + 1) * BLOCK_BYTES).min(to) - at;
                    add(step, self.has_content(line, block));
                    at += step;
                }
            }
        }
        Ok(extents)
    }

    /// Whether a block is pending with content, or mapped. Its leaf is in memory.
    pub(super) fn has_content(&self, line: u32, block: u64) -> bool {
        let (pending, holes) = self.pending.borrow().bits(line, block / WINDOW_BLOCKS);
        let bit = 1 << (block % WINDOW_BLOCKS);
        if pending & bit != 0 {
            return holes & bit == 0;
        }
        let trees = self.trees.borrow();
        trees.leaf(line, block / LEAF_BLOCKS).is_some_and(|leaf| leaf.find((block % LEAF_BLOCKS) as u8).is_some())
    }
}
