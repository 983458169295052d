//! A drive with a time limit for each operation, for use before its group runs.
//!
//! Once an operation has had no answer for [`TIME_LIMIT`] the drive is *silent*, and gets no
//! further operation. Earlier operations may still reach it, so the caller has to leave it out. A
//! group that runs has [`crate::drives::in_flight`] for this, without a timer for each operation.

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use drive::{BufMut, Drive, DriveError, DriveInfo, Env, Nanos, Segments, race};

use crate::state::settings::TIME_LIMIT;

const SECOND: Nanos = 1_000_000_000;

/// The error of every operation on a silent drive.
const SILENT: DriveError = DriveError::Silent { seconds: (TIME_LIMIT / SECOND) as u32 };

/// A drive on which no operation takes longer than [`TIME_LIMIT`].
pub(crate) struct Bounded<'a, E: Env> {
    env: &'a E,
    drive: &'a E::Drive,
    silent: Cell<bool>,
}

impl<'a, E: Env> Bounded<'a, E> {
    pub fn new(env: &'a E, drive: &'a E::Drive) -> Self {
        Bounded { env, drive, silent: Cell::new(false) }
    }

    /// Why it has to be left out, if it is silent.
    pub fn silence(&self) -> Option<DriveError> {
        self.silent.get().then_some(SILENT)
    }

    async fn run<T>(&self, operation: impl Future<Output = Result<T, DriveError>>) -> Result<T, DriveError> {
        if self.silent.get() {
            return Err(SILENT);
        }
        // An operation that is done when it is first polled needs no timer.
        let limit = async { self.env.sleep(Duration::from_nanos(TIME_LIMIT)).await };
        race(operation, limit).await.unwrap_or_else(|| {
            self.silent.set(true);
            Err(SILENT)
        })
    }
}

impl<E: Env> Drive for Bounded<'_, E> {
    fn info(&self) -> &DriveInfo {
        self.drive.info()
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, DriveError> {
        self.run(self.drive.read(offset, buf)).await
    }

    async fn write(&self, offset: u64, data: Segments, fua: bool) -> Result<(), DriveError> {
        self.run(self.drive.write(offset, data, fua)).await
    }

    async fn flush(&self) -> Result<(), DriveError> {
        self.run(self.drive.flush()).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.run(self.drive.discard(offset, len)).await
    }

    async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DriveError> {
        self.run(self.drive.write_zeroes(offset, len)).await
    }
}
