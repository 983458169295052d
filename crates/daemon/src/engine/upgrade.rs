//! Checks whether another program may replace the running daemon.

use api::{Changed, ErrorCode, Upgrade, UpgradeRequest};
use async_trait::async_trait;

use crate::engine::Engine;
use crate::http::{Answer, ControlError, UpgradeControl};

#[async_trait]
impl UpgradeControl for Engine {
    async fn upgrade(&self, request: UpgradeRequest) -> Answer<Changed<Upgrade>> {
        let _one = self.changes.lock().await;
        let in_memory =
            |group: &crate::engine::Group| group.drives().iter().flatten().any(|drive| drive.text.starts_with("mem:"));
        if let Some(group) = self.all().iter().find(|group| in_memory(group)) {
            return Err(ControlError::new(
                ErrorCode::WouldLoseData,
                format!(
                    "the group {:?} has drives in the memory of the daemon, which end with it: stop it first",
                    group.name
                ),
            ));
        }
        self.handover.plan(request).await
    }

    async fn upgrade_state(&self) -> Answer<Upgrade> {
        Ok(self.handover.upgrade())
    }
}
