//! The states that a power cut could leave, derived from the tape of one run.
//!
//! At any point of the tape a block is durable, or it has versions that are not: each of them, or the durable one, may be
//! what the power cut leaves. The states are enumerated in full, up to these reductions:
//!
//! 1. *A structure with a checksum is there, gone, or damaged.* An operation outside of the data region writes one
//!    structure (superblock, block of the map, frame of the log) under one checksum: it is kept whole, not at all, or in
//!    a part, of which one stands for all.
//! 2. *Rows are independent.* Recovery treats each run of columns of a stripe on its own; what rows share are the
//!    structures. So every state of a row is combined with every state of the structures, and rows need not be combined
//!    with each other: the n-th state has the n-th state of each row.
//! 3. *Columns of a row are independent*, so a data block of 4 KiB stands for its sectors.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::PageRc;
use crate::rng::mix;
use crate::trace::{TapeEvent, TapeStep};

/// Bytes of a block here: a page, and the sector of the simulated drives.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// A block of a drive.
pub(crate) type Place = (u32, u64);

#[derive(Clone)]
pub(crate) struct Page {
    pub bytes: PageRc,
    pub hash: u64,
}

impl Page {
    pub fn new(bytes: &[u8], place: Place) -> Page {
        let mut page = [0; BLOCK_BYTES as usize];
        page[..bytes.len()].copy_from_slice(bytes);
        let mut hash = mix(u64::from(place.0) << 40 ^ place.1);
        for word in page.chunks_exact(8) {
            hash = mix(hash ^ u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        Page { bytes: Rc::new(page), hash }
    }
}

/// A version of a block that is not durable.
#[derive(Clone)]
struct Version {
    op: (u32, u64),
    page: Page,
    done: bool,
}

/// The drives at a point of the tape.
pub(crate) struct Drives {
    /// The data region, in blocks.
    data: std::ops::Range<u64>,
    /// Members of a set: rows of different sets are different rows.
    per_set: u32,
    /// What is durable, of the blocks that were touched.
    pub durable: BTreeMap<Place, Page>,
    pending: BTreeMap<Place, Vec<Version>>,
    /// Blocks of every operation that is not durable.
    ops: BTreeMap<(u32, u64), Op>,
}

struct Op {
    places: Vec<Place>,
    fua: bool,
    done: bool,
    /// For a flush: the operations that were done when it began.
    covers: Option<Vec<(u32, u64)>>,
}

/// Something that a power cut decides as one.
enum Choice {
    /// A block of data: the durable version, or one of the others.
    Block(Place),
    /// An operation on structures: 0 not at all, 1 whole, 2 in part.
    Op((u32, u64)),
}

/// One state: the blocks that differ from the durable ones.
pub(crate) struct State {
    pub changed: Vec<(Place, Page)>,
    /// What was chosen, for people.
    pub text: String,
}

impl Drives {
    pub fn new(data: std::ops::Range<u64>, per_set: u32) -> Drives {
        Drives { data, per_set, durable: BTreeMap::new(), pending: BTreeMap::new(), ops: BTreeMap::new() }
    }

    /// Goes one event on.
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
                self.ops.insert(id, Op { places: Vec::new(), fua: false, done: false, covers });
            }
            TapeStep::Done => self.done(id),
        }
    }

    fn start(&mut self, id: (u32, u64), pages: Vec<(Place, Page)>, fua: bool) {
        let places = pages.iter().map(|(place, _)| *place).collect();
        for (place, page) in pages {
            self.pending.entry(place).or_default().push(Version { op: id, page, done: false });
        }
        self.ops.insert(id, Op { places, fua, done: false, covers: None });
    }

    fn done(&mut self, id: (u32, u64)) {
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
    fn settle(&mut self, id: (u32, u64)) {
        let Some(op) = self.ops.remove(&id) else { return };
        for place in op.places {
            let Some(versions) = self.pending.get_mut(&place) else { continue };
            // What was there before it is overwritten, unless it was in flight at the same time.
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
            self.durable.insert(place, version.page);
        }
    }

    fn is_data(&self, place: &Place) -> bool {
        self.data.contains(&place.1)
    }

    /// Every state that a power cut could leave now.
    pub fn states(&self) -> impl Iterator<Item = State> + '_ {
        let mut rows: BTreeMap<(u32, u64), Vec<Place>> = BTreeMap::new();
        for place in self.pending.keys().filter(|place| self.is_data(place)) {
            rows.entry((place.0 / self.per_set, place.1)).or_default().push(*place);
        }
        let of_structures = |op: &&(u32, u64)| self.ops[op].places.first().is_some_and(|place| !self.is_data(place));
        let structures: Vec<Choice> = self.ops.keys().filter(of_structures).map(|op| Choice::Op(*op)).collect();
        let rows: Vec<Vec<Choice>> =
            rows.into_values().map(|places| places.into_iter().map(Choice::Block).collect()).collect();
        let of_rows: Vec<u64> = rows.iter().map(|row| self.count(row)).collect();
        let row_states = of_rows.iter().copied().max().unwrap_or(1);
        let pairs = (0..self.count(&structures))
            .flat_map(move |of_structures| (0..row_states).map(move |of_row| (of_structures, of_row)));
        pairs.map(move |(structure_state, row_state)| {
            let mut state = State { changed: Vec::new(), text: String::new() };
            for (row, count) in rows.iter().zip(&of_rows) {
                self.choose(row, row_state % count, &mut state);
            }
            self.choose(&structures, structure_state, &mut state);
            state
        })
    }

    fn options(&self, choice: &Choice) -> u64 {
        match choice {
            Choice::Block(place) => 1 + self.pending[place].len() as u64,
            Choice::Op(op) => {
                if self.ops[op].places.len() > 1 {
                    3
                } else {
                    2
                }
            }
        }
    }

    fn count(&self, choices: &[Choice]) -> u64 {
        choices.iter().map(|choice| self.options(choice)).product()
    }

    fn choose(&self, choices: &[Choice], number: u64, state: &mut State) {
        let mut rest = number;
        for choice in choices {
            let options = self.options(choice);
            let option = (rest % options) as usize;
            rest /= options;
            if option == 0 {
                continue;
            }
            match choice {
                Choice::Block(place) => {
                    let page = self.pending[place][option - 1].page.clone();
                    state.text += &format!(" drive {} block {}", place.0, place.1);
                    state.changed.push((*place, page));
                }
                Choice::Op(op) => {
                    let places = &self.ops[op].places;
                    // A part: all but the last block.
                    let kept = if option == 2 { &places[..places.len() - 1] } else { places };
                    let part = if option == 2 { " in part" } else { "" };
                    state.text += &format!(" drive {} structure at block {}{part}", op.0, places[0].1);
                    for place in kept {
                        let version = self.pending[place].iter().find(|version| version.op == *op);
                        let version = version.expect("an operation that is not durable has its versions");
                        state.changed.push((*place, version.page.clone()));
                    }
                }
            }
        }
    }
}
