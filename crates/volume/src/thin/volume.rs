//! A thin volume as exports use it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use drive::{Block, BlockError, Buf, BufMut, Extent, Receiver, Sender, ThinUse, WriteZeroes, oneshot};

use super::backing::Backing;
use super::store::ThinStore;

/// Fragments have at most so many bytes, so aligned writes of this length have the fewest map
/// entries.
pub const OPTIMAL_IO_BYTES: u32 = 64 << 10;

/// Zeroes that have to take space are written in parts of so many bytes.
const ZEROES_BYTES: usize = 1 << 20;

/// A thin volume on the shard of its store. A handle: clones are the same volume.
pub struct Thin<B: Backing>(Rc<ThinVolume<B>>);

struct ThinVolume<B: Backing> {
    store: Rc<ThinStore<B>>,
    line: u32,
    size: RefCell<Rc<Size>>,
    /// Resolves when no request holds the current size any more, after another one has replaced it.
    left: RefCell<Receiver<()>>,
}

/// The size of the volume. Held by every request that it was checked for.
struct Size {
    bytes: Cell<u64>,
    /// Dropped with the last holder, which resolves [`ThinVolume::left`].
    _held: Sender<()>,
}

impl Size {
    fn new(bytes: u64) -> (Rc<Size>, Receiver<()>) {
        let (held, left) = oneshot();
        (Rc::new(Size { bytes: Cell::new(bytes), _held: held }), left)
    }
}

impl<B: Backing> Clone for Thin<B> {
    fn clone(&self) -> Self {
        Thin(self.0.clone())
    }
}

impl<B: Backing> Thin<B> {
    /// The volume with this line in a store.
    pub fn new(store: Rc<ThinStore<B>>, line: u32, size_bytes: u64) -> Self {
        let (size, left) = Size::new(size_bytes);
        Thin(Rc::new(ThinVolume { store, line, size: RefCell::new(size), left: RefCell::new(left) }))
    }

    /// Gives the volume another size. Returns when nothing is left behind the smaller of both
    /// sizes, and no request is under way that was accepted for a larger one. Such writes do not
    /// wait for space meanwhile. Only one such change may run at a time.
    ///
    /// # Errors
    /// [`BlockError`] if the store has failed. The volume has its new size nevertheless.
    pub async fn resize(&self, size_bytes: u64) -> Result<(), BlockError> {
        let before = self.size_bytes();
        if size_bytes < before {
            self.shrink(size_bytes).await;
        }
        // Also when it grows: a crash may have come before this when it was made smaller.
        let (from, to) = (before.min(size_bytes), before.max(size_bytes));
        let result = self.0.store.punch(self.0.line, from, to - from, false).await;
        self.0.size.borrow().bytes.set(size_bytes);
        result
    }

    /// Refuses all requests from now on, as beyond the end. Returns when those under way have been
    /// answered.
    pub async fn close(&self) {
        self.shrink(0).await;
    }

    async fn shrink(&self, bytes: u64) {
        let (size, left) = Size::new(bytes);
        drop(self.0.size.replace(size));
        let left = self.0.left.replace(left);
        self.0.store.end_waits(self.0.line, true);
        // The sender never sends; it is dropped with the last holder.
        let _ = left.await;
        self.0.store.end_waits(self.0.line, false);
    }

    /// The size, if a range is within it.
    fn check(&self, offset: u64, len: u64) -> Result<Rc<Size>, BlockError> {
        let size = self.0.size.borrow().clone();
        if offset.checked_add(len).is_none_or(|end| end > size.bytes.get()) {
            return Err(BlockError::OutOfRange { offset, len, size: size.bytes.get() });
        }
        Ok(size)
    }
}

impl<B: Backing> Block for Thin<B> {
    fn size_bytes(&self) -> u64 {
        self.0.size.borrow().bytes.get()
    }

    fn optimal_io_bytes(&self) -> u32 {
        OPTIMAL_IO_BYTES
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        let (_held, _client) = (self.check(offset, buf.len() as u64)?, self.0.store.client_request());
        self.0.store.read(self.0.line, offset, buf).await
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let (_held, _client) = (self.check(offset, data.len() as u64)?, self.0.store.client_request());
        self.0.store.write(self.0.line, offset, data, fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        let (_held, _client) = (self.check(offset, len)?, self.0.store.client_request());
        if !how.keep_allocated {
            return self.0.store.punch(self.0.line, offset, len, how.fua).await;
        }
        if how.only_fast {
            return Err(BlockError::NotFast);
        }
        for at in (offset..offset + len).step_by(ZEROES_BYTES) {
            let zeroes = Buf::zeroes(ZEROES_BYTES.min((offset + len - at) as usize));
            self.0.store.write(self.0.line, at, zeroes, how.fua).await?;
        }
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let (_held, _client) = (self.check(offset, len)?, self.0.store.client_request());
        self.0.store.punch(self.0.line, offset, len, false).await
    }

    fn thin_use(&self) -> Option<ThinUse> {
        let (store, line) = (&self.0.store, self.0.line);
        let quota_bytes = store.settings(line).quota_bytes.unwrap_or(u64::MAX).min(self.size_bytes());
        Some(ThinUse { quota_bytes, written_bytes: store.written_bytes(line) })
    }

    fn is_degraded(&self) -> bool {
        self.0.store.backing.is_degraded()
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.0.store.flush().await
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        let _held = self.check(offset, len)?;
        self.0.store.extents(self.0.line, offset, len).await
    }
}
