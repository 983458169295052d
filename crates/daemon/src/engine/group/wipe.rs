//! Erases superblocks: of drives that a group gave up, or that came from another machine.

use api::{Changed, DriveWipe, ErrorCode, WipedDrive};
use array::erase;
use runtime::{OpenDrive, ShardEnv};

use crate::engine::drives::Consent;
use crate::engine::errors::stopping;
use crate::engine::group::lost;
use crate::engine::{Engine, drives};
use crate::http::{Answer, ControlError};

impl Engine {
    /// Erases the superblocks of a drive that is not in use.
    pub(crate) async fn wipe_drive(&self, text: &str, request: DriveWipe) -> Answer<Changed<WipedDrive>> {
        self.opener.remotes.try_all(&[text.to_owned()]).await?;
        let _one = self.changes.lock().await;
        let taken = drives::open(&self.opener, text, Consent::none(request.dry_run)).await?;
        let Some(superblock) = drives::superblock_of(&self.shards[0], &taken).await? else {
            let message = format!("{} belongs to no group: there is nothing to erase", taken.name);
            return Err(ControlError::new(ErrorCode::WrongState, message));
        };
        let drive = lost::described(&taken.name, &taken.open);
        let steps = vec![format!("erase the group {:?} ({}) from {drive}", superblock.name, superblock.array)];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        tracing::info!(drive = taken.name, group = superblock.name, uuid = %superblock.array, "an operator wipes a drive");
        self.erase(taken.open.clone()).await?;
        let (group, uuid) = (superblock.name, superblock.array.to_string());
        Ok(Changed::done(steps, WipedDrive { drive: taken.name.clone(), group, uuid }))
    }

    /// Erases the superblocks of a drive.
    pub(crate) async fn erase(&self, open: OpenDrive) -> Answer<()> {
        let name = open.info().name.clone();
        let erasing = self.shards[0].call(move || async move { erase(&ShardEnv::current().attach(&open)).await });
        let erased = erasing.await.map_err(|_| stopping())?;
        erased.map_err(|error| ControlError::new(ErrorCode::Io, format!("{name}: {error}")))
    }
}
