//! Simulated drives.

mod faults;
mod outage;
mod request;
pub(crate) mod state;
mod store;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ::drive::{Buf, BufMut, Drive, DriveError, DriveInfo, Nanos, Segments, View};

#[cfg(test)]
pub(crate) use self::faults::Ranges;
pub use self::outage::{Broken, Outage};
use self::request::Request;
pub(crate) use self::state::DriveState;
use self::state::{OpResult, Submitted};
pub use self::store::{Image, PageRc};
use crate::rng::Rng;
use crate::trace::{Counts, OpKind};
use crate::world::SimEnv;

/// How long operations take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    min: Nanos,
    max: Nanos,
    spike_one_in: u64,
    spike: Nanos,
}

impl Latency {
    /// Operations complete when they are first polled, and no time passes: fastest, but with a
    /// single order.
    pub const IMMEDIATE: Latency = Latency { min: 0, max: 0, spike_one_in: 0, spike: 0 };

    /// The default: 5 to 100 µs, so that operations overtake each other often.
    pub const USUAL: Latency = Latency { min: 5_000, max: 100_000, spike_one_in: 0, spike: 0 };

    /// Evenly distributed from `min` to `max` nanoseconds. With 1 for both, every operation takes a
    /// turn, and operations that were started together complete in any order; with 0 it is
    /// [`Latency::IMMEDIATE`].
    ///
    /// # Panics
    /// If `min` is larger than `max`.
    pub fn between(min: Nanos, max: Nanos) -> Latency {
        assert!(min <= max, "a latency from {min} to {max} ns");
        Latency { min, max, ..Latency::IMMEDIATE }
    }

    /// One operation in `one_in` takes `spike` nanoseconds instead. 0: none does.
    #[must_use]
    pub fn with_spikes(self, one_in: u64, spike: Nanos) -> Latency {
        Latency { spike_one_in: one_in, spike, ..self }
    }

    fn is_immediate(self) -> bool {
        self == Latency::IMMEDIATE
    }

    fn draw(self, rng: &mut Rng) -> Nanos {
        if self.spike_one_in > 0 && rng.chance(1, self.spike_one_in) {
            return self.spike;
        }
        if self.is_immediate() {
            // Used only if the drive is slow, or held the operation back: a microsecond to be
            // multiplied.
            return 1_000;
        }
        self.min + rng.below((self.max - self.min).saturating_add(1))
    }
}

/// The options of a new drive.
#[derive(Debug, Clone)]
pub struct DriveOptions {
    /// Identity and limits.
    pub info: DriveInfo,
    /// How long operations take.
    pub latency: Latency,
    /// Without a cache, a write is durable when it is done.
    pub write_cache: bool,
}

impl DriveOptions {
    /// A drive with a volatile cache and discards.
    pub fn new(name: &str, size_bytes: u64, sector_bytes: u32) -> Self {
        DriveOptions {
            info: DriveInfo {
                name: name.to_owned(),
                size_bytes,
                sector_bytes,
                atomic_bytes: sector_bytes,
                discards: true,
            },
            latency: Latency::USUAL,
            write_cache: true,
        }
    }
}

/// A handle to a simulated drive.
///
/// A fresh drive is full of garbage. Discarded ranges hold garbage, zeroes, or their old content.
/// Memory is used only for written data.
///
/// Completed writes are read back at once. They are durable after a flush that was started later,
/// or with FUA. At a power cut, each sector that is not durable is lost or kept at random. Of
/// several versions written since the last flush any one may be left. An operation in flight may
/// show its effect partly before it completes. If the drive fails or loses its power then, any part
/// of its sectors is changed.
#[derive(Clone)]
pub struct SimDrive {
    state: Rc<DriveState>,
    generation: u64,
}

impl SimDrive {
    /// A drive with the defaults of [`DriveOptions::new`].
    ///
    /// # Panics
    /// If `sector_bytes` is neither 512 nor 4096, or `size_bytes` no multiple of it.
    pub fn new(env: &SimEnv, name: &str, size_bytes: u64, sector_bytes: u32) -> Self {
        SimDrive::with_options(env, DriveOptions::new(name, size_bytes, sector_bytes))
    }

    /// A drive.
    ///
    /// # Panics
    /// If the sector size is neither 512 nor 4096, or the size no multiple of it.
    pub fn with_options(env: &SimEnv, options: DriveOptions) -> Self {
        let DriveOptions { info, latency, write_cache } = options;
        assert!(matches!(info.sector_bytes, 512 | 4096), "a sector of {} bytes", info.sector_bytes);
        assert!(
            info.size_bytes.is_multiple_of(u64::from(info.sector_bytes)),
            "a drive of {} bytes with sectors of {}",
            info.size_bytes,
            info.sector_bytes
        );
        SimDrive { state: DriveState::new(&env.world, info, latency, write_cache), generation: 0 }
    }

    /// A drive that holds an image, which gives its page of 4 KiB with each number. The image is
    /// asked for a page whenever that is read, until the page is written.
    ///
    /// # Panics
    /// As [`SimDrive::with_options`].
    pub fn with_image(env: &SimEnv, options: DriveOptions, image: Image) -> Self {
        let drive = SimDrive::with_options(env, options);
        drive.state.inner.borrow_mut().store.hold(image);
        drive
    }

    /// The number of this drive in [`crate::TraceEntry`]: drives count from 0 in the order of their
    /// creation.
    pub fn index(&self) -> u32 {
        self.state.index
    }

    /// Changes the latency of operations that are started from now on.
    pub fn set_latency(&self, latency: Latency) {
        self.state.inner.borrow_mut().latency = latency;
    }

    /// Multiplies latencies by `factor`, from now on. 1 is normal. An operation of an immediate
    /// drive counts as 1 µs then.
    ///
    /// # Panics
    /// If `factor` is 0.
    pub fn slow(&self, factor: u32) {
        assert!(factor > 0, "a drive cannot be faster than time");
        self.state.inner.borrow_mut().slowness = factor;
    }

    /// Lets the drive work on this many operations at the same time; others wait in order of
    /// arrival. So it can be busy, and has a maximum rate. 0, the default: no limit.
    pub fn set_channels(&self, channels: u32) {
        self.state.inner.borrow_mut().channels = channels;
    }

    /// Cuts the drive's power. Sectors that are not durable and those in flight survive at random.
    /// Operations in flight end with [`DriveError::Gone`], as do all later ones of this handle and
    /// its clones; [`SimDrive::reopen`] gives a working one.
    pub fn power_cut(&self, rng: &mut Rng) {
        self.state.power_cut(rng);
    }

    /// As [`SimDrive::power_cut`], but `survives` decides for the offset of each sector. It is
    /// called first for those in the cache, then for those in flight, separately for each
    /// operation.
    pub fn power_cut_by(&self, mut survives: impl FnMut(u64) -> bool) {
        self.state.power_cut_by(&mut survives);
    }

    /// Offsets of the sectors that a power cut could take now, ascending. Without those in flight.
    pub fn unflushed(&self) -> Vec<u64> {
        self.state.inner.borrow().store.unflushed()
    }

    /// A new handle after a power cut. The drive's faults stay: a failed drive is gone for the new
    /// handle too.
    #[must_use]
    pub fn reopen(&self) -> SimDrive {
        let generation = self.state.inner.borrow().generation;
        SimDrive { state: self.state.clone(), generation }
    }

    /// Ends every fault except unreadable ranges, damaged content and outages, and gives a new
    /// handle: the drive is back.
    pub fn revive(&self) -> SimDrive {
        {
            let mut inner = self.state.inner.borrow_mut();
            let unreadable = std::mem::take(&mut inner.faults.unreadable);
            let outages = std::mem::take(&mut inner.faults.outages);
            inner.faults = faults::Faults { unreadable, outages, ..faults::Faults::default() };
            inner.slowness = 1;
        }
        self.state.release_held();
        self.reopen()
    }

    /// The drive dies: from now on all operations, also those in flight, end with
    /// [`DriveError::Gone`]. The cache stays, as if a cable was pulled; power can be cut in
    /// addition. [`SimDrive::revive`] brings it back.
    pub fn fail(&self) {
        self.state.fail();
    }

    /// The drive dies after `op_count` more operations, instead of completing the next one.
    pub fn fail_after(&self, op_count: u64) {
        self.state.inner.borrow_mut().faults.fail_after = Some(op_count);
    }

    /// The drive is dead.
    pub fn is_failed(&self) -> bool {
        self.state.inner.borrow().faults.failed
    }

    /// The drive is absent for a while, and cannot be opened ([`Outage`]).
    pub fn is_disconnected(&self) -> bool {
        self.state.inner.borrow().faults.broken().is_some_and(Broken::is_disconnected)
    }

    /// All of its content can be read, and equals the written data, as long as its cache lives.
    pub fn is_undamaged(&self) -> bool {
        let inner = self.state.inner.borrow();
        !inner.tampered && inner.faults.unreadable.is_empty()
    }

    /// With `true` operations are taken, but do not complete. With `false` they continue.
    pub fn hang(&self, hung: bool) {
        self.state.inner.borrow_mut().faults.hung = hung;
        self.state.release_held();
    }

    /// The drive stops answering once it got `op_count` more operations; operations in flight then
    /// do not complete either. This persists over power cuts.
    pub fn mute_after(&self, op_count: u64) {
        self.state.inner.borrow_mut().faults.mute_after = Some(op_count);
    }

    /// The next operation is taken and never answered; later ones are. Does not apply to immediate
    /// drives.
    pub fn lose_next_operation(&self) {
        self.state.inner.borrow_mut().faults.lose_next = true;
    }

    /// The drive answers again, also the operations from before.
    pub fn unmute(&self) {
        let mut inner = self.state.inner.borrow_mut();
        (inner.faults.mute, inner.faults.mute_after) = (false, None);
        drop(inner);
        self.state.release_held();
    }

    /// The drive does not answer any more.
    pub fn is_mute(&self) -> bool {
        self.state.inner.borrow().faults.mute
    }

    /// Reads of the sectors in this range of bytes fail with [`DriveError::Media`], until they are
    /// written or zeroed.
    pub fn media_error(&self, range: Range<u64>) {
        let sector = u64::from(self.state.info.sector_bytes);
        let whole = range.start / sector * sector..range.end.div_ceil(sector) * sector;
        self.state.inner.borrow_mut().faults.unreadable.insert(whole);
    }

    /// Writes that touch this range of bytes fail, like those of a medium without spare sectors,
    /// until [`SimDrive::revive`]. Any part of their sectors is changed.
    pub fn refuse_writes(&self, range: Range<u64>) {
        self.state.inner.borrow_mut().faults.unwritable.insert(range);
    }

    /// The next operation of a kind fails with `error`. If it changes data, any part of its sectors
    /// is changed. Several calls fail several operations.
    pub fn error_next(&self, kind: OpKind, error: DriveError) {
        self.state.inner.borrow_mut().faults.errors.push_back((kind, error));
    }

    /// Bit rot: flips at least one bit, at most four, in the part of each sector that is in the
    /// range. No operation reports it.
    pub fn corrupt(&self, offset: u64, len: u64) {
        self.state.check_raw(offset, len);
        let mut inner = self.state.inner.borrow_mut();
        let inner = &mut *inner;
        inner.tampered = true;
        let sector = u64::from(self.state.info.sector_bytes);
        let mut at = offset;
        while at < offset + len {
            let end = (at / sector * sector + sector).min(offset + len);
            let bit_count = (end - at) * 8;
            let first = inner.rng.below(bit_count);
            // No multiple of 13 up to 39 is a whole number of bytes in bits: no flip undoes
            // another.
            for step in 0..inner.rng.range(1..5) {
                let bit = (first + step * 13) % bit_count;
                inner.store.tamper(at + bit / 8, 1, |_, bytes| bytes[0] ^= 1 << (bit % 8));
            }
            at = end;
        }
    }

    /// The next `count` writes are acknowledged and dropped.
    pub fn lose_writes(&self, count: u64) {
        let mut inner = self.state.inner.borrow_mut();
        inner.tampered |= count > 0;
        inner.faults.lost_writes = count;
    }

    /// The next write lands at `offset` instead, as far as the drive reaches. Several calls
    /// misdirect several writes.
    ///
    /// # Panics
    /// If `offset` is misaligned or out of range.
    pub fn misdirect_next_write(&self, offset: u64) {
        self.state.info.check(offset, 0).expect("a write lands on whole sectors of the drive");
        let mut inner = self.state.inner.borrow_mut();
        inner.tampered = true;
        inner.faults.misdirected.push_back(offset);
    }

    /// Writes land at their own offsets again; pending calls of [`SimDrive::misdirect_next_write`]
    /// are canceled.
    pub fn direct_writes(&self) {
        self.state.inner.borrow_mut().faults.misdirected.clear();
    }

    /// With `true`, flushes and FUA are acknowledged and do nothing. No array can survive a power
    /// cut then, which shows that a test of crashes can fail.
    pub fn ignore_flushes(&self, ignored: bool) {
        self.state.inner.borrow_mut().faults.flush_ignored = ignored;
    }

    /// Operations that the drive has taken, until their future has the result. If the future was
    /// dropped, until they complete.
    pub fn in_flight(&self) -> usize {
        self.state.in_flight()
    }

    /// The content that a read would give, without an operation, a fault or an alignment.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn read_raw(&self, offset: u64, len: u64) -> Vec<u8> {
        self.state.check_raw(offset, len);
        let mut bytes = vec![0; usize::try_from(len).expect("the range fits into memory")];
        self.state.inner.borrow().store.read(offset, &mut bytes);
        bytes
    }

    /// Changes the content, durably, without an operation, a fault or an alignment.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn write_raw(&self, offset: u64, bytes: &[u8]) {
        self.state.check_raw(offset, bytes.len() as u64);
        self.state.inner.borrow_mut().store.tamper(offset, bytes.len() as u64, |at, into| {
            let from = (at - offset) as usize;
            into.copy_from_slice(&bytes[from..from + into.len()]);
        });
    }

    /// The operations of the drive so far.
    pub fn counts(&self) -> Counts {
        self.state.inner.borrow().counts
    }

    /// The operations of the drive since the last call.
    pub fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.state.inner.borrow_mut().counts)
    }

    fn run(&self, request: Request) -> Op<'_> {
        Op { drive: self, stage: Stage::Start(request) }
    }
}

impl DriveState {
    fn check_raw(&self, offset: u64, len: u64) {
        let size = self.info.size_bytes;
        let inside = offset.checked_add(len).is_some_and(|end| end <= size);
        assert!(inside, "range {offset}+{len} lies outside of a drive of {size} bytes");
    }
}

impl Drive for SimDrive {
    fn info(&self) -> &DriveInfo {
        &self.state.info
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, DriveError> {
        let buf = self.run(Request::Read { offset, buf }).await?;
        Ok(buf.expect("a read gives its buffer back"))
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> Option<Result<(), DriveError>> {
        if !self.state.inner.borrow().is_immediate() {
            return None;
        }
        let request = Request::Read { offset, buf: BufMut::zeroed(buf.len()) };
        match self.state.submit(self.generation, request, Waker::noop()) {
            Submitted::Done(result) => Some(result.map(|read| {
                buf.copy_from_slice(&read.expect("a read gives its buffer back"));
            })),
            // The world stops.
            Submitted::Flying(slot) => {
                self.state.abandon(slot);
                None
            }
        }
    }

    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(View<'_>) -> T) -> Option<T> {
        let mut bytes = vec![0; len];
        self.read_now(offset, &mut bytes)?.ok()?;
        Some(look(bytes[..].into()))
    }

    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), DriveError> {
        self.run(Request::Write { offset, data, fua }).await.map(drop)
    }

    fn write_now(&self, offset: u64, data: &Buf) -> Option<Result<(), DriveError>> {
        if !self.state.inner.borrow().is_immediate() {
            return None;
        }
        let request = Request::Write { offset, data: Segments::from_iter([data.clone()]), fua: false };
        match self.state.submit(self.generation, request, Waker::noop()) {
            Submitted::Done(result) => Some(result.map(drop)),
            // The world stops.
            Submitted::Flying(slot) => {
                self.state.abandon(slot);
                None
            }
        }
    }

    async fn flush(&self) -> Result<(), DriveError> {
        self.run(Request::Flush(0)).await.map(drop)
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.run(Request::Discard { offset, len }).await.map(drop)
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.run(Request::Zeroes { offset, len }).await.map(drop)
    }
}

/// An operation's future. It starts when it is first polled.
struct Op<'a> {
    drive: &'a SimDrive,
    stage: Stage,
}

enum Stage {
    Start(Request),
    Flying(u32),
    Ended,
}

impl Future for Op<'_> {
    type Output = OpResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<OpResult> {
        let SimDrive { state, generation } = self.drive;
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Start(request) => match state.submit(*generation, request, context.waker()) {
                Submitted::Done(result) => Poll::Ready(result),
                Submitted::Flying(slot) => {
                    self.stage = Stage::Flying(slot);
                    Poll::Pending
                }
            },
            Stage::Flying(slot) => match state.poll(slot, context.waker()) {
                Some(result) => Poll::Ready(result),
                None => {
                    self.stage = Stage::Flying(slot);
                    Poll::Pending
                }
            },
            Stage::Ended => panic!("polled again after it was done"),
        }
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if let Stage::Flying(slot) = self.stage {
            self.drive.state.abandon(slot);
        }
    }
}
