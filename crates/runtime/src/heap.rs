//! The allocator of programs with shards. It is the system's allocator with a cache: on shards,
//! freed blocks of more than a kilobyte are kept for the next allocation of that size.
//!
//! An operation of an array is a future of 1 to 4 KiB. It is allocated and freed for each
//! operation, on one shard, and there are as many futures as operations in flight. glibc caches
//! freed blocks for a thread only up to 1032 bytes, and only seven of each size. It merges larger
//! blocks with their neighbors and splits them again later.
//!
//! Invariants:
//! 1. A block of a class was allocated by [`System`] with the class's layout, no matter which
//!    thread frees it.
//! 2. A list holds unused blocks of its class. Each begins with the address of the next.
//! 3. A thread that keeps no blocks has empty lists.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// The largest block that the system's allocator caches for a thread (`glibc.malloc.tcache_max`).
const SMALL_BYTES: usize = 1032;

/// The difference in size from one class to the next.
const STEP_BYTES: usize = 256;

const CLASSES: usize = 12;

/// The largest block that a thread keeps.
const LARGEST_BYTES: usize = 1024 + CLASSES * STEP_BYTES;

/// The alignment of blocks of a class. It is the same as that of malloc.
const ALIGN: usize = 16;

/// Most bytes that a thread keeps of each class.
const KEPT_BYTES: usize = 256 << 10;

/// The free blocks of a class.
struct List {
    first: Cell<*mut u8>,
    /// How many more blocks the list takes.
    room: Cell<usize>,
}

impl List {
    const fn closed() -> List {
        List { first: Cell::new(ptr::null_mut()), room: Cell::new(0) }
    }

    #[inline]
    fn take(&self) -> Option<NonNull<u8>> {
        let first = NonNull::new(self.first.get())?;
        // SAFETY: the block is as large as its class, is unused, and begins with an address
        // (invariant 2).
        self.first.set(unsafe { first.cast::<*mut u8>().read() });
        self.room.set(self.room.get() + 1);
        Some(first)
    }

    /// Adds a block. False if the list takes no more.
    ///
    /// # Safety
    /// The block is of the list's class and unused.
    #[inline]
    unsafe fn keep(&self, block: *mut u8) -> bool {
        let Some(room) = self.room.get().checked_sub(1) else { return false };
        // SAFETY: the caller's promise. A block of a class has room for an address, and is aligned
        // for it.
        unsafe { block.cast::<*mut u8>().write(self.first.get()) };
        self.first.set(block);
        self.room.set(room);
        true
    }
}

thread_local! {
    // Constants that need no destructor: an allocator can use them, for as long as the thread runs.
    static LISTS: [List; CLASSES] = const { [const { List::closed() }; CLASSES] };
}

/// The class of a block, and its layout. `None` if the system's allocator handles it alone.
#[inline]
fn class(layout: Layout) -> Option<(usize, Layout)> {
    if layout.size() <= SMALL_BYTES || layout.size() > LARGEST_BYTES || layout.align() > ALIGN {
        return None;
    }
    let index = (layout.size() - 1024 - 1) / STEP_BYTES;
    Some((index, layout_of(index)))
}

#[inline]
fn layout_of(class: usize) -> Layout {
    const { assert!(ALIGN.is_power_of_two() && LARGEST_BYTES < isize::MAX as usize - ALIGN) };
    // SAFETY: checked above; no class is larger.
    unsafe { Layout::from_size_align_unchecked(1024 + (class + 1) * STEP_BYTES, ALIGN) }
}

/// The allocator: `#[global_allocator]` of programs that run shards.
#[derive(Debug)]
pub struct ShardHeap;

// SAFETY: every block comes from `System`, with the requested layout or with that of its class,
// which is larger and aligned no less (`class`). It is freed with the same layout (invariant 1):
// the class follows from the layout alone, which is the same when the block is freed. A block in a
// list is unused until it is taken out.
unsafe impl GlobalAlloc for ShardHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((class, whole)) = class(layout) else {
            // SAFETY: the caller keeps `GlobalAlloc::alloc`'s contract.
            return unsafe { System.alloc(layout) };
        };
        match LISTS.with(|lists| lists[class].take()) {
            Some(block) => block.as_ptr(),
            // SAFETY: the size of a class is above 0.
            None => unsafe { System.alloc(whole) },
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some((class, whole)) = class(layout) else {
            // SAFETY: it was allocated with this layout, which has no class, so by `System`.
            return unsafe { System.dealloc(block, layout) };
        };
        // SAFETY: it is of this class, and the caller of `dealloc` no longer uses it.
        if !LISTS.with(|lists| unsafe { lists[class].keep(block) }) {
            // SAFETY: invariant 1.
            unsafe { System.dealloc(block, whole) };
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class(layout).is_none() {
            // SAFETY: the caller keeps `GlobalAlloc::alloc_zeroed`'s contract.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: as in `alloc`; a block has at least the requested size.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract says that the size does not overflow when it is rounded up
        // to the alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class(layout), class(new)) {
            // SAFETY: it was allocated by the system alone, with this layout, and stays so.
            (None, None) => unsafe { System.realloc(block, layout, size) },
            (Some((was, _)), Some((is, _))) if was == is => block,
            // SAFETY: as in `alloc` and `dealloc`. Both blocks have at least the bytes of the
            // smaller one, and do not overlap.
            _ => unsafe {
                let moved = self.alloc(new);
                if !moved.is_null() {
                    ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

/// While it exists, its thread keeps freed blocks. When it is dropped, the blocks go back to the
/// system.
#[derive(Debug)]
pub(crate) struct Keeping(PhantomData<*const ()>);

impl Keeping {
    /// Makes this thread keep blocks, if [`ShardHeap`] is the program's allocator.
    pub fn on_this_thread() -> Keeping {
        LISTS.with(|lists| {
            for (class, list) in lists.iter().enumerate() {
                list.room.set(KEPT_BYTES / layout_of(class).size());
            }
        });
        Keeping(PhantomData)
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        LISTS.with(|lists| {
            for (class, list) in lists.iter().enumerate() {
                while let Some(block) = list.take() {
                    // SAFETY: invariants 1 and 2.
                    unsafe { System.dealloc(block.as_ptr(), layout_of(class)) };
                }
                list.room.set(0);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).expect("a layout")
    }

    fn kept() -> usize {
        LISTS.with(|lists| {
            (0..CLASSES).map(|class| KEPT_BYTES / layout_of(class).size() - lists[class].room.get()).sum()
        })
    }

    #[test]
    fn a_class_is_no_smaller_than_its_blocks_and_larger_by_less_than_a_step() {
        for size in 1..2 * LARGEST_BYTES {
            match class(layout(size)) {
                Some((class, whole)) => {
                    assert!(whole.size() >= size && whole.size() - size < STEP_BYTES && class < CLASSES, "{size}");
                }
                None => assert!(!(SMALL_BYTES + 1..=LARGEST_BYTES).contains(&size), "{size}"),
            }
        }
        assert!(
            class(Layout::from_size_align(2048, 4096).expect("a layout")).is_none(),
            "nobody promises its alignment"
        );
    }

    #[test]
    fn a_block_is_kept_for_the_next_of_its_class_while_the_thread_keeps_any() {
        // SAFETY: all sizes are above 0, and each block is freed once, with its layout.
        unsafe {
            let free = |size| ShardHeap.dealloc(ShardHeap.alloc(layout(size)), layout(size));
            let keeping = Keeping::on_this_thread();
            free(2000);
            let first = ShardHeap.alloc(layout(1900));
            assert_eq!(kept(), 0, "it is the one that was freed");
            let second = ShardHeap.alloc(layout(2000));
            assert_ne!(first, second);
            ShardHeap.dealloc(first, layout(1900));
            ShardHeap.dealloc(second, layout(2000));
            assert_eq!(kept(), 2);
            free(1000);
            free(LARGEST_BYTES + 1);
            assert_eq!(kept(), 2, "these are the system's");
            drop(keeping);
            let lists_are_empty = || LISTS.with(|lists| lists.iter().all(|list| list.first.get().is_null()));
            assert!(lists_are_empty());
            free(2000);
            assert!(lists_are_empty(), "nobody keeps any");
        }
    }

    #[test]
    fn no_more_is_kept_than_a_quarter_of_a_mebibyte_of_a_class() {
        let _keeping = Keeping::on_this_thread();
        // SAFETY: the size is above 0, and each block is freed once, with its layout.
        let blocks: Vec<*mut u8> = (0..1000).map(|_| unsafe { ShardHeap.alloc(layout(4096)) }).collect();
        for block in blocks {
            // SAFETY: as above.
            unsafe { ShardHeap.dealloc(block, layout(4096)) };
        }
        assert_eq!(kept(), KEPT_BYTES / 4096);
    }

    proptest! {
        #[test]
        fn blocks_hold_what_was_written_until_they_are_freed_whatever_becomes_of_others(
            steps in proptest::collection::vec((0usize..8, 0usize..4, 1usize..6000), 0..200), keeps in any::<bool>(),
        ) {
            let _keeping = keeps.then(Keeping::on_this_thread);
            let mut blocks: [Option<(*mut u8, usize)>; 8] = [None; 8];
            // SAFETY: the content of a block is read and written only within its size, until it is
            // freed, once, with its layout.
            unsafe {
                for (step, (slot, what, size)) in steps.into_iter().enumerate() {
                    let fill = |block: *mut u8, size: usize| block.write_bytes(slot as u8 + 1, size);
                    match (blocks[slot].take(), what) {
                        (None, 0) => {
                            let block = ShardHeap.alloc_zeroed(layout(size));
                            prop_assert!(std::slice::from_raw_parts(block, size).iter().all(|byte| *byte == 0), "step {}", step);
                            fill(block, size);
                            blocks[slot] = Some((block, size));
                        }
                        (None, _) => {
                            let block = ShardHeap.alloc(layout(size));
                            fill(block, size);
                            blocks[slot] = Some((block, size));
                        }
                        (Some((block, old)), what) => {
                            let bytes = std::slice::from_raw_parts(block, old);
                            prop_assert!(bytes.iter().all(|byte| *byte == slot as u8 + 1), "step {}", step);
                            if what < 2 {
                                let block = ShardHeap.realloc(block, layout(old), size);
                                let bytes = std::slice::from_raw_parts(block, old.min(size));
                                prop_assert!(bytes.iter().all(|byte| *byte == slot as u8 + 1), "step {}", step);
                                fill(block, size);
                                blocks[slot] = Some((block, size));
                            } else {
                                ShardHeap.dealloc(block, layout(old));
                            }
                        }
                    }
                }
                for (block, size) in blocks.into_iter().flatten() {
                    ShardHeap.dealloc(block, layout(size));
                }
            }
        }
    }
}
