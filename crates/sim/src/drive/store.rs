//! The memory of a drive: its content, and the part of it that a power cut would lose.
//!
//! Invariants:
//! 1. `content` is the data that reads return. `durable` is the data that the sectors in `dirty`
//!    fall back to; it exists exactly while `dirty` is not 0. Its other sectors have no meaning.
//! 2. A sector is kept or lost as a whole: it is durable or it falls back, so a sector is never
//!    torn.
//! 3. A version of a sector that existed when a flush began is durable when the flush ends.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::rng::{GOLDEN, Rng, mix};

/// Bytes in a page, the unit of memory. At least the largest sector.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Pages in a chunk, the unit of the index: 256 KiB.
const CHUNK_PAGES: usize = 64;
/// Page buffers that are kept for reuse.
const SPARE_PAGES: usize = 4096;

type PageBox = Box<[u8; PAGE_BYTES]>;

/// A page of an image.
pub type PageRc = Rc<[u8; PAGE_BYTES]>;

/// The content of a drive before it is written, by page number.
pub type Image = Rc<dyn Fn(u64) -> PageRc>;

#[derive(Clone)]
enum Content {
    /// Computed from the seed, this version and the address. 0: never written.
    Garbage(u32),
    Zero,
    Data(PageBox),
    /// The content in the drive's image.
    Image,
}

/// The source of pages without content of their own.
struct Origin {
    seed: u64,
    image: Option<Image>,
}

impl Origin {
    /// The content of a page that was never written.
    #[inline]
    fn unwritten(&self) -> Content {
        if self.image.is_some() { Content::Image } else { Content::Garbage(0) }
    }

    /// Reads a part of a page.
    #[inline]
    fn read(&self, content: &Content, number: u64, within: usize, into: &mut [u8]) {
        match content {
            Content::Data(bytes) => into.copy_from_slice(&bytes[within..within + into.len()]),
            Content::Zero => into.fill(0),
            Content::Garbage(version) => {
                fill_garbage(self.seed, *version, number * PAGE_BYTES as u64 + within as u64, into);
            }
            Content::Image => {
                let image = self.image.as_ref().expect("a drive without an image has no pages of one");
                into.copy_from_slice(&image(number)[within..within + into.len()]);
            }
        }
    }
}

struct Page {
    content: Content,
    /// The content that the dirty sectors fall back to.
    durable: Option<Content>,
    /// One bit for each sector of the page that is not durable.
    dirty: u8,
    /// The epoch in which the dirty sectors were written.
    epoch: u64,
}

/// The pattern that overwrites a range.
#[derive(Clone, Copy)]
pub(crate) enum Fill {
    Zero,
    Garbage(u32),
}

pub(crate) struct Store {
    /// For each chunk its number in `chunks` plus 1; 0 for chunks that were never written.
    index: Vec<u32>,
    chunks: Vec<Box<[Page]>>,
    sector_bytes: usize,
    origin: Origin,
    /// Counts the flushes that were begun.
    epoch: u64,
    /// Pages by the epoch in which they became dirty. An entry is stale if the page says otherwise.
    dirty: VecDeque<(u64, u64)>,
    spare: Vec<PageBox>,
    /// Decides which overwritten versions had become durable by themselves.
    rng: Rng,
}

/// The garbage word with this index.
#[inline]
fn garbage_word(key: u64, word_index: u64) -> u64 {
    mix(key.wrapping_add(word_index.wrapping_mul(GOLDEN)))
}

fn fill_garbage(seed: u64, version: u32, offset: u64, into: &mut [u8]) {
    let key = mix(seed ^ u64::from(version).wrapping_mul(GOLDEN));
    let mut done = 0;
    if offset.is_multiple_of(8) {
        for (index, word) in into.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&garbage_word(key, offset / 8 + index as u64).to_le_bytes());
        }
        done = into.len() / 8 * 8;
    }
    while done < into.len() {
        let at = offset + done as u64;
        let skip = (at % 8) as usize;
        let bytes = garbage_word(key, at / 8).to_le_bytes();
        let take = (8 - skip).min(into.len() - done);
        into[done..done + take].copy_from_slice(&bytes[skip..skip + take]);
        done += take;
    }
}

/// The parts of a byte range in pages: page number, offset in the page, length.
fn pages(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let page = at / PAGE_BYTES as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let take = (PAGE_BYTES - within).min((end - at) as usize);
        at += take as u64;
        Some((page, within, take))
    })
}

impl Store {
    pub(crate) fn new(size_bytes: u64, sector_bytes: u32, mut rng: Rng) -> Self {
        let chunk_count = size_bytes.div_ceil((CHUNK_PAGES * PAGE_BYTES) as u64);
        Store {
            index: vec![0; usize::try_from(chunk_count).expect("the index of a drive fits into memory")],
            chunks: Vec::new(),
            sector_bytes: sector_bytes as usize,
            origin: Origin { seed: rng.next_u64(), image: None },
            epoch: 0,
            dirty: VecDeque::new(),
            spare: Vec::new(),
            rng,
        }
    }

    /// Holds an image from now on, where no data were written.
    pub(crate) fn hold(&mut self, image: Image) {
        self.origin.image = Some(image);
    }

    #[inline]
    fn chunk_index(&self, page: u64) -> Option<usize> {
        (self.index[(page / CHUNK_PAGES as u64) as usize] as usize).checked_sub(1)
    }

    #[inline]
    fn page(&self, page: u64) -> Option<&Page> {
        Some(&self.chunks[self.chunk_index(page)?][page as usize % CHUNK_PAGES])
    }

    /// The number of a page's chunk, which is created if it does not exist.
    #[inline]
    fn ensure_chunk(&mut self, page: u64) -> usize {
        if let Some(chunk) = self.chunk_index(page) {
            return chunk;
        }
        let fresh = || Page { content: self.origin.unwritten(), durable: None, dirty: 0, epoch: 0 };
        self.chunks.push((0..CHUNK_PAGES).map(|_| fresh()).collect());
        self.index[(page / CHUNK_PAGES as u64) as usize] = self.chunks.len() as u32;
        self.chunks.len() - 1
    }

    /// The sectors that a range of a page touches, one bit each.
    #[inline]
    fn mask(&self, within: usize, len: usize) -> u8 {
        let first = within / self.sector_bytes;
        let last = (within + len - 1) / self.sector_bytes;
        ((2_u16 << last) - (1_u16 << first)) as u8
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        let mut done = 0;
        for (number, within, len) in pages(offset, into.len() as u64) {
            let part = &mut into[done..done + len];
            done += len;
            match self.page(number) {
                Some(page) => self.origin.read(&page.content, number, within, part),
                None => self.origin.read(&self.origin.unwritten(), number, within, part),
            }
        }
    }

    /// Writes whole sectors.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) {
        let mut done = 0;
        for (number, within, len) in pages(offset, bytes.len() as u64) {
            let bytes = &bytes[done..done + len];
            done += len;
            self.change(number, within, len, durable, |page| page[within..within + len].copy_from_slice(bytes));
        }
    }

    /// Overwrites whole sectors with a pattern. Garbage is written only to chunks that exist: the
    /// others are garbage already.
    pub(crate) fn fill(&mut self, offset: u64, len: u64, fill: Fill, durable: bool) {
        let chunk_bytes = (CHUNK_PAGES * PAGE_BYTES) as u64;
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let chunk_end = (at / chunk_bytes + 1) * chunk_bytes;
            let here = chunk_end.min(end) - at;
            let is_garbage = self.origin.image.is_none() && matches!(fill, Fill::Garbage(_));
            if !is_garbage || self.chunk_index(at / PAGE_BYTES as u64).is_some() {
                for (number, within, len) in pages(at, here) {
                    self.fill_page(number, within, len, fill, durable);
                }
            }
            at += here;
        }
    }

    fn fill_page(&mut self, number: u64, within: usize, len: usize, fill: Fill, durable: bool) {
        let seed = self.origin.seed;
        let start = number * PAGE_BYTES as u64 + within as u64;
        let chunk = self.ensure_chunk(number);
        if len < PAGE_BYTES {
            return self.change(number, within, len, durable, |page| match fill {
                Fill::Zero => page[within..within + len].fill(0),
                Fill::Garbage(version) => fill_garbage(seed, version, start, &mut page[within..within + len]),
            });
        }
        let mask = self.mask(within, len);
        self.before_change(number, mask, len, durable);
        let page = &mut self.chunks[chunk][number as usize % CHUNK_PAGES];
        let new = match fill {
            Fill::Zero => Content::Zero,
            Fill::Garbage(version) => Content::Garbage(version),
        };
        let old = std::mem::replace(&mut page.content, new);
        self.keep(old);
    }

    /// Changes a range of a page by `change`, which gets the current page.
    #[inline]
    fn change(
        &mut self,
        number: u64,
        within: usize,
        len: usize,
        durable: bool,
        change: impl Fn(&mut [u8; PAGE_BYTES]),
    ) {
        let chunk = self.ensure_chunk(number);
        let mask = self.mask(within, len);
        self.before_change(number, mask, len, durable);
        let page = &mut self.chunks[chunk][number as usize % CHUNK_PAGES];
        let data = materialize(&mut page.content, &mut self.spare, &self.origin, number, len < PAGE_BYTES);
        change(data);
    }

    /// Saves the content that a change of the sectors in `mask` could lose. `len` is the length of
    /// the change in bytes.
    fn before_change(&mut self, number: u64, mask: u8, len: usize, durable: bool) {
        let chunk = self.ensure_chunk(number);
        let epoch = self.epoch;
        let page = &mut self.chunks[chunk][number as usize % CHUNK_PAGES];
        if durable {
            page.dirty &= !mask;
            if page.dirty == 0
                && let Some(old) = page.durable.take()
            {
                self.keep(old);
            }
            return;
        }
        if page.dirty != 0 && page.epoch < epoch {
            // A flush was begun since. Sectors dirty then must be durable when it ends, and are
            // durable from now on.
            page.dirty = 0;
            if let Some(old) = page.durable.take() {
                self.keep(old);
            }
        }
        let page = &mut self.chunks[chunk][number as usize % CHUNK_PAGES];
        let mut settled = mask & !page.dirty;
        if page.dirty == 0 {
            page.durable = Some(match &page.content {
                Content::Data(_) if len == PAGE_BYTES => {
                    // The whole page is overwritten: the old content moves, and the new one starts
                    // with any content.
                    settled = 0;
                    std::mem::replace(&mut page.content, Content::Zero)
                }
                // Only the dirty sectors matter.
                Content::Data(_) => Content::Data(memory(&mut self.spare)),
                computed => {
                    settled = 0;
                    computed.clone()
                }
            });
            page.epoch = epoch;
            self.dirty.push_back((epoch, number));
        } else if page.dirty & mask != 0 {
            // A drive writes its cache back when it likes: some of the versions that are
            // overwritten now were durable.
            settled |= page.dirty & mask & self.rng.next_u64() as u8;
        }
        page.dirty |= mask;
        self.settle(number, settled);
    }

    /// Copies sectors from the content to the fallback.
    fn settle(&mut self, number: u64, sectors: u8) {
        if sectors == 0 {
            return;
        }
        let chunk = self.ensure_chunk(number);
        let page = &mut self.chunks[chunk][number as usize % CHUNK_PAGES];
        let durable = page.durable.as_mut().expect("a dirty page has a fallback");
        let durable = materialize(durable, &mut self.spare, &self.origin, number, true);
        let content = &page.content;
        copy_sectors(&self.origin, content, durable, sectors, self.sector_bytes, number);
    }

    /// Begins a flush. [`Store::flush_end`] takes what this gives.
    pub(crate) fn flush_begin(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// Makes all data durable that were written before the flush began.
    pub(crate) fn flush_end(&mut self, flush: u64) {
        while let Some(&(epoch, number)) = self.dirty.front()
            && epoch < flush
        {
            self.dirty.pop_front();
            let chunk = self.ensure_chunk(number);
            let page = &mut self.chunks[chunk][number as usize % CHUNK_PAGES];
            if page.epoch == epoch {
                page.dirty = 0;
                if let Some(old) = page.durable.take() {
                    self.keep(old);
                }
            }
        }
    }

    /// Loses the cache: each sector that is not durable stays if `survives` says so for its offset,
    /// and falls back otherwise.
    pub(crate) fn power_cut(&mut self, survives: &mut dyn FnMut(u64) -> bool) {
        for (epoch, number) in std::mem::take(&mut self.dirty) {
            let chunk = self.ensure_chunk(number);
            let sector_bytes = self.sector_bytes;
            let page = &mut self.chunks[chunk][number as usize % CHUNK_PAGES];
            if page.epoch != epoch || page.dirty == 0 {
                continue;
            }
            let mut lost = 0_u8;
            for sector in 0..PAGE_BYTES / sector_bytes {
                let at = number * PAGE_BYTES as u64 + (sector * sector_bytes) as u64;
                if page.dirty >> sector & 1 == 1 && !survives(at) {
                    lost |= 1 << sector;
                }
            }
            page.dirty = 0;
            let durable = page.durable.take().expect("a dirty page has a fallback");
            if lost != 0 {
                let content = materialize(&mut page.content, &mut self.spare, &self.origin, number, true);
                copy_sectors(&self.origin, &durable, content, lost, sector_bytes, number);
            }
            self.keep(durable);
        }
    }

    /// Offsets of the sectors that are not durable, ascending.
    pub(crate) fn unflushed(&self) -> Vec<u64> {
        let mut offsets = Vec::new();
        for &(epoch, number) in &self.dirty {
            let Some(page) = self.page(number) else { continue };
            if page.epoch != epoch {
                continue;
            }
            let sectors = (0..PAGE_BYTES / self.sector_bytes).filter(|sector| page.dirty >> sector & 1 == 1);
            offsets.extend(sectors.map(|sector| number * PAGE_BYTES as u64 + (sector * self.sector_bytes) as u64));
        }
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    }

    /// Changes bytes on the medium and in the cache alike, regardless of sectors. `change` is
    /// called with an offset and the bytes there, for each of the two.
    pub(crate) fn tamper(&mut self, offset: u64, len: u64, change: impl Fn(u64, &mut [u8])) {
        for (number, within, len) in pages(offset, len) {
            let chunk = self.ensure_chunk(number);
            let page = &mut self.chunks[chunk][number as usize % CHUNK_PAGES];
            let at = number * PAGE_BYTES as u64 + within as u64;
            for content in [Some(&mut page.content), page.durable.as_mut()].into_iter().flatten() {
                let bytes = materialize(content, &mut self.spare, &self.origin, number, true);
                change(at, &mut bytes[within..within + len]);
            }
        }
    }

    /// Keeps the memory of a page for the next one.
    #[inline]
    fn keep(&mut self, content: Content) {
        if let Content::Data(page) = content
            && self.spare.len() < SPARE_PAGES
        {
            self.spare.push(page);
        }
    }
}

/// Memory for a page, with any content.
#[inline]
fn memory(spare: &mut Vec<PageBox>) -> PageBox {
    spare.pop().unwrap_or_else(|| Box::new([0; PAGE_BYTES]))
}

/// Turns a page's content into bytes, if it is not bytes yet. They have the right values only if
/// they are `needed`.
#[inline]
fn materialize<'a>(
    content: &'a mut Content,
    spare: &mut Vec<PageBox>,
    origin: &Origin,
    number: u64,
    needed: bool,
) -> &'a mut [u8; PAGE_BYTES] {
    if !matches!(content, Content::Data(_)) {
        let mut page = memory(spare);
        if needed {
            origin.read(content, number, 0, &mut page[..]);
        }
        *content = Content::Data(page);
    }
    match content {
        Content::Data(page) => page,
        _ => unreachable!("made so above"),
    }
}

/// Copies the sectors of a mask.
fn copy_sectors(
    origin: &Origin,
    from: &Content,
    to: &mut [u8; PAGE_BYTES],
    sectors: u8,
    sector_bytes: usize,
    number: u64,
) {
    for (sector, to) in to.chunks_mut(sector_bytes).enumerate().filter(|(sector, _)| sectors >> sector & 1 == 1) {
        origin.read(from, number, sector * sector_bytes, to);
    }
}
