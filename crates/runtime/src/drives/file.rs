//! Files and block devices through the io_uring.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use ::drive::{Buf, BufMut, DriveError, Segments};
use io_uring::{opcode, squeue, types};
use smallvec::smallvec;

use super::counters::Counters;
use super::open::FileBack;
use super::passthrough::{Transfer, Verdict};
use crate::files::{Target, on_target};
use crate::op::Payload;
use crate::shard::Shard;

/// Most bytes of one transfer. The kernel moves less than 2 GiB at once (`MAX_RW_COUNT`).
const TRANSFER_BYTES_MAX: usize = 1 << 30;

/// Most ranges of one gathered transfer (`IOV_MAX`, `UIO_MAXIOV` of the kernel).
pub(crate) const RANGES_MAX: usize = 1024;

/// `BLOCK_URING_CMD_DISCARD` (linux/blkdev.h), from Linux 6.12 on.
const BLOCK_URING_CMD_DISCARD: u32 = 0x12 << 8;

/// Most bytes that one write takes from [`Buf::zeroes`], which costs no memory up to this length.
const ZERO_CHUNK_BYTES: u64 = 1 << 20;

/// A file on one shard, for the duration of one operation.
#[derive(Clone, Copy)]
pub(crate) struct FileOps<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) target: Target,
    /// Destination of NVMe commands, if reads and writes go by pass-through.
    pub(crate) node: Option<Target>,
    pub(crate) back: &'a FileBack,
    pub(crate) counters: &'a Counters,
    pub(crate) sector_bytes: u32,
}

/// The form of the data of a gathered write.
enum Gathered {
    /// One contiguous range.
    One(NonNull<u8>, usize),
    /// The ranges of the vector.
    Many,
}

impl FileOps<'_> {
    /// Direct transfers need addresses and lengths that fit the alignment of the device.
    fn is_aligned(&self, start: *const u8, len: usize) -> bool {
        !self.back.direct
            || ((start as usize).is_multiple_of(self.back.memory_align)
                && len.is_multiple_of(self.sector_bytes as usize))
    }

    /// Progress of a short transfer, rounded down to a whole sector: a direct transfer can continue
    /// only there.
    fn progress(&self, transferred: usize) -> usize {
        transferred - transferred % self.sector_bytes as usize
    }

    pub(crate) fn read(&self, offset: u64, buf: BufMut) -> impl Future<Output = Result<BufMut, DriveError>> {
        let aligned = self.is_aligned(buf.as_ptr(), buf.len());
        async move {
            let buf = match aligned {
                true => match self.read_plain(offset, buf).await {
                    Ok(buf) => return Ok(buf),
                    // The device needs more alignment than it reports.
                    Err((DriveError::Os { errno: libc::EINVAL, .. }, buf)) if self.back.direct => buf,
                    Err((error, _)) => return Err(error),
                },
                false => buf,
            };
            Box::pin(self.read_bounced(offset, buf)).await
        }
    }

    async fn read_bounced(&self, offset: u64, mut buf: BufMut) -> Result<BufMut, DriveError> {
        let aligned = self.shard.arena().alloc(buf.len());
        let aligned = self.read_plain(offset, aligned).await.map_err(|(error, _)| error)?;
        buf.copy_from_slice(&aligned);
        Ok(buf)
    }

    async fn read_plain(&self, offset: u64, mut buf: BufMut) -> Result<BufMut, (DriveError, BufMut)> {
        let (start, len) = (buf.as_mut_ptr(), buf.len());
        if let Some((entry, fixed)) = self.command(Transfer::Read, offset, start, len) {
            // SAFETY: the command points into the buffer, which the payload owns, and reads as many
            // bytes as it has (`Passthrough::command`).
            let operation = unsafe { self.shard.start_command(entry, Payload::Fill(buf)) };
            let result;
            (result, buf) = operation.await.into_fill();
            match self.judge(result, fixed) {
                Verdict::Done => return Ok(buf),
                Verdict::Media => return Err((DriveError::Media { offset, len: buf.len() as u64 }, buf)),
                Verdict::AskBlockDevice => {}
            }
        }
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let (start, len) = (rest.as_mut_ptr(), rest.len().min(TRANSFER_BYTES_MAX));
            let at = offset + done as u64;
            let entry = on_target!(self.target, |fd| match self.shard.fixed_buffer(start, len) {
                Some(index) => opcode::ReadFixed::new(fd, start, len as u32, index).offset(at).build(),
                None => opcode::Read::new(fd, start, len as u32).offset(at).build(),
            });
            // SAFETY: the entry points into the buffer, which the payload owns.
            let operation = unsafe { self.shard.start_drive_op(entry, Payload::Fill(buf)) };
            let result;
            (result, buf) = operation.await.into_fill();
            match result {
                // The file was truncated during the read.
                0 => return Err((DriveError::Media { offset: at, len: len as u64 }, buf)),
                1.. => {
                    let read = result as usize;
                    done = if done + read == buf.len() { buf.len() } else { done + self.progress(read) };
                }
                _ if is_transient(result) => {}
                _ => return Err((drive_error(-result, "read", at, len as u64), buf)),
            }
        }
        Ok(buf)
    }

    /// The NVMe command for a transfer, and whether it names a registered buffer. `None` if the
    /// transfer does not go by pass-through.
    fn command(
        &self,
        transfer: Transfer,
        offset: u64,
        start: *const u8,
        len: usize,
    ) -> Option<(squeue::Entry128, bool)> {
        let (node, passthrough) = (self.node?, self.back.passthrough.as_ref()?);
        passthrough.entry(node, transfer, offset, start, len, self.shard.fixed_buffer(start, len))
    }

    fn judge(&self, result: i32, fixed: bool) -> Verdict {
        let Some(passthrough) = &self.back.passthrough else { return Verdict::AskBlockDevice };
        let verdict = passthrough.judge(result, fixed);
        if verdict == Verdict::Done {
            self.counters.record_command();
        }
        verdict
    }

    pub(crate) fn write(
        &self,
        offset: u64,
        mut data: Segments,
        fua: bool,
    ) -> impl Future<Output = Result<(), DriveError>> {
        let total: usize = data.iter().map(|segment| segment.len()).sum();
        async move {
            let mut vector = Vec::new();
            let mut bounced = false;
            let mut done = 0;
            while done < total {
                let gathered = gather(&data, done, &mut vector);
                let aligned = match gathered {
                    Gathered::One(start, len) => self.is_aligned(start.as_ptr(), len),
                    Gathered::Many => vector.iter().all(|range| self.is_aligned(range.iov_base.cast(), range.iov_len)),
                };
                if !aligned && !bounced {
                    data = self.bounce(&data, total);
                    bounced = true;
                    continue;
                }
                let at = offset + done as u64;
                // A gathered write goes to the block device, which splits it as the drive requires.
                if let Gathered::One(start, len) = gathered
                    && len == total
                    && let Some((entry, fixed)) = self.command(Transfer::Write { fua }, at, start.as_ptr(), len)
                {
                    // SAFETY: the command points into the segments, which the payload owns.
                    let operation = unsafe { self.shard.start_command(entry, Payload::Drain(data, vector)) };
                    let result;
                    (result, data, vector) = operation.await.into_drain();
                    match self.judge(result, fixed) {
                        Verdict::Done => return Ok(()),
                        Verdict::Media => return Err(DriveError::Media { offset: at, len: total as u64 }),
                        Verdict::AskBlockDevice => {}
                    }
                }
                let entry = self.write_entry(&gathered, &vector, at, fua);
                // SAFETY: the entry points to the vector's elements and into the segments, and the
                // payload owns both.
                let operation = unsafe { self.shard.start_drive_op(entry, Payload::Drain(data, vector)) };
                let result;
                (result, data, vector) = operation.await.into_drain();
                match result {
                    // Nothing was written and no error reported: the device is full or gone. Do not
                    // retry forever.
                    0 => return Err(DriveError::NoSpace),
                    1.. => {
                        let written = result as usize;
                        done = if done + written == total { total } else { done + self.progress(written) };
                    }
                    _ if is_transient(result) => {}
                    // The device needs more alignment than it reports.
                    _ if result == -libc::EINVAL && self.back.direct && !bounced => {
                        data = self.bounce(&data, total);
                        bounced = true;
                    }
                    _ => return Err(drive_error(-result, "write", at, (total - done) as u64)),
                }
            }
            Ok(())
        }
    }

    fn write_entry(&self, gathered: &Gathered, vector: &[libc::iovec], at: u64, fua: bool) -> squeue::Entry {
        let flags = if fua { libc::RWF_DSYNC } else { 0 };
        on_target!(self.target, |fd| match *gathered {
            Gathered::One(start, len) => match self.shard.fixed_buffer(start.as_ptr(), len) {
                Some(index) =>
                    opcode::WriteFixed::new(fd, start.as_ptr(), len as u32, index).offset(at).rw_flags(flags).build(),
                None => opcode::Write::new(fd, start.as_ptr(), len as u32).offset(at).rw_flags(flags).build(),
            },
            Gathered::Many => {
                opcode::Writev::new(fd, vector.as_ptr(), vector.len() as u32).offset(at).rw_flags(flags).build()
            }
        })
    }

    /// One aligned copy of all segments.
    fn bounce(&self, data: &Segments, total: usize) -> Segments {
        let mut copy = self.shard.arena().alloc(total);
        let mut at = 0;
        for segment in data {
            copy[at..at + segment.len()].copy_from_slice(segment);
            at += segment.len();
        }
        smallvec![copy.freeze()]
    }

    pub(crate) async fn flush(&self) -> Result<(), DriveError> {
        loop {
            let entry = on_target!(self.target, |fd| opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build());
            match self.plain(entry).await {
                0.. => return Ok(()),
                result if is_transient(result) => {}
                result => return Err(drive_error(-result, "flush", 0, 0)),
            }
        }
    }

    pub(crate) async fn discard(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        if self.back.is_block_device && !self.back.no_uring_discard.load(Ordering::Relaxed) {
            // The command takes the start from `addr` and the length from `addr3`, which is where
            // `cmd` begins.
            let mut command = [0; 16];
            command[..8].copy_from_slice(&len.to_ne_bytes());
            let entry = on_target!(self.target, |fd| opcode::UringCmd16::new(fd, BLOCK_URING_CMD_DISCARD)
                .addr(Some(offset))
                .cmd(command)
                .build());
            match self.plain(entry).await {
                0.. => return Ok(()),
                result if is_unsupported(result) => self.back.no_uring_discard.store(true, Ordering::Relaxed),
                result => return Err(drive_error(-result, "discard", offset, len)),
            }
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match self.fallocate(&self.back.no_punch_hole, mode, offset, len).await {
            // Neither way works. That is no error: a discard is only a hint.
            Ok(_) => Ok(()),
            Err(errno) => Err(drive_error(errno, "discard", offset, len)),
        }
    }

    pub(crate) async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        // First try the way that keeps the space allocated: then a later write cannot fail for lack
        // of space.
        let ways = [
            (&self.back.no_zero_range, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE),
            (&self.back.no_punch_hole, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE),
        ];
        for (missing, mode) in ways {
            match self.fallocate(missing, mode, offset, len).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(errno) => return Err(drive_error(errno, "write zeroes", offset, len)),
            }
        }
        let mut done = 0;
        while done < len {
            let chunk = (len - done).min(ZERO_CHUNK_BYTES);
            self.write(offset + done, smallvec![Buf::zeroes(chunk as usize)], false).await?;
            done += chunk;
        }
        Ok(())
    }

    /// Returns whether the file system supports the operation, and remembers if it does not. An
    /// error is an errno.
    async fn fallocate(&self, missing: &AtomicBool, mode: i32, offset: u64, len: u64) -> Result<bool, i32> {
        while !missing.load(Ordering::Relaxed) {
            let entry = on_target!(self.target, |fd| opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build());
            match self.plain(entry).await {
                0.. => return Ok(true),
                result if is_transient(result) => {}
                result if is_unsupported(result) => missing.store(true, Ordering::Relaxed),
                result => return Err(-result),
            }
        }
        Ok(false)
    }

    /// An operation without a buffer.
    async fn plain(&self, entry: squeue::Entry) -> i32 {
        // SAFETY: the entry holds no pointer.
        unsafe { self.shard.start_drive_op(entry, Payload::None) }.await.result
    }
}

/// The ranges of `data` after the first `skip` bytes, as many as fit in one transfer. Ranges that
/// are adjacent in memory are joined.
fn gather(data: &Segments, skip: usize, vector: &mut Vec<libc::iovec>) -> Gathered {
    if let [segment] = data.as_slice() {
        let rest = &segment[skip..];
        return Gathered::One(NonNull::from(rest).cast(), rest.len().min(TRANSFER_BYTES_MAX));
    }
    vector.clear();
    let mut skip = skip;
    let mut room = TRANSFER_BYTES_MAX;
    for segment in data {
        let segment_skip = skip.min(segment.len());
        skip -= segment_skip;
        let rest = &segment[segment_skip..];
        let rest = &rest[..rest.len().min(room)];
        room -= rest.len();
        if rest.is_empty() {
            continue;
        }
        let start = rest.as_ptr();
        let is_full = vector.len() == RANGES_MAX;
        match vector.last_mut() {
            Some(last) if last.iov_base.cast_const().cast::<u8>().wrapping_add(last.iov_len) == start => {
                last.iov_len += rest.len();
            }
            _ if is_full => break,
            _ => vector.push(libc::iovec { iov_base: start.cast_mut().cast(), iov_len: rest.len() }),
        }
    }
    match vector.as_slice() {
        [one] => {
            let start = NonNull::new(one.iov_base.cast()).expect("a slice starts at an address");
            Gathered::One(start, one.iov_len)
        }
        _ => Gathered::Many,
    }
}

/// Whether the operation may be tried again.
fn is_transient(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}

/// Whether the kernel or the device does not support the operation.
fn is_unsupported(result: i32) -> bool {
    matches!(-result, libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL | libc::ENOSYS)
}

/// Translates an errno into an error of the engine.
pub(crate) fn drive_error(errno: i32, operation: &'static str, offset: u64, len: u64) -> DriveError {
    match errno {
        // EILSEQ: protection information does not fit. ENODATA: the block layer's name of a medium
        // error. ETIMEDOUT: the device gave up on this request. EREMOTEIO: target failure.
        libc::EIO | libc::ENODATA | libc::EILSEQ | libc::EREMOTEIO | libc::ETIMEDOUT | libc::EBADMSG => {
            DriveError::Media { offset, len }
        }
        libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM | libc::ESHUTDOWN | libc::ENOLINK | libc::ESTALE => {
            DriveError::Gone
        }
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => DriveError::NoSpace,
        libc::EROFS | libc::EPERM | libc::EACCES => DriveError::ReadOnly,
        _ => DriveError::Os { operation, errno },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(data: &Segments, skip: usize) -> Vec<(*const u8, usize)> {
        let mut vector = Vec::new();
        match gather(data, skip, &mut vector) {
            Gathered::One(start, len) => vec![(start.as_ptr().cast_const(), len)],
            Gathered::Many => vector.iter().map(|range| (range.iov_base.cast_const().cast(), range.iov_len)).collect(),
        }
    }

    #[test]
    fn neighbours_in_memory_are_one_range() {
        let whole = BufMut::zeroed(8192).freeze();
        let other = BufMut::zeroed(4096).freeze();
        let start = whole.as_ptr();
        let data: Segments =
            smallvec![whole.slice(0..100), whole.slice(100..4096), other.clone(), whole.slice(4096..8192)];
        let expected = [(start, 4096), (other.as_ptr(), 4096), (start.wrapping_add(4096), 4096)];
        assert_eq!(ranges(&data, 0), expected);
        assert_eq!(ranges(&data, 50), [(start.wrapping_add(50), 4046), expected[1], expected[2]]);
        assert_eq!(ranges(&data, 8192), [expected[2]]);
        let joined: Segments = smallvec![whole.slice(0..512), whole.slice(512..8192)];
        assert_eq!(ranges(&joined, 0), [(start, 8192)]);
    }

    #[test]
    fn no_transfer_has_more_ranges_than_the_kernel_takes() {
        let segment = BufMut::zeroed(512).freeze();
        let data: Segments = (0..RANGES_MAX + 10).map(|_| segment.clone()).collect();
        assert_eq!(ranges(&data, 0).len(), RANGES_MAX);
        assert_eq!(ranges(&data, 512 * RANGES_MAX).len(), 10);
    }
}
