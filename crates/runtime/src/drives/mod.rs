//! Drives: files, block devices, memory, and drives that other crates implement.
//!
//! Reads and writes are `async` blocks because an `async fn` reserves space for its arguments
//! twice: `docs/decisions/array.md`.

mod atomic;
mod backend;
mod counters;
mod file;
mod memory;
mod open;
mod passthrough;
mod spec;

use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;

use ::drive::{Buf, BufMut, DriveError, DriveInfo, Nanos, Segments, View};

pub use backend::{Backend, BackendDrive, DriveFuture};
pub use counters::{DriveStats, LATENCY_BUCKETS};
pub use memory::forget_memory;
pub use open::{DriveKind, OpenDrive, OpenError, create_file};
pub use spec::{DriveSpec, SpecError};

pub(crate) use file::RANGES_MAX;

use crate::clock;
use crate::env::ShardEnv;
use crate::files::Target;
use crate::shard::Shard;
use counters::{Counters, Done};
use file::FileOps;
use memory::Memory;
use open::Back;

/// A drive on one shard. Clones are the same drive. No clone leaves the thread.
///
/// Transfers of files and block devices are handed to the kernel at the end of the turn. Transfers
/// of memory are done at the first poll. Dropping a future does not stop a transfer that the kernel
/// has, and does not free its buffers before the transfer ends.
#[derive(Clone)]
pub struct Drive {
    attached: Rc<Attached>,
}

struct Attached {
    shard: Rc<Shard>,
    open: OpenDrive,
    reach: Reach,
    counters: Arc<Counters>,
}

/// The resources of a drive on one shard.
enum Reach {
    /// The file on the shard's ring, and the character device for pass-through.
    File(Target, Option<Target>),
    Memory,
    Backend(Rc<dyn BackendDrive>),
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Reach::File(target, node) = self.reach {
            self.shard.detach_file(target);
            if let Some(node) = node {
                self.shard.detach_file(node);
            }
        }
    }
}

/// How an operation reaches its drive.
enum Path<'a> {
    File(FileOps<'a>),
    Memory(&'a Memory),
    Backend(&'a dyn BackendDrive),
}

impl Drive {
    pub(crate) fn attach(shard: &Rc<Shard>, open: &OpenDrive) -> Drive {
        let reach = match open.back() {
            Back::File(back) => {
                let node = back.passthrough.as_ref().filter(|_| shard.takes_commands());
                let node = node.map(|passthrough| shard.attach_file(passthrough.file.as_raw_fd()));
                Reach::File(shard.attach_file(back.file.as_raw_fd()), node)
            }
            Back::Memory(_) => Reach::Memory,
            Back::Backend(backend) => Reach::Backend(backend.attach(&ShardEnv::new(shard.clone()))),
        };
        let attached = Attached { shard: shard.clone(), open: open.clone(), reach, counters: open.counters_here() };
        Drive { attached: Rc::new(attached) }
    }

    /// The drive in the form that other threads can use.
    pub fn open_drive(&self) -> &OpenDrive {
        &self.attached.open
    }

    #[inline]
    fn path(&self) -> Path<'_> {
        let Attached { shard, open, reach, counters } = &*self.attached;
        match (open.back(), reach) {
            (Back::Memory(memory), Reach::Memory) => Path::Memory(memory),
            (Back::File(back), &Reach::File(target, node)) => {
                Path::File(FileOps { shard, target, node, back, counters, sector_bytes: open.info().sector_bytes })
            }
            (Back::Backend(_), Reach::Backend(drive)) => Path::Backend(&**drive),
            _ => unreachable!("a drive is attached as what it is"),
        }
    }

    /// The start time of this operation, if its latency is measured.
    #[inline]
    fn start_time(&self, path: &Path<'_>, kind: Done) -> Option<Nanos> {
        match path {
            Path::File(_) | Path::Backend(_) => Some(clock::now()),
            Path::Memory(_) => self.attached.counters.is_sample(kind).then(clock::now),
        }
    }

    /// Counts a completed operation, and fails it if the drive was pulled meanwhile.
    #[inline]
    fn finish<T>(
        &self,
        result: Result<T, DriveError>,
        done: Done,
        start: Option<Nanos>,
        path: &Path<'_>,
    ) -> Result<T, DriveError> {
        let result = if self.attached.open.is_failed() { Err(DriveError::Gone) } else { result };
        if result.is_err() {
            self.attached.counters.record(Done::Error, None);
            return result;
        }
        let latency = start.map(|start| {
            // Operations of the ring ended when they were reaped: the clock is read once for the
            // whole batch.
            let end = match path {
                Path::File(_) => self.attached.shard.reaped_at(),
                Path::Memory(_) | Path::Backend(_) => clock::now(),
            };
            end.saturating_sub(start)
        });
        self.attached.counters.record(done, latency);
        result
    }

    /// Checks before every operation on a range.
    #[inline]
    fn begin(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.attached.open.info().check(offset, len)?;
        self.admit()
    }

    /// The same checks before every operation that changes a range.
    #[inline]
    fn begin_change(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.attached.open.admit_change()?;
        self.begin(offset, len)
    }

    #[inline]
    fn admit(&self) -> Result<(), DriveError> {
        self.attached.open.admit().inspect_err(|_| self.attached.counters.record(Done::Error, None))
    }
}

impl Drive {
    /// Reads memory. `None` if it is the turn of other tasks.
    #[inline]
    fn read_memory(&self, memory: &Memory, offset: u64, buf: &mut [u8]) -> Option<Result<(), DriveError>> {
        if !self.attached.shard.take_ready_op() {
            return None;
        }
        let (path, done) = (Path::Memory(memory), Done::Read(buf.len() as u64));
        Some(self.begin(offset, buf.len() as u64).and_then(|()| {
            let start = self.start_time(&path, done);
            memory.view(offset, buf.len()).copy_to(buf);
            self.finish(Ok(()), done, start, &path)
        }))
    }

    /// Writes memory. `None` if it is the turn of other tasks.
    #[inline]
    fn write_memory(&self, memory: &Memory, offset: u64, data: &[Buf]) -> Option<Result<(), DriveError>> {
        if !self.attached.shard.take_ready_op() {
            return None;
        }
        let len = data.iter().map(|segment| segment.len() as u64).sum();
        let (path, done) = (Path::Memory(memory), Done::Write(len));
        Some(self.begin_change(offset, len).and_then(|()| {
            let start = self.start_time(&path, done);
            memory.write(offset, data);
            self.finish(Ok(()), done, start, &path)
        }))
    }
}

impl ::drive::Drive for Drive {
    fn info(&self) -> &DriveInfo {
        self.attached.open.info()
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> impl Future<Output = Result<BufMut, DriveError>> {
        let path = self.path();
        async move {
            if let Path::Memory(memory) = path {
                loop {
                    if let Some(result) = self.read_memory(memory, offset, &mut buf) {
                        return result.map(|()| buf);
                    }
                    self.attached.shard.ready_op().await;
                }
            }
            let len = buf.len() as u64;
            self.begin(offset, len)?;
            let done = Done::Read(len);
            let start = self.start_time(&path, done);
            let result = match &path {
                Path::File(file) => file.read(offset, buf).await,
                Path::Backend(drive) => drive.read(offset, buf).await,
                Path::Memory(_) => unreachable!("memory was read above"),
            };
            self.finish(result, done, start, &path)
        }
    }

    #[inline]
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> Option<Result<(), DriveError>> {
        match self.path() {
            Path::Memory(memory) => self.read_memory(memory, offset, buf),
            Path::File(_) | Path::Backend(_) => None,
        }
    }

    #[inline]
    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(View<'_>) -> T) -> Option<T> {
        let path = self.path();
        let Path::Memory(memory) = path else { return None };
        if !self.attached.shard.take_ready_op() {
            return None;
        }
        self.begin(offset, len as u64).ok()?;
        let done = Done::Read(len as u64);
        let start = self.start_time(&path, done);
        let seen = look(memory.view(offset, len));
        // The data was seen, even if the drive was pulled meanwhile: the caller must not read it a
        // second time.
        let _ = self.finish(Ok(()), done, start, &path);
        Some(seen)
    }

    fn write(&self, offset: u64, data: Segments, fua: bool) -> impl Future<Output = Result<(), DriveError>> {
        let path = self.path();
        async move {
            if let Path::Memory(memory) = path {
                loop {
                    if let Some(result) = self.write_memory(memory, offset, &data) {
                        return result;
                    }
                    self.attached.shard.ready_op().await;
                }
            }
            let len = data.iter().map(|segment| segment.len() as u64).sum();
            self.begin_change(offset, len)?;
            let done = Done::Write(len);
            let start = self.start_time(&path, done);
            let result = match &path {
                Path::File(file) => file.write(offset, data, fua).await,
                Path::Backend(drive) => drive.write(offset, data, fua).await,
                Path::Memory(_) => unreachable!("memory was written above"),
            };
            self.finish(result, done, start, &path)
        }
    }

    #[inline]
    fn write_now(&self, offset: u64, data: &Buf) -> Option<Result<(), DriveError>> {
        match self.path() {
            Path::Memory(memory) => self.write_memory(memory, offset, std::slice::from_ref(data)),
            Path::File(_) | Path::Backend(_) => None,
        }
    }

    async fn flush(&self) -> Result<(), DriveError> {
        self.admit()?;
        let path = self.path();
        let done = Done::Flush;
        let start = self.start_time(&path, done);
        let result = match &path {
            Path::File(file) => file.flush().await,
            Path::Backend(drive) => drive.flush().await,
            Path::Memory(_) => Ok(()),
        };
        self.finish(result, done, start, &path)
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.begin_change(offset, len)?;
        if len == 0 || !self.attached.open.info().discards {
            return Ok(());
        }
        let path = self.path();
        let result = match &path {
            Path::File(file) => file.discard(offset, len).await,
            Path::Backend(drive) => drive.discard(offset, len).await,
            Path::Memory(memory) => {
                self.attached.shard.ready_op().await;
                memory.discard(offset, len);
                Ok(())
            }
        };
        self.finish(result, Done::Discard, None, &path)
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.begin_change(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let path = self.path();
        let result = match &path {
            Path::File(file) => file.write_zeroes(offset, len).await,
            Path::Backend(drive) => drive.write_zeroes(offset, len).await,
            Path::Memory(memory) => {
                self.attached.shard.ready_op().await;
                memory.write_zeroes(offset, len);
                Ok(())
            }
        };
        self.finish(result, Done::Zeroes, None, &path)
    }
}
