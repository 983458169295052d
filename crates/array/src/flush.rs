//! Flush: what was acknowledged becomes durable.

use std::rc::Rc;

use drive::{BlockError, Env};

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
        let mark = self.log.as_ref().map(|log| log.flush_begins());
        if self.shared.map.is_dirty() {
            self.on_leader(Request::Persist).await?;
        } else {
            self.flush_members().await?;
        }
        if let (Some(log), Some(mark)) = (&self.log, mark) {
            log.flush_ended(mark);
        }
        Ok(())
    }
}
