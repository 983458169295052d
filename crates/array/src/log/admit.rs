//! Bounds the indeterminate ranges of records.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use drive::{BlockError, Env};
use format::log::LOST_RANGES_MAX;

use crate::array::ArrayShard;
use crate::log::Log;
use crate::log::indeterminate::{CHECKPOINT_FROM, IndeterminateRanges, LOOK, OF_RECORD_MAX};

impl<E: Env> ArrayShard<E> {
    /// Returns once a record may leave this many indeterminate ranges.
    ///
    /// # Errors
    /// [`BlockError`] if there is no room, and the group cannot be flushed to make some.
    pub async fn leave_indeterminate(
        self: &Rc<Self>,
        log: &Log,
        count: usize,
    ) -> Result<IndeterminateRanges, BlockError> {
        let count = count.min(OF_RECORD_MAX);
        let indeterminate = &self.shared.indeterminate;
        // In order of arrival, so that records with few ranges do not overtake one with many.
        let _turn = log.asks.enter().await;
        loop {
            let most = LOST_RANGES_MAX.saturating_sub(self.shared.lost.listed());
            if let Some(open) = indeterminate.try_open(count, most) {
                if open >= CHECKPOINT_FROM.min(most) {
                    self.answer_soon();
                }
                return Ok(IndeterminateRanges { shared: self.shared.clone(), count });
            }
            if !indeterminate.answering.swap(true, Ordering::AcqRel) {
                let flushed = self.flush().await;
                indeterminate.answering.store(false, Ordering::Release);
                flushed?;
                if indeterminate.try_open(count, most).is_some() {
                    return Ok(IndeterminateRanges { shared: self.shared.clone(), count });
                }
            }
            // The open ranges belong to writes under way, or another shard is flushing.
            self.env.sleep(LOOK).await;
        }
    }

    /// Returns once no shard flushes the group in the background. For a group that takes no more
    /// requests: nothing may be written after it was stopped.
    pub async fn answered(&self) {
        while self.shared.indeterminate.answering.load(Ordering::Acquire) {
            self.env.sleep(LOOK).await;
        }
    }

    /// Flushes the group and writes a checkpoint record in the background.
    fn answer_soon(self: &Rc<Self>) {
        if self.shared.indeterminate.answering.load(Ordering::Acquire) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            // If this fails, the next write that needs room sees the error.
            inner.in_background(async || inner.flush().await).await;
        });
    }

    /// Does background work that a stop of the group waits for ([`ArrayShard::answered`]). `None`
    /// if the group was stopped, or if other background work is under way.
    pub async fn in_background<T>(&self, work: impl AsyncFnOnce() -> T) -> Option<T> {
        let indeterminate = &self.shared.indeterminate;
        if indeterminate.answering.swap(true, Ordering::AcqRel) {
            return None;
        }
        let done = if self.shared.is_stopped() { None } else { Some(work().await) };
        indeterminate.answering.store(false, Ordering::Release);
        done
    }
}
