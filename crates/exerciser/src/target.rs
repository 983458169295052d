//! The file or block device that is tested, opened twice: through the page cache and past it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Alignment of transfers past the page cache, in memory and on the device.
pub const DIRECT_ALIGN: u64 = 4096;

/// How a range of a file is zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeroing {
    /// Its space is freed.
    Punch,
    /// Its space stays allocated.
    Zero,
}

/// A file or block device.
pub struct Target {
    cached: File,
    direct: File,
    /// Most bytes that are used.
    pub capacity: u64,
    /// A block device: its size is fixed.
    pub is_device: bool,
}

/// Aligned memory for direct transfers.
pub struct Aligned {
    start: *mut u8,
    layout: Layout,
}

impl Aligned {
    /// A buffer of `len` zeroes; `len` must not be 0.
    pub fn new(len: usize) -> Aligned {
        let layout = Layout::from_size_align(len, DIRECT_ALIGN as usize).expect("a buffer fits into memory");
        // SAFETY: the layout is not of size 0.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Aligned { start, layout }
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is ours, has that size, and is initialised.
        unsafe { std::slice::from_raw_parts(self.start, self.layout.size()) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Target {
    /// Opens a target of at most `capacity` bytes. A file is truncated to 0 bytes, a device is
    /// zeroed.
    ///
    /// # Errors
    /// The system's error, also if a device is smaller than `capacity`.
    pub fn open(path: &Path, capacity: u64) -> io::Result<Target> {
        let is_device = path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(!is_device);
        let cached = options.clone().truncate(!is_device).open(path)?;
        let direct = options.custom_flags(libc::O_DIRECT).open(path)?;
        let target = Target { cached, direct, capacity: capacity / DIRECT_ALIGN * DIRECT_ALIGN, is_device };
        if is_device {
            let zeroes = Aligned::new(1 << 20);
            let mut at = 0;
            while at < target.capacity {
                let len = (target.capacity - at).min(zeroes.len() as u64) as usize;
                target.direct.write_all_at(&zeroes[..len], at)?;
                at += len as u64;
            }
        }
        Ok(target)
    }

    /// Reads through the page cache.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.cached.read_exact_at(bytes, at)
    }

    /// Writes through the page cache.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.cached.write_all_at(bytes, at)
    }

    /// Reads past the page cache, after dirty pages are written back.
    pub fn read_direct(&self, at: u64, bytes: &mut Aligned) -> io::Result<()> {
        self.cached.sync_data()?;
        self.direct.read_exact_at(bytes, at)
    }

    /// Writes past the page cache.
    pub fn write_direct(&self, at: u64, bytes: &Aligned) -> io::Result<()> {
        self.cached.sync_data()?;
        self.direct.write_all_at(bytes, at)?;
        // The kernel does the same if it can.
        self.forget_cache(at, bytes.len() as u64)
    }

    /// Drops a range from the page cache. Dirty pages stay.
    pub fn forget_cache(&self, at: u64, len: u64) -> io::Result<()> {
        // SAFETY: no memory is involved.
        let error =
            unsafe { libc::posix_fadvise(self.cached.as_raw_fd(), at as i64, len as i64, libc::POSIX_FADV_DONTNEED) };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    /// Makes everything durable, with or without metadata.
    pub fn sync(&self, all: bool) -> io::Result<()> {
        if all { self.cached.sync_all() } else { self.cached.sync_data() }
    }

    /// Moves the end of a file.
    pub fn truncate(&self, len: u64) -> io::Result<()> {
        self.cached.set_len(len)
    }

    /// Zeroes a range. The end of the file does not move.
    pub fn zero(&self, range: Range<u64>, how: Zeroing) -> io::Result<()> {
        let mode = match how {
            Zeroing::Punch => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            Zeroing::Zero => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        };
        let (at, len) = (range.start as i64, (range.end - range.start) as i64);
        // SAFETY: no memory is involved.
        check(unsafe { libc::fallocate(self.cached.as_raw_fd(), mode, at, len) })
    }

    /// Maps a range of the target and calls `use_it` with it. The range must be before the end of
    /// the target and start at a page. If `use_it` returns true, the range is synced.
    pub fn map(&self, at: u64, len: usize, use_it: impl FnOnce(&mut [u8]) -> bool) -> io::Result<()> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, self.cached.as_raw_fd(), at as i64)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is the mapping, and no other program changes the file meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), len) };
        let sync = use_it(bytes);
        // SAFETY: the range is the mapping.
        let synced = if sync { check(unsafe { libc::msync(start, len, libc::MS_SYNC) }) } else { Ok(()) };
        // SAFETY: as above, and `bytes` is not used any more.
        check(unsafe { libc::munmap(start, len) })?;
        synced
    }
}
