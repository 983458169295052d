//! Opening a drive exclusively for this process.

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

/// The kind of storage that a drive consists of.
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
    /// The drive is used by another process, the system, or this process.
    #[error("{name} is in use: {reason}")]
    InUse {
        /// The drive.
        name: String,
        /// The user of the drive, as far as the system tells.
        reason: &'static str,
    },
    /// No file or device has this name.
    #[error("{name} does not exist")]
    NotFound {
        /// The drive.
        name: String,
    },
    /// It is a directory, a character device or a socket.
    #[error("{name} is neither a block device nor a regular file")]
    NotADrive {
        /// The drive.
        name: String,
    },
    /// The drive is smaller than a sector.
    #[error("{name} has {size_bytes} bytes, less than one sector of {sector_bytes}")]
    TooSmall {
        /// The drive.
        name: String,
        /// Its size in bytes.
        size_bytes: u64,
        /// Its logical block size in bytes.
        sector_bytes: u32,
    },
    /// The logical block size is neither 512 nor 4096.
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
    /// The system refused an operation.
    #[error("{name}: cannot {operation}: {source}")]
    Io {
        /// The drive.
        name: String,
        /// The operation that failed.
        operation: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// A file or block device. Missing kernel features are remembered, so each is tried only once.
#[derive(Debug)]
pub(crate) struct FileBack {
    pub(crate) file: File,
    /// Transfers bypass the page cache.
    pub(crate) direct: bool,
    pub(crate) is_block_device: bool,
    /// Addresses of direct transfers must be multiples of it.
    pub(crate) memory_align: usize,
    pub(crate) no_uring_discard: AtomicBool,
    pub(crate) no_zero_range: AtomicBool,
    pub(crate) no_punch_hole: AtomicBool,
    /// The device for reads and writes as NVMe commands.
    pub(crate) passthrough: Option<Passthrough>,
    /// The reason for no pass-through, if it was requested.
    no_passthrough: Option<String>,
}

pub(crate) enum Back {
    File(FileBack),
    Memory(Arc<Memory>),
    Backend(Box<dyn Backend>),
}

/// The purpose for which a drive is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    ReadWrite,
}

impl Access {
    /// The text for an error message.
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

/// A switch that makes a drive fail.
#[derive(Debug, Default)]
struct Faults {
    state: AtomicU8,
    left: AtomicI64,
}

struct OpenDriveState {
    info: DriveInfo,
    kind: DriveKind,
    back: Back,
    read_only: bool,
    faults: Faults,
    /// One entry for each thread that attached the drive.
    counters: Mutex<Vec<(ThreadId, Arc<Counters>)>>,
}

impl Drop for OpenDriveState {
    fn drop(&mut self) {
        if let Back::Memory(memory) = &self.back {
            memory.close();
        }
    }
}

/// A drive that this process has opened exclusively: a handle for any thread. The drive is closed
/// with the last clone and the last attached [`Drive`](crate::Drive).
#[derive(Clone)]
pub struct OpenDrive {
    inner: Arc<OpenDriveState>,
}

impl fmt::Debug for OpenDrive {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenDriveState { info, kind, read_only, .. } = &*self.inner;
        let shown = &mut formatter.debug_struct("OpenDrive");
        shown.field("info", info).field("kind", kind).field("read_only", read_only).finish_non_exhaustive()
    }
}

impl OpenDrive {
    /// Opens a drive for reading and writing. It blocks the calling thread for some system calls,
    /// so it must not be called on a shard.
    ///
    /// The drive is opened exclusively. A block device is claimed from the kernel (`O_EXCL`: it
    /// must not be mounted, nor part of another device). A file is locked (`flock`). Memory is
    /// marked as open.
    ///
    /// Transfers are direct if the file system allows it. Otherwise they go through the page cache:
    /// flush and FUA are as durable, and a warning is logged.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(spec: &DriveSpec) -> Result<OpenDrive, OpenError> {
        OpenDrive::open_for(spec, Access::ReadWrite)
    }

    /// Like [`OpenDrive::open`], for reading only. Operations that would change the drive end with
    /// [`DriveError::ReadOnly`], and the kernel has no descriptor that permits writes. It is as
    /// exclusive, so no other process changes the drive meanwhile.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_read_only(spec: &DriveSpec) -> Result<OpenDrive, OpenError> {
        OpenDrive::open_for(spec, Access::Read)
    }

    /// Like [`OpenDrive::open`]. If the drive is a whole NVMe namespace, reads and writes go as
    /// commands to its generic character device (`/dev/ngXnY`), past the block layer, on shards
    /// that can send them ([`Config::passthrough`](crate::Config::passthrough)). Other operations
    /// go to the block device. If pass-through is not possible, reads and writes go there too: the
    /// reason is logged, and it is no error. Blocks until the drive has reported its format,
    /// without a time limit.
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

    /// Opens a new sparse file of `size_bytes` without a name for reading. It has the properties
    /// that a file at this path would have, and leaves nothing in the folder. Blocks for some
    /// system calls.
    ///
    /// # Errors
    /// The errors of the file system, including one that does not support files without a name
    /// (`O_TMPFILE`).
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

    /// A drive of another machine, accessed through `backend`. The creator of the backend ensures
    /// that no other client uses the drive.
    pub fn remote(info: DriveInfo, backend: Box<dyn Backend>) -> OpenDrive {
        OpenDrive::new(info, DriveKind::Remote, Back::Backend(backend), Access::ReadWrite)
    }

    fn new(info: DriveInfo, kind: DriveKind, back: Back, access: Access) -> OpenDrive {
        let read_only = access == Access::Read;
        let inner =
            OpenDriveState { info, kind, back, read_only, faults: Faults::default(), counters: Mutex::default() };
        OpenDrive { inner: Arc::new(inner) }
    }

    /// Identity and limits.
    pub fn info(&self) -> &DriveInfo {
        &self.inner.info
    }

    /// The kind of storage of the drive.
    pub fn kind(&self) -> DriveKind {
        self.inner.kind
    }

    /// Major and minor number of a block device. They do not depend on its name.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        match &self.inner.back {
            Back::File(back) if back.is_block_device => {
                let device = back.file.metadata().ok()?.rdev();
                Some((libc::major(device), libc::minor(device)))
            }
            _ => None,
        }
    }

    /// Whether transfers bypass the page cache of this machine (true of memory: it has none).
    pub fn is_direct(&self) -> bool {
        match &self.inner.back {
            Back::File(file) => file.direct,
            Back::Memory(_) | Back::Backend(_) => true,
        }
    }

    /// The character device to which reads and writes go past the block layer, such as
    /// `/dev/ng0n1`. `None` if they go to the block device.
    pub fn passthrough(&self) -> Option<&str> {
        match &self.inner.back {
            Back::File(file) => file.passthrough.as_ref().map(|passthrough| &*passthrough.node),
            Back::Memory(_) | Back::Backend(_) => None,
        }
    }

    /// Why pass-through is not used although [`OpenDrive::open_passthrough`] opened the drive.
    pub fn no_passthrough(&self) -> Option<&str> {
        match &self.inner.back {
            Back::File(file) => file.no_passthrough.as_deref(),
            Back::Memory(_) | Back::Backend(_) => None,
        }
    }

    pub(crate) fn back(&self) -> &Back {
        &self.inner.back
    }

    /// Pulls the drive (true) or puts it back (false). While it is pulled, every operation on every
    /// shard ends with [`DriveError::Gone`], including those in flight. For tests of the real I/O
    /// path.
    pub fn set_failed(&self, failed: bool) {
        self.inner.faults.state.store(if failed { FAILED } else { HEALTHY }, Ordering::Release);
    }

    /// Lets `operations` more operations start, then pulls the drive like
    /// [`OpenDrive::set_failed`].
    pub fn fail_after(&self, operations: u64) {
        self.inner.faults.left.store(i64::try_from(operations).unwrap_or(i64::MAX), Ordering::Release);
        self.inner.faults.state.store(COUNTING, Ordering::Release);
    }

    /// Whether the drive is pulled.
    pub fn is_failed(&self) -> bool {
        self.inner.faults.state.load(Ordering::Relaxed) == FAILED
    }

    /// Refuses operations that change the drive if it was opened for reading only.
    #[inline]
    pub(crate) fn admit_change(&self) -> Result<(), DriveError> {
        if self.inner.read_only { Err(DriveError::ReadOnly) } else { Ok(()) }
    }

    /// Checks at the start of an operation whether the drive is pulled.
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

    /// The counters of the drive, summed over all shards.
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
        // A power cut erases all of it.
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

/// Opens with `O_DIRECT`, or without it if that is refused. The second value says whether it is
/// direct.
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
    // The answer of `statx` is a hint; a read verifies it. Some file systems accept O_DIRECT at
    // open and refuse the transfers.
    let (memory_align, offset_align) = statx_direct(&file).unwrap_or((512, 512));
    let mut sector_bytes = 4096;
    if direct {
        let sizes = [512u32, 4096].into_iter().filter(|&size| size >= offset_align);
        match sizes.into_iter().find(|&size| direct_read_works(&file, size as usize)) {
            Some(size) => sector_bytes = size,
            None => {
                // Change the same open file, so that the lock stays.
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

/// The common last step. The size in `info` may still include a part of a sector at the end, which
/// no operation can reach. It is cut off.
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
        // A page is more than any device needs. Zero means that the alignment is not known.
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

/// Alignment of memory and of offsets for direct transfers, as the file system reports it. `None`
/// if it does not report it, or does not support direct transfers.
fn statx_direct(file: &File) -> Option<(u32, u32)> {
    // SAFETY: `statx` is a plain structure, for which zeroes are a value.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is empty and terminated, and `answer` is valid for writes.
    let result =
        unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut answer) };
    let known = result == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0 && answer.stx_dio_offset_align != 0;
    known.then_some((answer.stx_dio_mem_align, answer.stx_dio_offset_align))
}

/// Reads one sector at the start of the file into the middle of a page, as the ring would.
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

/// Tries it past the end of the file, where no data can be lost.
fn punch_hole_works(file: &File, size_bytes: u64, sector_bytes: u32) -> bool {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let offset = size_bytes.next_multiple_of(1 << 20);
    // SAFETY: no memory is involved.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, libc::off_t::from(sector_bytes)) == 0 }
}

/// Whether the block layer passes discards on to it. Partitions have no queue of their own.
fn device_discards(device: u64) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let own = format!("/sys/dev/block/{major}:{minor}/queue/discard_max_bytes");
    let parent = format!("/sys/dev/block/{major}:{minor}/../queue/discard_max_bytes");
    let limit = std::fs::read_to_string(own).or_else(|_| std::fs::read_to_string(parent));
    limit.is_ok_and(|limit| limit.trim() != "0")
}

/// Creates a sparse file of `size_bytes`, to be opened as a drive. Durable when it returns.
///
/// # Errors
/// Refuses a path that exists, and returns errors of the file system. After an error no file is
/// left behind.
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
