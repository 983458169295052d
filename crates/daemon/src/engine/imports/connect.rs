//! Imported namespaces of other machines: connected, served as block devices, and looked for while
//! their machine cannot be reached.
//!
//! Invariants:
//! 1. An imported namespace has no other user here: no group, no other import, and it is not served
//!    by this daemon itself.
//! 2. The daemon starts without the other machine. Requests to a device that a previous daemon left
//!    wait until its namespace is found again.
//! 3. Requests that are not answered when the daemon ends are passed to the next daemon. It sends
//!    nothing until the target no longer executes commands of the previous daemon
//!    ([`crate::engine::drives::remote`]).
//! 4. A device has the size of its namespace. When the namespace grows, the device grows as soon as
//!    all shards know.

use std::sync::Arc;
use std::time::Duration;

use ::drive::{Block, join_all};
use api::{ErrorCode, NvmeDrive};
use format::ExportKind;
use runtime::ShardEnv;

use crate::engine::Engine;
use crate::engine::drives::RequestedDrive;
use crate::engine::drives::remote::Remote;
use crate::engine::errors::stopping;
use crate::engine::exports::namespaces::nqn_of;
use crate::engine::group::served::Served;
use crate::engine::group::shard;
use crate::engine::imports::import::{Import, Source};
use crate::engine::memory::RememberedImport;
use crate::http::{Answer, ControlError};

/// How long a namespace may be out of reach until requests to it fail, if the request does not say.
/// Linux' host waits as long.
pub(super) const LOSS_DEFAULT: Duration = NvmeDrive::LOSS_MAX;

/// How often disconnected namespaces are looked for, and connected ones are checked for a new size.
const LOOK_EVERY: Duration = Duration::from_secs(1);

fn refuse(code: ErrorCode, message: impl Into<String>) -> ControlError {
    ControlError::new(code, message)
}

pub(super) fn parsed(text: &str) -> Answer<NvmeDrive> {
    text.parse().map_err(|error: api::AddressError| refuse(ErrorCode::Invalid, error.to_string()))
}

impl Engine {
    /// Starts looking for imported namespaces that are not connected, and following the size of
    /// those that are, for as long as the engine lives.
    pub(crate) fn start_reconnecting_namespaces(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(engine) = engine.upgrade() else { return };
                let (served, waiting): (Vec<_>, Vec<_>) = engine
                    .all_imports()
                    .into_iter()
                    .filter(|import| import.is_namespace())
                    .partition(|import| import.running.is_ok());
                join_all(waiting.iter().map(|import| engine.reconnect_namespace(import))).await;
                for import in &served {
                    engine.follow_size(import).await;
                }
            }
        });
    }

    /// Serves a connected namespace on all shards. Its exports are not offered yet.
    pub(super) async fn attach_namespace(
        &self,
        key: shard::GroupKey,
        remembered: RememberedImport,
        remote: Remote,
    ) -> Answer<Arc<Import>> {
        let remote = Arc::new(remote);
        for handle in &self.shards {
            let remote = remote.clone();
            let attaching = handle.call(move || async move {
                let connected = remote.connected(&ShardEnv::current());
                shard::add_import(key, Served::Namespace(connected));
            });
            attaching.await.map_err(|_| stopping())?;
        }
        Ok(self.add_import(Import::new(key, remembered, Ok(Source::Namespace(remote)))?))
    }

    /// Connects to a remembered namespace, if it is present.
    async fn reconnect_namespace(&self, import: &Arc<Import>) {
        match self.connect_again(import).await {
            Ok(()) => {}
            Err(error) if import.note(&error.message) => {
                tracing::warn!(import = import.name(), %error, "a namespace is not there; it is looked for");
            }
            Err(_) => {}
        }
    }

    /// Resizes the device of a namespace to the namespace's size. The kernel may ask any shard for
    /// any block, so the smallest size that a shard knows counts.
    async fn follow_size(&self, import: &Arc<Import>) {
        let key = import.key;
        let mut size_bytes = u64::MAX;
        for handle in &self.shards {
            let known =
                handle.call(move || async move { shard::namespace(key).map(|namespace| namespace.size_bytes()) });
            // A shard that stops has none, nor has an import that was forgotten.
            let Ok(Some(known)) = known.await else { return };
            size_bytes = size_bytes.min(known);
        }
        if size_bytes == import.size_bytes() {
            return;
        }
        let _one = self.changes.lock().await;
        if !self.is_current(import) {
            return;
        }
        tracing::info!(import = import.name(), size_bytes, "the namespace has another size");
        import.set_size_bytes(size_bytes);
        let Some((backing, _)) = import.backing() else { return };
        let exports: Vec<_> = import.exports().values().cloned().collect();
        for running in exports {
            if matches!(running.record.kind, ExportKind::Ublk { .. })
                && let Err(error) = self.devices.resize(&backing, &running.record, running.state.name()).await
            {
                let device = running.record.kind.address();
                tracing::warn!(import = import.name(), device, %error, "the device does not have its namespace's size");
            }
        }
    }

    /// The import was neither forgotten nor replaced by a new connection meanwhile.
    fn is_current(&self, import: &Arc<Import>) -> bool {
        self.find_import(import.name()).is_some_and(|now| Arc::ptr_eq(&now, import))
    }

    async fn connect_again(&self, import: &Arc<Import>) -> Answer<()> {
        let drive = parsed(import.remembered.drives.first().map_or("", String::as_str))?;
        let known = self.opener.remotes.find(&drive).await?;
        let (was, is) = (&import.remembered.uuid, known.identity());
        if *was != is {
            return Err(refuse(ErrorCode::DriveUnfit, format!("{} was {was}, and is {is}", drive.name())));
        }
        let _one = self.changes.lock().await;
        if self.unassigned_drives.has_ended() {
            return Err(stopping());
        }
        if !self.is_current(import) {
            return Ok(());
        }
        let remote = self.opener.remotes.take(&drive.name(), known).await?;
        let records: Vec<_> = import.exports().values().map(|running| running.record.clone()).collect();
        let import = self.attach_namespace(import.key, import.to_remember(), remote).await?;
        for record in records {
            self.offer_import(&import, record).await;
        }
        tracing::info!(import = import.name(), drive = drive.name(), "a namespace is connected again");
        Ok(())
    }

    /// The user of a namespace on this machine, in words.
    pub(crate) fn user_of(&self, identity: &str) -> Option<String> {
        for group in self.all() {
            let open = group.drives().iter().flatten().any(|drive| drive.identity.as_deref() == Some(identity));
            if open || group.disconnected().iter().any(|drive| drive.place.identity.as_deref() == Some(identity)) {
                return Some(format!("a drive of the group {:?}", group.name));
            }
        }
        for group in self.not_started.list().into_iter().map(|group| group.remembered) {
            if group.drives.iter().any(|place| place.identity.as_deref() == Some(identity)) {
                return Some(format!("a drive of the group {:?}, which is not started", group.name));
            }
        }
        let own = |import: &Arc<Import>| import.is_namespace() && import.remembered.uuid == identity;
        let import = self.all_imports().into_iter().find(own)?;
        Some(format!("imported already, as {:?}", import.name()))
    }

    /// Refuses an opened drive that is also an import, which currently waits for it.
    pub(crate) fn refuse_imported(&self, drive: &RequestedDrive) -> Answer<()> {
        let is_it =
            |import: &Arc<Import>| import.is_namespace() && Some(&import.remembered.uuid) == drive.identity.as_ref();
        match self.all_imports().into_iter().find(is_it) {
            Some(import) => Err(refuse(
                ErrorCode::DriveInUse,
                format!(
                    "{} is imported, as {:?}: `purlin import forget {}` lets go of it",
                    drive.name,
                    import.name(),
                    import.name()
                ),
            )),
            None => Ok(()),
        }
    }

    /// Refuses a namespace that this daemon serves itself: it would wait for itself.
    pub(super) fn refuse_itself(&self, drive: &NvmeDrive) -> Answer<()> {
        let groups = self.all();
        let uuids = groups.iter().map(|group| group.uuid).chain(self.shares.known_uuid());
        if uuids.into_iter().any(|uuid| nqn_of(&uuid).to_string() == drive.subsystem) {
            return Err(refuse(
                ErrorCode::Invalid,
                format!("{} is served by this daemon itself: export its volume as a block device", drive.name()),
            ));
        }
        Ok(())
    }

    /// The reason why a namespace cannot be reached now, including one that was not found since the
    /// daemon started. `None` if it can be reached, or has no device that may have been written.
    pub(crate) async fn out_of_reach(&self, import: &Import) -> Option<String> {
        if !import.is_namespace() || import.exports().is_empty() {
            return None;
        }
        let shown = self.shown_import(import).await;
        shown.message.filter(|_| shown.health == api::GroupHealth::Failed)
    }
}
