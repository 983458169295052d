//! The code that an input reached, if the build is instrumented.
//!
//! The instrumentation is LLVM's SanitizerCoverage, which the stable compiler has as a pass:
//! `crates/fuzz/guided` builds with `inline-8bit-counters` and `trace-compares`
//! (<https://clang.llvm.org/docs/SanitizerCoverage.html>). Its callbacks are here instead of in
//! libFuzzer. In any other build they are never called, and there are no counters.
//!
//! Functions whose names start with `__sanitizer_` are not instrumented themselves, so the function
//! that scans the counters has such a name too.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters of one linked image. A counter is incremented, wrapping, each time its edge is passed.
#[derive(Clone, Copy)]
struct Counters {
    start: *mut u8,
    len: usize,
}

// SAFETY: the counters are static memory of the image, valid for as long as the process runs.
unsafe impl Send for Counters {}

static IMAGES: Mutex<Vec<Counters>> = Mutex::new(Vec::new());

/// Called at start for each instrumented compilation unit, with the same range for all units of an
/// image.
///
/// # Safety
/// Called by the instrumentation only, with the bounds of the image's counters.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let mut images = IMAGES.lock().expect("nothing panics while it is held");
    if images.iter().all(|image| image.start != start) {
        images.push(Counters { start, len: (stop as usize).saturating_sub(start as usize) });
    }
}

/// Number of remembered comparisons: a power of two, so that the ring itself needs no comparison.
const COMPARISONS: usize = 64;

static SIDES: [[AtomicU64; 2]; COMPARISONS] = [const { [const { AtomicU64::new(0) }; 2] }; COMPARISONS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

macro_rules! comparison {
    ($($name:ident: $width:ty),*) => {$(
        /// Called by the instrumentation before each comparison of two integers of this width.
        #[unsafe(no_mangle)]
        extern "C" fn $name(left: $width, right: $width) {
            let slot = &SIDES[NEXT.fetch_add(1, Ordering::Relaxed) & (COMPARISONS - 1)];
            slot[0].store(left as u64, Ordering::Relaxed);
            slot[1].store(right as u64, Ordering::Relaxed);
        }
    )*};
}

comparison!(
    __sanitizer_cov_trace_cmp2: u16,
    __sanitizer_cov_trace_cmp4: u32,
    __sanitizer_cov_trace_cmp8: u64,
    __sanitizer_cov_trace_const_cmp2: u16,
    __sanitizer_cov_trace_const_cmp4: u32,
    __sanitizer_cov_trace_const_cmp8: u64
);

macro_rules! ignored {
    ($($name:ident($($width:ty),*)),*) => {$(
        /// Called by the instrumentation; adds no information to the counters.
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $width),*) {}
    )*};
}

ignored!(
    __sanitizer_cov_trace_cmp1(u8, u8),
    __sanitizer_cov_trace_const_cmp1(u8, u8),
    __sanitizer_cov_trace_switch(u64, *const u64)
);

/// Returns the address of the first word from `word` on that is not zero, or `end` if there is
/// none.
///
/// The pass instruments even the iterators of a loop, and many thousand counters are scanned after
/// each input. So this is a bare loop in a function that the pass does not instrument. It must stay
/// without a call: the pass would instrument that.
///
/// # Safety
/// Both are multiples of [`WORD`], and the bytes between them may be read.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn __sanitizer_purlin_next(mut word: usize, end: usize) -> usize {
    while word < end {
        // SAFETY: guaranteed by the caller.
        if unsafe { *(word as *const u64) } != 0 {
            break;
        }
        word = word.wrapping_add(WORD);
    }
    word
}

const WORD: usize = size_of::<u64>();

/// Adds the `counters` to `seen`, sets them to zero again, and returns how many were new. As in
/// AFL, the number of times an edge was passed counts by its order of magnitude, one bit for each.
fn scan(counters: &mut [u8], seen: &mut [u8]) -> usize {
    let (start, len) = (counters.as_ptr() as usize, seen.len());
    let mut new = 0;
    let mut take = |at: usize| {
        let count = std::mem::take(&mut counters[at]);
        if count != 0 {
            let bit = 1 << (7 - count.leading_zeros());
            new += usize::from(seen[at] & bit == 0);
            seen[at] |= bit;
        }
    };
    let first = start.next_multiple_of(WORD).min(start + len);
    let end = first + (start + len - first) / WORD * WORD;
    (0..first - start).chain(end - start..len).for_each(&mut take);
    let mut word = first;
    loop {
        // SAFETY: the bytes from `first` to `end` are whole words of the slice.
        word = unsafe { __sanitizer_purlin_next(word, end) };
        if word == end {
            return new;
        }
        (word - start..word - start + WORD).for_each(&mut take);
        // Counters of this loop itself grow meanwhile, so words before this one are not scanned
        // again.
        word += WORD;
    }
}

/// The edges that were reached so far.
#[derive(Debug, Default)]
pub struct Coverage {
    seen: Vec<Vec<u8>>,
}

impl Coverage {
    /// No edge was reached yet.
    pub fn new() -> Coverage {
        let images = IMAGES.lock().expect("nothing panics while it is held");
        Coverage { seen: images.iter().map(|image| vec![0; image.len]).collect() }
    }

    /// Number of all edges; 0 in a build without instrumentation.
    pub fn edges(&self) -> usize {
        self.seen.iter().map(Vec::len).sum()
    }

    /// Number of edges that were reached.
    pub fn reached(&self) -> usize {
        self.seen.iter().flatten().filter(|&&bits| bits != 0).count()
    }

    /// Adds the counts since the last call. Returns how many of them are new.
    ///
    /// Counters belong to the process: in an instrumented build, only one thread at a time may use
    /// this type.
    pub fn learn(&mut self) -> usize {
        let images = IMAGES.lock().expect("nothing panics while it is held");
        let new = images.iter().zip(&mut self.seen).map(|(image, seen)| {
            // SAFETY: the range is that of the image's counters, as the instrumentation reported
            // it. Instrumented code of other threads may add to them meanwhile, which only loses a
            // count.
            scan(unsafe { std::slice::from_raw_parts_mut(image.start, image.len) }, seen)
        });
        new.sum()
    }
}

/// A recent comparison of two unequal integers, selected from the last ones by `chance`. `None`
/// without instrumentation.
pub fn comparison(chance: u64) -> Option<(u64, u64)> {
    let slot = &SIDES[chance as usize & (COMPARISONS - 1)];
    let pair = (slot[0].load(Ordering::Relaxed), slot[1].load(Ordering::Relaxed));
    (pair.0 != pair.1).then_some(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_is_new_once_for_each_order_of_magnitude_and_counters_start_again() {
        for len in [5, 16, 21] {
            let (mut counters, mut seen) = (vec![0; len], vec![0; len]);
            for (count, new) in [(1, 1), (1, 0), (2, 1), (3, 0), (255, 1), (128, 0), (0, 0)] {
                counters[len - 1] = count;
                counters[0] = count;
                assert_eq!(scan(&mut counters, &mut seen), 2 * new, "{count}");
                assert!(counters.iter().all(|&counter| counter == 0));
            }
        }
    }
}
