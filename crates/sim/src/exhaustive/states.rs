//! The states that a power cut could leave, derived from the tape of one run.
//!
//! At any point of the tape a block is durable, or it has versions that are not: the power cut may
//! leave each of them, or the durable one. Its decisions are the choices of a [`Cut`], up to these
//! reductions:
//!
//! 1. *A structure with a checksum is present, missing, or damaged.* An operation outside of the
//!    data region writes one structure (superblock, block of the map, frame of the log) under one
//!    checksum. It is kept whole, not at all, or in a part; one part stands for all.
//! 2. *Rows are independent.* Recovery treats each run of member offsets of a stripe separately;
//!    rows share only the structures. So every state of a row is combined with every state of the
//!    structures, and rows need not be combined with each other: the n-th block of each row, or
//!    that of the same member, follows the same choice.
//! 3. *Member offsets of a row are independent*, so a data block of 4 KiB stands for its sectors.
//! 4. *Data strips that play the same part may change places.* Of the states that differ only in
//!    the content that each of them keeps, one stands for all.
//! 5. *A damaged frame of the log equals a missing one*: the pages of both have the same hash.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

use super::programs::STRIP_BYTES;
use crate::PageRc;
use crate::rng::mix;
use crate::trace::{TapeEvent, TapeStep};

/// Bytes of a block here: a page, and the sector of the simulated drives.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// A block of a drive.
pub(crate) type PageAddress = (u32, u64);

/// The identity of a drive operation.
type OpId = (u32, u64);

/// The content of a block.
#[derive(Clone)]
pub(crate) struct Page {
    pub bytes: PageRc,
    /// Stands for the content as far as recovery uses it, and for the place.
    pub hash: u128,
}

impl Page {
    pub fn new(bytes: &[u8], place: PageAddress) -> Page {
        let mut page = [0; BLOCK_BYTES as usize];
        page[..bytes.len()].copy_from_slice(bytes);
        let mut lanes = Page::lanes(place);
        for word in page.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            lanes = [mix(lanes[0] ^ word), mix(lanes[1].wrapping_add(word))];
        }
        Page { bytes: Rc::new(page), hash: u128::from(lanes[0]) << 64 | u128::from(lanes[1]) }
    }

    /// The same bytes, in a place where recovery looks for frames and finds none: it does not use
    /// the bytes any further.
    fn without_frame(&self, place: PageAddress) -> Page {
        let [high, low] = Page::lanes(place);
        Page { bytes: self.bytes.clone(), hash: u128::from(high) << 64 | u128::from(low) }
    }

    fn lanes(place: PageAddress) -> [u64; 2] {
        let seed = mix(u64::from(place.0) << 40 ^ place.1);
        [seed, mix(seed)]
    }
}

/// The places in a log's rings where a frame may begin, and its blocks according to its own length,
/// by block (`docs/format/log.md`). Nothing else is checked: the frame may be invalid.
fn frames(rings: &Range<u64>, blocks: &[Page]) -> Vec<Range<u64>> {
    let begins = rings.clone().filter(|block| blocks[*block as usize].bytes.starts_with(b"PurlinLG"));
    let frame = |block: u64| {
        let len = &blocks[block as usize].bytes[68..72];
        let len = u64::from(u32::from_le_bytes(len.try_into().expect("four bytes")));
        block..block + len.div_ceil(BLOCK_BYTES).max(1)
    };
    begins.map(frame).collect()
}

/// A version of a block that is not durable.
#[derive(Clone)]
struct Version {
    op: OpId,
    page: Page,
    /// The same without the last block of its frame, if its frame has several blocks.
    damaged: Option<Page>,
    done: bool,
}

/// The drives at a point of the tape.
pub(crate) struct Drives {
    /// The data region, in blocks.
    data: Range<u64>,
    /// The part of the log region in which recovery looks for frames, in blocks. Empty if all
    /// content is to count.
    rings: Range<u64>,
    /// Members of a set: rows of different sets are different rows.
    per_set: u32,
    /// The durable content, by drive and block; `None` where it is unchanged since before the tape.
    durable: Vec<Vec<Option<Page>>>,
    pending: BTreeMap<PageAddress, Vec<Version>>,
    /// Blocks of every operation that is not durable.
    ops: BTreeMap<OpId, Op>,
    /// The operations of each drive so far.
    asked: Vec<Asked>,
}

struct Op {
    places: Vec<PageAddress>,
    fua: bool,
    done: bool,
    /// For a flush: the operations that were done when it began.
    covers: Option<Vec<OpId>>,
    /// Stands for all operations of its drive up to this one.
    asked: u64,
}

/// Stands for the ranges that a drive got writes for, and for the part of them that is durable, but
/// not for the content of the writes.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    begun: u64,
    durable: u64,
}

impl Asked {
    /// These blocks are to be written. Gives the value that stands for all operations until now.
    fn begin(&mut self, places: &[PageAddress]) -> u64 {
        let what = places.first().map_or(0, |first| mix(first.1 << 32 | places.len() as u64));
        self.begun = mix(self.begun ^ what);
        self.begun
    }
}

impl Drives {
    /// Drives with these contents, by drive and block.
    pub fn new(mut images: Vec<Vec<Page>>, data: Range<u64>, rings: Range<u64>, per_set: u32) -> Drives {
        for (drive, blocks) in images.iter_mut().enumerate() {
            let frames = frames(&rings, blocks);
            for block in rings.clone().filter(|block| !frames.iter().any(|frame| frame.contains(block))) {
                let page = &mut blocks[block as usize];
                *page = page.without_frame((drive as u32, block));
            }
        }
        let durable = images.into_iter().map(|blocks| blocks.into_iter().map(Some).collect()).collect();
        Drives::untouched(data, rings, per_set, durable)
    }

    fn untouched(data: Range<u64>, rings: Range<u64>, per_set: u32, durable: Vec<Vec<Option<Page>>>) -> Drives {
        let asked = vec![Asked::default(); durable.len()];
        Drives { data, rings, per_set, durable, pending: BTreeMap::new(), ops: BTreeMap::new(), asked }
    }

    /// The same drives. Only the content on their tape is known.
    pub fn over(&self) -> Drives {
        let durable = self.durable.iter().map(|blocks| vec![None; blocks.len()]).collect();
        Drives::untouched(self.data.clone(), self.rings.clone(), self.per_set, durable)
    }

    /// No block is marked, by drive and block.
    pub fn marks(&self) -> Vec<Vec<bool>> {
        self.durable.iter().map(|blocks| vec![false; blocks.len()]).collect()
    }

    /// Applies one event.
    pub fn apply(&mut self, event: &TapeEvent) {
        let id = (event.drive_index, event.serial);
        match &event.step {
            TapeStep::Write { offset, bytes, fua } => {
                let blocks = bytes.chunks(BLOCK_BYTES as usize).enumerate();
                let pages = blocks.map(|(index, bytes)| {
                    let place = (event.drive_index, offset / BLOCK_BYTES + index as u64);
                    (place, Page::new(bytes, place))
                });
                self.start(id, pages.collect(), *fua);
            }
            TapeStep::Zeroes { offset, len } => {
                let blocks = offset / BLOCK_BYTES..(offset + len) / BLOCK_BYTES;
                let pages = blocks.map(|block| {
                    let place = (event.drive_index, block);
                    (place, Page::new(&[], place))
                });
                self.start(id, pages.collect(), false);
            }
            TapeStep::Flush => {
                let mine = self.ops.iter().filter(|(op, state)| op.0 == id.0 && state.done);
                let covers = Some(mine.map(|(op, _)| *op).collect());
                self.ops.insert(id, Op { places: Vec::new(), fua: false, done: false, covers, asked: 0 });
            }
            TapeStep::Done => self.done(id),
        }
    }

    /// Whether this event makes data durable: then a power cut can leave no new state. Otherwise it
    /// can still leave all states from before.
    pub fn makes_durable(&self, event: &TapeEvent) -> bool {
        let op = self.ops.get(&(event.drive_index, event.serial)).filter(|_| matches!(event.step, TapeStep::Done));
        op.is_some_and(|op| op.fua || op.covers.is_some())
    }

    fn start(&mut self, id: OpId, pages: Vec<(PageAddress, Page)>, fua: bool) {
        let places: Vec<PageAddress> = pages.iter().map(|(place, _)| *place).collect();
        let asked = self.asked[id.0 as usize].begin(&places);
        let is_damaged_by_parts = places.len() > 1 && self.rings.contains(&places[0].1);
        for (place, page) in pages {
            let damaged = is_damaged_by_parts.then(|| page.without_frame(place));
            self.pending.entry(place).or_default().push(Version { op: id, page, damaged, done: false });
        }
        self.ops.insert(id, Op { places, fua, done: false, covers: None, asked });
    }

    fn done(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        op.done = true;
        if let Some(covered) = op.covers.take() {
            self.ops.remove(&id);
            covered.into_iter().for_each(|op| self.settle(op));
            return;
        }
        for place in &op.places {
            let versions = self.pending.get_mut(place).into_iter().flatten();
            versions.filter(|version| version.op == id).for_each(|version| version.done = true);
        }
        if op.fua {
            self.settle(id);
        }
    }

    /// An operation is durable.
    fn settle(&mut self, id: OpId) {
        let Some(op) = self.ops.remove(&id) else { return };
        let durable = &mut self.asked[id.0 as usize].durable;
        *durable = durable.wrapping_add(mix(op.asked)); // In any order.
        for place in op.places {
            let Some(versions) = self.pending.get_mut(&place) else { continue };
            // Versions from before it are overwritten, unless they were in flight at the same time.
            let Some(position) = versions.iter().position(|version| version.op == id) else { continue };
            let version = versions.remove(position);
            let mut index = 0;
            versions.retain(|other| {
                index += 1;
                index > position || !other.done
            });
            if versions.is_empty() {
                self.pending.remove(&place);
            }
            self.durable[place.0 as usize][place.1 as usize] = Some(version.page);
        }
    }

    /// The place has exactly one version that is not durable, and it differs from the durable one.
    fn lacks(&self, place: PageAddress) -> bool {
        let durable = &self.durable[place.0 as usize][place.1 as usize];
        let versions = self.pending.get(&place).map_or(&[][..], |versions| versions);
        match (durable, versions) {
            (Some(durable), [version]) => durable.bytes != version.page.bytes,
            _ => false,
        }
    }

    pub fn is_data(&self, place: PageAddress) -> bool {
        self.data.contains(&place.1)
    }

    /// The choices of a power cut now, without some drives, whose content does not matter. `alike`:
    /// drives that may change places as far as the group is concerned.
    pub fn cut(&self, lost: &[usize], alike: &[Vec<usize>]) -> Cut {
        let is_there = |drive: u32| !lost.contains(&(drive as usize));
        let mut options = Vec::new();
        let mut of_ops = HashMap::new();
        for (id, op) in self.ops.iter().filter(|(id, _)| is_there(id.0)) {
            if op.places.first().is_some_and(|place| !self.is_data(*place)) {
                of_ops.insert(*id, options.len());
                options.push(if op.places.len() > 1 { 3 } else { 2 });
            }
        }
        let blocks = self.pending.iter().filter(|(place, _)| self.is_data(**place) && is_there(place.0));
        let blocks: Vec<(PageAddress, usize)> = blocks.map(|(place, versions)| (*place, 1 + versions.len())).collect();
        let exchanged = self.exchangeable(alike, &blocks, is_there);
        // Drives that may change places have choices of their own, so that the choices change
        // places with them.
        let mut apart = BTreeMap::new();
        let mut rows: BTreeMap<(u32, u64), Vec<usize>> = BTreeMap::new();
        let mut of_blocks = HashMap::new();
        let mut shared = Vec::new();
        for (place, versions) in blocks {
            let mut new = || {
                options.push(1);
                options.len() - 1
            };
            let choice = if exchanged.iter().flatten().any(|drive| *drive == place.0) {
                *apart.entry(place.0).or_insert_with(new)
            } else {
                let so_far = rows.entry((place.0 / self.per_set, place.1)).or_default();
                if so_far.len() == shared.len() {
                    shared.push(new());
                }
                so_far.push(shared[so_far.len()]);
                shared[so_far.len() - 1]
            };
            options[choice] = versions.max(options[choice]);
            of_blocks.insert(place, (choice, versions));
        }
        let choices_of = |drive: &u32| {
            let ops = self.ops.keys().filter(|id| id.0 == *drive).filter_map(|id| of_ops.get(id));
            ops.chain(apart.get(drive)).copied().collect()
        };
        let alike: Vec<Vec<Vec<usize>>> =
            exchanged.iter().map(|drives| drives.iter().map(choices_of).collect()).collect();
        let (taken, order) = (vec![None; options.len()], vec![Vec::new(); alike.len()]);
        Cut { taken, order, choices: Rc::new(Choices { options, of_ops, of_blocks, alike }) }
    }

    /// Which of the drives that are `alike` had the same operations so far, in groups of at least
    /// two. `blocks`: the data blocks that are not durable.
    fn exchangeable(
        &self,
        alike: &[Vec<usize>],
        blocks: &[(PageAddress, usize)],
        is_there: impl Fn(u32) -> bool,
    ) -> Vec<Vec<u32>> {
        // In other stripes they play other parts.
        let first_stripe = self.data.start..self.data.start + STRIP_BYTES / BLOCK_BYTES;
        if blocks.iter().any(|((_, block), _)| !first_stripe.contains(block)) {
            return Vec::new();
        }
        let mut groups: BTreeMap<(usize, Asked), Vec<u32>> = BTreeMap::new();
        for (part, drives) in alike.iter().enumerate() {
            for drive in drives.iter().map(|drive| *drive as u32).filter(|drive| is_there(*drive)) {
                groups.entry((part, self.asked[drive as usize])).or_default().push(drive);
            }
        }
        groups.into_values().filter(|drives| drives.len() > 1).collect()
    }
}

#[cfg_attr(test, derive(Clone))]
struct Choices {
    /// The number of options, by choice.
    options: Vec<usize>,
    /// The choices of operations on structures: 0 not at all, 1 whole, 2 all but the last block.
    of_ops: HashMap<OpId, usize>,
    /// The choices of data blocks, and their own options: 0 the durable version, or one of the
    /// others.
    of_blocks: HashMap<PageAddress, (usize, usize)>,
    /// Groups of drives that may change places: for each drive its choices, in the same order of
    /// subjects.
    alike: Vec<Vec<Vec<usize>>>,
}

/// The choices of a power cut at a point of the tape, and how far they are made: a block that was
/// not read may be any of its versions.
#[derive(Clone)]
pub(crate) struct Cut {
    choices: Rc<Choices>,
    /// The options taken, by choice.
    taken: Vec<Option<usize>>,
    /// For each group of drives that may change places, the order in which their choices are
    /// compared: the order in which they were made.
    order: Vec<Vec<usize>>,
}

impl Cut {
    /// How many states there are.
    pub fn states(&self) -> u64 {
        self.choices.options.iter().fold(1, |states: u64, &options| states.saturating_mul(options as u64))
    }

    /// How many choices there are.
    #[cfg(test)]
    pub fn choices(&self) -> usize {
        self.choices.options.len()
    }

    /// Every state is gone through, also those that differ only in the content that each member
    /// kept.
    #[cfg(test)]
    pub fn leave_out_none(&mut self) {
        self.choices = Rc::new(Choices { alike: Vec::new(), ..(*self.choices).clone() });
        self.order = Vec::new();
    }

    /// The choices about frames of the log that have several blocks.
    #[cfg(test)]
    pub fn frames(&self, drives: &Drives) -> Vec<usize> {
        let frames = self.choices.of_ops.iter().filter(|(id, choice)| {
            drives.rings.contains(&drives.ops[id].places[0].1) && self.choices.options[**choice] == 3
        });
        frames.map(|(_, choice)| *choice).collect()
    }

    /// The options taken, by choice.
    #[cfg(test)]
    pub fn taken(&self) -> &[Option<usize>] {
        &self.taken
    }

    /// Groups of drives that may change places: for each drive its choices, in the same order of
    /// subjects.
    #[cfg(test)]
    pub fn alike(&self) -> &[Vec<Vec<usize>>] {
        &self.choices.alike
    }

    /// How many states agree with the choices made.
    #[cfg(test)]
    pub fn open_states(&self) -> u64 {
        let open = self.choices.options.iter().zip(&self.taken).filter(|(_, taken)| taken.is_none());
        open.fold(1, |states: u64, (&options, _)| states.saturating_mul(options as u64))
    }

    /// Takes the next option of a choice, or its first one. If that is left out or there is none,
    /// the choice is open again.
    pub fn go_on(&mut self, choice: usize) -> bool {
        let from = self.taken[choice].map_or(0, |option| option + 1);
        self.take(choice, from).is_some()
    }

    /// Takes the first option of a choice, starting from one, with which the state may be the first
    /// of its equivalents.
    fn take(&mut self, choice: usize, from: usize) -> Option<usize> {
        for (drives, order) in self.choices.alike.iter().zip(&mut self.order) {
            let nth = drives.iter().find_map(|choices| choices.iter().position(|other| *other == choice));
            order.extend(nth.filter(|nth| !order.contains(nth)));
        }
        let mut options = from..self.choices.options[choice];
        self.taken[choice] = None;
        let option = options.find(|option| {
            self.taken[choice] = Some(*option);
            self.may_be_first()
        });
        self.taken[choice] = option;
        option
    }

    /// Whether the state, as far as it is decided, can be the first of those that differ only in
    /// the content that each of the alike drives kept.
    fn may_be_first(&self) -> bool {
        self.choices.alike.iter().zip(&self.order).all(|(drives, order)| {
            let is_earlier = |one: &[usize], other: &[usize]| {
                let taken = |nth: &usize| Some((self.taken[one[*nth]]?, self.taken[other[*nth]]?));
                let differ = order.iter().map_while(taken).find(|(one, other)| one != other);
                differ.is_some_and(|(one, other)| one < other)
            };
            drives.iter().enumerate().all(|(at, later)| drives[..at].iter().all(|drive| !is_earlier(later, drive)))
        })
    }

    /// The content of a place, if it is on the tape. `made` is called for choices that are needed
    /// for it and are still open: they take their first option.
    pub fn page<'a>(
        &mut self,
        drives: &'a Drives,
        place: PageAddress,
        mut made: impl FnMut(usize),
    ) -> Option<&'a Page> {
        let durable = drives.durable[place.0 as usize][place.1 as usize].as_ref();
        let Some(versions) = drives.pending.get(&place) else { return durable };
        let choices = self.choices.clone();
        let mut take = |choice: usize| {
            self.taken[choice].unwrap_or_else(|| {
                made(choice);
                // If all options are left out, the result of any of them is left out, too.
                self.take(choice, 0).unwrap_or_else(|| *self.taken[choice].insert(0))
            })
        };
        if let Some(&(choice, options)) = choices.of_blocks.get(&place) {
            let version = (take(choice) % options).checked_sub(1);
            return version.map(|version| &versions[version].page).or(durable);
        }
        // Of several versions of a structure the last one that is kept counts.
        versions
            .iter()
            .rev()
            .find_map(|version| {
                let last = *drives.ops[&version.op].places.last().expect("it has some");
                match take(choices.of_ops[&version.op]) {
                    0 => None,
                    1 => Some(&version.page),
                    _ if last == place => None,
                    // Not if the content in place of its last block is the same.
                    _ => version.damaged.as_ref().filter(|_| drives.lacks(last)).or(Some(&version.page)),
                }
            })
            .or(durable)
    }

    /// The content kept of blocks that are not durable, as text for people.
    pub fn text(&self, drives: &Drives) -> String {
        let mut text = String::new();
        for (place, (choice, options)) in sorted(&self.choices.of_blocks) {
            match self.taken[choice].map(|option| option % options) {
                Some(0) => {}
                Some(version) if options > 2 => {
                    text += &format!(" drive {} block {} (version {version} of {})", place.0, place.1, options - 1);
                }
                Some(_) => text += &format!(" drive {} block {}", place.0, place.1),
                None => text += &format!(" drive {} block {} or not", place.0, place.1),
            }
        }
        for (id, choice) in sorted(&self.choices.of_ops) {
            let how = match self.taken[choice] {
                Some(0) => continue,
                Some(1) => "",
                Some(_) => " in part",
                None => " or not",
            };
            text += &format!(" drive {} structure at block {}{how}", id.0, drives.ops[&id].places[0].1);
        }
        if text.is_empty() { " nothing".into() } else { text }
    }
}

fn sorted<K: Ord + Copy, V: Copy>(map: &HashMap<K, V>) -> BTreeMap<K, V> {
    map.iter().map(|(key, value)| (*key, *value)).collect()
}
