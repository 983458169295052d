//! An I/O queue's namespaces, and its commands.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use drive::{Block, BlockError, Buf, BufMut, Env, Nanos, WriteZeroes, join_all};
use nvme::target::{Io, Namespace, TRANSFER_BYTES_MAX, ranges};
use nvme::{Command, Status};

use super::association::{Association, Seat};
use super::portal::Portal;
use super::queue::Queue;
use crate::counters::Kind;
use crate::state::{Alarm, ConnectionState, ExportState};

/// What an I/O queue has of a namespace.
pub(super) struct Handle<B> {
    block: B,
    /// As it was at first; the size may have changed.
    described: Namespace,
    export: Arc<ExportState>,
    state: Arc<ConnectionState>,
    in_flight: Cell<u32>,
}

/// An I/O queue's namespaces.
pub(super) struct Namespaces<B> {
    portal: Portal<B>,
    association: Arc<Association>,
    seat: Seat,
    /// Who the host is, for lists.
    peer: String,
    alarm: Arc<Alarm>,
    handles: RefCell<BTreeMap<u32, Rc<Handle<B>>>>,
    /// The one that was used last.
    last: RefCell<Option<(u32, Rc<Handle<B>>)>>,
}

impl<B: Block> Namespaces<B> {
    pub fn new(
        portal: Portal<B>,
        association: Arc<Association>,
        seat: Seat,
        peer: String,
        alarm: Arc<Alarm>,
    ) -> Namespaces<B> {
        Namespaces { portal, association, seat, peer, alarm, handles: RefCell::default(), last: RefCell::default() }
    }

    /// Reads a command.
    #[inline]
    pub fn plan(&self, command: &Command) -> Result<(Rc<Handle<B>>, Io), Status> {
        let handle = self.find(command.nsid.get())?;
        let blocks = handle.block.size_bytes() / u64::from(handle.described.block_bytes);
        let io = Io::of(command, &Namespace { blocks, ..handle.described })?;
        Ok((handle, io))
    }

    #[inline]
    fn find(&self, nsid: u32) -> Result<Rc<Handle<B>>, Status> {
        if let Some((number, handle)) = &*self.last.borrow()
            && *number == nsid
            && !handle.is_ending()
        {
            return Ok(handle.clone());
        }
        let known = self.handles.borrow().get(&nsid).cloned();
        let handle = match known {
            Some(handle) => handle,
            None => {
                let handle = Rc::new(self.open(nsid).ok_or(Status::INVALID_NAMESPACE)?);
                // Whether it ends or not: who entered has to be found to leave.
                self.handles.borrow_mut().insert(nsid, handle.clone());
                handle
            }
        };
        if handle.is_ending() {
            return Err(Status::INVALID_NAMESPACE);
        }
        *self.last.borrow_mut() = Some((nsid, handle.clone()));
        Ok(handle)
    }

    fn open(&self, nsid: u32) -> Option<Handle<B>> {
        let offer = self.portal.find(&self.association.subsystem, &self.association.host.nqn, nsid)?;
        let block = (offer.open)()?;
        let state = offer.state.enter(self.peer.clone(), false, self.alarm.clone())?;
        let described = offer.describe(nsid, &block);
        Some(Handle { block, described, export: offer.state, state, in_flight: Cell::new(0) })
    }

    /// To be called when the alarm was rung: lets go of namespaces that end, and says whether the queue has to end, too.
    pub fn must_end(&self) -> bool {
        self.last.borrow_mut().take_if(|(_, handle)| handle.is_ending());
        self.handles.borrow_mut().retain(|_, handle| {
            let ends = handle.is_ending() && handle.in_flight.get() == 0;
            if ends {
                handle.export.leave(&handle.state);
            }
            !ends
        });
        self.seat.is_lost() || self.handles.borrow().values().any(|handle| handle.state.is_cut())
    }

    /// The queue has ended, and nothing is in flight.
    pub fn leave(&self) {
        *self.last.borrow_mut() = None;
        for handle in std::mem::take(&mut *self.handles.borrow_mut()).values() {
            handle.export.leave(&handle.state);
        }
    }
}

/// Bytes that a command holds while it is served: its data, and what is read only to be looked at.
#[inline]
pub(super) fn held_bytes(io: &Io) -> u64 {
    u64::from(match io {
        Io::Verify { len, .. } => (*len).min(TRANSFER_BYTES_MAX),
        Io::Compare { len, .. } => 2 * len,
        _ => io.data_bytes(),
    })
}

fn kind(io: &Io) -> Kind {
    match io {
        Io::Read { .. } | Io::Compare { .. } | Io::Verify { .. } => Kind::Read,
        Io::Write { .. } => Kind::Write,
        Io::Flush => Kind::Flush,
        Io::WriteZeroes { .. } => Kind::WriteZeroes,
        Io::Deallocate { .. } | Io::Hint { .. } => Kind::Trim,
    }
}

impl<B> Handle<B> {
    /// The namespace takes no more commands.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.export.stopping()
    }

    /// A command will be served.
    pub fn accepted(&self, io: &Io) {
        self.in_flight.set(self.in_flight.get() + 1);
        self.state.counters.accepted(kind(io));
    }
}

/// Serves a command that the link has admitted with its [`held_bytes`], and puts its answer in the outbox. `data` is what it brought.
pub(super) async fn serve<B: Block>(
    queue: Rc<Queue>,
    handle: Rc<Handle<B>>,
    cid: u16,
    io: Io,
    data: Option<BufMut>,
    arrived: Nanos,
    alarm: Arc<Alarm>,
) {
    let answer = execute(&queue, &handle, io, data).await;
    let counters = &handle.state.counters;
    let took = queue.link.env.now().saturating_sub(arrived);
    counters.answered(kind(&io), took, answer.is_err());
    let (bytes, held) = (u64::from(io.data_bytes()), held_bytes(&io));
    match answer {
        Ok(Some(data)) => {
            counters.read(bytes);
            queue.deliver(cid, data, 0, held);
        }
        Ok(None) => {
            if matches!(io, Io::Write { .. }) {
                counters.written(bytes);
            }
            queue.complete(cid, Status::SUCCESS, 0, held);
        }
        Err(status) => queue.complete(cid, status, 0, held),
    }
    handle.in_flight.set(handle.in_flight.get() - 1);
    if handle.is_ending() {
        alarm.ring();
    }
}

async fn execute<B: Block>(
    queue: &Queue,
    handle: &Handle<B>,
    io: Io,
    data: Option<BufMut>,
) -> Result<Option<Buf>, Status> {
    let (block, env) = (&handle.block, &queue.link.env);
    let brought = || data.ok_or(Status::DATA_SGL_LENGTH_INVALID);
    let done = match io {
        Io::Flush => block.flush().await,
        Io::Read { offset, len } => {
            let read = block.read(offset, env.alloc(len as usize)).await.map_err(|error| status(&error, false))?;
            return Ok(Some(read.freeze()));
        }
        Io::Write { offset, fua, .. } => block.write(offset, brought()?.freeze(), fua).await,
        Io::Compare { offset, len } => {
            let brought = brought()?;
            let read = block.read(offset, env.alloc(len as usize)).await.map_err(|error| status(&error, false))?;
            return if read[..] == brought[..] { Ok(None) } else { Err(Status::COMPARE_FAILURE) };
        }
        Io::WriteZeroes { offset, len, fua, deallocate } => {
            let how = WriteZeroes { fua, keep_allocated: !deallocate, only_fast: false };
            block.write_zeroes(offset, u64::from(len), how).await
        }
        Io::Deallocate { .. } => {
            let blocks = block.size_bytes() / u64::from(handle.described.block_bytes);
            // Behind the ranges there may be more, which means nothing.
            let brought = brought()?;
            let data = &brought[..io.data_bytes() as usize];
            let ranges = ranges(data, &Namespace { blocks, ..handle.described })?;
            let discards = ranges.iter().map(|range| block.discard(range.offset, range.len));
            join_all(discards).await.into_iter().collect()
        }
        Io::Hint { .. } => Ok(()),
        Io::Verify { offset, len } => {
            let (mut at, end) = (offset, offset + u64::from(len));
            while at < end {
                let part = (end - at).min(u64::from(TRANSFER_BYTES_MAX));
                block.read(at, env.alloc(part as usize)).await.map_err(|error| status(&error, false))?;
                at += part;
            }
            Ok(())
        }
    };
    done.map(|()| None).map_err(|error| status(&error, true))
}

/// The status for a volume's error. `changes`: the command was one that writes.
fn status(error: &BlockError, changes: bool) -> Status {
    match error {
        BlockError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE,
        BlockError::ReadOnly { .. } => Status::WRITE_PROTECTED,
        BlockError::Lost { .. } | BlockError::Unknown { .. } if changes => Status::WRITE_FAULT,
        BlockError::Lost { .. } | BlockError::Unknown { .. } => Status::UNRECOVERED_READ_ERROR,
        BlockError::NoSpace => Status::CAPACITY_EXCEEDED,
        BlockError::NotFast => Status::INTERNAL_ERROR,
        BlockError::Stopped => Status::NAMESPACE_NOT_READY,
    }
}
