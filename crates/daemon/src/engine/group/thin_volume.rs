//! A thin volume on one shard.
//!
//! A thin store is on one shard, and owns the maps of its volumes there. Requests on other shards
//! go to that shard, with their buffers.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use drive::{Block, BlockError, Buf, BufMut, Extent, ThinUse, WriteZeroes};
use runtime::{ShardEnv, ShardHandle};
use volume::thin::{ArrayBacking, Thin};

use crate::engine::group::content::Content;
use crate::engine::group::shard::{self, GroupKey};

/// A request that is performed on the shard of the store.
type ThereRequest<T> = Pin<Box<dyn Future<Output = Result<T, BlockError>>>>;

pub(crate) type LocalThin = Thin<ArrayBacking<ShardEnv>>;

/// A handle.
#[derive(Clone)]
pub(crate) enum ThinVolume {
    /// On the shard of the store.
    Here(LocalThin),
    /// On another shard.
    There(Rc<DistantThin>),
}

/// A volume that another shard serves: a thin one whose store is there, or one that is converted
/// there.
pub(crate) struct DistantThin {
    pub store_shard: ShardHandle,
    pub key: GroupKey,
    pub id: u64,
    pub size_bytes: Cell<u64>,
    /// It is thin now.
    pub is_thin: bool,
    /// Most bytes that may have content.
    pub quota_bytes: Cell<u64>,
    /// Bytes with content, as the store counts them.
    pub written_bytes: Arc<AtomicU64>,
    pub optimal_io_bytes: u32,
}

impl DistantThin {
    /// Performs a request on the shard of the store.
    async fn there<T: Send + 'static>(
        &self,
        act: impl FnOnce(Content) -> ThereRequest<T> + Send + 'static,
    ) -> Result<T, BlockError> {
        let (key, id) = (self.key, self.id);
        let answer = self.store_shard.call(move || async move {
            match shard::local_content(key, id) {
                Some(volume) => act(volume).await,
                None => Err(BlockError::Stopped),
            }
        });
        answer.await.unwrap_or(Err(BlockError::Stopped))
    }
}

impl Block for ThinVolume {
    fn size_bytes(&self) -> u64 {
        match self {
            ThinVolume::Here(volume) => volume.size_bytes(),
            ThinVolume::There(volume) => volume.size_bytes.get(),
        }
    }

    fn optimal_io_bytes(&self) -> u32 {
        match self {
            ThinVolume::Here(volume) => volume.optimal_io_bytes(),
            ThinVolume::There(volume) => volume.optimal_io_bytes,
        }
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        match self {
            ThinVolume::Here(volume) => volume.read(offset, buf).await,
            ThinVolume::There(volume) => {
                volume.there(move |volume| Box::pin(async move { volume.read(offset, buf).await })).await
            }
        }
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        match self {
            ThinVolume::Here(volume) => volume.write(offset, data, fua).await,
            ThinVolume::There(volume) => {
                volume.there(move |volume| Box::pin(async move { volume.write(offset, data, fua).await })).await
            }
        }
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        match self {
            ThinVolume::Here(volume) => volume.write_zeroes(offset, len, how).await,
            ThinVolume::There(volume) => {
                volume.there(move |volume| Box::pin(async move { volume.write_zeroes(offset, len, how).await })).await
            }
        }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        match self {
            ThinVolume::Here(volume) => volume.discard(offset, len).await,
            ThinVolume::There(volume) => {
                volume.there(move |volume| Box::pin(async move { volume.discard(offset, len).await })).await
            }
        }
    }

    fn thin_use(&self) -> Option<ThinUse> {
        match self {
            ThinVolume::Here(volume) => volume.thin_use(),
            ThinVolume::There(volume) => volume.is_thin.then(|| ThinUse {
                quota_bytes: volume.quota_bytes.get().min(volume.size_bytes.get()),
                written_bytes: volume.written_bytes.load(Relaxed),
            }),
        }
    }

    fn is_degraded(&self) -> bool {
        match self {
            ThinVolume::Here(volume) => volume.is_degraded(),
            ThinVolume::There(volume) => shard::group(volume.key).is_some_and(|array| array.is_degraded()),
        }
    }

    async fn flush(&self) -> Result<(), BlockError> {
        match self {
            ThinVolume::Here(volume) => volume.flush().await,
            ThinVolume::There(volume) => volume.there(|volume| Box::pin(async move { volume.flush().await })).await,
        }
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        match self {
            ThinVolume::Here(volume) => volume.extents(offset, len).await,
            ThinVolume::There(volume) => {
                volume.there(move |volume| Box::pin(async move { volume.extents(offset, len).await })).await
            }
        }
    }
}
