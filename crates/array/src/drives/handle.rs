//! A drive as the engine uses it. All operations of a running group go through here, so that no
//! task waits for one without end, and the times of reads are known.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use drive::{BufMut, Drive, DriveError, DriveInfo, Segments};
use pin_project_lite::pin_project;

use crate::drives::in_flight::{InFlightRequest, InFlightTable, Kind, Notice};
use crate::drives::latency::class_of;
use crate::drives::outstanding::{Outstanding, Turn};
use crate::state::slot::DriveId;

/// A drive of the group. An operation that has no answer within the group's time limit ends as
/// [`DriveError::Gone`]. [`crate::drives::in_flight`] says which operations do. The drive keeps its
/// buffers until it has finished with them.
#[derive(Clone)]
pub(crate) struct Handle<D> {
    drive: D,
    id: DriveId,
    in_flight: Rc<InFlightTable>,
    outstanding: Rc<Outstanding>,
}

impl<D: Drive> Handle<D> {
    pub fn new(drive: D, id: DriveId, in_flight: Rc<InFlightTable>) -> Self {
        let outstanding = in_flight.outstanding(id);
        Handle { drive, id, in_flight, outstanding }
    }

    pub fn id(&self) -> DriveId {
        self.id
    }

    /// The drive itself, for a caller that does without the in-flight table.
    #[inline]
    pub fn untracked(&self) -> &D {
        &self.drive
    }

    /// A read that tests how the drive is. No client waits for it.
    pub fn probe(&self, offset: u64, buf: BufMut) -> impl Future<Output = Result<BufMut, DriveError>> {
        let len = buf.len();
        self.run(Kind::Probe(class_of(len)), len as u64, self.drive.read(offset, buf))
    }

    /// A flush that is waited for as a write is, even if the group cannot do without the drive.
    pub fn flush_patiently(&self) -> impl Future<Output = Result<(), DriveError>> {
        self.run(Kind::Change, 0, self.drive.flush())
    }

    /// Whether an operation that bypasses this handle has to wait before it goes to the drive.
    #[inline]
    pub fn must_wait(&self, bytes: u64) -> bool {
        self.outstanding.must_wait(bytes)
    }

    /// Counts an operation that bypasses this handle among those of the drive.
    #[inline]
    pub fn turn(&self, bytes: u64) -> Turn {
        self.outstanding.turn(bytes)
    }

    fn run<F>(&self, kind: Kind, bytes: u64, operation: F) -> Tracked<'_, F> {
        Tracked { operation, request: self.in_flight.request(self.id, kind), turn: self.outstanding.turn(bytes) }
    }
}

pin_project! {
    /// An operation in the in-flight table. No `async` block: that would have room for the
    /// operation twice, as it was given and where it is polled, and this is a part of every read
    /// and write.
    struct Tracked<'a, F> {
        #[pin]
        operation: F,
        request: InFlightRequest<'a>,
        turn: Turn,
    }
}

impl<T, F: Future<Output = Result<T, DriveError>>> Future for Tracked<'_, F> {
    type Output = Result<T, DriveError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.turn.poll_admitted(context).is_pending() {
            return Poll::Pending;
        }
        match this.operation.poll(context) {
            Poll::Ready(result) => {
                this.request.landed();
                this.turn.answered();
                Poll::Ready(result)
            }
            Poll::Pending => {
                this.turn.asked();
                match this.request.look(context) {
                    Notice::Expired => Poll::Ready(Err(DriveError::Gone)),
                    Notice::Late | Notice::None => Poll::Pending,
                }
            }
        }
    }
}

impl<D: Drive> Drive for Handle<D> {
    fn info(&self) -> &DriveInfo {
        self.drive.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> impl Future<Output = Result<BufMut, DriveError>> {
        let len = buf.len();
        self.run(Kind::Read(class_of(len)), len as u64, self.drive.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Segments, fua: bool) -> impl Future<Output = Result<(), DriveError>> {
        let bytes = data.iter().map(|segment| segment.len() as u64).sum();
        self.run(Kind::Change, bytes, self.drive.write(offset, data, fua))
    }

    fn flush(&self) -> impl Future<Output = Result<(), DriveError>> {
        self.run(Kind::Flush, 0, self.drive.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), DriveError>> {
        // A discard moves no data.
        self.run(Kind::Change, 0, self.drive.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), DriveError>> {
        // Some drives write zeroes as they write data.
        self.run(Kind::Change, len, self.drive.write_zeroes(offset, len))
    }
}
