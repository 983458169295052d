//! Measures the memory that a target uses, so that a length field cannot make a parser allocate
//! memory for data that was not sent.
//!
//! The global allocator of this crate's binary and tests is the system's, with counters for each
//! thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with counters.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes that this thread allocated and did not free since [`measure`] began. Negative if it
    /// frees older memory.
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // `try_with`: a thread that is being torn down has no counters any more, and they are not read
    // any more.
    let _ = LIVE_BYTES.try_with(|live| {
        let now = live.get() + bytes;
        live.set(now);
        let _ = PEAK_BYTES.try_with(|peak| peak.set(peak.get().max(now)));
    });
}

// SAFETY: every method passes its arguments to `System` and returns its result. Counting does not
// touch memory that the allocator returns, and the counters need no allocation themselves
// (constants without destructors).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps `GlobalAlloc::alloc`'s contract, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the pointer came from `System` with this layout, because every method passes to
        // it.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as i64 - layout.size() as i64);
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Runs `work`. Also returns the most bytes that this thread had allocated at one time, in addition
/// to those from before.
pub fn measure<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LIVE_BYTES.set(0);
    PEAK_BYTES.set(0);
    let value = work();
    (value, PEAK_BYTES.get().max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_counted_although_it_is_never_touched_and_is_freed_again() {
        let (_, peak) = measure(|| drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 30))));
        assert!(peak >= 1 << 30, "{peak}");
        let (_, peak) = measure(|| drop(std::hint::black_box(vec![1u8; 1000])));
        assert!((1000..2000).contains(&peak), "{peak}");
    }
}
