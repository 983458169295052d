//! Retries exports and shared drives that could not be served, because their address did not exist
//! yet or another program used it.
//!
//! They are retried until they are served or deleted. Block devices are not retried: their
//! obstacles do not vanish on their own.

use std::sync::Arc;
use std::time::Duration;

use format::ExportKind;

use crate::engine::Engine;
use crate::engine::exports::running_export::RunningExport;
use crate::engine::names::LOOK_UP_WITHIN;

/// The time between attempts.
const EVERY: Duration = Duration::from_secs(5);

/// The exports that have to be retried.
fn unserved<'a>(exports: impl Iterator<Item = &'a Arc<RunningExport>>) -> Vec<Arc<RunningExport>> {
    let is_due = |running: &&Arc<RunningExport>| {
        running.failure.is_some() && !matches!(running.record.kind, ExportKind::Ublk { .. })
    };
    exports.filter(is_due).cloned().collect()
}

impl Engine {
    /// Starts retrying exports and shared drives that could not be served, for as long as the
    /// engine lives.
    pub fn start_retrying_exports(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                let Some(engine) = engine.upgrade() else { return };
                engine.retry_exports().await;
                engine.retry_shares().await;
            }
        });
    }

    async fn retry_exports(&self) {
        for group in self.all() {
            let due = unserved(group.exports().values());
            for running in due {
                // Look up the name before taking the lock: a DNS server that does not answer must
                // not delay changes.
                if self.names.look_up_export(&running.record.kind.address(), LOOK_UP_WITHIN).await.is_err() {
                    continue;
                }
                let _one = self.changes.lock().await;
                if self.unassigned_drives.has_ended() || !self.is_running(&group) {
                    return;
                }
                let now = group.exports().get(&running.record.id).cloned();
                if now.is_some_and(|now| Arc::ptr_eq(&now, &running))
                    && let Err(error) = self.start_export(&group, running.record.clone()).await
                {
                    tracing::debug!(group = group.name, %error, "an export could not be tried again");
                }
            }
        }
        for import in self.all_imports().into_iter().filter(|import| import.running.is_ok()) {
            let due = unserved(import.exports().values());
            for running in due {
                if self.names.look_up_export(&running.record.kind.address(), LOOK_UP_WITHIN).await.is_err() {
                    continue;
                }
                let _one = self.changes.lock().await;
                let is_there = self.all_imports().iter().any(|now| Arc::ptr_eq(now, &import));
                if self.unassigned_drives.has_ended() || !is_there {
                    return;
                }
                let now = import.exports().get(&running.record.id).cloned();
                if now.is_some_and(|now| Arc::ptr_eq(&now, &running)) {
                    self.offer_import(&import, running.record.clone()).await;
                }
            }
        }
    }
}
