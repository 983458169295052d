//! A drive as the engine uses it. All operations of a running group go through here, so that none is waited for without
//! end, and the reads' times are known.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use drive::{BufMut, Drive, DriveError, DriveInfo, Segments};

use crate::latency::class_of;
use crate::shared::DriveId;
use crate::watch::{Kind, Notice, Watch};

/// A drive of the group. An operation that has no answer within the group's time limit ends as [`DriveError::Gone`]
/// ([`crate::watch`] says which do); the drive keeps its buffers until it has finished with them.
#[derive(Clone)]
pub(crate) struct Handle<D> {
    drive: D,
    id: DriveId,
    watch: Rc<Watch>,
}

impl<D: Drive> Handle<D> {
    pub fn new(drive: D, id: DriveId, watch: Rc<Watch>) -> Self {
        Handle { drive, id, watch }
    }

    pub fn id(&self) -> DriveId {
        self.id
    }

    /// The drive itself, for who keeps watch himself.
    #[inline]
    pub fn unwatched(&self) -> &D {
        &self.drive
    }

    /// A read that finds out how the drive is, and that no user waits for.
    pub async fn probe(&self, offset: u64, buf: BufMut) -> Result<BufMut, DriveError> {
        self.run(Kind::Probe(class_of(buf.len())), self.drive.read(offset, buf)).await
    }

    /// A flush that is waited for as a write is, also where the group cannot do without the drive.
    pub async fn flush_patiently(&self) -> Result<(), DriveError> {
        self.run(Kind::Change, self.drive.flush()).await
    }

    async fn run<T>(
        &self,
        kind: Kind,
        operation: impl Future<Output = Result<T, DriveError>>,
    ) -> Result<T, DriveError> {
        let mut operation = pin!(operation);
        let mut flight = self.watch.flight(self.id, kind);
        poll_fn(|context| match operation.as_mut().poll(context) {
            Poll::Ready(result) => {
                flight.landed();
                Poll::Ready(result)
            }
            Poll::Pending => match flight.look(context) {
                Notice::Expired => Poll::Ready(Err(DriveError::Gone)),
                Notice::Late | Notice::None => Poll::Pending,
            },
        })
        .await
    }
}

impl<D: Drive> Drive for Handle<D> {
    fn info(&self) -> &DriveInfo {
        self.drive.info()
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, DriveError> {
        self.run(Kind::Read(class_of(buf.len())), self.drive.read(offset, buf)).await
    }

    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), DriveError> {
        self.run(Kind::Change, self.drive.write(offset, data, fua)).await
    }

    async fn flush(&self) -> Result<(), DriveError> {
        self.run(Kind::Flush, self.drive.flush()).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.run(Kind::Change, self.drive.discard(offset, len)).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.run(Kind::Change, self.drive.write_zeroes(offset, len)).await
    }
}
