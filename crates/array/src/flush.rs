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
    async fn flush(self: &Rc<Self>) -> Result<(), BlockError> {
        // Shards whose logs have to be sealed flush on their own: whoever seals has to have looked before.
        let others = (0..self.shards).filter(|&shard| shard != self.shard && self.shared.is_unsealed(shard));
        let others: Vec<_> = others.map(|shard| self.on_shard(shard, Request::Seal)).collect();
        let here = async {
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
        };
        if others.is_empty() {
            return here.await;
        }
        let mut all: Vec<std::pin::Pin<Box<dyn Future<Output = Result<(), BlockError>> + '_>>> = vec![Box::pin(here)];
        for other in others {
            all.push(Box::pin(async move { other.await.map(|_| ()) }));
        }
        join_all(all).await.into_iter().collect()
    }
}
