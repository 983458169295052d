//! Unaligned requests on a namespace with blocks.
//!
//! Invariants:
//! 1. A partial change of a block is a read, a change and a write. No other request changes the
//!    block meanwhile.
//! 2. A request is answered when all of it is done.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use drive::{Block, BlockError, Buf, BufMut, Extent, Receiver, Segments, Sender, WriteZeroes, oneshot};
use initiator::{IoError, Namespace, Network};

/// A handle to a namespace with byte granularity.
pub(super) struct Edges<N: Network> {
    disk: Namespace<N>,
    block: u64,
    changing: Rc<RefCell<Changing>>,
}

impl<N: Network> Clone for Edges<N> {
    fn clone(&self) -> Self {
        Edges { disk: self.disk.clone(), block: self.block, changing: self.changing.clone() }
    }
}

#[derive(Default)]
struct Changing {
    ranges: Vec<Range<u64>>,
    waiting: Vec<Sender<()>>,
}

/// Blocks that no other request changes until this is dropped.
struct Held<'a> {
    changing: &'a RefCell<Changing>,
    range: Range<u64>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut changing = self.changing.borrow_mut();
            let at = changing.ranges.iter().position(|range| *range == self.range);
            changing.ranges.swap_remove(at.expect("it was held"));
            std::mem::take(&mut changing.waiting)
        };
        waiting.into_iter().for_each(|waiting| waiting.send(()));
    }
}

impl<N: Network> Edges<N> {
    pub fn new(disk: Namespace<N>) -> Edges<N> {
        let block = disk.info().block_bytes.into();
        Edges { disk, block, changing: Rc::default() }
    }

    pub fn disk(&self) -> &Namespace<N> {
        &self.disk
    }

    /// The whole blocks around a range.
    fn around(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset.saturating_add(len).checked_next_multiple_of(self.block).unwrap_or(u64::MAX);
        offset / self.block * self.block..end
    }

    /// The whole blocks in a range; empty if there are none.
    fn inside(&self, offset: u64, len: u64) -> Range<u64> {
        let end = offset.saturating_add(len) / self.block * self.block;
        let start = offset.checked_next_multiple_of(self.block).unwrap_or(u64::MAX);
        start..end.max(start)
    }

    async fn hold(&self, range: Range<u64>) -> Held<'_> {
        while let Some(wait) = self.try_hold(&range) {
            // If the sender is gone there is nothing to wait for.
            let _ = wait.await;
        }
        Held { changing: &self.changing, range }
    }

    /// Holds a range, or returns a receiver to wait for before the next attempt.
    fn try_hold(&self, range: &Range<u64>) -> Option<Receiver<()>> {
        let mut changing = self.changing.borrow_mut();
        if changing.ranges.iter().any(|held| held.start < range.end && range.start < held.end) {
            let (sender, receiver) = oneshot();
            changing.waiting.push(sender);
            return Some(receiver);
        }
        changing.ranges.push(range.clone());
        None
    }

    async fn read_any(&self, offset: u64, mut buf: BufMut) -> Result<BufMut, IoError> {
        let len = buf.len();
        let around = self.around(offset, len as u64);
        if around == (offset..offset + len as u64) {
            return self.disk.read(offset, buf).await;
        }
        let whole = self.disk.read(around.start, BufMut::zeroed((around.end - around.start) as usize)).await?;
        let from = (offset - around.start) as usize;
        buf.copy_from_slice(&whole[from..from + len]);
        Ok(buf)
    }

    async fn write_any(&self, offset: u64, data: Buf, fua: bool) -> Result<(), IoError> {
        let len = data.len() as u64;
        let around = self.around(offset, len);
        let _held = self.hold(around.clone()).await;
        if around == (offset..offset + len) {
            return self.disk.write(offset, Segments::from_iter([data]), fua).await;
        }
        let whole = self.changed(around.clone(), offset, &data).await?;
        self.disk.write(around.start, Segments::from_iter([whole]), fua).await
    }

    /// The content of the blocks `around`, with `data` at `offset`.
    async fn changed(&self, around: Range<u64>, offset: u64, data: &[u8]) -> Result<Buf, IoError> {
        let block = self.block as usize;
        let mut whole = BufMut::zeroed((around.end - around.start) as usize);
        let from = (offset - around.start) as usize;
        let last = whole.len() - block;
        let first = self.disk.read(around.start, BufMut::zeroed(block)).await?;
        whole[..block].copy_from_slice(&first);
        if last > 0 {
            let end = self.disk.read(around.end - self.block, BufMut::zeroed(block)).await?;
            whole[last..].copy_from_slice(&end);
        }
        whole[from..from + data.len()].copy_from_slice(data);
        Ok(whole.freeze())
    }

    async fn zero_any(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), IoError> {
        let inside = self.inside(offset, len);
        let end = offset + len;
        if inside.is_empty() {
            // The range is in one block, or in two and neither is whole.
            return self.write_any(offset, Buf::zeroes(len as usize), how.fua).await;
        }
        if offset < inside.start {
            self.write_any(offset, Buf::zeroes((inside.start - offset) as usize), how.fua).await?;
        }
        if inside.end < end {
            self.write_any(inside.end, Buf::zeroes((end - inside.end) as usize), how.fua).await?;
        }
        let _held = self.hold(inside.clone()).await;
        self.disk.write_zeroes(inside.start, inside.end - inside.start, how.fua, !how.keep_allocated).await
    }

    /// Deallocates the whole blocks of a range.
    async fn deallocate_any(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let inside = self.inside(offset, len);
        if inside.is_empty() {
            return Ok(());
        }
        let _held = self.hold(inside.clone()).await;
        self.disk.deallocate(inside.start, inside.end - inside.start).await
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let size = self.disk.size_bytes();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(BlockError::OutOfRange { offset, len, size }),
        }
    }
}

impl<N: Network> Block for Edges<N> {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn optimal_io_bytes(&self) -> u32 {
        self.disk.info().block_bytes
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        self.check(offset, buf.len() as u64)?;
        self.read_any(offset, buf).await.map_err(|error| error.as_block_error())
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        self.check(offset, data.len() as u64)?;
        self.write_any(offset, data, fua).await.map_err(|error| error.as_block_error())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        self.check(offset, len)?;
        if how.only_fast && !self.disk.known().about().has_write_zeroes() {
            return Err(BlockError::NotFast);
        }
        self.zero_any(offset, len, how).await.map_err(|error| error.as_block_error())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.check(offset, len)?;
        self.deallocate_any(offset, len).await.map_err(|error| error.as_block_error())
    }

    /// Blocks that are only partly in a range keep their data.
    fn discarded_reads_zeroes(&self) -> bool {
        false
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.disk.flush().await.map_err(|error| error.as_block_error())
    }

    /// It is unknown which data were ever written.
    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.check(offset, len)?;
        Ok(vec![Extent { len, allocated: true }])
    }
}
