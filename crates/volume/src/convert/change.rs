//! Changes of a volume that is being converted.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use drive::{Block, BlockError, Buf, Env, Turn, WriteZeroes, oneshot};

use super::{Converting, Side};

/// A request that changes the volume.
#[derive(Clone)]
pub(super) enum Change {
    Write(Buf, bool),
    Zeroes(WriteZeroes),
    Discard,
}

/// Performs a change on a range.
async fn perform<B: Block>(block: &B, (start, end): (u64, u64), change: Change) -> Result<(), BlockError> {
    match change {
        Change::Write(data, fua) => block.write(start, data, fua).await,
        Change::Zeroes(how) => block.write_zeroes(start, end - start, how).await,
        Change::Discard => block.discard(start, end - start).await,
    }
}

/// The results of two futures that run at the same time.
pub(super) async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(result) = one.as_mut().poll(context)
        {
            first = Some(result);
        }
        if second.is_none()
            && let Poll::Ready(result) = other.as_mut().poll(context)
        {
            second = Some(result);
        }
        match (first.take(), second.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

impl<E: Env, S: Block + 'static, T: Block + 'static> Converting<E, S, T> {
    /// Performs a change. It runs to its end even if this future is dropped: otherwise source and
    /// target would differ.
    pub(super) async fn change(&self, offset: u64, len: u64, change: Change) -> Result<(), BlockError> {
        let request = self.enter(offset, len)?;
        let turn = self.0.order.enter(offset, len);
        let (answer, answered) = oneshot();
        let this = self.clone();
        self.0.env.spawn(async move {
            let result = this.change_in_turn(turn, (offset, offset + len), change).await;
            drop(request);
            answer.send(result);
        });
        answered.await.unwrap_or(Err(BlockError::Stopped))
    }

    async fn change_in_turn(&self, turn: Turn, range: (u64, u64), change: Change) -> Result<(), BlockError> {
        turn.come().await;
        match self.0.side.get() {
            Some(Side::Source) => return perform(&self.0.source, range, change).await,
            Some(Side::Target) => return perform(&self.0.target, range, change).await,
            None => {}
        }
        // The copying does not get into this range before the turn ends.
        let parts = self.0.regions.borrow_mut().begin(range);
        if parts.is_empty() {
            return perform(&self.0.source, range, change).await;
        }
        if let Err(error) = self.until_listed(&parts).await {
            self.0.regions.borrow_mut().end(&parts, true);
            return Err(error);
        }
        let (result, is_same) = self.change_both(range, &parts, change).await;
        self.0.regions.borrow_mut().end(&parts, is_same);
        if !is_same {
            self.0.changed.raise();
        }
        result
    }

    /// Returns when the catalogue lists these parts as stale, or does not call them copied.
    async fn until_listed(&self, parts: &[(u64, u64)]) -> Result<(), BlockError> {
        let mut has_asked = false;
        while !self.0.regions.borrow_mut().is_listed(parts) {
            match (self.0.side.get(), self.0.size_bytes.get()) {
                // The target does not count any more, and is freed after this change.
                (Some(_), _) => return Ok(()),
                (None, 0) => return Err(BlockError::Stopped),
                (None, _) => {}
            }
            match self.0.unsaved.borrow().clone() {
                Some(error) if has_asked => return Err(error),
                _ => {}
            }
            if !has_asked {
                self.0.unsaved.take();
                // The end of the conversion may be waiting for this change.
                self.0.changed.raise();
                has_asked = true;
            }
            let changed = self.0.changed.next();
            (self.0.on_attention)();
            changed.await;
        }
        Ok(())
    }

    /// Returns the answer of the source, and whether the target has the same content.
    async fn change_both(
        &self,
        range: (u64, u64),
        parts: &[(u64, u64)],
        change: Change,
    ) -> (Result<(), BlockError>, bool) {
        if let Change::Zeroes(WriteZeroes { only_fast: true, .. }) = change {
            // The source may refuse, and then the target has to stay as it is.
            let result = perform(&self.0.source, range, change.clone()).await;
            if result == Err(BlockError::NotFast) {
                return (result, true);
            }
            let changed = self.change_target(range, parts, change).await;
            let is_same = result.is_ok() && self.is_done(changed);
            return (result, is_same);
        }
        let source = perform(&self.0.source, range, change.clone());
        let (result, changed) = both(source, self.change_target(range, parts, change)).await;
        let is_same = result.is_ok() && self.is_done(changed);
        (result, is_same)
    }

    /// Takes note of an error of the target. It is not one of the client.
    fn is_done(&self, changed: Result<(), BlockError>) -> bool {
        if let Err(error) = &changed {
            self.0.trouble.replace(Some(error.clone()));
            (self.0.on_attention)();
        }
        changed.is_ok()
    }

    async fn change_target(
        &self,
        (start, _): (u64, u64),
        parts: &[(u64, u64)],
        change: Change,
    ) -> Result<(), BlockError> {
        for &(from, to) in parts {
            let part = match &change {
                // The target is flushed before it counts.
                Change::Write(data, _) => {
                    Change::Write(data.slice((from - start) as usize..(to - start) as usize), false)
                }
                Change::Zeroes(how) => Change::Zeroes(WriteZeroes { fua: false, only_fast: false, ..*how }),
                Change::Discard => Change::Discard,
            };
            perform(&self.0.target, (from, to), part).await?;
        }
        Ok(())
    }
}
