//! Opening a drive for this process, and for nobody else.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use ::drive::{BUF_ALIGN, BufMut, DriveError, DriveInfo};
use thiserror::Error;

use super::atomic;
use super::backend::Backend;
use super::counters::{Counters, DriveStats};
use super::memory::{self, MEMORY_SECTOR_BYTES, Memory, MemoryError};
use super::passthrough::Passthrough;
use super::spec::DriveSpec;
use crate::system;

/// What is behind a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriveKind {
    /// A block device.
    BlockDevice,
    /// A regular file.
    File,
    /// Memory of this process.
    Memory,
    /// A drive of another machine.
    Remote,
}

/// Why a drive was not opened. Every message names the drive.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Somebody else has it.
    #[error("{name} is in use: {reason}")]
    InUse {
        /// The drive.
        name: String,
        /// By whom, as far as the system says.
        reason: &'static str,
    },
    /// There is nothing of this name.
    #[error("{name} does not exist")]
    NotFound {
        /// The drive.
        name: String,
    },
    /// A directory, a character device, a socket.
    #[error("{name} is neither a block device nor a regular file")]
    NotADrive {
        /// The drive.
        name: String,
    },
    /// Smaller than a sector.
    #[error("{name} has {size_bytes} bytes, less than one sector of {sector_bytes}")]
    TooSmall {
        /// The drive.
        name: String,
        /// Its size in bytes.
        size_bytes: u64,
        /// Its logical block size in bytes.
        sector_bytes: u32,
    },
    /// Logical block sizes other than 512 and 4096.
    #[error("{name} has sectors of {sector_bytes} bytes; 512 and 4096 are supported")]
    SectorSize {
        /// The drive.
        name: String,
        /// Its logical block size in bytes.
        sector_bytes: u32,
    },
    /// The memory drive exists with another size.
    #[error("{name} exists with {is_bytes} bytes, not {wanted_bytes}")]
    OtherSize {
        /// The drive.
        name: String,
        /// Its size in bytes.
        is_bytes: u64,
        /// The size that was asked for, in bytes.
        wanted_bytes: u64,
    },
    /// The system said no.
    #[error("{name}: cannot {operation}: {source}")]
    Io {
        /// The drive.
        name: String,
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A file or block device. Kernel features that turned out to be missing are remembered, so that
/// each is tried once.
#[derive(Debug)]
pub(crate) struct FileBack {
    pub(crate) file: File,
    /// Transfers bypass the page cache.
    pub(crate) direct: bool,
    pub(crate) is_block_device: bool,
    /// Addresses of direct transfers are multiples of it.
    pub(crate) memory_align: usize,
    pub(crate) no_uring_discard: AtomicBool,
    pub(crate) no_zero_range: AtomicBool,
    pub(crate) no_punch_hole: AtomicBool,
    /// Where reads and writes go as commands.
    pub(crate) passthrough: Option<Passthrough>,
    /// Why they do not, if that was asked for.
    no_passthrough: Option<String>,
}

pub(crate) enum Back {
    File(FileBack),
    Memory(Arc<Memory>),
    Backend(Box<dyn Backend>),
}

/// What a drive is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    ReadWrite,
}

impl Access {
    /// The words of a refusal.
    fn opening(self) -> &'static str {
        match self {
            Access::Read => "open it for reading",
            Access::ReadWrite => "open it for reading and writing",
        }
    }
}

const HEALTHY: u8 = 0;
const COUNTING: u8 = 1;
const FAILED: u8 = 2;

/// The switch that makes a drive fail.
#[derive(Debug, Default)]
struct Faults {
    state: AtomicU8,
    left: AtomicI64,
}

struct Inner {
    info: DriveInfo,
    kind: DriveKind,
    back: Back,
    read_only: bool,
    faults: Faults,
    /// One for each thread that attached the drive.
    counters: Mutex<Vec<(ThreadId, Arc<Counters>)>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Back::Memory(memory) = &self.back {
            memory.close();
        }
    }
}

/// A drive that this process has opened, exclusively. A handle for any thread; the drive is closed
/// with the last clone and the last [`Drive`](crate::Drive) attached to it.
#[derive(Clone)]
pub struct OpenDrive {
    inner: Arc<Inner>,
}

impl fmt::Debug for OpenDrive {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { info, kind, read_only, .. } = &*self.inner;
        let shown = &mut formatter.debug_struct("OpenDrive");
        shown.field("info", info).field("kind", kind).field("read_only", read_only).finish_non_exhaustive()
    }
}

impl OpenDrive {
    /// Opens a drive for reading and writing. Blocks the calling thread for some system calls, so
    /// not meant for a shard.
    ///
    /// Exclusive: a block device is claimed from the kernel (`O_EXCL`: it must not be mounted, nor
    /// part of something else), a file is locked (`flock`), memory is marked.
    ///
    /// Transfers are direct where the file system allows it. Where it does not, they go through the
    /// page cache; flush and FUA are as durable, and a warning is logged.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(spec: &DriveSpec) -> Result<OpenDrive, OpenError> {
        OpenDrive::open_for(spec, Access::ReadWrite)
    }

    /// As [`OpenDrive::open`], for reading only: whatever would change the drive ends with
    /// [`DriveError::ReadOnly`], and the kernel has been given nothing that could be written
    /// through. As exclusive, so that nobody else changes it meanwhile.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_read_only(spec: &DriveSpec) -> Result<OpenDrive, OpenError> {
        OpenDrive::open_for(spec, Access::Read)
    }

    /// As [`OpenDrive::open`], and if it is a whole NVMe namespace, reads and writes go as commands
    /// on its generic character device (`/dev/ngXnY`) past the block layer, on shards that can send
    /// them ([`Config::passthrough`](crate::Config::passthrough)). Everything else goes by the
    /// block device, and so do reads and writes wherever the other way cannot be had, which is
    /// logged with the reason and is no error. Blocks until the drive has said what its format is,
    /// however long that takes.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_passthrough(spec: &DriveSpec) -> Result<OpenDrive, OpenError> {
        let mut open = OpenDrive::open(spec)?;
        let inner = Arc::get_mut(&mut open.inner).expect("nobody else has it yet");
        if let Back::File(back) = &mut inner.back {
            let name = &inner.info.name;
            match Passthrough::find(&back.file, back.direct, &inner.info) {
                Ok(found) => {
                    tracing::info!(name, node = found.node, "reads and writes go by pass-through");
                    back.passthrough = Some(found);
                }
                Err(reason) => {
                    tracing::info!(name, %reason, "no pass-through; reads and writes go by the block device");
                    back.no_passthrough = Some(reason.to_string());
                }
            }
        }
        Ok(open)
    }

    /// A sparse file of `size_bytes` without a name, for reading: what a file at this path would be
    /// like. Nothing is left of it, and the folder stays as it was. Blocks for some system calls.
    ///
    /// # Errors
    /// Whatever the file system refuses; one that has no files without a name (`O_TMPFILE`) does.
    pub fn unnamed_beside(path: &Path, size_bytes: u64) -> io::Result<OpenDrive> {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let unnamed = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).mode(0o600).open(folder)?;
        unnamed.set_len(size_bytes)?;
        let opened_at = PathBuf::from(format!("/proc/self/fd/{}", unnamed.as_raw_fd()));
        open_file(&opened_at, &path.display().to_string(), Access::Read).map_err(io::Error::other)
    }

    fn open_for(spec: &DriveSpec, access: Access) -> Result<OpenDrive, OpenError> {
        match spec {
            DriveSpec::Path(path) => open_path(path, access),
            DriveSpec::Memory { name, size_bytes } => open_memory(name, *size_bytes, access),
        }
    }

    /// A drive of another machine, over what reaches it. That nobody else uses it is up to whoever
    /// made it.
    pub fn remote(info: DriveInfo, backend: Box<dyn Backend>) -> OpenDrive {
        OpenDrive::new(info, DriveKind::Remote, Back::Backend(backend), Access::ReadWrite)
    }

    fn new(info: DriveInfo, kind: DriveKind, back: Back, access: Access) -> OpenDrive {
        let read_only = access == Access::Read;
        let inner = Inner { info, kind, back, read_only, faults: Faults::default(), counters: Mutex::default() };
        OpenDrive { inner: Arc::new(inner) }
    }

    /// Identity and limits.
    pub fn info(&self) -> &DriveInfo {
        &self.inner.info
    }

    /// What is behind it.
    pub fn kind(&self) -> DriveKind {
        self.inner.kind
    }

    /// Major and minor number of a block device: the device itself, whatever its name is now.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        match &self.inner.back {
            Back::File(back) if back.is_block_device => {
                let device = back.file.metadata().ok()?.rdev();
                Some((libc::major(device), libc::minor(device)))
            }
            _ => None,
        }
    }

    /// Transfers bypass the page cache of this machine (true of memory: it has none).
    pub fn is_direct(&self) -> bool {
        match &self.inner.back {
            Back::File(file) => file.direct,
            Back::Memory(_) | Back::Backend(_) => true,
        }
    }

    /// The character device on which reads and writes pass by the block layer, such as
    /// `/dev/ng0n1`; `None` where they go by the block device.
    pub fn passthrough(&self) -> Option<&str> {
        match &self.inner.back {
            Back::File(file) => file.passthrough.as_ref().map(|passthrough| &*passthrough.node),
            Back::Memory(_) | Back::Backend(_) => None,
        }
    }

    /// Why they go by the block device although [`OpenDrive::open_passthrough`] opened it.
    pub fn no_passthrough(&self) -> Option<&str> {
        match &self.inner.back {
            Back::File(file) => file.no_passthrough.as_deref(),
            Back::Memory(_) | Back::Backend(_) => None,
        }
    }

    pub(crate) fn back(&self) -> &Back {
        &self.inner.back
    }

    /// Pulls the drive (true) or puts it back (false): while it is pulled, every operation on every
    /// shard ends with [`DriveError::Gone`], also those in flight. For tests of the real path.
    pub fn set_failed(&self, failed: bool) {
        self.inner.faults.state.store(if failed { FAILED } else { HEALTHY }, Ordering::Release);
    }

    /// Lets `operations` more operations start, then pulls the drive as [`OpenDrive::set_failed`]
    /// does.
    pub fn fail_after(&self, operations: u64) {
        self.inner.faults.left.store(i64::try_from(operations).unwrap_or(i64::MAX), Ordering::Release);
        self.inner.faults.state.store(COUNTING, Ordering::Release);
    }

    /// The drive is pulled.
    pub fn is_failed(&self) -> bool {
        self.inner.faults.state.load(Ordering::Relaxed) == FAILED
    }

    /// Refuses an operation that would change the drive where it was opened for reading only.
    #[inline]
    pub(crate) fn admit_change(&self) -> Result<(), DriveError> {
        if self.inner.read_only { Err(DriveError::ReadOnly) } else { Ok(()) }
    }

    /// An operation starts.
    #[inline]
    pub(crate) fn admit(&self) -> Result<(), DriveError> {
        let faults = &self.inner.faults;
        match faults.state.load(Ordering::Relaxed) {
            HEALTHY => Ok(()),
            COUNTING if faults.left.fetch_sub(1, Ordering::AcqRel) > 0 => Ok(()),
            COUNTING => {
                faults.state.store(FAILED, Ordering::Release);
                Err(DriveError::Gone)
            }
            _ => Err(DriveError::Gone),
        }
    }

    /// The counters of the calling thread.
    pub(crate) fn counters_here(&self) -> Arc<Counters> {
        let mut counters = self.inner.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = std::thread::current().id();
        if let Some((_, mine)) = counters.iter().find(|(owner, _)| *owner == thread) {
            return mine.clone();
        }
        let mine = Arc::new(Counters::default());
        counters.push((thread, mine.clone()));
        mine
    }

    /// What the drive has done, all shards together.
    pub fn stats(&self) -> DriveStats {
        let mut sums = DriveStats::default();
        for (_, counters) in self.inner.counters.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            counters.add_to(&mut sums);
        }
        sums
    }
}

fn open_memory(name: &str, size_bytes: u64, access: Access) -> Result<OpenDrive, OpenError> {
    let full_name = format!("mem:{name}");
    let memory = memory::open(name, size_bytes).map_err(|error| match error {
        MemoryError::Open => OpenError::InUse { name: full_name.clone(), reason: "this process has it open already" },
        MemoryError::OtherSize(is_bytes) => {
            OpenError::OtherSize { name: full_name.clone(), is_bytes, wanted_bytes: size_bytes }
        }
        MemoryError::Map(source) => OpenError::Io { name: full_name.clone(), operation: "map the memory", source },
    })?;
    let info = DriveInfo {
        name: full_name,
        size_bytes,
        sector_bytes: MEMORY_SECTOR_BYTES,
        // Nothing of it is there after a power cut.
        atomic_bytes: MEMORY_SECTOR_BYTES,
        discards: true,
    };
    Ok(OpenDrive::new(info, DriveKind::Memory, Back::Memory(memory), access))
}

fn open_path(path: &Path, access: Access) -> Result<OpenDrive, OpenError> {
    let name = path.display().to_string();
    let io_error = |operation| {
        let name = name.clone();
        move |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => OpenError::NotFound { name },
            _ => OpenError::Io { name, operation, source },
        }
    };
    let metadata = path.metadata().map_err(io_error("look at it"))?;
    if metadata.file_type().is_block_device() {
        open_block_device(path, &name, metadata.rdev(), access)
    } else if metadata.is_file() {
        open_file(path, &name, access)
    } else {
        Err(OpenError::NotADrive { name })
    }
}

/// Opens with `O_DIRECT`, or without where that is refused. The second value says which.
fn open_direct(path: &Path, flags: i32, access: Access) -> io::Result<(File, bool)> {
    let write = access == Access::ReadWrite;
    let open = |flags| OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
    match open(flags | libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok((open(flags)?, false)),
        other => Ok((other?, true)),
    }
}

fn open_block_device(path: &Path, name: &str, device: u64, access: Access) -> Result<OpenDrive, OpenError> {
    let failed = |operation| move |source| OpenError::Io { name: name.to_string(), operation, source };
    let (file, direct) = open_direct(path, libc::O_EXCL, access).map_err(|source| match source.raw_os_error() {
        Some(libc::EBUSY) => OpenError::InUse {
            name: name.to_string(),
            reason: "it is mounted, part of another device, or claimed by another process",
        },
        _ => failed(access.opening())(source),
    })?;
    let sector_bytes = block_size(&file).map_err(failed("ask for its sector size"))?;
    if !matches!(sector_bytes, 512 | 4096) {
        return Err(OpenError::SectorSize { name: name.to_string(), sector_bytes });
    }
    let size_bytes = (&file).seek(SeekFrom::End(0)).map_err(failed("ask for its size"))?;
    let memory_align = statx_direct(&file).map_or(sector_bytes as usize, |(memory, _)| memory as usize);
    let info = DriveInfo {
        name: name.to_string(),
        size_bytes,
        sector_bytes,
        atomic_bytes: atomic::of_device(device, sector_bytes),
        discards: access == Access::ReadWrite && device_discards(device),
    };
    finish(info, DriveKind::BlockDevice, file, direct, memory_align, access)
}

fn open_file(path: &Path, name: &str, access: Access) -> Result<OpenDrive, OpenError> {
    let failed = |operation| move |source| OpenError::Io { name: name.to_string(), operation, source };
    let (mut file, mut direct) = open_direct(path, 0, access).map_err(failed(access.opening()))?;
    system::lock_exclusive(&file).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => {
            OpenError::InUse { name: name.to_string(), reason: "another process, or this one, has locked the file" }
        }
        _ => failed("lock it")(source),
    })?;
    let metadata = file.metadata().map_err(failed("ask for its size"))?;
    let size_bytes = metadata.len();
    // What `statx` says is a hint; a read shows it. Some file systems open with O_DIRECT and refuse
    // the transfers.
    let (memory_align, offset_align) = statx_direct(&file).unwrap_or((512, 512));
    let mut sector_bytes = 4096;
    if direct {
        let sizes = [512u32, 4096].into_iter().filter(|&size| size >= offset_align);
        match sizes.into_iter().find(|&size| direct_read_works(&file, size as usize)) {
            Some(size) => sector_bytes = size,
            None => {
                // Through the same open file, so that the lock stays where it is.
                set_buffered(&file).map_err(failed("leave direct mode"))?;
                direct = false;
            }
        }
    }
    if !direct {
        tracing::warn!(name, "the file system refuses O_DIRECT; transfers go through the page cache");
    }
    let discards = access == Access::ReadWrite && punch_hole_works(&file, size_bytes, sector_bytes);
    file.seek(SeekFrom::Start(0)).map_err(failed("use it"))?;
    let atomic_bytes = atomic::of_file(&metadata, sector_bytes);
    let info = DriveInfo { name: name.to_string(), size_bytes, sector_bytes, atomic_bytes, discards };
    finish(info, DriveKind::File, file, direct, memory_align as usize, access)
}

/// The common end. The size in `info` may still have a part of a sector at its end, which no
/// operation can reach.
fn finish(
    mut info: DriveInfo,
    kind: DriveKind,
    file: File,
    direct: bool,
    memory_align: usize,
    access: Access,
) -> Result<OpenDrive, OpenError> {
    if info.size_bytes < u64::from(info.sector_bytes) {
        let DriveInfo { name, size_bytes, sector_bytes, .. } = info;
        return Err(OpenError::TooSmall { name, size_bytes, sector_bytes });
    }
    info.size_bytes -= info.size_bytes % u64::from(info.sector_bytes);
    let back = FileBack {
        file,
        direct,
        is_block_device: kind == DriveKind::BlockDevice,
        // A page is more than any device asks for; zero would mean that nothing is known.
        memory_align: if memory_align == 0 { info.sector_bytes as usize } else { memory_align.min(BUF_ALIGN) },
        no_uring_discard: AtomicBool::new(false),
        no_zero_range: AtomicBool::new(false),
        no_punch_hole: AtomicBool::new(false),
        passthrough: None,
        no_passthrough: None,
    };
    Ok(OpenDrive::new(info, kind, Back::File(back), access))
}

/// `BLKSSZGET` (linux/fs.h).
fn block_size(file: &File) -> io::Result<u32> {
    const BLKSSZGET: libc::c_ulong = 0x1268;
    let mut size: libc::c_int = 0;
    // SAFETY: the request writes one `int`.
    system::check(unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &raw mut size) })?;
    Ok(size.unsigned_abs())
}

/// What the file system says about direct transfers: alignment of memory and of offsets. `None` if
/// it says nothing, or that there are none.
fn statx_direct(file: &File) -> Option<(u32, u32)> {
    // SAFETY: `statx` is a plain structure, for which zeroes are a value.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is empty and terminated, and `answer` is valid for writes.
    let result =
        unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut answer) };
    let known = result == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0 && answer.stx_dio_offset_align != 0;
    known.then_some((answer.stx_dio_mem_align, answer.stx_dio_offset_align))
}

/// Reads one sector at the start into the middle of a page, as the ring would.
fn direct_read_works(file: &File, sector_bytes: usize) -> bool {
    let mut buf = BufMut::zeroed(2 * BUF_ALIGN);
    let buf = &mut buf[sector_bytes..2 * sector_bytes];
    // SAFETY: the pointer and the length are those of a mutable slice.
    unsafe { libc::pread(file.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) >= 0 }
}

fn set_buffered(file: &File) -> io::Result<()> {
    // SAFETY: no memory is involved.
    let flags = system::check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: as above.
    system::check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT) }).map(drop)
}

/// Tries it behind the end of the file, where there is nothing to lose.
fn punch_hole_works(file: &File, size_bytes: u64, sector_bytes: u32) -> bool {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let offset = size_bytes.next_multiple_of(1 << 20);
    // SAFETY: no memory is involved.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, libc::off_t::from(sector_bytes)) == 0 }
}

/// The block layer passes discards on to this device. Partitions have no queue of their own.
fn device_discards(device: u64) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let own = format!("/sys/dev/block/{major}:{minor}/queue/discard_max_bytes");
    let parent = format!("/sys/dev/block/{major}:{minor}/../queue/discard_max_bytes");
    let limit = std::fs::read_to_string(own).or_else(|_| std::fs::read_to_string(parent));
    limit.is_ok_and(|limit| limit.trim() != "0")
}

/// Makes a sparse file of `size_bytes`, to be opened as a drive. Durable when it returns.
///
/// # Errors
/// Refuses a path that exists, and whatever the file system refuses; then nothing is left behind.
pub fn create_file(path: &Path, size_bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let fill = || {
        file.set_len(size_bytes)?;
        file.sync_all()?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    };
    fill().inspect_err(|_| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(path);
    })
}
