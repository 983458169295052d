//! Flush: what was acknowledged becomes durable.

use std::rc::Rc;

use drive::{BlockError, Env, join_all};

use crate::array::{Array, Inner};
use crate::message::Request;

impl<E: Env> Array<E> {
    /// Makes every request that completed before this call durable, whichever shard it was made on.
    ///
    /// # Errors
    /// [`BlockError`] if more members failed to flush than the level survives.
    pub async fn flush(&self) -> Result<(), BlockError> {
        if self.0.shared.is_stopped() {
            return Err(BlockError::Stopped);
        }
        let inner = self.0.clone();
        self.0.to_the_end(async move { inner.flush().await }).await
    }
}

impl<E: Env> Inner<E> {
    /// Makes everything durable that completed before, and seals the logs of all shards.
    pub async fn flush(self: &Rc<Self>) -> Result<(), BlockError> {
        if self.shared.is_astray() {
            self.on_leader(Request::MarkDirty).await?;
        }
        // Shards whose logs have to be sealed flush on their own: whoever seals has to have looked before the flush.
        let others = (0..self.shards).filter(|&shard| shard != self.shard && self.shared.is_unsealed(shard));
        let sealed = join_all(others.map(|shard| self.on_shard(shard, Request::Seal))).await;
        sealed.into_iter().try_for_each(|sealed| sealed.map(|_| ()))?;
        let mark = self.log.as_ref().map(|log| log.flush_begins());
        if self.shared.map.is_dirty() {
            self.on_leader(Request::Persist).await?;
        } else {
            self.flush_members().await?;
        }
        if let (Some(log), Some(mark)) = (&self.log, mark) {
            log.flush_ended(&mark);
            self.seal(log, &mark).await?;
        }
        Ok(())
    }
}
