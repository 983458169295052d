//! Memory as a drive.
//!
//! All shards copy into and out of one mapping. As with any drive, operations in flight at the same
//! time have no order. If two shards write one block, it has either content or a mixture, and the
//! engine never lets that happen. For this reason the bytes are never accessed through a reference,
//! only through raw pointers and `memcpy`. The worst outcome is then torn bytes.

use std::collections::BTreeMap;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::drive::{Buf, View};

/// Logical block size of memory drives.
pub(crate) const MEMORY_SECTOR_BYTES: u32 = 4096;

/// From this length on, zeroing releases pages to the system instead of writing zeroes. Around this
/// length the system call and the page faults that follow become cheaper than the writing.
const RELEASE_BYTES_MIN: u64 = 256 << 10;

/// From this length on, a write bypasses the caches. Ordinary stores first fetch the cache lines
/// that they overwrite, and evict data that the shard needs: at 4 KiB over 2 GiB they take 1.8
/// times as long (`docs/decisions/runtime-loop.md`).
#[cfg(target_arch = "x86_64")]
const STREAM_BYTES_MIN: usize = 1024;

/// All memory drives of the process, by name.
static MEMORIES: Mutex<BTreeMap<String, Arc<Memory>>> = Mutex::new(BTreeMap::new());

fn memories() -> MutexGuard<'static, BTreeMap<String, Arc<Memory>>> {
    MEMORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapping that every shard may copy to and from.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    size_bytes: u64,
    is_open: AtomicBool,
}

// SAFETY: the bytes are reached by copies only (see the head of this file), and the mapping lives
// as long as the value.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `map`, and no reference to it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size_bytes as usize) };
    }
}

/// Why a memory drive was not opened.
pub(crate) enum MemoryError {
    Open,
    OtherSize(u64),
    Map(io::Error),
}

/// Opens the memory of a name exclusively, and creates it if it does not exist.
pub(crate) fn open(name: &str, size_bytes: u64) -> Result<Arc<Memory>, MemoryError> {
    let mut memories = memories();
    let memory = match memories.get(name) {
        Some(memory) => memory.clone(),
        None => {
            let memory = Arc::new(Memory::map(size_bytes).map_err(MemoryError::Map)?);
            memories.insert(name.to_string(), memory.clone());
            memory
        }
    };
    if memory.size_bytes != size_bytes {
        return Err(MemoryError::OtherSize(memory.size_bytes));
    }
    // Acquire and release: the new user sees all that was written before the last close.
    if memory.is_open.swap(true, Ordering::AcqRel) {
        return Err(MemoryError::Open);
    }
    Ok(memory)
}

/// Frees the memory drive of a name and its content. Returns false, and does nothing, if it does
/// not exist or is open.
pub fn forget_memory(name: &str) -> bool {
    let mut memories = memories();
    match memories.get(name) {
        Some(memory) if !memory.is_open.load(Ordering::Acquire) => memories.remove(name).is_some(),
        _ => false,
    }
}

impl Memory {
    fn map(size_bytes: u64) -> io::Result<Memory> {
        let len = usize::try_from(size_bytes).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is ours. Huge pages save most address look-ups; a refusal costs speed
        // only. Locked pages could not be released.
        unsafe {
            libc::madvise(address, len, libc::MADV_HUGEPAGE);
            libc::munlock(address, len);
        }
        let start = NonNull::new(address.cast()).expect("the kernel maps nothing at address zero");
        Ok(Memory { start, size_bytes, is_open: AtomicBool::new(false) })
    }

    /// Allows it to be opened again.
    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::Release);
    }

    /// The address of a range.
    ///
    /// # Panics
    /// If the range is not within the memory: drives check it before.
    #[inline]
    fn range(&self, offset: u64, len: u64) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.size_bytes));
        // SAFETY: the offset is within the mapping (checked above).
        unsafe { self.start.as_ptr().add(offset as usize) }
    }

    /// A view of the bytes of a range, without a copy.
    #[inline]
    pub(crate) fn view(&self, offset: u64, len: usize) -> View<'_> {
        let start = self.range(offset, len as u64);
        // SAFETY: the range is within the mapping, which lives as long as the value.
        unsafe { View::new(start, len) }
    }

    pub(crate) fn write(&self, offset: u64, data: &[Buf]) {
        let mut offset = offset;
        for segment in data {
            let to = self.range(offset, segment.len() as u64);
            // SAFETY: the range is within the mapping, which no buffer overlaps.
            unsafe { copy_to_memory(segment.as_ptr(), to, segment.len()) };
            offset += segment.len() as u64;
        }
        finish_copies();
    }

    /// Releases the whole pages of a long range; their content becomes zeroes. A short range stays
    /// as it is.
    pub(crate) fn discard(&self, offset: u64, len: u64) {
        if len >= RELEASE_BYTES_MIN {
            self.write_zeroes(offset, len);
        }
    }

    pub(crate) fn write_zeroes(&self, offset: u64, len: u64) {
        let start = self.range(offset, len);
        // Sectors are pages, so a range consists of whole pages.
        if len >= RELEASE_BYTES_MIN {
            // SAFETY: the range is within the mapping. Private anonymous pages read as zeroes
            // afterwards.
            if unsafe { libc::madvise(start.cast(), len as usize, libc::MADV_DONTNEED) } == 0 {
                return;
            }
        }
        // SAFETY: the range is within the mapping.
        unsafe { ptr::write_bytes(start, 0, len as usize) };
    }
}

/// Copies into a memory drive. [`finish_copies`] must follow before the write is reported as done.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and the ranges do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_to_memory(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    /// One cache line at a time: four stores that the processor combines into one transfer.
    const LINE: usize = 64;
    if len < STREAM_BYTES_MIN {
        // SAFETY: the caller's promise.
        return unsafe { ptr::copy_nonoverlapping(from, to, len) };
    }
    // Up to the first whole line: fewer than `STREAM_BYTES_MIN` bytes.
    let head = to.align_offset(LINE);
    // SAFETY: the caller's promise, and `head` is below `len`.
    unsafe { ptr::copy_nonoverlapping(from, to, head) };
    let mut done = head;
    while done + LINE <= len {
        for part in (done..done + LINE).step_by(size_of::<__m128i>()) {
            // SAFETY: the 16 bytes at `part` lie within both ranges, and `to` is aligned to a line
            // there. Loads need no alignment.
            unsafe { _mm_stream_si128(to.add(part).cast(), _mm_loadu_si128(from.add(part).cast())) };
        }
        done += LINE;
    }
    // SAFETY: the caller's promise; `done` is at most `len`.
    unsafe { ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done) };
}

/// Copies into a memory drive.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and the ranges do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_to_memory(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}

/// Orders streaming stores before the stores that report the write as done. Without it they have no
/// order.
fn finish_copies() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction has no operands and every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_at_every_address_is_copied_whole_and_alone() {
        let source: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8 + 1).collect();
        for len in [0, 1, 63, 64, 1023, 1024, 1025, 1087, 1088, 4096, 4099] {
            for (skip_from, skip_to) in [(0, 0), (1, 0), (0, 1), (24, 24), (63, 17), (5, 63)] {
                let mut target = vec![0u8; 4400];
                // SAFETY: both ranges are within their vectors.
                unsafe { copy_to_memory(source.as_ptr().add(skip_from), target.as_mut_ptr().add(skip_to), len) };
                finish_copies();
                assert!(
                    target[skip_to..skip_to + len] == source[skip_from..skip_from + len],
                    "{len} {skip_from} {skip_to}"
                );
                assert!(target[..skip_to].iter().chain(&target[skip_to + len..]).all(|&byte| byte == 0));
            }
        }
    }
}
