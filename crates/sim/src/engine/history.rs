//! The contents that may be read from a group, also after power cuts and with lost members: for
//! each block every version since the last one that is known to be durable.
//!
//! A *block* is the unit that a drive writes atomically, a sector. A *version* is a number from
//! which the content of every block can be computed. No two requests write the same version, and no
//! two blocks look alike in one, so the content of a read shows where it comes from.
//!
//! The checks:
//! 1. Without a power cut, a read gives the last version that was answered. If a request was
//!    answered with an error since, it gives its version or the one before.
//! 2. After a power cut, a read gives any version from the last durable one on: no other content,
//!    no mixture, no error.
//! 3. One exception: a block with a version that is not durable, on a member that was lost in the
//!    same power cut, may be unreadable, if several data strips of its row were being written at
//!    the same time. If the group knew by then that the member was lost, this holds only if the
//!    version was being written when the group noticed.

mod requests;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use ::drive::Drive;
use array::{Geometry, MemberIndex, StripeGroup};
use smallvec::{SmallVec, smallvec};

pub use self::requests::{Asked, Request, perform, perform_on, settle, settle_with, verify_latest, work_for_a_crash};
use super::exact::Model;
use super::group::Group;
use crate::rng::GOLDEN;

/// The content of a request's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Zeroes: never written, discarded, or zeroed.
    pub const ZERO: Version = Version(0);
    /// Unreadable until it is written again.
    const UNREADABLE: Version = Version(u64::MAX);

    /// Fills `into`, which lies at the group byte `at`, a multiple of 8.
    pub fn fill(self, at: u64, into: &mut [u8]) {
        if self == Version::ZERO {
            return into.fill(0);
        }
        for (index, word) in into.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&self.word(at / 8 + index as u64).to_le_bytes());
        }
    }

    #[inline]
    fn word(self, index: u64) -> u64 {
        let word = (self.0.wrapping_mul(GOLDEN) ^ index).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word ^ (word >> 31)
    }

    fn matches(self, at: u64, bytes: &[u8]) -> bool {
        if self == Version::ZERO {
            const ZEROES: [u8; 4096] = [0; 4096];
            return bytes.chunks(ZEROES.len()).all(|chunk| *chunk == ZEROES[..chunk.len()]);
        }
        let mut words = bytes.chunks_exact(8).enumerate();
        self != Version::UNREADABLE && words.all(|(index, word)| word == self.word(at / 8 + index as u64).to_le_bytes())
    }
}

/// A read gave content that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// [`Entry::done`] of a request that is under way.
const UNDER_WAY: u64 = u64::MAX;

/// A version of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    version: Version,
    /// When its request was answered, counted in answers.
    done: u64,
    /// Requests that were begun before it.
    begun: u64,
    /// Other data strips of its row were being written at the same time.
    among_others: bool,
}

/// A member that is absent after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Its slot.
    pub member: usize,
    /// How many requests were begun ([`History::begun`]) when the group was seen to know. Requests
    /// begun before relied on the member.
    pub begun: u64,
    /// How many answers there were by then ([`History::now`]). Data answered before can be computed
    /// without the member.
    pub answered: u64,
}

impl Loss {
    /// The member was lost in the power cut.
    pub fn in_power_cut(member: usize) -> Loss {
        Loss { member, begun: u64::MAX, answered: 0 }
    }
}

type Entries = SmallVec<[Entry; 1]>;

/// A request under way, strip by strip.
#[derive(Debug, Clone, Copy)]
struct Piece {
    stripe_group: StripeGroup,
    row: u64,
    role: usize,
    start: u64,
    len: u64,
}

/// The history of every block.
#[derive(Clone)]
pub struct History {
    geometry: Geometry,
    block_bytes: u64,
    blocks: Vec<Entries>,
    /// Blocks with more than one entry.
    unsettled: BTreeSet<u64>,
    under_way: Vec<Piece>,
    /// Counts answers.
    now: u64,
    /// Counts requests.
    begun: u64,
    version_last: u64,
    /// No block may ever be unreadable.
    strict: bool,
}

/// A history that several requests at a time write to.
pub type Shared = Rc<RefCell<History>>;

impl History {
    /// The history of a new group: zeroes. Its drives write `block_bytes` as a whole or not at all.
    pub fn new(geometry: &Geometry, block_bytes: u64) -> History {
        let zero = smallvec![Entry { version: Version::ZERO, done: 0, begun: 0, among_others: false }];
        History {
            blocks: vec![zero; (geometry.capacity() / block_bytes) as usize],
            block_bytes,
            geometry: geometry.clone(),
            unsettled: BTreeSet::new(),
            under_way: Vec::new(),
            now: 0,
            begun: 0,
            version_last: 0,
            strict: false,
        }
    }

    /// The history of a new group, to be shared.
    pub fn shared(group: &Group) -> Shared {
        let sector = group.drives.iter().map(|drive| drive.info().sector_bytes).max().expect("a group has drives");
        Rc::new(RefCell::new(History::new(&group.leader().shared().geometry, u64::from(sector))))
    }

    /// From now on there is no exception: every block can be read.
    pub fn make_strict(&mut self) {
        self.strict = true;
    }

    /// Bytes of a block. Requests are made of whole ones.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// A version that no request has written.
    pub fn next_version(&mut self) -> Version {
        self.version_last += 1;
        Version(self.version_last)
    }

    fn range(&self, start: u64, len: u64) -> std::ops::Range<u64> {
        let bytes = self.block_bytes();
        assert!(start.is_multiple_of(bytes) && len.is_multiple_of(bytes), "{start}+{len} is no range of whole blocks");
        start / bytes..(start + len) / bytes
    }

    /// The group gets a request that changes a range. Ranges under way do not overlap.
    pub fn begin(&mut self, start: u64, len: u64, version: Version) {
        let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
        let mut at = start;
        while at < start + len {
            let place = self.geometry.place(at);
            let step = place.left.min(start + len - at);
            pieces.push(Piece {
                stripe_group: place.stripe_group,
                row: place.offset / self.geometry.strip_bytes,
                role: place.role,
                start: at,
                len: step,
            });
            at += step;
        }
        for block in self.range(start, len) {
            let entry = Entry { version, done: UNDER_WAY, begun: self.begun, among_others: false };
            self.blocks[block as usize].push(entry);
            self.unsettled.insert(block);
        }
        for (index, piece) in pieces.iter().enumerate() {
            let in_row = |other: &&Piece| {
                (other.stripe_group, other.row) == (piece.stripe_group, piece.row) && other.role != piece.role
            };
            let others: SmallVec<[Piece; 4]> =
                self.under_way.iter().chain(&pieces[..index]).filter(in_row).copied().collect();
            if others.is_empty() {
                continue;
            }
            for piece in others.iter().chain([piece]) {
                for block in self.range(piece.start, piece.len) {
                    let entries = &mut self.blocks[block as usize];
                    entries.last_mut().expect("it was begun").among_others = true;
                }
            }
        }
        self.under_way.extend(pieces);
        self.begun += 1;
    }

    /// Requests that were begun so far.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// The request was answered; `durable` if it had FUA.
    pub fn end(&mut self, start: u64, len: u64, durable: bool) {
        self.now += 1;
        self.under_way.retain(|piece| piece.start + piece.len <= start || start + len <= piece.start);
        for block in self.range(start, len) {
            let entries = &mut self.blocks[block as usize];
            entries.last_mut().expect("a request begins before it ends").done = self.now;
            if durable {
                entries.drain(..entries.len() - 1);
                self.unsettled.remove(&block);
            }
        }
    }

    /// The request was answered with an error: any part of it may be there, now and until the range
    /// is written again.
    pub fn failed(&mut self, start: u64, len: u64) {
        self.under_way.retain(|piece| piece.start + piece.len <= start || start + len <= piece.start);
    }

    /// The request was refused: no part of it is there, now or later.
    pub fn refused(&mut self, start: u64, len: u64) {
        self.failed(start, len);
        for block in self.range(start, len) {
            let entries = &mut self.blocks[block as usize];
            let begun = entries.pop().expect("a request begins before it is refused");
            assert_eq!(begun.done, UNDER_WAY, "what was answered cannot be refused");
            if entries.len() == 1 {
                self.unsettled.remove(&block);
            }
        }
    }

    /// Answers so far: the argument of [`History::flushed`], taken when the group gets the flush.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// A flush that the group got at `since` was answered: versions older than those answered then
    /// cannot come back.
    pub fn flushed(&mut self, since: u64) {
        let blocks = &mut self.blocks;
        self.unsettled.retain(|&block| {
            let entries = &mut blocks[block as usize];
            let durable = entries.iter().rposition(|entry| entry.done <= since);
            // None: the remaining entries came with FUA, after the flush began.
            entries.drain(..durable.unwrap_or(0));
            entries.len() > 1
        });
    }

    /// The group was stopped in order: only the last versions are left.
    pub fn stopped(&mut self) {
        assert!(self.under_way.is_empty(), "a group is stopped when all requests were answered");
        self.flushed(self.now);
    }

    fn latest_version(&self, block: u64) -> Version {
        self.blocks[block as usize].last().expect("every block has an entry").version
    }

    /// Checks a read, if there was no power cut since the last `settle`.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn check_latest(&self, start: u64, read: &[u8]) -> Result<(), Violation> {
        let bytes = self.block_bytes();
        for (chunk, block) in read.chunks_exact(bytes as usize).zip(self.range(start, read.len() as u64)) {
            let entries = &self.blocks[block as usize];
            // Entries after the last answered one have failed, or are under way.
            let answered = entries.iter().rposition(|entry| entry.done != UNDER_WAY).unwrap_or(0);
            let mut may = entries[answered..].iter();
            if !may.any(|entry| entry.version.matches(block * bytes, chunk)) {
                let may: Vec<String> = entries[answered..].iter().map(|entry| self.name(entry.version)).collect();
                return Err(self.violation(block, chunk, &format!("it has to be {}", may.join(" or "))));
            }
        }
        Ok(())
    }

    /// Checks a read after a power cut. Gives the version of each block.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn check(&self, start: u64, read: &[u8]) -> Result<Vec<Version>, Violation> {
        let blocks = self.range(start, read.len() as u64);
        read.chunks_exact(self.block_bytes() as usize)
            .zip(blocks)
            .map(|(chunk, block)| self.find(block, chunk))
            .collect()
    }

    /// Whether all of this may be read after a power cut: for each block a version, or that it is
    /// unreadable.
    pub fn allows(&self, read: &[Option<Version>], lost: &[Loss]) -> bool {
        assert_eq!(read.len(), self.blocks.len(), "all blocks are read");
        read.iter().zip(&self.blocks).enumerate().all(|(block, (read, entries))| match read {
            Some(version) => entries.iter().any(|entry| entry.version == *version),
            None => self.check_unreadable(block as u64 * self.block_bytes(), lost).is_ok(),
        })
    }

    fn find(&self, block: u64, chunk: &[u8]) -> Result<Version, Violation> {
        let entries = &self.blocks[block as usize];
        let at = block * self.block_bytes();
        let known = entries.iter().rev().find(|entry| entry.version.matches(at, chunk)).map(|entry| entry.version);
        known.ok_or_else(|| {
            let may: Vec<String> = entries.iter().map(|entry| self.name(entry.version)).collect();
            self.violation(block, chunk, &format!("it may be {}", may.join(" or ")))
        })
    }

    /// Checks that a block may be unreadable after a power cut with the losses of `lost`.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn check_unreadable(&self, start: u64, lost: &[Loss]) -> Result<(), Violation> {
        let place = self.geometry.place(start);
        let MemberIndex(member) = self.geometry.member(place.stripe_group, place.offset, place.role);
        // The unit that the group writes as a whole is in flight as a whole: with checksums 4 KiB,
        // for any sector size of the drives.
        let grain = self.geometry.sector_bytes.max(self.block_bytes());
        let whole = self.range(start / grain * grain, grain);
        let around = || &self.blocks[whole.start as usize..whole.end as usize];
        let pending = || around().iter().flat_map(|entries| entries.iter().skip(1)).filter(|entry| entry.among_others);
        let excused = pending().next().is_some();
        let counted_on = |loss: &&Loss| pending().any(|entry| entry.begun < loss.begun && entry.done > loss.answered);
        let loss = lost.iter().filter(|loss| loss.member == usize::from(member)).find(counted_on);
        let excepted = loss.is_some() && !self.strict;
        let beside = around().iter().any(|entries| entries[0].version == Version::UNREADABLE);
        if beside || excepted {
            return Ok(());
        }
        let touched = around().iter().any(|entries| entries.len() > 1);
        let why = match (touched, excused) {
            (false, _) => "no write touched it",
            _ if self.strict => "crash safety is strict",
            (_, false) => "the write to it changed no other data strip of its row",
            _ => "its member was not lost in the power cut, or was known to be lost before it was written, or after",
        };
        Err(Violation(format!(
            "block {start}+{} on member {member}, strip {}, cannot be read: {why}",
            self.block_bytes(),
            place.role
        )))
    }

    /// Checks a read after a power cut, and takes its content as the truth from now on.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn settle(&mut self, start: u64, read: &[u8]) -> Result<(), Violation> {
        let bytes = self.block_bytes();
        for (chunk, block) in read.chunks_exact(bytes as usize).zip(self.range(start, read.len() as u64)) {
            let version = self.find(block, chunk)?;
            self.set(block, version);
        }
        Ok(())
    }

    /// Checks that a block may be unreadable, and accepts that until it is written again.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn settle_unreadable(&mut self, start: u64, lost: &[Loss]) -> Result<(), Violation> {
        self.check_unreadable(start, lost)?;
        self.set(start / self.block_bytes(), Version::UNREADABLE);
        Ok(())
    }

    fn set(&mut self, block: u64, version: Version) {
        self.unsettled.remove(&block);
        self.blocks[block as usize] = smallvec![Entry { version, done: self.now, begun: 0, among_others: false }];
    }

    /// All requests ended with the power. To be called before anything is settled.
    pub fn power_cut(&mut self) {
        self.under_way.clear();
    }

    /// The process was killed: all answered writes are still there. To be called before anything is
    /// settled.
    pub fn killed(&mut self) {
        self.flushed(self.now);
        self.under_way.clear();
    }

    /// Starts of the blocks that cannot be read since the last power cut.
    pub fn unreadable(&self) -> Vec<u64> {
        let blocks = 0..self.blocks.len() as u64;
        blocks
            .filter(|&block| self.latest_version(block) == Version::UNREADABLE)
            .map(|block| block * self.block_bytes())
            .collect()
    }

    /// A number for the allowed contents: equal for histories that allow the same.
    pub fn fingerprint(&self) -> u64 {
        use std::hash::{Hash, Hasher};
        let mut hasher = std::collections::hash_map::DefaultHasher::new();
        for &block in &self.unsettled {
            block.hash(&mut hasher);
            for entry in &self.blocks[block as usize] {
                (entry.version, entry.among_others).hash(&mut hasher);
            }
        }
        self.blocks.iter().for_each(|entries| entries[0].version.hash(&mut hasher));
        hasher.finish()
    }

    /// The content as a model, once everything is settled.
    pub fn model(&self, size: u64) -> Model {
        let mut model = Model::new(size);
        let bytes = self.block_bytes();
        for (block, chunk) in model.bytes.chunks_exact_mut(bytes as usize).enumerate() {
            self.latest_version(block as u64).fill(block as u64 * bytes, chunk);
        }
        model
    }

    fn name(&self, version: Version) -> String {
        match version {
            Version::ZERO => "zeroes".into(),
            Version::UNREADABLE => "unreadable".into(),
            Version(number) => format!("version {number}"),
        }
    }

    fn violation(&self, block: u64, chunk: &[u8], instead: &str) -> Violation {
        let at = block * self.block_bytes();
        let place = self.geometry.place(at);
        let MemberIndex(member) = self.geometry.member(place.stripe_group, place.offset, place.role);
        let mut known = (0..=self.version_last).map(Version);
        let all = known.clone().find(|version| version.matches(at, chunk)).map(|version| self.name(version));
        let first = known.find(|version| version.matches(at, &chunk[..8])).map(|version| self.name(version));
        let found = match (all, first) {
            (Some(name), _) => name,
            (None, Some(name)) => format!("something that begins like {name}"),
            (None, None) => format!("something unknown that begins with {:02x?}", &chunk[..8]),
        };
        Violation(format!(
            "block {at}+{} (member {member}, stripe group {}, strip {}, member offset {}) is {found}; {instead}",
            self.block_bytes(),
            place.stripe_group.0,
            place.role,
            place.offset
        ))
    }
}
