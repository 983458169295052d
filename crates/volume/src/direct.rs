//! A volume in place: a list of ranges of the group.

use std::cell::RefCell;
use std::rc::Rc;

use array::Array;
use drive::{Block, BlockError, Buf, BufMut, Env, Extent, WriteZeroes};
use format::ExtentRecord;

/// A direct volume on one shard. A handle: clones are the same volume.
pub struct Direct<E: Env>(Rc<Inner<E>>);

struct Inner<E: Env> {
    array: Array<E>,
    place: RefCell<Place>,
}

struct Place {
    size_bytes: u64,
    extents: Vec<ExtentRecord>,
}

impl<E: Env> Clone for Direct<E> {
    fn clone(&self) -> Self {
        Direct(self.0.clone())
    }
}

impl<E: Env> Direct<E> {
    /// The volume of `size_bytes` that lies in `extents`, in their order.
    pub fn new(array: Array<E>, size_bytes: u64, extents: Vec<ExtentRecord>) -> Self {
        Direct(Rc::new(Inner { array, place: RefCell::new(Place { size_bytes, extents }) }))
    }

    /// Lets the volume lie elsewhere from now on: after a resize. Requests that are under way go on where they began.
    pub fn resize(&self, size_bytes: u64, extents: Vec<ExtentRecord>) {
        self.0.place.replace(Place { size_bytes, extents });
    }

    /// The group it lies in.
    pub fn array(&self) -> &Array<E> {
        &self.0.array
    }

    /// Where the volume's byte `offset` lies, and how many bytes follow it there.
    #[inline]
    fn locate(&self, offset: u64, len: u64) -> Result<(u64, u64), BlockError> {
        let place = self.0.place.borrow();
        let size = place.size_bytes;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(BlockError::OutOfRange { offset, len, size });
        }
        let mut start = 0;
        for extent in &place.extents {
            if offset < start + extent.len_bytes {
                let within = offset - start;
                return Ok((extent.start_byte + within, extent.len_bytes - within));
            }
            start += extent.len_bytes;
        }
        Ok((0, 0)) // The end of the volume, where nothing is left to read or write.
    }

    /// The parts of a range, as (place in the group, offset in the range, length).
    fn parts(&self, offset: u64, len: u64) -> Result<Vec<(u64, u64, u64)>, BlockError> {
        let mut parts = Vec::with_capacity(1);
        let mut done = 0;
        while done < len {
            let (at, left) = self.locate(offset + done, len - done)?;
            let step = left.min(len - done);
            parts.push((at, done, step));
            done += step;
        }
        Ok(parts)
    }
}

impl<E: Env> Block for Direct<E> {
    fn size_bytes(&self) -> u64 {
        self.0.place.borrow().size_bytes
    }

    fn optimal_io_bytes(&self) -> u32 {
        u32::try_from(self.0.array.shared().geometry.stripe_data()).unwrap_or(u32::MAX)
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        let len = buf.len() as u64;
        let (at, left) = self.locate(offset, len)?;
        if len <= left {
            return self.0.array.read(at, buf).await;
        }
        let mut buf = buf;
        for (at, from, len) in self.parts(offset, len)? {
            let part = self.0.array.read(at, BufMut::zeroed(len as usize)).await?;
            buf[from as usize..(from + len) as usize].copy_from_slice(&part);
        }
        Ok(buf)
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let len = data.len() as u64;
        let (at, left) = self.locate(offset, len)?;
        if len <= left {
            return self.0.array.write(at, data, fua).await;
        }
        for (at, from, len) in self.parts(offset, len)? {
            self.0.array.write(at, data.slice(from as usize..(from + len) as usize), fua).await?;
        }
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        self.locate(offset, len)?;
        for (at, _, len) in self.parts(offset, len)? {
            self.0.array.write_zeroes(at, len, how).await?;
        }
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.locate(offset, len)?;
        for (at, _, len) in self.parts(offset, len)? {
            self.0.array.discard(at, len).await?;
        }
        Ok(())
    }

    fn is_degraded(&self) -> bool {
        self.0.array.is_degraded()
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.0.array.flush().await
    }

    fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        let (at, left) = self.locate(offset, len)?;
        self.0.array.extents(at, len.min(left))
    }
}
