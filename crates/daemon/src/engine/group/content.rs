//! The content of a group's volume on one shard. A conversion exchanges it under its clients.
//!
//! Invariants:
//! 1. Clients hold a [`GroupVolume`] and look up its content with each request. So a request goes
//!    to the content that the volume had when the request came.
//! 2. An exchange returns when no request is under way to the old content.
//! 3. While a volume is converted, the shard of its store alone serves it. The other shards send
//!    their requests there, as for thin volumes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use drive::{Block, BlockError, Buf, BufMut, Extent, ThinUse, View, WriteZeroes};
use format::{ConversionRecord, VolumeKind, VolumeRecord};
use runtime::{ShardEnv, ShardHandle};
use tokio::sync::Notify;
use volume::Direct;
use volume::convert::{ConvertTuning, Converting, Progress, Side};

use crate::engine::group::shard::{self, GroupKey};
use crate::engine::group::thin_settings;
use crate::engine::group::thin_volume::{DistantThin, LocalThin, ThinVolume};

/// A volume that is being converted, on the shard of its store.
pub(crate) type LocalConverting = Converting<ShardEnv, Plain, Plain>;

/// Source or target of a conversion.
#[derive(Clone)]
pub(crate) enum Plain {
    Direct(Direct<ShardEnv>),
    Thin(LocalThin),
}

/// The content of a volume. A handle.
#[derive(Clone)]
pub(crate) enum Content {
    Direct(Direct<ShardEnv>),
    Thin(ThinVolume),
    Converting(LocalConverting),
}

/// A volume of a group, as clients hold it. A handle: clones are the same volume.
#[derive(Clone)]
pub(crate) struct GroupVolume(Rc<RefCell<Content>>);

/// The surroundings of a volume's content: its group, and the tasks that look after it.
pub(crate) struct ContentPlace {
    /// The shard of the volume's store.
    pub serving: ShardHandle,
    /// Bytes with content of a thin volume, as its store counts them.
    pub written_bytes: Arc<AtomicU64>,
    /// Notified when a conversion has to be saved or ended.
    pub attention: Arc<Notify>,
}

impl ContentPlace {
    fn is_here(&self) -> bool {
        self.serving.index() == ShardEnv::current().index()
    }
}

/// Has the store know how a thin volume uses it.
fn set_thin(key: GroupKey, record: &VolumeRecord) {
    let Some(store) = record.store().and_then(|id| shard::store(key, id)) else { return };
    match &record.conversion {
        Some(conversion) if conversion.to == VolumeKind::Thin => {
            // Writes of clients do not wait for the space of a copy.
            let thin = format::ThinVolumeRecord { full_wait_ms: None, ..conversion.thin };
            store.set_settings(record.id as u32, thin_settings::of_store(&thin));
        }
        _ if record.kind == VolumeKind::Thin => {
            store.set_settings(record.id as u32, thin_settings::of_store(&record.thin));
        }
        _ => {}
    }
}

impl Plain {
    /// The volume as the record says, without regard to a conversion. `None` if its group or store
    /// is not here.
    fn source(key: GroupKey, record: &VolumeRecord) -> Option<Plain> {
        Plain::new(key, record, record.kind, &record.extents)
    }

    fn target(key: GroupKey, record: &VolumeRecord, conversion: &ConversionRecord) -> Option<Plain> {
        Plain::new(key, record, conversion.to, &conversion.extents)
    }

    fn new(key: GroupKey, record: &VolumeRecord, kind: VolumeKind, extents: &[format::ExtentRecord]) -> Option<Plain> {
        Some(match kind {
            VolumeKind::Direct => Plain::Direct(Direct::new(shard::group(key)?, record.size_bytes, extents.to_vec())),
            VolumeKind::Thin => {
                Plain::Thin(LocalThin::new(shard::store(key, record.store()?)?, record.id as u32, record.size_bytes))
            }
        })
    }

    fn content(self) -> Content {
        match self {
            Plain::Direct(volume) => Content::Direct(volume),
            Plain::Thin(volume) => Content::Thin(ThinVolume::Here(volume)),
        }
    }
}

impl Content {
    /// `None` if there is no such group here, or its thin store could not be opened.
    pub fn new(key: GroupKey, record: &VolumeRecord, place: ContentPlace) -> Option<Content> {
        let is_direct = record.kind == VolumeKind::Direct && record.conversion.is_none();
        if is_direct || place.is_here() {
            set_thin(key, record);
            let source = Plain::source(key, record)?;
            let target = record.conversion.as_ref().and_then(|it| Some((it, Plain::target(key, record, it)?)));
            return Some(match target {
                Some((conversion, target)) => converting(source, target, conversion, place.attention),
                // Without its store, a direct volume is as it was.
                None => source.content(),
            });
        }
        let optimal_io_bytes = match record.kind {
            VolumeKind::Thin => volume::thin::OPTIMAL_IO_BYTES,
            VolumeKind::Direct => Plain::source(key, record)?.optimal_io_bytes(),
        };
        shard::group(key)?;
        Some(Content::Thin(ThinVolume::There(Rc::new(DistantThin {
            store_shard: place.serving,
            key,
            id: record.id,
            size_bytes: Cell::new(record.size_bytes),
            is_thin: record.kind == VolumeKind::Thin,
            quota_bytes: Cell::new(record.thin.quota_bytes.unwrap_or(u64::MAX)),
            written_bytes: place.written_bytes,
            optimal_io_bytes,
        }))))
    }

    /// Refuses all requests from now on. Returns when those under way have been answered.
    pub async fn close(&self) {
        match self {
            Content::Direct(volume) => volume.close().await,
            Content::Thin(ThinVolume::Here(volume)) => volume.close().await,
            Content::Thin(ThinVolume::There(_)) => {}
            Content::Converting(volume) => volume.close().await,
        }
    }
}

fn converting(source: Plain, target: Plain, conversion: &ConversionRecord, attention: Arc<Notify>) -> Content {
    let progress = Progress { copied_bytes: conversion.copied_bytes, stale: conversion.stale.clone() };
    let tuning = ConvertTuning::default();
    let notify = Box::new(move || attention.notify_one());
    Content::Converting(Converting::new(ShardEnv::current(), (source, target), &progress, tuning, notify))
}

impl GroupVolume {
    pub fn new(content: Content) -> GroupVolume {
        GroupVolume(Rc::new(RefCell::new(content)))
    }

    #[inline]
    pub fn content(&self) -> Content {
        self.0.borrow().clone()
    }

    /// Brings the volume to the state of its record.
    ///
    /// # Errors
    /// [`BlockError`] if a thin volume may have content behind its end.
    pub async fn change(&self, key: GroupKey, record: &VolumeRecord, place: ContentPlace) -> Result<(), BlockError> {
        let before = self.content();
        match (&before, record.kind, &record.conversion) {
            (Content::Direct(volume), VolumeKind::Direct, None) => {
                volume.resize(record.size_bytes, record.extents.clone()).await;
            }
            (Content::Thin(ThinVolume::Here(volume)), VolumeKind::Thin, None) => {
                set_thin(key, record);
                return volume.resize(record.size_bytes).await;
            }
            (Content::Converting(volume), kind, None) => {
                let is_source = matches!(
                    (volume.source(), kind),
                    (Plain::Direct(_), VolumeKind::Direct) | (Plain::Thin(_), VolumeKind::Thin)
                );
                let (side, content) = match is_source {
                    true => (Side::Source, volume.source().clone()),
                    false => (Side::Target, volume.target().clone()),
                };
                set_thin(key, record);
                volume.end(side);
                self.0.replace(content.content());
                volume.drained().await;
            }
            (Content::Converting(_), _, Some(_)) => {}
            _ => {
                if let Some(after) = Content::new(key, record, place) {
                    self.0.replace(after);
                    before.close().await;
                }
            }
        }
        Ok(())
    }
}

impl Block for Plain {
    fn size_bytes(&self) -> u64 {
        match self {
            Plain::Direct(volume) => volume.size_bytes(),
            Plain::Thin(volume) => volume.size_bytes(),
        }
    }

    fn optimal_io_bytes(&self) -> u32 {
        match self {
            Plain::Direct(volume) => volume.optimal_io_bytes(),
            Plain::Thin(volume) => volume.optimal_io_bytes(),
        }
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        match self {
            Plain::Direct(volume) => volume.read(offset, buf).await,
            Plain::Thin(volume) => volume.read(offset, buf).await,
        }
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        match self {
            Plain::Direct(volume) => volume.write(offset, data, fua).await,
            Plain::Thin(volume) => volume.write(offset, data, fua).await,
        }
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        match self {
            Plain::Direct(volume) => volume.write_zeroes(offset, len, how).await,
            Plain::Thin(volume) => volume.write_zeroes(offset, len, how).await,
        }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        match self {
            Plain::Direct(volume) => volume.discard(offset, len).await,
            Plain::Thin(volume) => volume.discard(offset, len).await,
        }
    }

    fn thin_use(&self) -> Option<ThinUse> {
        match self {
            Plain::Direct(_) => None,
            Plain::Thin(volume) => volume.thin_use(),
        }
    }

    fn is_degraded(&self) -> bool {
        match self {
            Plain::Direct(volume) => volume.is_degraded(),
            Plain::Thin(volume) => volume.is_degraded(),
        }
    }

    async fn flush(&self) -> Result<(), BlockError> {
        match self {
            Plain::Direct(volume) => volume.flush().await,
            Plain::Thin(volume) => volume.flush().await,
        }
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        match self {
            Plain::Direct(volume) => volume.extents(offset, len).await,
            Plain::Thin(volume) => volume.extents(offset, len).await,
        }
    }
}

impl Block for Content {
    fn size_bytes(&self) -> u64 {
        match self {
            Content::Direct(volume) => volume.size_bytes(),
            Content::Thin(volume) => volume.size_bytes(),
            Content::Converting(volume) => volume.size_bytes(),
        }
    }

    fn optimal_io_bytes(&self) -> u32 {
        match self {
            Content::Direct(volume) => volume.optimal_io_bytes(),
            Content::Thin(volume) => volume.optimal_io_bytes(),
            Content::Converting(volume) => volume.optimal_io_bytes(),
        }
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        match self {
            Content::Direct(volume) => volume.read(offset, buf).await,
            Content::Thin(volume) => volume.read(offset, buf).await,
            Content::Converting(volume) => volume.read(offset, buf).await,
        }
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        match self {
            Content::Direct(volume) => volume.write(offset, data, fua).await,
            Content::Thin(volume) => volume.write(offset, data, fua).await,
            Content::Converting(volume) => volume.write(offset, data, fua).await,
        }
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        match self {
            Content::Direct(volume) => volume.write_zeroes(offset, len, how).await,
            Content::Thin(volume) => volume.write_zeroes(offset, len, how).await,
            Content::Converting(volume) => volume.write_zeroes(offset, len, how).await,
        }
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        match self {
            Content::Direct(volume) => volume.discard(offset, len).await,
            Content::Thin(volume) => volume.discard(offset, len).await,
            Content::Converting(volume) => volume.discard(offset, len).await,
        }
    }

    fn thin_use(&self) -> Option<ThinUse> {
        match self {
            Content::Direct(_) => None,
            Content::Thin(volume) => volume.thin_use(),
            Content::Converting(volume) => volume.thin_use(),
        }
    }

    fn is_degraded(&self) -> bool {
        match self {
            Content::Direct(volume) => volume.is_degraded(),
            Content::Thin(volume) => volume.is_degraded(),
            Content::Converting(volume) => volume.is_degraded(),
        }
    }

    async fn flush(&self) -> Result<(), BlockError> {
        match self {
            Content::Direct(volume) => volume.flush().await,
            Content::Thin(volume) => volume.flush().await,
            Content::Converting(volume) => volume.flush().await,
        }
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        match self {
            Content::Direct(volume) => volume.extents(offset, len).await,
            Content::Thin(volume) => volume.extents(offset, len).await,
            Content::Converting(volume) => volume.extents(offset, len).await,
        }
    }
}

impl Block for GroupVolume {
    fn size_bytes(&self) -> u64 {
        self.0.borrow().size_bytes()
    }

    fn optimal_io_bytes(&self) -> u32 {
        self.0.borrow().optimal_io_bytes()
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        self.content().read(offset, buf).await
    }

    #[inline]
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> bool {
        match &*self.0.borrow() {
            Content::Direct(volume) => volume.read_now(offset, buf),
            Content::Thin(_) | Content::Converting(_) => false,
        }
    }

    #[inline]
    fn view_now<T>(&self, offset: u64, len: usize, look: impl FnOnce(&[View<'_>]) -> T) -> Option<T> {
        match &*self.0.borrow() {
            Content::Direct(volume) => volume.view_now(offset, len, look),
            Content::Thin(_) | Content::Converting(_) => None,
        }
    }

    async fn write(&self, offset: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        self.content().write(offset, data, fua).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64, how: WriteZeroes) -> Result<(), BlockError> {
        self.content().write_zeroes(offset, len, how).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.content().discard(offset, len).await
    }

    fn thin_use(&self) -> Option<ThinUse> {
        self.0.borrow().thin_use()
    }

    fn is_degraded(&self) -> bool {
        self.0.borrow().is_degraded()
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.content().flush().await
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.content().extents(offset, len).await
    }
}
