//! Erases superblocks: of drives that a group gave up, or that came from another machine.

use api::ErrorCode;
use array::erase;
use runtime::{OpenDrive, ShardEnv};

use crate::engine::Engine;
use crate::engine::errors::stopping;
use crate::http::{Answer, ControlError};

impl Engine {
    /// Erases the superblocks of a drive.
    pub(crate) async fn erase(&self, open: OpenDrive) -> Answer<()> {
        let name = open.info().name.clone();
        let erasing = self.shards[0].call(move || async move { erase(&ShardEnv::current().attach(&open)).await });
        let erased = erasing.await.map_err(|_| stopping())?;
        erased.map_err(|error| ControlError::new(ErrorCode::Io, format!("{name}: {error}")))
    }
}
