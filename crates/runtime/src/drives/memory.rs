//! Memory as a drive.
//!
//! All shards copy into and out of one mapping. As with any drive, operations in flight at the same time have no order:
//! two shards that write one block leave either content or a mixture, and the engine never lets that happen. Such bytes
//! are therefore never seen through a reference, only through raw pointers and `memcpy`, whose worst outcome is torn
//! bytes.

use std::collections::BTreeMap;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::drive::Segments;

/// Logical block size of memory drives.
pub(crate) const MEMORY_SECTOR_BYTES: u32 = 4096;

/// From this length on, zeroing gives pages back to the system instead of writing zeroes to them: about where a system
/// call and the page faults that follow are cheaper than writing.
const RELEASE_BYTES_MIN: u64 = 256 << 10;

/// All memory drives of the process, by name.
static MEMORIES: Mutex<BTreeMap<String, Arc<Memory>>> = Mutex::new(BTreeMap::new());

fn memories() -> MutexGuard<'static, BTreeMap<String, Arc<Memory>>> {
    MEMORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapping that every shard may copy from and to.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    size_bytes: u64,
    is_open: AtomicBool,
}

// SAFETY: the bytes are reached by copies only (see the head of this file), and the mapping lives as long as the value.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `map`, and nobody can reach it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size_bytes as usize) };
    }
}

/// Why a memory drive was not opened.
pub(crate) enum MemoryError {
    Open,
    OtherSize(u64),
    Map(io::Error),
}

/// The memory of a name, made if there is none, taken exclusively.
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
    // Acquire and release: who opens it sees what was written before it was let go.
    if memory.is_open.swap(true, Ordering::AcqRel) {
        return Err(MemoryError::Open);
    }
    Ok(memory)
}

/// Frees the memory drive of a name and forgets what it holds. Returns false, and does nothing, if there is none or if
/// it is open.
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
        // SAFETY: the range is ours. Huge pages spare most address look-ups; a refusal costs speed only.
        unsafe { libc::madvise(address, len, libc::MADV_HUGEPAGE) };
        let start = NonNull::new(address.cast()).expect("the kernel maps nothing at address zero");
        Ok(Memory { start, size_bytes, is_open: AtomicBool::new(false) })
    }

    /// Lets the next one open it.
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

    #[inline]
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) {
        let from = self.range(offset, buf.len() as u64);
        // SAFETY: the range is within the mapping, which no buffer overlaps.
        unsafe { ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
    }

    pub(crate) fn write(&self, offset: u64, data: &Segments) {
        let mut offset = offset;
        for segment in data {
            let to = self.range(offset, segment.len() as u64);
            // SAFETY: the range is within the mapping, which no buffer overlaps.
            unsafe { ptr::copy_nonoverlapping(segment.as_ptr(), to, segment.len()) };
            offset += segment.len() as u64;
        }
    }

    /// Gives the whole pages of a long range back; their content becomes zeroes. A short range stays as it is.
    pub(crate) fn discard(&self, offset: u64, len: u64) {
        if len >= RELEASE_BYTES_MIN {
            self.write_zeroes(offset, len);
        }
    }

    pub(crate) fn write_zeroes(&self, offset: u64, len: u64) {
        let start = self.range(offset, len);
        // Sectors are pages, so a range consists of whole pages.
        if len >= RELEASE_BYTES_MIN {
            // SAFETY: the range is within the mapping. Private anonymous pages read as zeroes afterwards.
            if unsafe { libc::madvise(start.cast(), len as usize, libc::MADV_DONTNEED) } == 0 {
                return;
            }
        }
        // SAFETY: the range is within the mapping.
        unsafe { ptr::write_bytes(start, 0, len as usize) };
    }
}
