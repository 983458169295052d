//! A shard's view of its drives: when a read is late, which drives are slow, and which ones reads
//! avoid.
//!
//! - The *bound* of a drive is [`LATE_FACTOR`] times the 95th percentile of the time of reads of a
//!   length. The percentile is that of the drive or of a typical drive of the group, the lower one
//!   of the two. So a drive that is always slow gets no higher bound, and where all are slow the
//!   bound rises.
//! - The *score* of a drive is the share of late reads among its last ones. A drive is slow if its
//!   score is above a half while that of a typical drive is below an eighth.
//! - Reads avoid a slow drive as far as redundancy allows, and as long as the others keep up. When
//!   a quarter of the reads of a typical drive are late, the slow one has to take its share.
//! - Probes check whether an avoided drive has recovered.

use drive::Nanos;
use format::MemberState;

use crate::drives::in_flight::{InFlightTable, Kind};
use crate::drives::latency::CLASSES;
use crate::geometry::MemberIndex;
use crate::state::slot::{DriveId, Slot};

/// The lowest bound. A read that is late below this is delayed by this shard rather than by a
/// drive.
const BOUND_MIN: Nanos = 500_000;

/// The bound before there are measurements.
const BOUND_UNKNOWN: Nanos = 50_000_000;

/// The percentile that bounds are made of, in per mille.
const BOUND_PER_MILLE: u64 = 950;

/// A read is late after this many times the percentile.
const LATE_FACTOR: u64 = 2;

/// The score of a drive whose last reads were all late.
const SCORE_ONE: u32 = 4096;
/// Number of last reads that the score covers.
const SCORE_READS: u32 = 32;

/// Probes in a row that a slow drive has to answer in time to count as recovered.
const PROBES_GOOD: u32 = 16;
/// The time between probes.
const PROBE_EVERY: Nanos = 10_000_000;

/// How long a drive is slow before the leader is told, and the interval of further notices. A pause
/// for garbage collection is not reported.
const NOTICE_EVERY: Nanos = 1_000_000_000;

/// A shard's view of a drive.
#[derive(Clone)]
pub(crate) struct SlowDetector {
    pub bounds: [Nanos; CLASSES],
    /// Reads answered in time since the last check, and reads found late.
    in_time: u32,
    late: u32,
    score: u32,
    slow: bool,
    /// Start of the slow period.
    slow_since: Nanos,
    /// Whether reads avoid it.
    pub avoided: bool,
    /// Whether it was read, or would have been, since the last notice.
    wanted: bool,
    noticed: Nanos,
    probes_good: u32,
    probing: bool,
    probed: Nanos,
    /// Whether it has answered an operation since the last check.
    pub answered: bool,
    /// Start time of the newest operation that it has answered.
    pub newest_answered: Nanos,
    /// When the leader was asked to give the drive up.
    pub asked: Option<Nanos>,
    /// Whether the group cannot do without it.
    pub needed: bool,
}

impl Default for SlowDetector {
    fn default() -> Self {
        SlowDetector {
            bounds: [BOUND_UNKNOWN; CLASSES],
            in_time: 0,
            late: 0,
            score: 0,
            slow: false,
            slow_since: 0,
            avoided: false,
            wanted: false,
            noticed: 0,
            probes_good: 0,
            probing: false,
            probed: 0,
            answered: false,
            newest_answered: 0,
            asked: None,
            needed: false,
        }
    }
}

impl SlowDetector {
    /// The drive has answered an operation, with success or not. `since`: start time of the
    /// operation, or 0 if it was not checked yet.
    pub fn note_answer(&mut self, since: Nanos) {
        self.answered = true;
        self.newest_answered = self.newest_answered.max(since);
    }

    pub fn note_late(&mut self, kind: Kind) {
        match kind {
            Kind::Probe(_) => self.probes_good = 0,
            _ => self.late += 1,
        }
    }

    pub fn note_in_time(&mut self, kind: Kind) {
        match kind {
            Kind::Probe(_) => self.probes_good += 1,
            _ => self.in_time += 1,
        }
    }

    /// Adds the reads since the last check to the score.
    fn rate(&mut self) {
        let reads = self.in_time + self.late;
        if let Some(late) = (SCORE_ONE * self.late).checked_div(reads) {
            let weight = reads.min(SCORE_READS);
            self.score = (self.score * (SCORE_READS - weight) + late * weight) / SCORE_READS;
            self.wanted |= self.late > 0;
            (self.in_time, self.late) = (0, 0);
        }
    }

    fn find_slow(&mut self, typical: u32, now: Nanos) {
        if !self.slow && self.score > SCORE_ONE / 2 && typical < SCORE_ONE / 8 {
            (self.slow, self.slow_since, self.probes_good) = (true, now, 0);
        } else if self.slow && (self.probes_good >= PROBES_GOOD || self.score < SCORE_ONE / 4) {
            (self.slow, self.score) = (false, 0);
        }
    }

    /// Whether to tell the leader that the drive is slow.
    fn is_new_state(&mut self, now: Nanos) -> bool {
        let last = self.noticed.max(self.slow_since);
        let is_new_state = self.wanted && now.saturating_sub(last) >= NOTICE_EVERY;
        if is_new_state {
            (self.noticed, self.wanted) = (now, false);
        }
        is_new_state
    }
}

/// By drive. Slots without a drive have no entry: their number stands for no drive, and is large.
#[derive(Default)]
pub(crate) struct SlowDetectors(Vec<SlowDetector>);

impl SlowDetectors {
    /// All of them, by drive.
    pub fn all(&mut self) -> impl Iterator<Item = (DriveId, &mut SlowDetector)> {
        self.0.iter_mut().enumerate().map(|(index, detector)| (DriveId(index as u16), detector))
    }

    pub fn of(&mut self, drive: DriveId) -> &mut SlowDetector {
        let index = usize::from(drive.0);
        if self.0.len() <= index {
            self.0.resize(index + 1, SlowDetector::default());
        }
        &mut self.0[index]
    }
}

impl InFlightTable {
    /// Whether reads avoid this drive.
    #[inline]
    pub fn avoids(&self, drive: DriveId) -> bool {
        self.any_avoided.get() && self.detector(drive, |detector| detector.avoided)
    }

    /// Whether some drive is avoided.
    #[inline]
    pub fn avoids_any(&self) -> bool {
        self.any_avoided.get()
    }

    /// A read avoids this drive. Returns whether a probe is due, which then counts as under way.
    pub fn goes_around(&self, drive: DriveId) -> bool {
        let now = self.looked.get();
        self.detector(drive, |detector| {
            detector.wanted = true;
            let due = !detector.probing && now.saturating_sub(detector.probed) >= PROBE_EVERY;
            if due {
                (detector.probing, detector.probed) = (true, now);
            }
            due
        })
    }

    /// A probe has ended.
    pub fn probe_ended(&self, drive: DriveId) {
        self.detector(drive, |detector| detector.probing = false);
    }

    /// Computes the bounds from the latency distributions.
    pub fn measure(&self) {
        let shared = &self.shared;
        let latencies = &self.latencies[self.shard];
        for class in 0..CLASSES {
            let own = |(member, slot): (MemberIndex, Slot)| {
                let live = slot.state == MemberState::InSync;
                let own = live.then(|| latencies.read_quantile(member, slot.drive, class as u8, BOUND_PER_MILLE));
                own.flatten().map(|own| (slot.drive, own))
            };
            let own: Vec<(DriveId, Nanos)> = shared.slots().filter_map(own).collect();
            let mut sorted: Vec<Nanos> = own.iter().map(|(_, own)| *own).collect();
            sorted.sort_unstable();
            // The lower median: in a mirror of two, the fast copy is the measure of the slow one.
            let Some(&typical) = sorted.get(sorted.len().saturating_sub(1) / 2) else { continue };
            for (_, slot) in shared.slots().filter(|(_, slot)| slot.state == MemberState::InSync) {
                let own = own.iter().find(|(drive, _)| *drive == slot.drive).map_or(typical, |(_, own)| *own);
                let bound = (LATE_FACTOR * own.min(typical)).max(BOUND_MIN);
                self.detector(slot.drive, |detector| detector.bounds[class] = bound);
            }
        }
    }

    /// Finds the slow drives, and those that reads can avoid. Returns those to report to the
    /// leader.
    pub fn judge(&self, now: Nanos) -> Vec<(MemberIndex, DriveId)> {
        let shared = &self.shared;
        let mut detectors = self.detectors.borrow_mut();
        let in_sync = |slot: &Slot| slot.state == MemberState::InSync;
        let mut scores: Vec<u32> = Vec::with_capacity(shared.geometry.strips());
        for detector in &mut detectors.0 {
            detector.rate();
            detector.avoided = false;
        }
        for (_, slot) in shared.slots().filter(|(_, slot)| in_sync(slot)) {
            scores.push(detectors.of(slot.drive).score);
        }
        scores.sort_unstable();
        // The lower median, as with bounds.
        let typical = scores.get(scores.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        let may_avoid = self.may_hedge() && shared.settings.avoiding() && typical < SCORE_ONE / 4;
        let mut notices = Vec::new();
        let mut any_avoided = false;
        let mut set = u64::MAX;
        let mut redundant = 0;
        for (member, slot) in shared.slots().filter(|(_, slot)| in_sync(slot)) {
            let detector = detectors.of(slot.drive);
            detector.find_slow(typical, now);
            if !detector.slow {
                continue;
            }
            if set != u64::from(member.0) / shared.geometry.strips() as u64 {
                set = u64::from(member.0) / shared.geometry.strips() as u64;
                redundant = shared.geometry.parity_count.saturating_sub(shared.lost_in_set(set));
            }
            if may_avoid && redundant > 0 {
                redundant -= 1;
                detector.avoided = true;
                any_avoided = true;
            }
            if detector.is_new_state(now) {
                notices.push((member, slot.drive));
            }
        }
        self.any_avoided.set(any_avoided);
        notices
    }
}
