//! What a shard thinks of its drives: when a read is late, who is slow, and whom reads go around.
//!
//! - The *bound* of a drive is [`LATE_FACTOR`] times the time in which 19 of 20 reads of a length
//!   are answered, by that drive or by a typical one of the group, whichever is faster: a drive
//!   that is always slow has no excuse, and where all are slow the bound moves.
//! - A drive's *score* is the share of late reads among its last ones. Above a half, while a
//!   typical drive's is below an eighth, it is slow.
//! - Reads go around a slow drive as far as redundancy goes, and as long as the others keep up:
//!   when a quarter of a typical drive's reads is late, the slow one has to take its part.
//! - Probes ask an avoided drive whether it is well again.

use drive::Nanos;
use format::MemberState;

use crate::geometry::MemberIndex;
use crate::latency::CLASSES;
use crate::shared::{DriveId, Slot};
use crate::watch::{Kind, Watch};

/// A bound is never lower: below this, what is late is rather this shard than a drive.
const BOUND_MIN: Nanos = 500_000;

/// The bound before there are figures.
const BOUND_UNKNOWN: Nanos = 50_000_000;

/// Of the reads, as many are answered within the time that bounds are made of.
const BOUND_PER_MILLE: u64 = 950;

/// A read is late after this many times that.
const LATE_FACTOR: u64 = 2;

/// A drive's score is the share of late reads among its last ones, of this.
const SCORE_ONE: u32 = 4096;
/// How many reads that are.
const SCORE_READS: u32 = 32;

/// Probes that a slow drive has to answer in time, one after the other, to be called well again.
const PROBES_GOOD: u32 = 16;
/// The time between probes.
const PROBE_EVERY: Nanos = 10_000_000;

/// How long a drive is slow before the leader hears of it, and how often then: a pause for cleaning
/// up is no news.
const NOTICE_EVERY: Nanos = 1_000_000_000;

/// What a shard thinks of a drive.
#[derive(Clone)]
pub(crate) struct Opinion {
    pub bounds: [Nanos; CLASSES],
    /// Reads that were answered in time since the last look, and that were found late.
    in_time: u32,
    late: u32,
    score: u32,
    slow: bool,
    /// Since when.
    slow_since: Nanos,
    /// Reads go around it.
    pub avoided: bool,
    /// It was read, or would have been, since the last notice.
    wanted: bool,
    noticed: Nanos,
    probes_good: u32,
    probing: bool,
    probed: Nanos,
    /// It has answered something since the last look.
    pub answered: bool,
    /// When the newest operation began that it has answered.
    pub newest_answered: Nanos,
    /// When the leader was asked to give it up.
    pub asked: Option<Nanos>,
    /// The group cannot do without it.
    pub needed: bool,
}

impl Default for Opinion {
    fn default() -> Self {
        Opinion {
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

impl Opinion {
    /// The drive has answered an operation, with success or not. `since`: when that began, or 0
    /// where it was not looked at yet.
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

    /// Takes what came since the last look into the score.
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

    /// The leader has to hear that the drive is slow.
    fn is_news(&mut self, now: Nanos) -> bool {
        let last = self.noticed.max(self.slow_since);
        let is_news = self.wanted && now.saturating_sub(last) >= NOTICE_EVERY;
        if is_news {
            (self.noticed, self.wanted) = (now, false);
        }
        is_news
    }
}

/// By drive. Places without a drive have none: their number stands for no drive, and is large.
#[derive(Default)]
pub(crate) struct Opinions(Vec<Opinion>);

impl Opinions {
    /// All of them, by drive.
    pub fn all(&mut self) -> impl Iterator<Item = (DriveId, &mut Opinion)> {
        self.0.iter_mut().enumerate().map(|(index, opinion)| (DriveId(index as u16), opinion))
    }

    pub fn of(&mut self, drive: DriveId) -> &mut Opinion {
        let index = usize::from(drive.0);
        if self.0.len() <= index {
            self.0.resize(index + 1, Opinion::default());
        }
        &mut self.0[index]
    }
}

impl Watch {
    /// Reads go around this drive.
    #[inline]
    pub fn avoids(&self, drive: DriveId) -> bool {
        self.any_avoided.get() && self.opinion(drive, |opinion| opinion.avoided)
    }

    /// Some drive is avoided.
    #[inline]
    pub fn avoids_any(&self) -> bool {
        self.any_avoided.get()
    }

    /// A read goes around a drive that is avoided. Says whether a probe is due, which is then under
    /// way.
    pub fn goes_around(&self, drive: DriveId) -> bool {
        let now = self.looked.get();
        self.opinion(drive, |opinion| {
            opinion.wanted = true;
            let due = !opinion.probing && now.saturating_sub(opinion.probed) >= PROBE_EVERY;
            if due {
                (opinion.probing, opinion.probed) = (true, now);
            }
            due
        })
    }

    /// A probe has ended.
    pub fn probe_ended(&self, drive: DriveId) {
        self.opinion(drive, |opinion| opinion.probing = false);
    }

    /// Takes the bounds from the distributions.
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
            // The lower of two: the other copy of a mirror is the measure of a slow one.
            let Some(&typical) = sorted.get(sorted.len().saturating_sub(1) / 2) else { continue };
            for (_, slot) in shared.slots().filter(|(_, slot)| slot.state == MemberState::InSync) {
                let own = own.iter().find(|(drive, _)| *drive == slot.drive).map_or(typical, |(_, own)| *own);
                let bound = (LATE_FACTOR * own.min(typical)).max(BOUND_MIN);
                self.opinion(slot.drive, |opinion| opinion.bounds[class] = bound);
            }
        }
    }

    /// Who is slow, and whom reads can go around. Gives those that the leader has to hear of.
    pub fn judge(&self, now: Nanos) -> Vec<(MemberIndex, DriveId)> {
        let shared = &self.shared;
        let mut opinions = self.opinions.borrow_mut();
        let in_sync = |slot: &Slot| slot.state == MemberState::InSync;
        let mut scores: Vec<u32> = Vec::with_capacity(shared.geometry.strips());
        for opinion in &mut opinions.0 {
            opinion.rate();
            opinion.avoided = false;
        }
        for (_, slot) in shared.slots().filter(|(_, slot)| in_sync(slot)) {
            scores.push(opinions.of(slot.drive).score);
        }
        scores.sort_unstable();
        // The lower of two, as with bounds.
        let typical = scores.get(scores.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        let may_avoid = self.may_hedge() && shared.settings.avoiding() && typical < SCORE_ONE / 4;
        let mut notices = Vec::new();
        let mut any_avoided = false;
        let mut set = u64::MAX;
        let mut redundant = 0;
        for (member, slot) in shared.slots().filter(|(_, slot)| in_sync(slot)) {
            let opinion = opinions.of(slot.drive);
            opinion.find_slow(typical, now);
            if !opinion.slow {
                continue;
            }
            if set != u64::from(member.0) / shared.geometry.strips() as u64 {
                set = u64::from(member.0) / shared.geometry.strips() as u64;
                redundant = shared.geometry.syndromes.saturating_sub(shared.lost_in_set(set));
            }
            if may_avoid && redundant > 0 {
                redundant -= 1;
                opinion.avoided = true;
                any_avoided = true;
            }
            if opinion.is_news(now) {
                notices.push((member, slot.drive));
            }
        }
        self.any_avoided.set(any_avoided);
        notices
    }
}
