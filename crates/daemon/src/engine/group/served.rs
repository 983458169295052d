//! A block device that this daemon serves: a volume of a group, an import, a shared drive, or a
//! namespace of another machine.

use drive::{Block, BlockError, Buf, BufMut, Extent, ThinUse, View, WriteZeroes};
use runtime::ShardEnv;

use crate::engine::group::content::GroupVolume;
use crate::engine::imports::connected::Connected;
use crate::engine::shares::raw::Raw;

/// A block device on one shard. A handle.
#[derive(Clone)]
pub(crate) enum Served {
    Volume(GroupVolume),
    Import(md::Array<ShardEnv>),
    Drive(Raw),
    Namespace(Connected),
}

impl Block for Served {
    fn size_bytes(&self) -> u64 {
        match self {
            Served::Volume(volume) => volume.size_bytes(),
            Served::Import(array) => array.size_bytes(),
            Served::Drive(drive) => drive.size_bytes(),
            Served::Namespace(namespace) => namespace.size_bytes(),
        }
    }

    fn optimal_io_bytes(&self) -> u32 {
        match self {
            Served::Volume(volume) => volume.optimal_io_bytes(),
            Served::Import(array) => array.optimal_io_bytes(),
            Served::Drive(drive) => drive.optimal_io_bytes(),
            Served::Namespace(namespace) => namespace.optimal_io_bytes(),
        }
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        match self {
            Served::Volume(volume) => volume.read(offset, buf).await,
            Served::Import(array) => array.read(offset, buf).await,
            Served::Drive(drive) => drive.read(offset, buf).await,
            Served::Namespace(namespace) => namespace.read(offset, buf).await,
        }
    }

    #[inline]
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        match self {
            Served::Volume(volume) => volume.read_now(offset, buf),
            Served::Import(array) => array.read_now(offset, buf),
            Served::Drive(drive) => drive.read_now(offset, buf),
            Served::Namespace(namespace) => namespace.read_now(offset, buf),
        }
    }

    #[inline]
    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(&[View<'_>]) -> T) -> Option<T> {
        match self {
            Served::Volume(volume) => volume.view_now(offset, len, look),
            Served::Import(array) => array.view_now(offset, len, look),
            Served::Drive(drive) => drive.view_now(offset, len, look),
            Served::Namespace(namespace) => namespace.view_now(offset, len, look),
        }
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        match self {
            Served::Volume(volume) => volume.write(offset, data, fua).await,
            Served::Import(array) => array.write(offset, data, fua).await,
            Served::Drive(drive) => drive.write(offset, data, fua).await,
            Served::Namespace(namespace) => namespace.write(offset, data, fua).await,
        }
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        match self {
            Served::Volume(volume) => volume.write_zeroes(offset, len, how).await,
            Served::Import(array) => array.write_zeroes(offset, len, how).await,
            Served::Drive(drive) => drive.write_zeroes(offset, len, how).await,
            Served::Namespace(namespace) => namespace.write_zeroes(offset, len, how).await,
        }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        match self {
            Served::Volume(volume) => volume.discard(offset, len).await,
            Served::Import(array) => array.discard(offset, len).await,
            Served::Drive(drive) => drive.discard(offset, len).await,
            Served::Namespace(namespace) => namespace.discard(offset, len).await,
        }
    }

    fn thin_use(&self) -> Option<ThinUse> {
        match self {
            Served::Volume(volume) => volume.thin_use(),
            Served::Import(_) | Served::Drive(_) | Served::Namespace(_) => None,
        }
    }

    fn discarded_reads_zeroes(&self) -> bool {
        match self {
            Served::Volume(volume) => volume.discarded_reads_zeroes(),
            Served::Import(array) => array.discarded_reads_zeroes(),
            Served::Drive(drive) => drive.discarded_reads_zeroes(),
            Served::Namespace(namespace) => namespace.discarded_reads_zeroes(),
        }
    }

    fn is_degraded(&self) -> bool {
        match self {
            Served::Volume(volume) => volume.is_degraded(),
            Served::Import(array) => array.is_degraded(),
            Served::Drive(drive) => drive.is_degraded(),
            Served::Namespace(namespace) => namespace.is_degraded(),
        }
    }

    async fn flush(&self) -> Result<(), BlockError> {
        match self {
            Served::Volume(volume) => volume.flush().await,
            Served::Import(array) => array.flush().await,
            Served::Drive(drive) => drive.flush().await,
            Served::Namespace(namespace) => namespace.flush().await,
        }
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        match self {
            Served::Volume(volume) => volume.extents(offset, len).await,
            Served::Import(array) => array.extents(offset, len).await,
            Served::Drive(drive) => drive.extents(offset, len).await,
            Served::Namespace(namespace) => namespace.extents(offset, len).await,
        }
    }
}
