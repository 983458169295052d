//! Drives that are reached by code of another crate, such as drives of other machines.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use ::drive::{BufMut, DriveError, Segments};

use crate::env::ShardEnv;

/// The implementation of an [`OpenDrive`](crate::OpenDrive) in another crate. Its resources are
/// closed when this object and all attached drives are dropped.
pub trait Backend: Send + Sync + 'static {
    /// The drive on this shard. Called each time a shard attaches the drive.
    fn attach(&self, env: &ShardEnv) -> Rc<dyn BackendDrive>;
}

/// A drive operation in progress.
pub type DriveFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DriveError>> + 'a>>;

/// [`::drive::Drive`] as an object. The caller has checked the ranges.
pub trait BackendDrive {
    /// As [`::drive::Drive::read`].
    fn read(&self, offset: u64, buf: BufMut) -> DriveFuture<'_, BufMut>;

    /// As [`::drive::Drive::write`].
    fn write(&self, offset: u64, data: Segments, fua: bool) -> DriveFuture<'_, ()>;

    /// As [`::drive::Drive::flush`].
    fn flush(&self) -> DriveFuture<'_, ()>;

    /// As [`::drive::Drive::discard`].
    fn discard(&self, offset: u64, len: u64) -> DriveFuture<'_, ()>;

    /// As [`::drive::Drive::write_zeroes`].
    fn write_zeroes(&self, offset: u64, len: u64) -> DriveFuture<'_, ()>;
}

impl<D: ::drive::Drive> BackendDrive for D {
    fn read(&self, offset: u64, buf: BufMut) -> DriveFuture<'_, BufMut> {
        Box::pin(::drive::Drive::read(self, offset, buf))
    }

    fn write(&self, offset: u64, data: Segments, fua: bool) -> DriveFuture<'_, ()> {
        Box::pin(::drive::Drive::write(self, offset, data, fua))
    }

    fn flush(&self) -> DriveFuture<'_, ()> {
        Box::pin(::drive::Drive::flush(self))
    }

    fn discard(&self, offset: u64, len: u64) -> DriveFuture<'_, ()> {
        Box::pin(::drive::Drive::discard(self, offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> DriveFuture<'_, ()> {
        Box::pin(::drive::Drive::write_zeroes(self, offset, len))
    }
}
