//! Warm-restart state of a group ([`WarmState`]): memory that outlives the process, so that a
//! killed daemon loses nothing that was acknowledged.
//!
//! Two things reach the members only with a flush, so a power cut undoes them together with all
//! writes that were not flushed. A killed process must not undo them: the kernel and the drives
//! still have the writes.
//!
//! - **The allocation map.** Each change of a bit is made here too, at once.
//! - **Which records of the log are completed**: their strips have been overwritten, so data and
//!   parity agree. Without this a recovery with a lost member could not tell for some records, and
//!   would have to call acknowledged blocks lost.
//!
//! The next assembly of the group uses this state if it is of the run that the superblocks show.
//!
//! The words, in order: the head ([`HEAD_WORDS`]); one bit per allocation chunk, 64 in a word; two
//! banks of log streams, for log generations with even and odd numbers. So the streams of the last
//! run are known until the superblocks show the next one.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use drive::WarmState;
use format::{Superblock, Uuid};

use crate::geometry::Geometry;

/// Magic, array (two words), allocation chunks, the epoch of the superblocks, and the last epoch
/// that they may have been given since, or 0.
const HEAD_WORDS: usize = 8;
const ARRAY: usize = 1;
const CHUNKS: usize = 3;
const EPOCH: usize = 4;
const NEXT_EPOCH: usize = 5;

/// Streams of a log that are kept, in each bank. Records of further streams always count as open.
const STREAMS: usize = 64;
/// Most records of a stream that are open at the same time. A write that would begin one more
/// waits.
pub(crate) const OPEN_MAX: usize = 255;
/// The generation, the next sequence, and the open records or 0.
const STREAM_WORDS: usize = 2 + OPEN_MAX;
const GENERATION: usize = 0;
const NEXT: usize = 1;
const OPEN: usize = 2;

/// `PurlinK1`.
const MAGIC: u64 = u64::from_le_bytes(*b"PurlinK1");

/// Words of memory for the warm-restart state of a group.
pub fn warm_words(superblock: &Superblock) -> usize {
    words_for(chunk_count(superblock))
}

/// Allocation chunks of a group.
pub(crate) fn chunk_count(superblock: &Superblock) -> u64 {
    // The sector size does not change it.
    Geometry::new(&superblock.shape, &superblock.layout, 512).chunk_count()
}

fn words_for(chunk_count: u64) -> usize {
    HEAD_WORDS + chunk_count.div_ceil(64) as usize + 2 * STREAMS * STREAM_WORDS
}

/// The warm-restart state of a group.
#[derive(Debug, Clone)]
pub(crate) struct WarmGroup {
    memory: Arc<dyn WarmState>,
    chunk_count: u64,
}

impl WarmGroup {
    /// Uses this memory with its present content, valid or not. `None` if there is too little of
    /// it.
    pub fn new(memory: Arc<dyn WarmState>, chunk_count: u64) -> Option<WarmGroup> {
        let has_room = memory.words().len() >= words_for(chunk_count);
        has_room.then_some(WarmGroup { memory, chunk_count })
    }

    fn head(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[index]
    }

    /// The allocation map.
    pub fn bits(&self) -> &[AtomicU64] {
        &self.memory.words()[HEAD_WORDS..][..self.chunk_count.div_ceil(64) as usize]
    }

    fn stream_words(&self, generation: u64, stream: usize) -> Option<&[AtomicU64]> {
        let banks = &self.memory.words()[HEAD_WORDS + self.chunk_count.div_ceil(64) as usize..];
        let bank = (generation % 2) as usize * STREAMS;
        (stream < STREAMS).then(|| &banks[(bank + stream) * STREAM_WORDS..][..STREAM_WORDS])
    }

    /// Begins to keep a stream of the log.
    pub fn stream(&self, generation: u64, stream: usize) -> Option<WarmStream> {
        let words = self.stream_words(generation, stream)?;
        words.iter().for_each(|word| word.store(0, Ordering::SeqCst));
        words[GENERATION].store(generation, Ordering::SeqCst);
        Some(WarmStream { warm: self.clone(), generation, stream, free: RefCell::new((0..OPEN_MAX).collect()) })
    }

    /// Whether the record is completed: its strips have been overwritten, or never were and never
    /// will be.
    pub fn is_completed(&self, generation: u64, stream: usize, sequence: u64) -> bool {
        let Some(words) = self.stream_words(generation, stream) else { return false };
        let value = |index: usize| words[index].load(Ordering::SeqCst);
        let is_open = || (OPEN..STREAM_WORDS).any(|index| value(index) == sequence);
        value(GENERATION) == generation && sequence < value(NEXT) && !is_open()
    }

    /// Whether the state is of the array's last run, and was kept up to the end of it.
    pub fn is_of(&self, array: &Uuid, epoch: u64) -> bool {
        let is = |index: usize, value: u64| self.head(index).load(Ordering::SeqCst) == value;
        let [high, low] = halves(array);
        let same = is(0, MAGIC) && is(ARRAY, high) && is(ARRAY + 1, low) && is(CHUNKS, self.chunk_count);
        let [known, next] = [EPOCH, NEXT_EPOCH].map(|index| self.head(index).load(Ordering::SeqCst));
        // No superblock has epoch 0.
        same && epoch != 0 && (known..=known.max(next)).contains(&epoch)
    }

    /// Begins the state of a group whose map has these bits, and whose log has no record that is
    /// needed.
    pub fn begin(&self, array: &Uuid, epoch: u64, bits: &[AtomicU64]) {
        let set = |index: usize, value: u64| self.head(index).store(value, Ordering::SeqCst);
        set(0, 0);
        for (warm, word) in self.bits().iter().zip(bits) {
            warm.store(word.load(Ordering::Acquire), Ordering::SeqCst);
        }
        let [high, low] = halves(array);
        let head =
            [(ARRAY, high), (ARRAY + 1, low), (CHUNKS, self.chunk_count), (EPOCH, epoch), (NEXT_EPOCH, 0), (0, MAGIC)];
        head.into_iter().for_each(|(index, value)| set(index, value));
    }

    /// Notes that the superblocks are about to be given a higher epoch. Until all have it, the
    /// epoch before is valid as well, and all in between: a drive may have taken one of those
    /// without confirming it.
    pub fn expect_epoch(&self, epoch: u64) {
        self.head(NEXT_EPOCH).store(epoch, Ordering::SeqCst);
    }

    /// Notes that the superblocks have this epoch now.
    pub fn found_epoch(&self, epoch: u64) {
        self.head(EPOCH).store(epoch, Ordering::SeqCst);
        self.head(NEXT_EPOCH).store(0, Ordering::SeqCst);
    }

    /// Sets a chunk's bit.
    pub fn set(&self, chunk: u64) {
        self.bits()[(chunk / 64) as usize].fetch_or(1 << (chunk % 64), Ordering::SeqCst);
    }

    /// Clears a chunk's bit.
    pub fn clear(&self, chunk: u64) {
        self.bits()[(chunk / 64) as usize].fetch_and(!(1 << (chunk % 64)), Ordering::SeqCst);
    }
}

/// The warm-restart state of a stream of the log. Its records have numbers above 0.
#[derive(Debug)]
pub(crate) struct WarmStream {
    warm: WarmGroup,
    generation: u64,
    stream: usize,
    free: RefCell<Vec<usize>>,
}

impl WarmStream {
    fn words(&self) -> &[AtomicU64] {
        self.warm.stream_words(self.generation, self.stream).expect("it was there when this was made")
    }

    /// Notes that a record is open. Returns its place.
    ///
    /// # Panics
    /// If [`OPEN_MAX`] are open.
    pub fn open(&self, sequence: u64) -> usize {
        let place = self.free.borrow_mut().pop().expect("a log lets no more records be open");
        // A kill between the two stores leaves a record that is open and was not begun.
        self.words()[OPEN + place].store(sequence, Ordering::Release);
        self.words()[NEXT].store(sequence + 1, Ordering::Release);
        place
    }

    /// Notes that the record at this place is completed.
    pub fn complete(&self, place: usize) {
        self.words()[OPEN + place].store(0, Ordering::Release);
        self.free.borrow_mut().push(place);
    }
}

fn halves(uuid: &Uuid) -> [u64; 2] {
    let (words, _) = uuid.as_bytes().as_chunks::<8>();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Heap(Vec<AtomicU64>);

    impl WarmState for Heap {
        fn words(&self) -> &[AtomicU64] {
            &self.0
        }
    }

    fn memory(words: usize) -> Arc<Heap> {
        Arc::new(Heap((0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    fn warm(chunks: u64) -> WarmGroup {
        WarmGroup::new(memory(words_for(chunks)), chunks).unwrap()
    }

    #[test]
    fn what_was_kept_counts_for_its_array_and_its_last_epoch_only() {
        let (array, other) = (Uuid::from_random([1; 16]), Uuid::from_random([2; 16]));
        let group = warm(100);
        assert!(!group.is_of(&array, 0), "new memory is nobody's");
        group.begin(&array, 7, &[AtomicU64::new(5), AtomicU64::new(0)]);
        assert!(group.is_of(&array, 7));
        assert!(!group.is_of(&array, 6) && !group.is_of(&array, 8) && !group.is_of(&array, 0));
        assert!(!group.is_of(&other, 7));
        assert!(!WarmGroup::new(group.memory.clone(), 99).unwrap().is_of(&array, 7));
        group.expect_epoch(8);
        assert!(group.is_of(&array, 7) && group.is_of(&array, 8), "a crash in between leaves either");
        group.expect_epoch(9);
        assert!([7, 8, 9].iter().all(|&epoch| group.is_of(&array, epoch)), "what failed may be there");
        assert!(!group.is_of(&array, 6) && !group.is_of(&array, 10));
        group.found_epoch(9);
        assert!(group.is_of(&array, 9) && !group.is_of(&array, 7));
        group.set(64);
        group.clear(0);
        assert_eq!(group.bits().iter().map(|word| word.load(Ordering::SeqCst)).collect::<Vec<_>>(), [4, 1]);
    }

    #[test]
    fn too_little_memory_keeps_nothing() {
        let words = words_for(64);
        assert!(WarmGroup::new(memory(words), 64).is_some());
        assert!(WarmGroup::new(memory(words), 65).is_none());
    }

    #[test]
    fn a_record_is_completed_when_it_was_begun_and_is_not_open() {
        let group = warm(1);
        let stream = group.stream(3, 1).unwrap();
        assert!(!group.is_completed(3, 1, 1), "it was not begun");
        let first = stream.open(1);
        let second = stream.open(2);
        assert!(!group.is_completed(3, 1, 1) && !group.is_completed(3, 1, 2));
        stream.complete(first);
        assert!(group.is_completed(3, 1, 1) && !group.is_completed(3, 1, 2) && !group.is_completed(3, 1, 3));
        assert!(!group.is_completed(5, 1, 1) && !group.is_completed(3, 0, 1), "of another run, of another stream");
        let next = group.stream(4, 1).unwrap();
        next.open(1);
        assert!(group.is_completed(3, 1, 1), "the last run is known until the superblocks show the next");
        assert!(!group.is_completed(4, 1, 1));
        stream.complete(second);
        assert!(group.is_completed(3, 1, 2));
        group.stream(5, 1).unwrap();
        assert!(!group.is_completed(3, 1, 1));
        assert!(group.stream(3, STREAMS).is_none() && !group.is_completed(3, STREAMS, 1));
    }

    #[test]
    fn as_many_records_may_be_open_as_there_are_places() {
        let group = warm(1);
        let stream = group.stream(1, 0).unwrap();
        let places: Vec<usize> = (1..=OPEN_MAX as u64).map(|sequence| stream.open(sequence)).collect();
        assert!((1..=OPEN_MAX as u64).all(|sequence| !group.is_completed(1, 0, sequence)));
        places.into_iter().for_each(|place| stream.complete(place));
        assert!((1..=OPEN_MAX as u64).all(|sequence| group.is_completed(1, 0, sequence)));
    }
}
