//! A drive at work: operations in flight, and their effects when they complete.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::task::Waker;

use ::drive::{Buf, BufMut, DriveError, DriveInfo, Nanos, Segments};

use super::Latency;
use super::faults::Faults;
use super::outage::Broken;
use super::request::{Request, join};
use super::store::{Fill, Store};
use crate::clock::Event;
use crate::rng::Rng;
use crate::trace::{Counts, OpKind, Phase, TapeEvent, TapeStep, TraceEntry};
use crate::world::World;

/// The state behind all handles of a drive.
pub(crate) struct DriveState {
    pub(crate) world: Rc<World>,
    pub(crate) index: u32,
    pub(crate) info: DriveInfo,
    pub(crate) inner: RefCell<MutableState>,
}

/// The mutable state.
pub(crate) struct MutableState {
    /// Counts power cuts and pulls. A handle of an earlier generation is dead.
    pub(crate) generation: u64,
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    /// Its content may be wrong without an error.
    pub(crate) tampered: bool,
    pub(crate) counts: Counts,
    pub(crate) latency: Latency,
    /// Latencies are multiplied by this.
    pub(crate) slowness: u32,
    /// Operations that the drive works on at the same time. Others wait in order. 0: no limit.
    pub(crate) channels: u32,
    /// Operations being worked on, if that is limited.
    busy: u32,
    waiting: VecDeque<(u32, u64)>,
    /// Without a cache, writes are durable at once.
    pub(crate) write_cache: bool,
    pub(crate) rng: Rng,
    discard_count: u32,
    in_flight: Vec<InFlightRequest>,
    free: Vec<u32>,
    serial_last: u64,
    /// Wakers of lost operations, to be woken once no borrow is held.
    lost_wakers: Vec<Waker>,
}

/// A buffer for reads, `None` for the others.
pub(crate) type OpResult = Result<Option<BufMut>, DriveError>;

/// The state of a request after it was handed to a drive.
pub(crate) enum Submitted {
    Done(OpResult),
    Flying(u32),
}

/// An operation in flight.
#[derive(Default)]
struct InFlightRequest {
    /// 0: the slot is free.
    serial: u64,
    /// Present until the operation completes.
    request: Option<Request>,
    /// Present from then on, until its future takes it.
    result: Option<OpResult>,
    waker: Option<Waker>,
    /// The future was dropped.
    abandoned: bool,
    /// No event will complete it: the drive hangs, or the world has stopped.
    held: bool,
}

impl DriveState {
    pub(crate) fn new(world: &Rc<World>, info: DriveInfo, latency: Latency, write_cache: bool) -> Rc<DriveState> {
        world.add_drive(|index, mut rng| {
            let store = Store::new(info.size_bytes, info.sector_bytes, rng.fork());
            let inner = MutableState {
                generation: 0,
                store,
                faults: Faults::default(),
                tampered: false,
                counts: Counts::default(),
                latency,
                slowness: 1,
                channels: 0,
                busy: 0,
                waiting: VecDeque::new(),
                write_cache,
                rng,
                discard_count: 0,
                in_flight: Vec::new(),
                free: Vec::new(),
                serial_last: 0,
                lost_wakers: Vec::new(),
            };
            Rc::new(DriveState { world: world.clone(), index, info, inner: RefCell::new(inner) })
        })
    }

    #[inline]
    fn note(&self, phase: Phase, kind: OpKind, (offset, len): (u64, u64), fua: bool) {
        self.world.note(|| TraceEntry { at: self.world.now(), drive_index: self.index, phase, kind, offset, len, fua });
    }

    #[inline]
    fn record(&self, serial: u64, step: impl FnOnce() -> Option<TapeStep>) {
        self.world.record(|| step().map(|step| TapeEvent { drive_index: self.index, serial, step }));
    }

    /// Takes an operation.
    pub(crate) fn submit(self: &Rc<Self>, generation: u64, mut request: Request, waker: &Waker) -> Submitted {
        let range = request.range();
        let mut inner = self.inner.borrow_mut();
        if generation != inner.generation || inner.faults.failed {
            return Submitted::Done(Err(DriveError::Gone));
        }
        if let Err(error) = self.info.check(range.0, range.1) {
            return Submitted::Done(Err(error));
        }
        inner.faults.count_given();
        let (kind, fua) = (request.kind(), request.fua());
        inner.counts.add(kind, range.1, fua);
        self.note(Phase::Start, kind, range, fua);
        if let Request::Flush(number) = &mut request {
            *number = inner.store.flush_begin();
        }
        // An immediate operation is never in flight, so a tape of immediate operations has no
        // states in between.
        self.record(inner.serial_last + 1, || request.tape_step());
        let held = if inner.is_immediate() {
            match self.execute(&mut inner, request) {
                Ok(result) => {
                    let wakers = mem::take(&mut inner.lost_wakers);
                    drop(inner);
                    wakers.into_iter().for_each(Waker::wake);
                    return Submitted::Done(result);
                }
                Err(refused) => {
                    request = refused;
                    true
                }
            }
        } else {
            inner.begin_early(&self.info, &request);
            inner.faults.answers_nothing() || mem::take(&mut inner.faults.lose_next)
        };
        let (slot, serial) = inner.fly(request, waker, held);
        if !held {
            self.schedule(&mut inner, slot, serial);
        }
        Submitted::Flying(slot)
    }

    fn schedule(self: &Rc<Self>, inner: &mut MutableState, slot: u32, serial: u64) {
        if inner.channels > 0 {
            if inner.busy >= inner.channels {
                inner.waiting.push_back((slot, serial));
                return;
            }
            inner.busy += 1;
        }
        let after = inner.latency_draw();
        self.world.schedule(after, Event::Drive { drive: self.clone(), slot, serial });
    }

    /// The event still refers to this operation.
    pub(crate) fn is_flying(&self, slot: u32, serial: u64) -> bool {
        let inner = self.inner.borrow();
        let request_in_flight = &inner.in_flight[slot as usize];
        request_in_flight.serial == serial && request_in_flight.request.is_some() && !request_in_flight.held
    }

    /// An operation is due.
    pub(crate) fn complete(self: &Rc<Self>, slot: u32, serial: u64) {
        let mut inner = self.inner.borrow_mut();
        let hung = inner.faults.answers_nothing();
        if inner.in_flight[slot as usize].serial != serial {
            return;
        }
        inner.busy = inner.busy.saturating_sub(1);
        if let Some((next, serial)) = inner.waiting.pop_front() {
            self.schedule(&mut inner, next, serial);
        }
        let request_in_flight = &mut inner.in_flight[slot as usize];
        let Some(request) = request_in_flight.request.take() else { return };
        if hung {
            (request_in_flight.request, request_in_flight.held) = (Some(request), true);
            return;
        }
        let changes = request.kind() != OpKind::Read;
        match self.execute(&mut inner, request) {
            Ok(result) => {
                self.record(serial, || changes.then_some(TapeStep::Done));
                let waker = inner.land(slot, result);
                let lost = mem::take(&mut inner.lost_wakers);
                drop(inner);
                waker.into_iter().chain(lost).for_each(Waker::wake);
            }
            Err(request) => {
                let request_in_flight = &mut inner.in_flight[slot as usize];
                (request_in_flight.request, request_in_flight.held) = (Some(request), true);
            }
        }
    }

    /// Executes a request. Gives it back if the world stops instead.
    fn execute(&self, inner: &mut MutableState, request: Request) -> Result<OpResult, Request> {
        if !self.world.admit() {
            return Err(request);
        }
        let (kind, range, fua) = (request.kind(), request.range(), request.fua());
        let result = inner.perform(&self.info, request);
        if inner.faults.failed {
            self.lose_in_flight(inner, &mut |rng, _| rng.chance(1, 2), false);
        }
        inner.counts.errors += u64::from(result.is_err());
        self.note(if result.is_ok() { Phase::Done } else { Phase::Failed }, kind, range, fua);
        Ok(result)
    }

    /// Ends all operations in flight with [`DriveError::Gone`]. Of the sectors that they would have
    /// changed, those that `survives` chooses are changed.
    fn lose_in_flight(&self, inner: &mut MutableState, survives: &mut dyn FnMut(&mut Rng, u64) -> bool, durable: bool) {
        let mut slots: Vec<u32> = (0..inner.in_flight.len() as u32).collect();
        inner.rng.shuffle(&mut slots);
        inner.busy = 0;
        inner.waiting.clear();
        for slot in slots {
            let Some(request) = inner.in_flight[slot as usize].request.take() else { continue };
            inner.apply_partly(&self.info, &request, survives, durable);
            inner.counts.errors += 1;
            self.note(Phase::Failed, request.kind(), request.range(), request.fua());
            inner.in_flight[slot as usize].held = false;
            let waker = inner.land(slot, Err(DriveError::Gone));
            inner.lost_wakers.extend(waker);
        }
    }

    /// The drive dies. Operations in flight are lost, the cache stays.
    pub(crate) fn fail(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.faults.failed = true;
        self.lose_in_flight(&mut inner, &mut |rng, _| rng.chance(1, 2), false);
        let wakers = mem::take(&mut inner.lost_wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The drive was pulled: handles opened before become useless. The cache stays.
    pub(crate) fn pull(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.generation += 1;
        self.lose_in_flight(&mut inner, &mut |rng, _| rng.chance(1, 2), false);
        let wakers = mem::take(&mut inner.lost_wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The drive loses its power.
    pub(crate) fn power_cut_by(&self, survives: &mut dyn FnMut(u64) -> bool) {
        let mut inner = self.inner.borrow_mut();
        inner.generation += 1;
        inner.store.power_cut(survives);
        self.lose_in_flight(&mut inner, &mut |_, offset| survives(offset), true);
        let wakers = mem::take(&mut inner.lost_wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// As [`DriveState::power_cut_by`], at random: from drive to drive, few or many sectors
    /// survive.
    pub(crate) fn power_cut(&self, rng: &mut Rng) {
        let of = 8;
        let hits = *rng.pick(&[0, 1, 4, 4, 4, 7, of]);
        self.power_cut_by(&mut |_| rng.chance(hits, of));
    }

    /// How many operations are held back: no event will complete them.
    pub(crate) fn held_count(&self) -> usize {
        self.inner.borrow().in_flight.iter().filter(|request_in_flight| request_in_flight.held).count()
    }

    /// How many operations have no result yet, or one that their future has not fetched.
    pub(crate) fn in_flight(&self) -> usize {
        let inner = self.inner.borrow();
        inner.in_flight.len() - inner.free.len()
    }

    /// Lets held operations complete, unless the drive hangs.
    pub(crate) fn release_held(self: &Rc<Self>) {
        let mut inner = self.inner.borrow_mut();
        if inner.faults.answers_nothing() {
            return;
        }
        for slot in 0..inner.in_flight.len() {
            let request_in_flight = &mut inner.in_flight[slot];
            if mem::take(&mut request_in_flight.held) {
                let serial = request_in_flight.serial;
                self.schedule(&mut inner, slot as u32, serial);
            }
        }
    }

    /// Asks for the result of an operation in flight.
    pub(crate) fn poll(&self, slot: u32, waker: &Waker) -> Option<OpResult> {
        let mut inner = self.inner.borrow_mut();
        let request_in_flight = &mut inner.in_flight[slot as usize];
        if let Some(result) = request_in_flight.result.take() {
            inner.release(slot);
            return Some(result);
        }
        match &mut request_in_flight.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        None
    }

    /// The future of an operation in flight was dropped.
    pub(crate) fn abandon(&self, slot: u32) {
        let mut inner = self.inner.borrow_mut();
        let request_in_flight = &mut inner.in_flight[slot as usize];
        let waker = request_in_flight.waker.take();
        let result = request_in_flight.result.take();
        request_in_flight.abandoned = true;
        if request_in_flight.request.is_none() {
            inner.release(slot);
        }
        drop(inner);
        drop((waker, result));
    }
}

impl MutableState {
    /// Operations complete when they are first polled.
    pub(crate) fn is_immediate(&self) -> bool {
        self.latency.is_immediate() && self.slowness == 1 && !self.faults.answers_nothing()
    }

    fn fly(&mut self, request: Request, waker: &Waker, held: bool) -> (u32, u64) {
        self.serial_last += 1;
        let serial = self.serial_last;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(InFlightRequest::default());
            (self.in_flight.len() - 1) as u32
        });
        let request_in_flight = InFlightRequest {
            serial,
            request: Some(request),
            waker: Some(waker.clone()),
            held,
            ..InFlightRequest::default()
        };
        self.in_flight[slot as usize] = request_in_flight;
        (slot, serial)
    }

    fn release(&mut self, slot: u32) {
        self.in_flight[slot as usize] = InFlightRequest::default();
        self.free.push(slot);
    }

    /// Leaves the result for its future; gives the waker to be woken once no borrow is held.
    fn land(&mut self, slot: u32, result: OpResult) -> Option<Waker> {
        let request_in_flight = &mut self.in_flight[slot as usize];
        if request_in_flight.abandoned {
            self.release(slot);
            return None;
        }
        request_in_flight.result = Some(result);
        request_in_flight.waker.take()
    }

    fn latency_draw(&mut self) -> Nanos {
        self.latency.draw(&mut self.rng).saturating_mul(u64::from(self.slowness))
    }

    /// A drive may begin to change sectors long before it completes a write. So a part of a write
    /// sometimes shows early.
    fn begin_early(&mut self, info: &DriveInfo, request: &Request) {
        let quiet = self.faults.lost_writes == 0 && self.faults.misdirected.is_empty() && self.faults.errors.is_empty();
        if quiet && matches!(request, Request::Write { .. }) && self.rng.chance(1, 8) {
            self.apply_partly(info, request, &mut |rng, _| rng.chance(1, 2), false);
        }
    }

    fn perform(&mut self, info: &DriveInfo, request: Request) -> OpResult {
        if let Some(left) = &mut self.faults.fail_after {
            let Some(fewer) = left.checked_sub(1) else {
                self.faults.fail_after = None;
                self.faults.failed = true;
                self.apply_partly(info, &request, &mut |rng, _| rng.chance(1, 2), false);
                return Err(DriveError::Gone);
            };
            *left = fewer;
        }
        if let Some(error) = self.faults.broken().and_then(Broken::error) {
            // The error does not say how far the operation came.
            let reached = self.rng.below(3);
            self.apply_partly(info, &request, &mut |rng, _| rng.chance(reached, 2), false);
            // A kernel may report a failing path as a failing medium.
            return match request {
                Request::Read { offset, buf } if error != DriveError::Gone && self.rng.chance(1, 2) => {
                    Err(DriveError::Media { offset, len: buf.len() as u64 })
                }
                _ => Err(error),
            };
        }
        if let Some(error) = self.faults.error_for(&request) {
            self.apply_partly(info, &request, &mut |rng, _| rng.chance(1, 2), false);
            return Err(error);
        }
        match request {
            Request::Read { offset, mut buf } => {
                let len = buf.len() as u64;
                if let Some(bad) = self.faults.unreadable.first_within(offset..offset + len) {
                    return Err(DriveError::Media { offset: bad.start, len: bad.end - bad.start });
                }
                self.store.read(offset, &mut buf);
                return Ok(Some(buf));
            }
            Request::Write { offset, data, fua } => self.write(info, offset, &data, fua),
            Request::Flush(number) => {
                if !self.faults.flush_ignored {
                    self.store.flush_end(number);
                }
            }
            Request::Discard { offset, len } if info.discards => self.discard(info, offset, len),
            Request::Discard { .. } => {}
            Request::Zeroes { offset, len } => {
                self.store.fill(offset, len, Fill::Zero, !self.write_cache);
                self.faults.unreadable.remove(offset..offset + len);
            }
        }
        Ok(None)
    }

    fn write(&mut self, info: &DriveInfo, offset: u64, data: &Segments, fua: bool) {
        if self.faults.lost_writes > 0 {
            self.faults.lost_writes -= 1;
            return;
        }
        let durable = !self.write_cache || (fua && !self.faults.flush_ignored);
        let mut at = match self.faults.misdirected.pop_front() {
            Some(elsewhere) => elsewhere,
            None => offset,
        };
        let sector = info.sector_bytes as usize;
        let joined;
        let mut parts: &[_] = data;
        if data.iter().any(|part| part.len() % sector != 0) {
            // A sector that consists of two segments is still written as one.
            joined = [Buf::from(join(data))];
            parts = &joined;
        }
        for part in parts {
            let len = (part.len() as u64).min(info.size_bytes.saturating_sub(at));
            self.store.write(at, &part[..len as usize], durable);
            self.faults.unreadable.remove(at..at + len);
            at += len;
        }
    }

    /// A discarded range reads as anything: garbage, zeroes, or its old content.
    fn discard(&mut self, info: &DriveInfo, offset: u64, len: u64) {
        self.discard_count = self.discard_count.wrapping_add(1).max(1);
        let pattern = Fill::Garbage(self.discard_count);
        match self.rng.below(4) {
            0 | 1 => self.store.fill(offset, len, pattern, !self.write_cache),
            _ if len > MIXED_DISCARD_BYTES => self.store.fill(offset, len, pattern, !self.write_cache),
            _ => {
                let sector = u64::from(info.sector_bytes);
                for at in (offset..offset + len).step_by(sector as usize) {
                    match self.rng.below(3) {
                        0 => self.store.fill(at, sector, pattern, !self.write_cache),
                        1 => self.store.fill(at, sector, Fill::Zero, !self.write_cache),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Applies a part of an operation that does not complete.
    fn apply_partly(
        &mut self,
        info: &DriveInfo,
        request: &Request,
        survives: &mut dyn FnMut(&mut Rng, u64) -> bool,
        durable: bool,
    ) {
        let sector = u64::from(info.sector_bytes);
        let durable = durable || !self.write_cache;
        match request {
            Request::Read { .. } | Request::Flush(_) => {}
            Request::Discard { .. } if !info.discards => {}
            Request::Write { offset, data, .. } => {
                let joined;
                let bytes: &[u8] = match &data[..] {
                    [only] => only,
                    several => {
                        joined = join(several);
                        &joined
                    }
                };
                let mut at = *offset;
                for bytes in bytes.chunks(sector as usize) {
                    if survives(&mut self.rng, at) {
                        self.store.write(at, bytes, durable);
                        self.faults.unreadable.remove(at..at + sector);
                    }
                    at += sector;
                }
            }
            Request::Discard { offset, len } | Request::Zeroes { offset, len } => {
                let discard = matches!(request, Request::Discard { .. });
                let fill = if discard { Fill::Garbage(self.discard_count.wrapping_add(1).max(1)) } else { Fill::Zero };
                // In pieces of 64 KiB, since long ranges would take too long sector by sector.
                let mut at = *offset;
                while at < offset + len {
                    let step = if *len > MIXED_DISCARD_BYTES { MIXED_DISCARD_BYTES } else { sector };
                    let here = step.min(offset + len - at);
                    if survives(&mut self.rng, at) {
                        self.store.fill(at, here, fill, durable);
                    }
                    at += here;
                }
            }
        }
    }
}

/// Up to this length a discarded or zeroed range is treated sector by sector.
const MIXED_DISCARD_BYTES: u64 = 1 << 16;
