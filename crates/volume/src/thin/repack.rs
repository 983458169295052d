//! Stores content of volumes anew: content that was not written for a while is packed again, in
//! pieces of up to 64 KiB, and scattered content is brought into the order of its volume.
//!
//! The new fragments are copies as those of the collector: a recovery never needs them before a
//! checkpoint knows them, as the old ones are there until then. Content that is put in order keeps
//! its records. A fragment that is made of several has the highest sequence in their segments. A
//! checkpoint covers all of these. So the sequence is not lower than that of any block in the
//! fragment, and lower than that of every later write to such a block. Readers without a map count
//! on that. Its record says that it is joined, as an earlier fragment with a lower sequence may be
//! the one that is used.
//!
//! A content is verified by the checksum in the index of its run before it is stored anew. A packed
//! content is decompressed and compared.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use drive::{Buf, Env, join_all};
use format::BLOCK;
use format::thin::entry::{LEAF_BLOCKS, MapEntry};
use format::thin::node::NodeId;
use format::thin::record::FragmentRecord;
use format::thin::{Codec, WINDOW_BLOCKS};
use gf::crc32c;

use super::backing::Backing;
use super::collect::{Copy, OldPlace, OldPlaces};
use super::compress::Compression;
use super::segments::SegmentState;
use super::store::{ThinCounts, ThinStore};

/// Content is packed again if that saves at least one part in so many.
const LEAST_SAVING: u64 = 16;

/// Ranges of a drive with at most so many bytes between them are read as one.
pub(super) const READ_GAP_BYTES: u64 = 16 << 10;

/// Blocks of a leaf that are looked at together: as many as a client may read at once.
const PART_BLOCKS: u8 = 64;

/// The parts of a leaf that is in order are in at most so many ranges of the group: two for each
/// part, as plain fragments come before compressed ones in a run, and one more where a run ends.
const RANGES_MAX: usize = 3 * (LEAF_BLOCKS / PART_BLOCKS as u64) as usize;

/// Segments whose indexes are in memory.
const INDEXED_SEGMENTS: usize = 32;

/// How a leaf is stored anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rewrite {
    /// Windows whose newest segment is of these writes: packed with Zstandard of this level, if
    /// that saves enough.
    Repack { level: u8, writes: Range<u64> },
    /// In the order of the volume. Fragments stay as they are.
    Reorder,
}

/// A fragment that is to be stored anew.
struct Source {
    entry: MapEntry,
    /// The opening of its segment.
    opening: u64,
    /// The highest sequence in its segment.
    newest: u64,
}

impl Source {
    fn place(&self) -> OldPlace {
        OldPlace { stored: self.entry.stored, opening: self.opening }
    }
}

/// The fragments of a window.
struct WindowSources {
    window: u8,
    sources: Vec<Source>,
}

/// Content on the way to its new place, and what is known of segments.
#[derive(Default)]
pub(super) struct Underway {
    pub copies: VecDeque<Copy>,
    /// To be counted once the copies are written.
    pub counts: ThinCounts,
    indexes: Indexes,
}

/// The indexes of some segments.
#[derive(Default)]
struct Indexes(VecDeque<SegmentIndex>);

struct SegmentIndex {
    id: u64,
    opening: u64,
    by_address: BTreeMap<u64, FragmentRecord>,
}

impl<B: Backing> ThinStore<B> {
    /// Adds copies of what is to be stored anew of a leaf. Fragments that cannot be read stay as
    /// they are, and so does a leaf that cannot be read.
    pub(super) async fn copy_leaf(self: &Rc<Self>, (line, leaf): (u32, u64), how: &Rewrite, underway: &mut Underway) {
        // No segment is discarded as long as this is held.
        let readers = self.readers.borrow().clone();
        if !matches!(self.load_leaf(line, leaf).await, Ok(true)) {
            return;
        }
        let (mut found, mut counts) = (Vec::new(), underway.counts);
        for WindowSources { window, sources } in self.windows_to_copy(line, leaf, how) {
            let Some(stored) = self.read_sources(&sources, &mut underway.indexes).await else { continue };
            let before: u64 = sources.iter().map(|source| source.entry.live_bytes()).sum();
            match how {
                Rewrite::Repack { level, .. } => {
                    let copies = self.pack_window((line, leaf, window), &sources, &stored, *level);
                    let after: u64 = copies.iter().map(Copy::bytes).sum();
                    if !copies.is_empty() && after + before / LEAST_SAVING <= before {
                        (counts.repacked_from_bytes, counts.repacked_to_bytes) =
                            (counts.repacked_from_bytes + before, counts.repacked_to_bytes + after);
                        found.extend(copies);
                    }
                }
                Rewrite::Reorder => {
                    counts.reordered_bytes += before;
                    found.extend(self.copy_as_it_is(&sources, &stored));
                }
            }
            // To pack takes time.
            self.env().turn_end().await;
        }
        drop(readers);
        if !found.is_empty() && matches!(self.load_leaf(line, leaf).await, Ok(true)) && self.can_change_nodes() {
            // From now on, the next checkpoint counts on the leaf.
            self.trees.borrow_mut().rewrite(NodeId { line, level: 0, index: leaf });
            underway.counts = counts;
            underway.copies.extend(found);
        }
    }

    /// The fragments of a leaf that are stored anew. None of a window that is about to change.
    fn windows_to_copy(&self, line: u32, leaf: u64, how: &Rewrite) -> Vec<WindowSources> {
        let trees = self.trees.borrow();
        let Some(content) = trees.leaf(line, leaf) else { return Vec::new() };
        if *how == Rewrite::Reorder && !is_scattered(content.entries()) {
            return Vec::new();
        }
        let used = (0..(LEAF_BLOCKS / WINDOW_BLOCKS) as u8).filter(|window| !content.entries_of(*window).is_empty());
        let windows = used.map(|window| {
            let is_pending = !self.pending.borrow().window(line, leaf * WINDOW_BLOCKS + u64::from(window)).is_empty();
            let sources: Option<Vec<Source>> =
                content.entries_of(window).iter().map(|entry| self.settled_source(entry)).collect();
            let sources = sources.filter(|_| !is_pending)?;
            Some(WindowSources { window, sources })
        });
        match how {
            // A part of a leaf in order would leave it as scattered as before.
            Rewrite::Reorder => windows.collect::<Option<Vec<_>>>().unwrap_or_default(),
            Rewrite::Repack { writes, .. } => {
                let is_due = |of: &WindowSources| {
                    let newest = of.sources.iter().map(|source| source.newest).max().unwrap_or(0);
                    let is_packed = matches!(&of.sources[..], [only] if only.entry.codec == Codec::Zstd);
                    writes.contains(&newest) && !is_packed
                };
                windows.flatten().filter(is_due).collect()
            }
        }
    }

    /// The fragment of an entry, if a checkpoint covers all of its segment.
    fn settled_source(&self, entry: &MapEntry) -> Option<Source> {
        let segments = self.segments.borrow();
        let segment = segments.get(self.grid.segment_of(entry.stored.address))?;
        let newest = segment.record.newest_sequence;
        let is_settled = segment.state == SegmentState::Closed && !segment.unreadable && newest <= self.covered.get();
        is_settled.then_some(Source { entry: *entry, opening: segment.opening, newest })
    }

    /// The stored contents of fragments, and their records. `None`: one of them cannot be read, or
    /// is damaged.
    async fn read_sources(&self, sources: &[Source], indexes: &mut Indexes) -> Option<Vec<(Buf, FragmentRecord)>> {
        let reads = sources.iter().map(|source| self.read_stored(source.entry.stored));
        let read = join_all(reads.collect::<Vec<_>>()).await;
        let mut all = Vec::with_capacity(sources.len());
        for (source, stored) in sources.iter().zip(read) {
            let stored = stored.ok()?.freeze();
            let record = self.record_at(source.entry.stored.address, indexes).await?;
            if record.crc32c != crc32c(&stored) {
                return None;
            }
            all.push((stored, record));
        }
        Some(all)
    }

    /// The record of the fragment at an address, in the index of its run.
    async fn record_at(&self, address: u64, indexes: &mut Indexes) -> Option<FragmentRecord> {
        let id = self.grid.segment_of(address);
        let opening = self.segments.borrow().get(id)?.opening;
        let is_known = |known: &SegmentIndex| known.id == id && known.opening == opening;
        if !indexes.0.iter().any(is_known) {
            let by_address = self.read_records(id).await?;
            indexes.0.push_front(SegmentIndex { id, opening, by_address });
            indexes.0.truncate(INDEXED_SEGMENTS);
        }
        indexes.0.iter().find(|known| is_known(known))?.by_address.get(&address).copied()
    }

    async fn read_records(&self, id: u64) -> Option<BTreeMap<u64, FragmentRecord>> {
        let filled = u64::from(self.segments.borrow().get(id)?.record.filled_bytes);
        let (mut at, mut by_address) = (0, BTreeMap::new());
        while at < filled {
            let address = self.grid.start(id) + at;
            let Some(index) = self.read_index(address).await.ok()? else {
                at += self.grid.unit_bytes;
                continue;
            };
            let places = index.records.contents(0).map(|place| address + place.start as u64);
            by_address.extend(places.zip(index.records.fragments.iter().copied()));
            at += (index.batch_bytes as u64).next_multiple_of(self.grid.unit_bytes);
        }
        Some(by_address)
    }

    /// The content of a window in as few fragments as possible. Nothing if it is damaged.
    fn pack_window(
        &self,
        (line, leaf, window): (u32, u64, u8),
        sources: &[Source],
        stored: &[(Buf, FragmentRecord)],
        level: u8,
    ) -> Vec<Copy> {
        let unpack = |(source, (stored, _)): (&Source, &(Buf, FragmentRecord))| match source.entry.codec {
            Codec::Plain => Some(stored.clone()),
            codec => self.compressor.borrow_mut().decompress(codec, stored, source.entry.blocks).map(Buf::from),
        };
        let Some(contents) = sources.iter().zip(stored).map(unpack).collect::<Option<Vec<Buf>>>() else {
            return Vec::new();
        };
        let window_block = leaf * LEAF_BLOCKS + u64::from(window) * WINDOW_BLOCKS;
        pieces(sources)
            .into_iter()
            .map(|piece| {
                let of_piece = || piece.blocks.clone().map(|block| &sources[source_of(sources, block).expect("used")]);
                let mut content = Vec::with_capacity(piece.blocks.len() * BLOCK);
                for block in piece.blocks.clone() {
                    let source = source_of(sources, block).expect("the block is used");
                    let from = usize::from(block - sources[source].entry.first % WINDOW_BLOCKS as u8) * BLOCK;
                    content.extend_from_slice(&contents[source][from..from + BLOCK]);
                }
                let mut old: OldPlaces = of_piece().map(Source::place).collect();
                old.dedup();
                let record = FragmentRecord {
                    sequence: of_piece().map(|source| source.newest).max().expect("a piece has blocks"),
                    line,
                    block: window_block,
                    blocks: WINDOW_BLOCKS as u8,
                    codec: Codec::Plain,
                    stored_bytes: 0,
                    crc32c: 0,
                    birth: piece.birth,
                    joined: true,
                };
                Copy::new(&record, (piece.blocks.start, piece.blocks.len() as u8), self.pack(level, content), old)
            })
            .collect()
    }

    /// The packed form of a content, which was decompressed and compared, or the content itself.
    fn pack(&self, level: u8, content: Vec<u8>) -> (Codec, Buf) {
        let mut compressor = self.compressor.borrow_mut();
        let packed = compressor.compress(Compression::Zstd(level), &content);
        let blocks = (content.len() / BLOCK) as u8;
        match packed {
            Some((codec, packed)) if compressor.decompress(codec, &packed, blocks).as_ref() == Some(&content) => {
                (codec, Buf::from(packed))
            }
            _ => (Codec::Plain, Buf::from(content)),
        }
    }

    /// Copies of fragments, as they are stored.
    fn copy_as_it_is(&self, sources: &[Source], stored: &[(Buf, FragmentRecord)]) -> Vec<Copy> {
        let copies = sources.iter().zip(stored).map(|(source, (stored, record))| {
            self.copies_of(record, source.entry.used, stored, source.place()).unwrap_or_default()
        });
        copies.flatten().collect()
    }
}

/// Consecutive blocks of a window that make a fragment.
struct Piece {
    blocks: Range<u8>,
    birth: u32,
}

/// The source with a block of the window.
fn source_of(sources: &[Source], block: u8) -> Option<usize> {
    let has = |source: &Source| {
        let first = source.entry.first % WINDOW_BLOCKS as u8;
        block >= first && source.entry.used & 1 << (block - first) != 0
    };
    sources.iter().position(has)
}

/// The used blocks of a window, in pieces that are of one epoch and have no hole.
fn pieces(sources: &[Source]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for block in 0..WINDOW_BLOCKS as u8 {
        let Some(source) = source_of(sources, block) else { continue };
        let birth = sources[source].entry.birth;
        match pieces.last_mut() {
            Some(last) if last.blocks.end == block && last.birth == birth => last.blocks.end += 1,
            _ => pieces.push(Piece { blocks: block..block + 1, birth }),
        }
    }
    pieces
}

/// Whether reads of a leaf in order are reads of many places of the group.
pub(super) fn is_scattered(entries: &[MapEntry]) -> bool {
    let parts = entries.chunk_by(|one, next| one.first / PART_BLOCKS == next.first / PART_BLOCKS);
    parts.map(ranges_of).sum::<usize>() > RANGES_MAX
}

/// Ranges that are read for these fragments.
fn ranges_of(entries: &[MapEntry]) -> usize {
    let place = |entry: &MapEntry| entry.stored.address..entry.stored.address + u64::from(entry.stored.bytes);
    let mut places: Vec<Range<u64>> = entries.iter().map(place).collect();
    places.sort_by_key(|place| place.start);
    places.chunk_by(|one, next| next.start <= one.end + READ_GAP_BYTES).count()
}
