//! Pace of the collector: it leaves time to clients as long as free segments last.
//!
//! The collector works in pieces: it reads a segment, it looks at some fragments, it writes a run.
//! After each piece, tasks of clients that are ready run. Then the collector rests, if clients were
//! active meanwhile, and writes need not wait for it:
//!
//! ```text
//! rest = work * what the group's governor asks for * lead
//! ```
//!
//! Without a latency target the governor asks for four times the work. The *lead* says whether free
//! space lasts longer than the work of the round. When all of that is done, a quarter of what was
//! free at its start should be left. As long as free space does not fall faster, the lead is 1. If
//! it is behind by a quarter, the lead is 0. So a slow load is served beside a collector that is
//! hardly noticed, and a fast one has all the segments that the collector can free.
//!
//! After a round in which the lead was 0, the next ones rest less: half as much each time, and more
//! again after rounds that were in time. So a load that needs all of the collector's work gets it.
//!
//! Example: 32 MiB are free beside what is kept, and 64 segments have to be collected. After 16 of
//! these, 26 MiB would be right. With 24 MiB left, the lead is 1 - 4 * 2 / 32 = 3/4.

use std::cell::Cell;
use std::time::Duration;

use drive::{BlockError, Buf, Env, Nanos};

use super::backing::Backing;
use super::store::ThinStore;

/// All of a lead, in the unit of leads.
const WHOLE: u64 = 1000;

/// Shorter pieces of work are put together: each turn of the shard costs something.
const PIECE_MIN: Nanos = 100_000;

/// Longest rest. A stop waits for it.
const REST_MAX: Nanos = 50_000_000;

/// Shorter rests are put together: a timer is not more exact.
const REST_MIN: Nanos = 100_000;

/// A rest looks so often whether it has to end.
const REST_STEP: Nanos = 2_000_000;

/// Clients are active for so long after a request.
const ACTIVE: Nanos = 20_000_000;

/// Runs are written in pieces of about so many bytes. More at once would keep the shard and the
/// drives busy for long.
const PIECE_BYTES: u64 = 256 << 10;

/// The collector's pace, and the clients that it is for.
#[derive(Default)]
pub(super) struct Pace {
    /// Requests of clients that have begun, and those that have not ended.
    clients_begun: Cell<u64>,
    clients: Cell<usize>,
    /// Requests that had begun at the last look, and when clients were seen to be active.
    seen: Cell<u64>,
    active: Cell<Option<Nanos>>,
    /// When the piece of work began.
    began: Cell<Nanos>,
    /// Rests that were too short so far.
    owed: Cell<Nanos>,
    /// Free bytes for clients when the round began.
    free: Cell<u64>,
    /// Segments of the round that were collected, and all of them.
    collected: Cell<u64>,
    victims: Cell<u64>,
    /// The collector had to hurry in this round.
    was_late: Cell<bool>,
    /// How much of the rests is left out, in thousandths: more if rounds were late.
    haste: Cell<u64>,
    /// Tasks that wait for a checkpoint or for the end of the collector's work.
    hurried: Cell<usize>,
}

/// Counts something as long as it lives.
struct Counted<'a>(&'a Cell<usize>);

impl<'a> Counted<'a> {
    #[inline]
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<B: Backing> ThinStore<B> {
    /// Counts a request of a client, as long as the result lives.
    #[inline]
    pub(super) fn client_request(&self) -> impl Sized + use<'_, B> {
        let pace = &self.pace;
        pace.clients_begun.set(pace.clients_begun.get() + 1);
        (Counted::new(&pace.clients), self.backing.client_request())
    }

    /// The collector does not rest as long as the result lives.
    pub(super) fn hurry(&self) -> impl Sized + use<'_, B> {
        Counted::new(&self.pace.hurried)
    }

    /// A round begins in which so many segments are collected.
    pub(super) fn begin_round(&self, victims: usize) {
        let pace = &self.pace;
        pace.free.set(self.free_run_bytes());
        pace.collected.set(0);
        pace.victims.set(victims as u64);
        pace.owed.set(0);
        pace.was_late.set(false);
        pace.seen.set(pace.clients_begun.get());
        pace.began.set(self.env().now());
    }

    /// A segment of the round was collected.
    pub(super) fn segment_collected(&self) {
        self.pace.collected.set(self.pace.collected.get() + 1);
    }

    /// All of the round is done.
    pub(super) fn end_round(&self) {
        let pace = &self.pace;
        pace.victims.set(0);
        let haste = pace.haste.get();
        pace.haste.set(if pace.was_late.get() { (haste + WHOLE).div_ceil(2) } else { haste.saturating_sub(WHOLE / 8) });
    }

    /// Whether clients sent requests a short while ago.
    fn has_clients(&self) -> bool {
        let (pace, now) = (&self.pace, self.env().now());
        if pace.clients.get() > 0 || pace.seen.replace(pace.clients_begun.get()) != pace.clients_begun.get() {
            pace.active.set(Some(now));
        }
        pace.active.get().is_some_and(|active| now - active < ACTIVE)
    }

    /// Between two pieces of work: has clients served, and rests if there is time.
    pub(super) async fn make_room_for_clients(&self) {
        let pace = &self.pace;
        let worked = self.env().now().saturating_sub(pace.began.get());
        if worked < PIECE_MIN {
            return;
        }
        // Tasks of clients that are ready run now.
        self.env().turn_end().await;
        if self.has_clients() {
            let rest = worked.saturating_mul(self.backing.rest_per_mille()) / 1000;
            let share = self.lead() * (WHOLE - pace.haste.get()) / WHOLE;
            pace.owed.set((pace.owed.get() + rest.saturating_mul(share) / WHOLE).min(REST_MAX));
            if pace.owed.get() >= REST_MIN {
                self.rest(pace.owed.take()).await;
            }
        }
        pace.began.set(self.env().now());
    }

    /// Rests after work that began at `began`, and that no write waits for, if clients are active.
    pub(super) async fn rest_after(&self, began: Nanos) {
        self.env().turn_end().await;
        if !self.has_clients() {
            return;
        }
        let worked = self.env().now().saturating_sub(began);
        let rest = worked.saturating_mul(self.backing.rest_per_mille()) / 1000;
        self.env().sleep(Duration::from_nanos(rest.min(REST_MAX))).await;
    }

    /// Writes a run in pieces of whole units.
    pub(super) async fn write_in_pieces(&self, address: u64, data: &Buf) -> Result<(), BlockError> {
        let piece = PIECE_BYTES.next_multiple_of(self.grid.unit_bytes) as usize;
        for start in (0..data.len()).step_by(piece) {
            let bytes = data.slice(start..(start + piece).min(data.len()));
            self.backing.write(address + start as u64, bytes, false).await?;
            self.make_room_for_clients().await;
        }
        Ok(())
    }

    async fn rest(&self, rest: Nanos) {
        let began = self.env().now();
        loop {
            let rested = self.env().now() - began;
            let left = rest.saturating_sub(rested);
            if left == 0 || self.lead() == 0 || self.check_usable().is_err() {
                self.counts.borrow_mut().rested_ns += rested;
                return;
            }
            self.env().sleep(Duration::from_nanos(left.min(REST_STEP))).await;
        }
    }

    /// How far the collector is ahead of the load, up to [`WHOLE`]. 0: it has to hurry.
    fn lead(&self) -> u64 {
        let pace = &self.pace;
        if pace.victims.get() == 0 || pace.hurried.get() > 0 || self.waits_for_landing.get() {
            return 0;
        }
        let lead = match self.waits_for_segments.get() {
            true => 0,
            false => lead((self.free_run_bytes(), pace.free.get()), (pace.collected.get(), pace.victims.get())),
        };
        pace.was_late.set(pace.was_late.get() || lead == 0);
        lead
    }
}

/// See the head of this file: free bytes now and at the start, collected segments and all.
fn lead((free, before): (u64, u64), (collected, victims): (u64, u64)) -> u64 {
    if free == 0 || before == 0 || victims == 0 {
        return 0;
    }
    let right = WHOLE - (WHOLE * 3 / 4 * collected.min(victims)).div_ceil(victims);
    let behind = right.saturating_sub(WHOLE * free / before);
    WHOLE.saturating_sub(4 * behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lead_is_lost_when_free_segments_fall_faster_than_victims_are_collected() {
        assert_eq!(lead((32, 32), (0, 64)), WHOLE);
        assert_eq!(lead((26, 32), (16, 64)), WHOLE);
        assert_eq!(lead((24, 32), (16, 64)), 752);
        assert_eq!(lead((18, 32), (16, 64)), 0, "behind by a quarter");
        assert_eq!(lead((8, 32), (64, 64)), WHOLE, "a quarter is left at the end");
        assert_eq!(lead((40, 32), (16, 64)), WHOLE, "space got free meanwhile");
        assert_eq!(lead((0, 32), (64, 64)), 0, "users are about to wait");
        assert_eq!(lead((0, 0), (0, 64)), 0, "there was none to begin with");
    }
}
