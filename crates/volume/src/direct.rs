//! A volume in place: a list of ranges of the group.

//!
//! A request goes to the place where the volume was when the request came, part by part, and holds
//! that place until it is answered. So the task that moves or removes the volume knows when no
//! request can reach the space any more, and can give it to another volume.

use std::cell::RefCell;
use std::rc::Rc;

use array::Array;
use drive::{Block, BlockError, Buf, BufMut, Env, Extent, Receiver, Sender, View, WriteZeroes, oneshot};
use format::ExtentRecord;

/// A direct volume on one shard. A handle: clones are the same volume.
pub struct Direct<E: Env>(Rc<DirectVolume<E>>);

struct DirectVolume<E: Env> {
    array: Array<E>,
    place: RefCell<Rc<VolumeExtents>>,
    /// Resolves when no request holds the current place any more, after another place has replaced
    /// it.
    left: RefCell<Receiver<()>>,
}

/// The place of the volume in the group. Held by every request that goes there.
struct VolumeExtents {
    size_bytes: u64,
    extents: Vec<ExtentRecord>,
    /// Dropped with the last holder, which resolves [`DirectVolume::left`].
    _held: Sender<()>,
}

impl<E: Env> Clone for Direct<E> {
    fn clone(&self) -> Self {
        Direct(self.0.clone())
    }
}

impl VolumeExtents {
    fn new(size_bytes: u64, extents: Vec<ExtentRecord>) -> (Rc<VolumeExtents>, Receiver<()>) {
        let (held, left) = oneshot();
        (Rc::new(VolumeExtents { size_bytes, extents, _held: held }), left)
    }

    /// The position of the volume's byte `offset` in the group, and how many bytes follow it there.
    #[inline]
    fn locate(&self, offset: u64, len: u64) -> Result<(u64, u64), BlockError> {
        let size = self.size_bytes;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(BlockError::OutOfRange { offset, len, size });
        }
        let mut start = 0;
        for extent in &self.extents {
            if offset < start + extent.len_bytes {
                let within = offset - start;
                return Ok((extent.start_byte + within, extent.len_bytes - within));
            }
            start += extent.len_bytes;
        }
        Ok((0, 0)) // The end of the volume, where nothing is left to read or write.
    }

    /// The parts of a range, as (position in the group, offset in the range, length).
    fn parts(&self, offset: u64, len: u64) -> Result<Vec<(u64, u64, u64)>, BlockError> {
        self.locate(offset, len)?;
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

impl<E: Env> Direct<E> {
    /// The volume of `size_bytes` that lies in `extents`, in their order.
    pub fn new(array: Array<E>, size_bytes: u64, extents: Vec<ExtentRecord>) -> Self {
        let (place, left) = VolumeExtents::new(size_bytes, extents);
        Direct(Rc::new(DirectVolume { array, place: RefCell::new(place), left: RefCell::new(left) }))
    }

    /// Moves the volume to other extents, after a resize. Requests in flight continue in the old
    /// place. Returns when the last of them has been answered, so that the space that the volume
    /// has left may be given to another one. Only one such change may run at a time.
    pub async fn resize(&self, size_bytes: u64, extents: Vec<ExtentRecord>) {
        let (place, left) = VolumeExtents::new(size_bytes, extents);
        drop(self.0.place.replace(place));
        let left = self.0.left.replace(left);
        // The sender never sends; it is dropped with the last holder.
        let _ = left.await;
    }

    /// Removes the volume: from now on every request is refused as beyond its end. Returns when the
    /// requests in flight have been answered.
    pub async fn close(&self) {
        self.resize(0, Vec::new()).await;
    }

    /// The group in which the volume lies.
    pub fn array(&self) -> &Array<E> {
        &self.0.array
    }

    /// The current place of the volume. It stays valid for the request that holds it.
    #[inline]
    fn place(&self) -> Rc<VolumeExtents> {
        self.0.place.borrow().clone()
    }
}

impl<E: Env> Block for Direct<E> {
    fn size_bytes(&self) -> u64 {
        self.0.place.borrow().size_bytes
    }

    fn optimal_io_bytes(&self) -> u32 {
        u32::try_from(self.0.array.shared().geometry.stripe_data_bytes()).unwrap_or(u32::MAX)
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        let (len, place) = (buf.len() as u64, self.place());
        let (at, left) = place.locate(offset, len)?;
        if len <= left {
            return self.0.array.read(at, buf).await;
        }
        let mut buf = buf;
        for (at, from, len) in place.parts(offset, len)? {
            let part = self.0.array.read(at, BufMut::zeroed(len as usize)).await?;
            buf[from as usize..(from + len) as usize].copy_from_slice(&part);
        }
        Ok(buf)
    }

    #[inline]
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        let (len, place) = (buf.len() as u64, self.0.place.borrow());
        place.locate(offset, len).is_ok_and(|(at, left)| len <= left && self.0.array.read_now(at, buf))
    }

    #[inline]
    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(&[View<'_>]) -> T) -> Option<T> {
        let (at, left) = self.0.place.borrow().locate(offset, len as u64).ok()?;
        (len as u64 <= left).then(|| self.0.array.view_now(at, len, look))?
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let (len, place) = (data.len() as u64, self.place());
        let (at, left) = place.locate(offset, len)?;
        if len <= left {
            return self.0.array.write(at, data, fua).await;
        }
        for (at, from, len) in place.parts(offset, len)? {
            self.0.array.write(at, data.slice(from as usize..(from + len) as usize), fua).await?;
        }
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        let place = self.place();
        let parts = place.parts(offset, len)?;
        // A refused request changes nothing, even if one of its parts could be zeroed fast.
        if how.only_fast && !parts.iter().all(|&(at, _, len)| self.0.array.is_fast_to_zero(at, len)) {
            return Err(BlockError::NotFast);
        }
        for (at, _, len) in parts {
            self.0.array.write_zeroes(at, len, how).await?;
        }
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let place = self.place();
        for (at, _, len) in place.parts(offset, len)? {
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

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        let (at, left) = self.0.place.borrow().locate(offset, len)?;
        self.0.array.extents(at, len.min(left))
    }
}
