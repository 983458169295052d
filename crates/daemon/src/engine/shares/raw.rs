//! A shared drive, served to hosts without a group.
//!
//! A host whose connection ended repeats unanswered commands on another connection, while the drive
//! may still be executing the first copy. A drive does not order concurrent commands. So
//! overlapping changes wait for each other here, across connections and shards.

use std::sync::Arc;

use drive::{Block, BlockError, Buf, BufMut, Drive, DriveError, Extent, Order, Segments, WriteZeroes};

/// A drive on one shard, with no layer between it and its clients. A handle.
///
/// Requests have to be multiples of the drive's sectors, as those of NVMe hosts are.
#[derive(Clone)]
pub(crate) struct Raw {
    pub drive: runtime::Drive,
    /// The same on all shards.
    pub order: Arc<Order>,
}

/// Converts an error to that of a volume. A host sees an unreadable or unwritable medium for every
/// fault of the drive, so that its own redundancy takes over.
pub(crate) fn error(error: DriveError) -> BlockError {
    match error {
        DriveError::OutOfRange { offset, len, size } => BlockError::OutOfRange { offset, len, size },
        DriveError::NoSpace => BlockError::NoSpace,
        DriveError::ReadOnly => BlockError::ReadOnly { reason: "the drive is" },
        DriveError::Media { .. }
        | DriveError::Gone
        | DriveError::Silent { .. }
        | DriveError::Misaligned { .. }
        | DriveError::Os { .. } => BlockError::Lost { lost: 1, survives: 0 },
    }
}

impl Block for Raw {
    fn size_bytes(&self) -> u64 {
        self.drive.info().size_bytes
    }

    fn optimal_io_bytes(&self) -> u32 {
        self.drive.info().sector_bytes
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        self.drive.read(offset, buf).await.map_err(error)
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let turn = self.order.enter(offset, data.len() as u64);
        turn.come().await;
        self.drive.write(offset, Segments::from_iter([data]), fua).await.map_err(error)
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        let turn = self.order.enter(offset, len);
        turn.come().await;
        self.drive.write_zeroes(offset, len).await.map_err(error)?;
        drop(turn);
        if how.fua { self.flush().await } else { Ok(()) }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let turn = self.order.enter(offset, len);
        turn.come().await;
        self.drive.discard(offset, len).await.map_err(error)
    }

    fn discarded_reads_zeroes(&self) -> bool {
        false
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.drive.flush().await.map_err(error)
    }

    /// Everything counts as allocated: the drive does not tell which blocks were ever written.
    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.drive.info().check(offset, 0).map_err(error)?;
        Ok(vec![Extent { len, allocated: true }])
    }
}
