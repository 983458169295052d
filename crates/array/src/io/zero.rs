//! Requests that make a range read as zeroes: deallocation (TRIM, discard) and write zeroes.
//!
//! A client may name any length in one request, and sends no data for it. So a request longer than
//! [`STEP_BYTES`] is done in steps:
//!
//! 1. The cost follows the allocated space. Space that was never written reads as zeroes already.
//!    It is skipped by a check of the allocation map, 64 chunks per word.
//! 2. Memory is bounded. One step of a request is under way at a time, and
//!    [`crate::state::message::STEPS_AT_ONCE`] steps of all requests of a shard.
//! 3. Other requests have their turn: after each step, and in order of arrival.
//!
//! Example: a 4 GiB discard on an unwritten 4+2 group checks 512 words of the map, and does no
//! drive operation. With one chunk allocated in the middle, it does one step, which clears that
//! chunk's bit.
//!
//! Tests: `sim/tests/engine/fast_zeroes.rs`.

use std::sync::atomic::Ordering;

use drive::{BlockError, Env};

use crate::array::Array;
use crate::io::overlay::Content;

/// Bytes of the group that one step covers at most, unless one band of stripe groups is more.
const STEP_BYTES: u64 = 8 << 20;

impl<E: Env> Array<E> {
    /// Makes a range read as zeroes. With `keep`, the whole range is written and stays allocated.
    ///
    /// # Errors
    /// As for [`Array::write`]. The steps before the one that failed are done.
    pub(crate) async fn zero(&self, offset: u64, len: u64, keep: bool, fua: bool) -> Result<(), BlockError> {
        self.check(offset, len)?;
        let end = offset + len;
        if self.step_end(offset, end, keep) == end {
            return self.change(offset, len, fua, |_, _| Content::Zero { keep }).await;
        }
        // The request is refused as a whole, before any step is done.
        self.0.shared.lost.check_write(offset, len)?;
        let mut at = offset;
        while at < end {
            if !keep {
                at = self.next_to_zero(at, end);
                if at == end {
                    break;
                }
            }
            let step_end = self.step_end(at, end, keep);
            let turn = self.0.zeroing.enter().await;
            self.change(at, step_end - at, false, |_, _| Content::Zero { keep }).await?;
            drop(turn);
            self.0.env.turn_end().await;
            at = step_end;
        }
        if fua { self.flush().await } else { Ok(()) }
    }

    /// The first byte from `at` on, before `end`, that may have to be zeroed: in a band of stripe
    /// groups with an allocated chunk.
    fn next_to_zero(&self, at: u64, end: u64) -> u64 {
        let shared = &self.0.shared;
        // A failed write may still be retried and allocate its chunk. A lost block is readable
        // again once it is zeroed.
        if shared.incomplete.load(Ordering::SeqCst) > 0 || !shared.lost.is_empty() {
            return at;
        }
        let stripe_group = shared.geometry.place(at).stripe_group;
        at + self.hole_at(at, stripe_group, end).min(end - at)
    }

    /// The end of a step that begins at `at`. A chunk that is freed must not be cut in two, so its
    /// steps are whole bands.
    fn step_end(&self, at: u64, end: u64, keep: bool) -> u64 {
        let geometry = &self.0.shared.geometry;
        let grain = if keep {
            geometry.stripe_data_bytes()
        } else {
            geometry.stripe_data_bytes() * geometry.rows() * geometry.sets
        };
        let whole = (at + STEP_BYTES) / grain * grain;
        let step = if whole > at { whole } else { (at / grain + 1) * grain };
        step.min(end)
    }
}
