//! Requests of any alignment on a namespace with blocks.
//!
//! Invariants:
//! 1. A block that is changed in part is read, changed and written while nobody else changes it.
//! 2. A request is answered when all of it is done.

use std::cell::RefCell;
use std::ops::Range;

use drive::{Buf, BufMut, Receiver, Segments, Sender, oneshot};
use initiator::tokio::TokioNetwork;
use initiator::{IoError, Namespace};

/// A namespace, byte by byte.
pub(super) struct Edges {
    disk: Namespace<TokioNetwork>,
    block: u64,
    changing: RefCell<Changing>,
}

#[derive(Default)]
struct Changing {
    ranges: Vec<Range<u64>>,
    waiting: Vec<Sender<()>>,
}

/// Blocks that nobody else changes until this is dropped.
struct Held<'a> {
    edges: &'a Edges,
    range: Range<u64>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let waiting = {
            let mut changing = self.edges.changing.borrow_mut();
            let at = changing.ranges.iter().position(|range| *range == self.range);
            changing.ranges.swap_remove(at.expect("it was held"));
            std::mem::take(&mut changing.waiting)
        };
        waiting.into_iter().for_each(|waiting| waiting.send(()));
    }
}

impl Edges {
    pub fn new(disk: Namespace<TokioNetwork>) -> Edges {
        let block = disk.info().block_bytes.into();
        Edges { disk, block, changing: RefCell::default() }
    }

    pub fn disk(&self) -> &Namespace<TokioNetwork> {
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
            // Nobody tells who is not there any more, and then there is nothing to wait for.
            let _ = wait.await;
        }
        Held { edges: self, range }
    }

    /// Holds a range, or gives what to wait for before the next try.
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

    pub async fn read(&self, offset: u64, len: usize) -> Result<Buf, IoError> {
        let around = self.around(offset, len as u64);
        let buf = BufMut::zeroed((around.end - around.start) as usize);
        let read = self.disk.read(around.start, buf).await?.freeze();
        let from = (offset - around.start) as usize;
        Ok(read.slice(from..from + len))
    }

    pub async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), IoError> {
        let len = data.len() as u64;
        let around = self.around(offset, len);
        let _held = self.hold(around.clone()).await;
        if around == (offset..offset + len) {
            return self.disk.write(offset, Segments::from_iter([data]), fua).await;
        }
        let whole = self.changed(around.clone(), offset, &data).await?;
        self.disk.write(around.start, Segments::from_iter([whole]), fua).await
    }

    /// The blocks `around`, with `data` in them at `offset`.
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

    pub async fn write_zeroes(&self, offset: u64, len: u64, fua: bool, deallocate: bool) -> Result<(), IoError> {
        let inside = self.inside(offset, len);
        let end = offset + len;
        if inside.is_empty() {
            // In one block, or in two of which none is whole.
            return self.write(offset, Buf::zeroes(len as usize), fua).await;
        }
        if offset < inside.start {
            self.write(offset, Buf::zeroes((inside.start - offset) as usize), fua).await?;
        }
        if inside.end < end {
            self.write(inside.end, Buf::zeroes((end - inside.end) as usize), fua).await?;
        }
        let _held = self.hold(inside.clone()).await;
        self.disk.write_zeroes(inside.start, inside.end - inside.start, fua, deallocate).await
    }

    /// Gives back the whole blocks of a range.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let inside = self.inside(offset, len);
        if inside.is_empty() {
            return Ok(());
        }
        let _held = self.hold(inside.clone()).await;
        self.disk.deallocate(inside.start, inside.end - inside.start).await
    }
}
