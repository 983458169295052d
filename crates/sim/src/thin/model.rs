//! The content that volumes have by what was answered.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::{Hash, Hasher};

use crate::Rng;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// The content of a block: its line, number and version, or zeroes. Of three versions, one
/// compresses well, one a little, and one not at all.
pub fn content(line: u32, block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK as usize];
    }
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    for word in 0..BLOCK / 32 {
        [u64::from(line), block, version, word].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    }
    let noise_from = [32, BLOCK as usize, BLOCK as usize / 3][(version % 3) as usize];
    Rng::new(version << 20 ^ block << 4 ^ u64::from(line)).fill(&mut bytes[noise_from..]);
    bytes
}

/// The versions of a block that a read may give, from the last durable one on.
#[derive(Debug, Clone, Default, Hash)]
pub struct Versions {
    /// Each with whether its request was answered with success.
    entries: Vec<(u64, bool)>,
}

/// The state of all blocks. Requests on one block do not overlap in time.
#[derive(Debug, Clone, Default)]
pub struct Model {
    blocks: BTreeMap<(u32, u64), Versions>,
    next: Cell<u64>,
}

impl Hash for Model {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.blocks.hash(state);
    }
}

impl Model {
    /// A new version.
    pub fn version(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    /// A request begins that gives blocks this version.
    pub fn begin(&mut self, line: u32, blocks: std::ops::Range<u64>, version: u64) {
        for block in blocks {
            let versions = self.blocks.entry((line, block)).or_insert(Versions { entries: vec![(0, true)] });
            versions.entries.push((version, false));
        }
    }

    /// It was answered with success, and is durable then or not.
    pub fn end(&mut self, line: u32, blocks: std::ops::Range<u64>, version: u64, durable: bool) {
        for block in blocks {
            let versions = self.blocks.get_mut(&(line, block)).expect("it was begun");
            let last = versions.entries.last_mut().expect("it was begun");
            assert_eq!(last.0, version);
            last.1 = true;
            if durable {
                versions.entries = vec![*last];
            }
        }
    }

    /// A flush was answered, during which no other request was under way.
    pub fn flushed(&mut self) {
        for versions in self.blocks.values_mut() {
            let done = versions.entries.iter().rposition(|(_, done)| *done).expect("the first one is");
            versions.entries.drain(..done);
        }
    }

    /// The version of each block that was answered last, for [`Model::flushed_until`].
    pub fn answered(&self) -> BTreeMap<(u32, u64), u64> {
        let last =
            |versions: &Versions| versions.entries.iter().rfind(|(_, done)| *done).map_or(0, |(version, _)| *version);
        self.blocks.iter().map(|(place, versions)| (*place, last(versions))).collect()
    }

    /// A flush was answered that began when `before` was answered.
    pub fn flushed_until(&mut self, before: &BTreeMap<(u32, u64), u64>) {
        for (place, version) in before {
            let versions = self.blocks.get_mut(place).expect("it was written");
            let at = versions.entries.iter().rposition(|(other, _)| other == version).unwrap_or(0);
            versions.entries.drain(..at);
        }
    }

    /// The process was killed: what was answered is there.
    pub fn killed(&mut self) {
        self.flushed();
    }

    /// The volume of a line was deleted.
    pub fn deleted(&mut self, line: u32) {
        self.blocks.retain(|(other, _), _| *other != line);
    }

    /// A read gave this content. From now on it is the only one.
    pub fn observe(&mut self, line: u32, block: u64, bytes: &[u8], context: &dyn Display) {
        let none = Versions { entries: vec![(0, true)] };
        let versions = self.blocks.get(&(line, block)).unwrap_or(&none).entries.clone();
        let seen = versions.iter().find(|(version, _)| *bytes == content(line, block, *version));
        let found = || {
            let word = |at: usize| u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().expect("8 bytes"));
            format!("line {}, block {}, version {}", word(0), word(1), word(2))
        };
        let (version, _) = seen.unwrap_or_else(|| {
            panic!("{context}: line {line}, block {block} has {}, and not one of {versions:?}", found())
        });
        self.blocks.insert((line, block), Versions { entries: vec![(*version, true)] });
    }

    /// The versions that a read may give without a crash.
    pub fn readable(&self, line: u32, block: u64) -> Vec<u64> {
        let Some(versions) = self.blocks.get(&(line, block)) else { return vec![0] };
        let done = versions.entries.iter().rposition(|(_, done)| *done).expect("the first one is");
        versions.entries[done..].iter().map(|(version, _)| *version).collect()
    }

    /// The blocks whose last answered request wrote content, and that no request is under way on.
    pub fn mapped(&self) -> Vec<(u32, u64)> {
        let is_mapped =
            |versions: &Versions| versions.entries.last().is_some_and(|(version, done)| *done && *version > 0);
        self.blocks.iter().filter(|(_, versions)| is_mapped(versions)).map(|(place, _)| *place).collect()
    }
}
