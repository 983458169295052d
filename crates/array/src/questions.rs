//! How much a power cut may make unknown: no more than the list of lost blocks has room for.
//!
//! A record that overwrites several strips of a row leaves a question open until a seal answers it,
//! or, if it has checksums, until its strips are durable. If a power cut takes members along, each
//! such question may end as a range of lost blocks. So the records of all shards together leave no
//! more of them open than the list has room for: from [`SEALED_FROM`] on the group is flushed and
//! sealed in the background, and who finds no room waits for that.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use drive::{BlockError, Env};
use format::log::LOST_RANGES_MAX;

use crate::array::Inner;
use crate::log::Log;
use crate::shared::Shared;

/// Open questions from which on the group is flushed and sealed, so that there is room before it is
/// needed.
const SEALED_FROM: usize = 192;

/// A record counts for no more than this: it must find room beside others.
const OF_RECORD_MAX: usize = LOST_RANGES_MAX / 2;

/// How often a write that found no room looks again.
const LOOK: Duration = Duration::from_micros(100);

/// The open questions of a group, as its shards share them.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    open: AtomicUsize,
    /// Some shard flushes and seals in the background.
    answering: AtomicBool,
}

impl Questions {
    /// Counts `count` more where that leaves no more than `most`, or where there are no others.
    /// Gives how many there are then.
    fn try_open(&self, count: usize, most: usize) -> Option<usize> {
        let fits = |open: usize| (open == 0 || open + count <= most).then_some(open + count);
        self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok().map(|before| before + count)
    }

    /// There is room for any record beside those that are open, should none of them be answered for
    /// long.
    pub fn is_roomy(&self) -> bool {
        self.open.load(Ordering::Acquire) <= LOST_RANGES_MAX - OF_RECORD_MAX
    }
}

/// The questions that one record leaves open. Answered when this is dropped.
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
    /// Returns once a record may leave so many questions open.
    ///
    /// # Errors
    /// [`BlockError`] if there is no room, and the group cannot be flushed and sealed to make some.
    pub async fn open_questions(self: &Rc<Self>, log: &Log, count: usize) -> Result<OpenQuestions, BlockError> {
        let count = count.min(OF_RECORD_MAX);
        let questions = &self.shared.questions;
        // In order of arrival, so that one with many is not passed by those with few.
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
            // What is open belongs to writes that are under way, or another shard is at it.
            self.env.sleep(LOOK).await;
        }
    }

    /// Returns once nobody flushes and seals the group in the background, of a group that takes no
    /// more requests: nothing may be written after it was stopped.
    pub async fn answered(&self) {
        while self.shared.questions.answering.load(Ordering::Acquire) {
            self.env.sleep(LOOK).await;
        }
    }

    /// Flushes and seals the group in the background.
    fn answer_soon(self: &Rc<Self>) {
        if self.shared.questions.answering.load(Ordering::Acquire) {
            return;
        }
        let inner = self.clone();
        self.env.spawn(async move {
            // Without success the next one that needs room sees why.
            inner.in_background(async || inner.flush().await).await;
        });
    }

    /// Does something that a stop of the group waits for ([`Inner::answered`]). `None` if the group
    /// was stopped, or somebody is at it.
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
