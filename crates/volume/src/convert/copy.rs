//! Copies a volume that is being converted.

use std::time::Duration;

use drive::{Block, BlockError, Buf, Env, WriteZeroes};

use super::Converting;

/// The copying tries again so long after an error.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The copying works one part in so many of the time while clients use the group, as a rebuild
/// without a latency target does.
const SHARE: u32 = 5;

/// Longest rest: past this a conversion would look as if it hung.
const REST_MAX: Duration = Duration::from_millis(500);

/// Zeroes within what is copied become holes in pieces of so many bytes.
const HOLE_BYTES: usize = 64 << 10;

impl<E: Env, S: Block + 'static, T: Block + 'static> Converting<E, S, T> {
    /// Copies until the conversion ends or stops. `clients` counts the requests of clients to the
    /// group: while it grows, the copying rests. `has_room` says whether the target may take more
    /// space.
    pub async fn copy(&self, clients: impl Fn() -> u64, has_room: impl Fn() -> bool) {
        let _request = self.0.requests.borrow().clone();
        while !self.has_ended() {
            let next = self.0.regions.borrow_mut().next_to_copy();
            let Some((from, end)) = next else {
                let changed = self.0.changed.next();
                (self.0.on_attention)();
                changed.await;
                continue;
            };
            let (began, requests) = (self.0.env.now(), clients());
            let copied = if has_room() { self.copy_window(from, end).await } else { Err(BlockError::NoSpace) };
            match copied {
                Ok(()) => {
                    self.0.trouble.take();
                    if clients() != requests {
                        let worked = Duration::from_nanos(self.0.env.now().saturating_sub(began));
                        self.0.env.sleep((worked * (SHARE - 1)).min(REST_MAX)).await;
                    } else {
                        self.0.env.turn_end().await;
                    }
                }
                Err(error) => {
                    self.0.trouble.replace(Some(error));
                    (self.0.on_attention)();
                    self.pause().await;
                }
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.0.side.get().is_some() || self.0.is_stopping.get()
    }

    /// Waits before the next attempt, or until the conversion ends.
    async fn pause(&self) {
        let ended = async {
            while !self.has_ended() {
                self.0.changed.changed().await;
            }
        };
        drive::within(&self.0.env, RETRY_AFTER, ended).await;
    }

    /// Copies the next piece of a region: a window, or a whole hole.
    async fn copy_window(&self, from: u64, end: u64) -> Result<(), BlockError> {
        let ahead = self.0.source.extents(from, end - from).await?;
        let window = (from + self.0.tuning.window_bytes).min(end);
        let to = match ahead.first() {
            Some(extent) if !extent.allocated => window.max((from + extent.len).min(end)),
            _ => window,
        };
        let turn = self.0.order.enter(from, to - from);
        turn.come().await;
        if self.has_ended() {
            return Ok(());
        }
        // A change may have come before the turn.
        let mut at = from;
        while at < to {
            for extent in self.0.source.extents(at, to - at).await? {
                let next = (at + extent.len).min(to);
                if extent.allocated {
                    self.copy_data(at, next).await?;
                } else {
                    self.clear(at, next).await?;
                }
                at = next;
            }
        }
        self.0.regions.borrow_mut().advance(from, to);
        Ok(())
    }

    /// Makes a range of the target a hole, also if an earlier attempt has left content there.
    async fn clear(&self, from: u64, to: u64) -> Result<(), BlockError> {
        let mut at = from;
        while at < to {
            for extent in self.0.target.extents(at, to - at).await? {
                let next = (at + extent.len).min(to);
                if extent.allocated {
                    self.0.target.write_zeroes(at, next - at, WriteZeroes::default()).await?;
                }
                at = next;
            }
        }
        Ok(())
    }

    async fn copy_data(&self, from: u64, to: u64) -> Result<(), BlockError> {
        let mut at = from;
        while at < to {
            let end = (at + self.0.tuning.window_bytes).min(to);
            let data: Buf = self.0.source.read(at, self.0.env.alloc((end - at) as usize)).await?.freeze();
            for (start, len, is_zero) in pieces(&data) {
                let offset = at + start as u64;
                if is_zero {
                    self.clear(offset, offset + len as u64).await?;
                } else {
                    self.0.target.write(offset, data.slice(start..start + len), false).await?;
                }
            }
            at = end;
        }
        Ok(())
    }
}

/// The parts of data that are zeroes or not, as (start, length, whether it is zeroes).
fn pieces(data: &[u8]) -> Vec<(usize, usize, bool)> {
    let mut pieces: Vec<(usize, usize, bool)> = Vec::new();
    for (number, piece) in data.chunks(HOLE_BYTES).enumerate() {
        let is_zero = piece.iter().all(|byte| *byte == 0);
        match pieces.last_mut() {
            Some((_, len, of_last)) if *of_last == is_zero => *len += piece.len(),
            _ => pieces.push((number * HOLE_BYTES, piece.len(), is_zero)),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_become_holes_and_nothing_else_does() {
        let mut data = vec![0; 5 * HOLE_BYTES + 100];
        data[HOLE_BYTES] = 1;
        data[3 * HOLE_BYTES - 1] = 1;
        data[5 * HOLE_BYTES + 99] = 1;
        let expected = [
            (0, HOLE_BYTES, true),
            (HOLE_BYTES, 2 * HOLE_BYTES, false),
            (3 * HOLE_BYTES, 2 * HOLE_BYTES, true),
            (5 * HOLE_BYTES, 100, false),
        ];
        assert_eq!(pieces(&data), expected);
    }
}
