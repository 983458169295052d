//! A namespace of another machine as a block device of this one, on one shard.
//!
//! Unlike a member of a group it uses the cache of its target: as with a drive, data are durable
//! once they were flushed or written with FUA.

use std::rc::Rc;

use drive::{Block, BlockError, Buf, BufMut, Extent, Segments, WriteZeroes};
use initiator::{Known, Namespace, PathStatus};
use runtime::ShardEnv;

use crate::engine::drives::remote::Attached;

/// A namespace that is connected on the calling shard. A handle; dropping the last one closes the
/// connections.
///
/// Requests have to be multiples of the namespace's block size, as for any block device.
#[derive(Clone)]
pub(crate) struct Connected(Rc<Attached>);

impl Connected {
    pub fn new(attached: Attached) -> Connected {
        Connected(Rc::new(attached))
    }

    fn namespace(&self) -> &Namespace<ShardEnv> {
        self.0.namespace()
    }

    fn known(&self) -> &Known {
        self.namespace().known()
    }

    /// The paths to the namespace.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.namespace().paths()
    }

    /// Disconnects. Unanswered requests fail.
    pub async fn close(&self) {
        self.namespace().close().await;
    }
}

impl Block for Connected {
    fn size_bytes(&self) -> u64 {
        self.namespace().size_bytes()
    }

    fn optimal_io_bytes(&self) -> u32 {
        self.known().info().block_bytes
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        self.namespace().read(offset, buf).await.map_err(|error| error.as_block_error())
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let written = self.namespace().write(offset, Segments::from_iter([data]), fua).await;
        written.map_err(|error| error.as_block_error())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        if how.only_fast && !self.known().about().has_write_zeroes() {
            return Err(BlockError::NotFast);
        }
        let done = self.namespace().write_zeroes(offset, len, how.fua, !how.keep_allocated).await;
        done.map_err(|error| error.as_block_error())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.namespace().deallocate(offset, len).await.map_err(|error| error.as_block_error())
    }

    fn discarded_reads_zeroes(&self) -> bool {
        self.known().info().deallocated_reads_zeroes
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.namespace().flush().await.map_err(|error| error.as_block_error())
    }

    /// Everything counts as allocated: the target does not tell which blocks were ever written.
    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        let size = self.size_bytes();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(BlockError::OutOfRange { offset, len, size });
        }
        Ok(vec![Extent { len, allocated: true }])
    }
}
