//! Limits how much a power cut may make indeterminate: no more than the list of lost blocks has
//! room for.
//!
//! A record that overwrites several strips of a stripe leaves an indeterminate range. A checkpoint
//! record resolves it. If the record has checksums, it is resolved once the strips are durable. If
//! members are lost in a power cut, each such range may become a range of lost blocks. So the
//! records of all shards together leave no more of them than the list has room for. From
//! [`SEALED_FROM`] on the group is flushed in the background and a checkpoint record is written. A
//! write that finds no room waits for that.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use drive::{BlockError, Env};
use format::log::LOST_RANGES_MAX;

use crate::array::Inner;
use crate::log::Log;
use crate::state::shared::Shared;

/// Indeterminate ranges from which on the group is flushed and a checkpoint record is written, so
/// that there is room before it is needed.
const SEALED_FROM: usize = 192;

/// A record counts for no more than this, so that it finds room beside others.
const OF_RECORD_MAX: usize = LOST_RANGES_MAX / 2;

/// How often a write that found no room checks again.
const LOOK: Duration = Duration::from_micros(100);

/// The indeterminate ranges of a group, shared by its shards.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    open: AtomicUsize,
    /// A shard flushes and writes a checkpoint record in the background.
    answering: AtomicBool,
}

impl Questions {
    /// Counts `count` more if that leaves no more than `most`, or if there are no others. Returns
    /// the new total.
    fn try_open(&self, count: usize, most: usize) -> Option<usize> {
        let fits = |open: usize| (open == 0 || open + count <= most).then_some(open + count);
        self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok().map(|before| before + count)
    }

    /// Whether there is room for any record beside the ranges that are open, even if none of them
    /// is resolved for long.
    pub fn is_roomy(&self) -> bool {
        self.open.load(Ordering::Acquire) <= LOST_RANGES_MAX - OF_RECORD_MAX
    }
}

/// The indeterminate ranges that one record leaves. Resolved when this is dropped.
#[derive(Debug)]
pub(crate) struct OpenQuestions {
    shared: Arc<Shared>,
    count: usize,
}

impl Drop for OpenQuestions {
    fn drop(&mut self) {
        self.shared.questions.open.fetch_sub(self.count, Ordering::AcqRel);
    }
}

impl<E: Env> Inner<E> {
    /// Returns once a record may leave this many indeterminate ranges.
    ///
    /// # Errors
    /// [`BlockError`] if there is no room, and the group cannot be flushed to make some.
    pub async fn open_questions(self: &Rc<Self>, log: &Log, count: usize) -> Result<OpenQuestions, BlockError> {
        let count = count.min(OF_RECORD_MAX);
        let questions = &self.shared.questions;
        // In order of arrival, so that records with few ranges do not overtake one with many.
        let _turn = log.asks.enter().await;
        loop {
            let most = LOST_RANGES_MAX.saturating_sub(self.shared.lost.listed());
            if let Some(open) = questions.try_open(count, most) {
                if open >= SEALED_FROM.min(most) {
                    self.answer_soon();
                }
                return Ok(OpenQuestions { shared: self.shared.clone(), count });
            }
            if !questions.answering.swap(true, Ordering::AcqRel) {
                let flushed = self.flush().await;
                questions.answering.store(false, Ordering::Release);
                flushed?;
                if questions.try_open(count, most).is_some() {
                    return Ok(OpenQuestions { shared: self.shared.clone(), count });
                }
            }
            // The open ranges belong to writes under way, or another shard is flushing.
            self.env.sleep(LOOK).await;
        }
    }

    /// Returns once no shard flushes the group in the background. For a group that takes no more
    /// requests: nothing may be written after it was stopped.
    pub async fn answered(&self) {
        while self.shared.questions.answering.load(Ordering::Acquire) {
            self.env.sleep(LOOK).await;
        }
    }

    /// Flushes the group and writes a checkpoint record in the background.
    fn answer_soon(self: &Rc<Self>) {
        if self.shared.questions.answering.load(Ordering::Acquire) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            // If this fails, the next write that needs room sees the error.
            inner.in_background(async || inner.flush().await).await;
        });
    }

    /// Does background work that a stop of the group waits for ([`Inner::answered`]). `None` if the
    /// group was stopped, or if other background work is under way.
    pub async fn in_background<T>(&self, work: impl AsyncFnOnce() -> T) -> Option<T> {
        let questions = &self.shared.questions;
        if questions.answering.swap(true, Ordering::AcqRel) {
            return None;
        }
        let done = if self.shared.is_stopped() { None } else { Some(work().await) };
        questions.answering.store(false, Ordering::Release);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_questions_are_open_than_there_is_room_for_but_one_record_always_goes_on() {
        let questions = Questions::default();
        assert_eq!(questions.try_open(3, 8), Some(3));
        assert_eq!(questions.try_open(5, 8), Some(8));
        assert_eq!(questions.try_open(1, 8), None);
        questions.open.store(0, Ordering::Release);
        assert_eq!(questions.try_open(9, 8), Some(9));
        assert_eq!(questions.try_open(1, 8), None);
    }
}
