//! A thin volume as exports use it.

use std::cell::Cell;
use std::rc::Rc;

use drive::{Block, BlockError, Buf, BufMut, Extent, WriteZeroes};

use super::backing::Backing;
use super::store::ThinStore;

/// A thin volume on the shard of its store. A handle: clones are the same volume.
pub struct Thin<B: Backing>(Rc<ThinVolume<B>>);

struct ThinVolume<B: Backing> {
    store: Rc<ThinStore<B>>,
    line: u32,
    size_bytes: Cell<u64>,
}

impl<B: Backing> Clone for Thin<B> {
    fn clone(&self) -> Self {
        Thin(self.0.clone())
    }
}

impl<B: Backing> Thin<B> {
    /// The volume with this line in a store.
    pub fn new(store: Rc<ThinStore<B>>, line: u32, size_bytes: u64) -> Self {
        Thin(Rc::new(ThinVolume { store, line, size_bytes: Cell::new(size_bytes) }))
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let size = self.0.size_bytes.get();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(BlockError::OutOfRange { offset, len, size });
        }
        Ok(())
    }
}

impl<B: Backing> Block for Thin<B> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes.get()
    }

    fn optimal_io_bytes(&self) -> u32 {
        // Fragments are at most a window, so larger aligned writes have fewer map entries.
        64 << 10
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        self.check(offset, buf.len() as u64)?;
        self.0.store.read(self.0.line, offset, buf).await
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        self.check(offset, data.len() as u64)?;
        self.0.store.write(self.0.line, offset, data, fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        self.check(offset, len)?;
        self.0.store.punch(self.0.line, offset, len, how.fua).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.check(offset, len)?;
        self.0.store.punch(self.0.line, offset, len, false).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.0.store.flush().await
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.check(offset, len)?;
        self.0.store.extents(self.0.line, offset, len).await
    }
}
