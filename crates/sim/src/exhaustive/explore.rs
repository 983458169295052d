//! Going through all states that recovery can distinguish.
//!
//! Recovery, and every read after it, is a function of the blocks that are read: a block that is
//! overwritten first, or never read, may have any content. So the content that a power cut left in
//! a block is decided when it is read. Each recovery has a list of such choices, in order; the
//! other blocks do not matter to it. The choices are gone through option by option, depth first,
//! until none is left. So every state is one of those that a recovery stands for ([`Explorer`]).
//!
//! Other crash points and other programs leave the same blocks, at least those that recovery reads.
//! A [`Memo`] knows all recoveries that ended well as one tree: the blocks that were read first,
//! the blocks that follow by their contents, and the content that users read in the end. The tree
//! is followed as far as it goes. States outside of the tree are recovered. So are states whose
//! result in the tree is not allowed here, to report the violation.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use super::states::{Cut, Drives, Page, PageAddress};
use crate::PageRc;
use crate::engine::history::Version;
use crate::rng::mix;

/// A position in the tree: stands for all contents read so far, in order.
type Key = u128;

/// The next node in the tree.
#[derive(Clone, Copy)]
enum Node {
    /// No more blocks are read, and users read this.
    End { outcome: u32 },
    /// A part of an order in which places are read.
    Reads { order: u32, start: u32, end: u32 },
}

/// Keys are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are one number")
    }

    fn write_u128(&mut self, key: u128) {
        self.0 = key as u64;
    }
}

type Nodes = HashMap<Key, Node, BuildHasherDefault<AsItIs>>;

/// The content that users read after a recovery: the version of each block, or that it is
/// unreadable.
pub(super) type VolumeContent = [Option<Version>];

/// Lists, each of which is kept once and has a number.
struct Numbered<T>(RwLock<Lists<T>>);

struct Lists<T> {
    by_number: Vec<Arc<[T]>>,
    numbers: HashMap<Arc<[T]>, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered(RwLock::new(Lists { by_number: Vec::new(), numbers: HashMap::new() }))
    }
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    fn get(&self, number: u32) -> Arc<[T]> {
        self.0.read().expect("nobody panics with it").by_number[number as usize].clone()
    }

    fn number_of(&self, list: &[T]) -> u32 {
        if let Some(number) = self.0.read().expect("nobody panics with it").numbers.get(list) {
            return *number;
        }
        let lists = &mut *self.0.write().expect("nobody panics with it");
        let list: Arc<[T]> = list.into();
        match lists.numbers.entry(list.clone()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                lists.by_number.push(list);
                *new.insert(lists.by_number.len() as u32 - 1)
            }
        }
    }
}

/// All recoveries so far that ended well.
#[derive(Default)]
pub(super) struct Memo {
    /// By key, in parts that are locked on their own.
    nodes: [Mutex<Nodes>; 16],
    orders: Numbered<PageAddress>,
    outcomes: Numbered<Option<Version>>,
}

fn add(key: Key, contents: u128) -> Key {
    let sum = key.wrapping_add(contents);
    let (high, low) = (mix((sum >> 64) as u64 ^ 0x5bd1_e995), mix(sum as u64));
    u128::from(high ^ low) << 64 | u128::from(mix(low.wrapping_add(high.rotate_left(32))))
}

impl Memo {
    fn nodes(&self, key: Key) -> MutexGuard<'_, Nodes> {
        self.nodes[(key >> 64) as usize % self.nodes.len()].lock().expect("nobody panics with it")
    }

    fn node(&self, key: Key) -> Option<Node> {
        self.nodes(key).get(&key).copied()
    }

    /// Another thread may have inserted a node meanwhile: the first one stays.
    fn insert(&self, key: Key, node: Node) {
        self.nodes(key).entry(key).or_insert(node);
    }
}

/// A choice that is made; its cut knows the subject of it.
#[derive(Clone, Copy)]
struct Made {
    layer: usize,
    choice: usize,
}

/// A power cut, and the drives that it met.
#[derive(Clone)]
struct Layer {
    drives: Rc<RefCell<Drives>>,
    cut: Cut,
}

/// A place that recovery has read.
struct Read {
    place: PageAddress,
    hash: u128,
    /// A choice was made for it, or may be at another point or in another program: there the tree
    /// branches.
    branches: bool,
}

/// Goes through the states that a power cut could leave at one point, without some members.
pub(super) struct Explorer {
    /// The power cuts, each in the recovery from the one before.
    layers: Vec<Layer>,
    /// The common root of all recoveries here.
    root: Key,
    is_begun: bool,
    /// In the order in which they were made.
    made: Vec<Made>,
    /// How many of them are fixed.
    settled: usize,
    /// The end of the tree: the places read until there, and the key of their contents.
    known: Vec<PageAddress>,
    key: Key,
    /// The places that recovery has read, each once.
    reads: Vec<Read>,
    /// By drive and block.
    is_read: Vec<Vec<bool>>,
}

impl Explorer {
    /// For drives that a power cut hit. `root` stands for everything that recovery depends on apart
    /// from the drives.
    pub fn new(drives: Rc<RefCell<Drives>>, cut: Cut, root: Key) -> Explorer {
        let (made, known, reads) = Default::default();
        let is_read = drives.borrow().marks();
        let layers = vec![Layer { drives, cut }];
        Explorer { layers, root, is_begun: false, made, settled: 0, known, key: root, reads, is_read }
    }

    /// For drives that a power cut hit in the recovery from the current state, with the choices
    /// made for that state.
    pub fn over(&self, drives: Rc<RefCell<Drives>>, cut: Cut, root: Key) -> Explorer {
        let mut over = Explorer::new(drives, cut, root);
        over.layers = self.layers.iter().cloned().chain(over.layers).collect();
        (over.made, over.settled) = (self.made.clone(), self.made.len());
        over
    }

    /// Advances to the next state that no recovery so far stands for, or whose result is not
    /// allowed here. Says whether there is one.
    pub fn next(&mut self, memo: &Memo, may_be: impl Fn(&VolumeContent) -> bool) -> bool {
        while !std::mem::replace(&mut self.is_begun, true) || self.advance() {
            if self.follow(memo, &may_be) {
                self.reads.clear();
                self.is_read.iter_mut().for_each(|blocks| blocks.fill(false));
                return true;
            }
        }
        false
    }

    /// Advances to the next options. Says whether there are more.
    fn advance(&mut self) -> bool {
        while self.made.len() > self.settled {
            let Made { layer, choice } = *self.made.last().expect("there are more than settled ones");
            if self.layers[layer].cut.go_on(choice) {
                return true;
            }
            self.made.pop();
        }
        false
    }

    /// Follows the tree from its root to its end, and says whether a recovery is needed there.
    fn follow(&mut self, memo: &Memo, may_be: impl Fn(&VolumeContent) -> bool) -> bool {
        self.key = self.root;
        let mut known: Option<(Arc<[PageAddress]>, u32)> = None;
        loop {
            match memo.node(self.key) {
                Some(Node::End { outcome }) if may_be(&memo.outcomes.get(outcome)) => return false,
                Some(Node::Reads { order, start, end }) => {
                    let order = memo.orders.get(order);
                    let places = &order[start as usize..end as usize];
                    let contents = places.iter().map(|place| self.look(*place).0.hash);
                    let sum = contents.fold(0, u128::wrapping_add);
                    self.key = add(self.key, sum);
                    known = Some((order, end));
                }
                Some(Node::End { .. }) | None => {
                    self.known.clear();
                    self.known.extend(known.iter().flat_map(|(order, end)| &order[..*end as usize]));
                    return true;
                }
            }
        }
    }

    /// The content of a place, and whether a choice had to be made for it.
    fn look(&mut self, place: PageAddress) -> (Page, bool) {
        let (before, made) = (self.made.len(), &mut self.made);
        for (number, layer) in self.layers.iter_mut().enumerate().rev() {
            let made = |choice| made.push(Made { layer: number, choice });
            if let Some(page) = layer.cut.page(&layer.drives.borrow(), place, made) {
                return (page.clone(), self.made.len() > before);
            }
        }
        unreachable!("the drives before the program are known")
    }

    /// The content of a place that recovery reads and has not written.
    pub fn page(&mut self, place: PageAddress) -> PageRc {
        let (page, decided) = self.look(place);
        if !std::mem::replace(&mut self.is_read[place.0 as usize][place.1 as usize], true) {
            let branches = decided || self.layers[0].drives.borrow().is_data(place);
            self.reads.push(Read { place, hash: page.hash, branches });
        }
        page.bytes
    }

    /// The recovery of this state ended well, with this result.
    pub fn ended_well(&mut self, memo: &Memo, outcome: &VolumeContent) {
        // Places known to the tree are read again, most likely in the same order.
        let is_same = self.reads.iter().map(|read| &read.place).take(self.known.len()).eq(&self.known);
        let again: HashSet<PageAddress> = if is_same { HashSet::new() } else { self.known.iter().copied().collect() };
        let new = self.reads.iter().skip(if is_same { self.known.len() } else { 0 });
        let new: Vec<&Read> = new.filter(|read| !again.contains(&read.place)).collect();
        let mut start = self.known.len();
        let order: Vec<PageAddress> = self.known.iter().copied().chain(new.iter().map(|read| read.place)).collect();
        let order_number = memo.orders.number_of(&order);
        let (mut key, mut contents) = (self.key, 0_u128);
        for (index, read) in (start + 1..).zip(&new) {
            contents = contents.wrapping_add(read.hash);
            if read.branches || index == order.len() {
                memo.insert(key, Node::Reads { order: order_number, start: start as u32, end: index as u32 });
                key = add(key, contents);
                (start, contents) = (index, 0);
            }
        }
        memo.insert(key, Node::End { outcome: memo.outcomes.number_of(outcome) });
    }

    /// Each state separately, with all choices made before anything is read.
    #[cfg(test)]
    pub fn apart(mut self) -> Explorer {
        let cut = &mut self.layers[0].cut;
        self.made = (0..cut.choices()).map(|choice| Made { layer: 0, choice }).collect();
        assert!(self.made.iter().all(|made| cut.go_on(made.choice)), "a first option is never left out");
        self
    }

    /// Every state, see [`Cut::leave_out_none`].
    #[cfg(test)]
    pub fn leave_out_none(mut self) -> Explorer {
        self.layers[0].cut.leave_out_none();
        self
    }

    /// The choices made in the current state, for the first power cut.
    #[cfg(test)]
    pub fn taken(&self) -> Vec<Option<usize>> {
        self.layers[0].cut.taken().to_vec()
    }

    /// How many states the current one stands for.
    #[cfg(test)]
    pub fn stands_for(&self) -> u64 {
        self.layers.iter().map(|layer| layer.cut.open_states()).product()
    }

    /// The content that the last power cut kept, as text for people.
    pub fn text(&self) -> String {
        let last = self.layers.last().expect("there is a power cut");
        last.cut.text(&last.drives.borrow())
    }
}
