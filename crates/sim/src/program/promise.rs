//! The faults that a group promises to survive, as data, and the ledger that keeps a program within
//! these promises.
//!
//! A fault *costs* a member when the group cannot rely on it any more. Within each set, at most `m`
//! members may be lost at a time; `m` is the number that the level survives.

use std::fmt::Write;

use format::{CrashSafety, Level, Shape};

use super::{CrashKind, Mishap, Program, Remote, Setup, Step};
use crate::Broken;
use crate::engine::{Protection, shape, valid};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The power fails, with all members there.
    PowerCut,
    /// The power fails again during recovery, any number of times.
    PowerCutInRecovery,
    /// The power fails while members are lost or being rebuilt.
    PowerCutDegraded,
    /// Members are lost together with the power.
    LostInPowerCut,
    /// The process is killed, and the drives keep their caches.
    Kill,
    /// A drive dies.
    Dead,
    /// Operations of a drive keep failing, or it is full.
    Errors,
    /// An operation fails once.
    Hiccup,
    /// A drive that was disconnected is back, with old content.
    StaleReturn,
    /// Sectors cannot be read.
    Media,
    /// A drive returns or keeps other data than were written.
    Silent,
    /// A drive is slow, or answers nothing for a while.
    Slow,
    /// The path to drives fails for a while.
    Outage,
    /// The path to more drives than the level survives fails for a while, at the same time.
    OutageOfAll,
    /// The path to drives fails for a while as the group is started.
    OutageAtStart,
    /// The path to more drives than the level survives fails for a while as the group is started.
    OutageOfAllAtStart,
    /// A drive never answers again.
    Hang,
    /// Connections to a target are reset.
    Reset,
    /// A target cannot be reached, in one direction or in both, for moments or for longer than a
    /// member may be disconnected.
    Split,
    /// A target loses its power, or is started again.
    Target,
}

impl Mishap {
    /// The kind of fault that it counts as.
    pub fn fault(self) -> Fault {
        match self {
            Mishap::Reset => Fault::Reset,
            Mishap::TimeOut | Mishap::Stall(_) | Mishap::Split { .. } => Fault::Split,
            Mishap::TargetPower | Mishap::TargetKill => Fault::Target,
        }
    }
}

/// Whether a fault is survived, and to which extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Any number of times, at any time.
    Always,
    /// Costs a member; each set survives this many.
    UpTo(usize),
    /// One at a time with no other fault, and only after a scrub: without checksums a read cannot
    /// detect it.
    AfterScrub,
    /// Not survived, or not so far.
    No(&'static str),
}

/// All faults with their descriptions, in the order of the table.
pub const FAULTS: [(Fault, &str); 20] = [
    (Fault::PowerCut, "power cut, any subset of unflushed sectors kept, all members there"),
    (Fault::PowerCutInRecovery, "power cut during recovery, again and again"),
    (Fault::PowerCutDegraded, "power cut with members lost or being rebuilt"),
    (Fault::LostInPowerCut, "members lost together with the power"),
    (Fault::Kill, "daemon killed: nothing acknowledged is lost, flushed or not"),
    (Fault::Dead, "drive dies, at once or in the middle of operations"),
    (Fault::Errors, "operations keep failing, drive full"),
    (Fault::Hiccup, "one operation fails and its retry works"),
    (Fault::StaleReturn, "drive that was away returns with old content"),
    (Fault::Media, "latent media errors, on members within the same limit"),
    (Fault::Silent, "bit rot, lost write, misdirected write"),
    (Fault::Slow, "latency spikes, a slow drive, a pause"),
    (Fault::Outage, "way to drives fails for a while"),
    (Fault::OutageOfAll, "way to more drives, or all, fails for a while: requests may fail meanwhile"),
    (
        Fault::OutageAtStart,
        "way to drives fails for a while as the group is started, drives away and back, or without power",
    ),
    (Fault::OutageOfAllAtStart, "likewise more drives, or all: the start may fail, and is tried again"),
    (Fault::Hang, "drive never answers again"),
    (Fault::Reset, "connections to a drive of another machine are reset"),
    (Fault::Split, "drive of another machine out of reach, in one direction or both"),
    (Fault::Target, "other machine loses its power, or is started again"),
];

/// The promise of a group of this shape.
pub fn promise(fault: Fault, shape: &Shape, protection: Protection) -> Promise {
    let survives = shape.survives();
    let up_to = if survives == 0 { Promise::No("no redundancy") } else { Promise::UpTo(survives) };
    match fault {
        Fault::PowerCut | Fault::PowerCutInRecovery | Fault::Kill | Fault::Slow | Fault::Reset => Promise::Always,
        Fault::OutageOfAll | Fault::OutageOfAllAtStart => Promise::Always,
        Fault::PowerCutDegraded | Fault::LostInPowerCut if survives == 0 => up_to,
        Fault::PowerCutDegraded | Fault::LostInPowerCut if protection.safety != CrashSafety::Off => up_to,
        Fault::PowerCutDegraded | Fault::LostInPowerCut => Promise::No("needs the write-hole log"),
        Fault::Dead | Fault::Errors | Fault::Media | Fault::StaleReturn | Fault::Hang => up_to,
        Fault::Split | Fault::Target | Fault::Outage | Fault::OutageAtStart => up_to,
        Fault::Hiccup => Promise::Always,
        Fault::Silent if protection.has_checksums() => up_to,
        Fault::Silent if survives >= 2 && !shape.is_mirror() => Promise::AfterScrub,
        Fault::Silent => Promise::No("needs two parity strips or checksums"),
    }
}

/// The table, in Markdown, for groups with the defaults: the log and checksums.
pub fn table() -> String {
    let shapes = [
        shape(Level::Raid0, 3, 4096),
        shape(Level::Raid1, 2, 4096),
        shape(Level::Raid10, 4, 4096),
        shape(Level::Raid5, 4, 4096),
        shape(Level::Raid50, 6, 4096),
        shape(Level::Raid6, 5, 4096),
        shape(Level::Raid60, 8, 4096),
        shape(Level::Raid7, 7, 4096),
        valid(Shape::of(Level::Nm, 9).parity(4), 4096),
    ];
    let mut text = String::from("| fault |");
    let mut notes: Vec<&str> = Vec::new();
    for shape in &shapes {
        let _ =
            write!(text, " {} |", if shape.level == Level::Nm { "nm, m = 4".into() } else { shape.level.to_string() });
    }
    text += "\n|---|";
    shapes.iter().for_each(|_| text += "---|");
    for (fault, what) in FAULTS {
        let _ = write!(text, "\n| {what} |");
        for shape in &shapes {
            let cell = match promise(fault, shape, Protection::DEFAULT) {
                Promise::Always => "yes".to_owned(),
                Promise::UpTo(members) => format!("m = {members}"),
                Promise::AfterScrub => "scrub".to_owned(),
                Promise::No(why) => {
                    let note = notes.iter().position(|known| *known == why).unwrap_or_else(|| {
                        notes.push(why);
                        notes.len() - 1
                    });
                    format!("no ({})", note + 1)
                }
            };
            let _ = write!(text, " {cell} |");
        }
    }
    text += "\n\n`m`: up to m members of a set lost at a time, whatever took them. `scrub`: put right by the next scrub, with \
             nothing else wrong in the set.\n";
    for (index, note) in notes.iter().enumerate() {
        let _ = writeln!(text, "({}) {note}", index + 1);
    }
    text
}

/// The worst case of a group's faults at a step of a program.
pub struct Ledger {
    shape: Shape,
    protection: Protection,
    remote: Remote,
    lost: Vec<bool>,
    /// Lost, and the group may not have noticed: it would drop another one first.
    unnoticed: Vec<bool>,
    /// Lost after some more operations: a group may have been assembled before.
    dying: Vec<bool>,
    /// Being filled: not reliable, but not to be replaced either.
    filling: Vec<bool>,
    /// A spare was added for the member. The group chooses which slot a spare takes. If another
    /// member was lost before the spare took a slot, the spare may take that one, and this member
    /// stays without a drive.
    spared: Vec<bool>,
    /// A member was lost while a spare was about to take another one's slot.
    contested: bool,
    /// Damaged, whether or not the drive reports it.
    media: Vec<bool>,
    hiccup: Vec<bool>,
    /// Being copied to another drive, or was copied since everything was settled: a fault would
    /// affect one of two drives.
    exchanged: Vec<bool>,
    cut_armed: bool,
    resync_due: bool,
    /// More members than a set survives may be disconnected at the same time, until everything is
    /// settled.
    torn: bool,
    /// As `torn`, but only as the group is started.
    torn_at_start: bool,
    /// A lost member would answer again.
    faltering: bool,
    /// Members may leave for a while until everything is settled.
    leaving: bool,
    /// Drives will have no power when the group is started the next time.
    power_due: bool,
    /// Some drives will be unreachable then.
    reconnect_due: bool,
}

impl Ledger {
    /// The ledger of a new group, without faults.
    pub fn new(setup: &Setup) -> Ledger {
        let (shape, protection) = (setup.shape, setup.protection);
        let none = || vec![false; usize::from(shape.members)];
        Ledger {
            shape,
            protection,
            remote: setup.remote,
            lost: none(),
            unnoticed: none(),
            dying: none(),
            filling: none(),
            spared: none(),
            contested: false,
            media: none(),
            hiccup: none(),
            exchanged: none(),
            cut_armed: false,
            resync_due: false,
            torn: false,
            torn_at_start: false,
            faltering: false,
            leaving: false,
            power_due: false,
            reconnect_due: false,
        }
    }

    /// The member is lost at this step.
    pub fn is_lost(&self, member: usize) -> bool {
        self.lost[member]
    }

    /// The member may be disconnected, or incomplete, until everything is settled.
    pub fn may_be_disconnected(&self, member: usize) -> bool {
        self.filling[member]
    }

    /// More than a set survives may be disconnected if these are, too.
    pub fn is_too_many(&self, members: &[usize]) -> bool {
        !self.affords(members)
    }

    /// More than a set survives may be unreachable while the group runs.
    fn is_torn_running(&self) -> bool {
        self.torn && !self.torn_at_start
    }

    fn bad(&self, member: usize) -> bool {
        self.lost[member] || self.filling[member] || self.media[member]
    }

    /// No set has more bad members than it survives, with these in addition.
    fn affords(&self, more: &[usize]) -> bool {
        let size = self.shape.members_per_set();
        (0..usize::from(self.shape.sets)).all(|set| {
            let members = set * size..(set + 1) * size;
            members.filter(|member| self.bad(*member) || more.contains(member)).count() <= self.shape.survives()
        })
    }

    /// Each set may have enough members that were left out, until everything is settled, to be
    /// assembled from them alone.
    fn may_start_with_left_ones(&self) -> bool {
        let size = self.shape.members_per_set();
        let left = self.filling.chunks(size).map(|set| set.iter().filter(|&&filling| filling).count());
        left.min().is_some_and(|left| left >= size - self.shape.survives())
    }

    /// No member is bad.
    pub fn whole(&self) -> bool {
        (0..self.lost.len()).all(|member| !self.bad(member))
    }

    fn promised(&self, fault: Fault) -> bool {
        !matches!(promise(fault, &self.shape, self.protection), Promise::No(_))
    }

    /// A member may be lost now: no pending crash or resync needs it.
    fn may_lose(&self, fault: Fault, members: &[usize]) -> bool {
        self.promised(fault) && self.affords(members) && self.may_do_without()
    }

    /// No pending crash or resync needs a member.
    fn may_do_without(&self) -> bool {
        self.promised(Fault::PowerCutDegraded) || !(self.cut_armed || self.resync_due)
    }

    /// Enters a step. Returns false, and changes nothing, if the step is not within the promises.
    pub fn enter(&mut self, step: &Step) -> bool {
        let allowed = self.allows(step);
        if allowed {
            self.note(step);
        }
        allowed
    }

    fn allows(&self, step: &Step) -> bool {
        match step {
            Step::Work(_) | Step::Own { .. } | Step::Verify => true,
            Step::Crash { kind, lost, .. } => self.allows_crash(*kind, lost),
            Step::Die { member, .. } => self.allows_loss(Fault::Dead, *member),
            Step::Hang { member, .. } => self.allows_loss(Fault::Hang, *member),
            Step::Errors { member, .. } => self.allows_loss(Fault::Errors, *member),
            Step::Hiccup { member, .. } => self.is_own(*member) && !self.hiccup[*member],
            Step::Media { member, .. } => !self.cut_armed && self.allows_loss(Fault::Media, *member),
            Step::Silent { member, .. } => !self.cut_armed && self.allows_silent(*member),
            // A pause is so short that no member leaves.
            Step::Outage { members, .. } if is_pause(step) => members.iter().all(|&member| self.is_known(member)),
            Step::Outage { members, how, at_start, .. } => self.allows_outage(members, *how, *at_start),
            Step::Slow { member, factor } => self.is_known(*member) && *factor > 0,
            Step::Mishap { member, what, .. } => self.allows_mishap(*member, *what),
            // A spare takes the first free slot.
            Step::Replace { member, spare } => {
                let only = self.lost.iter().filter(|&&lost| lost).count() == 1;
                self.is_own(*member) && self.lost[*member] && !self.cut_armed && !self.torn && (only || !spare)
            }
            Step::Exchange { member } => {
                let is_whole = self.is_own(*member) && !self.bad(*member) && !self.hiccup[*member];
                is_whole && !self.exchanged.contains(&true) && !self.leaving && !self.cut_armed
            }
            // The drive would be present where all others are unreachable, and does not know of
            // them.
            Step::Return { member } => {
                self.is_own(*member) && self.lost[*member] && self.promised(Fault::StaleReturn) && !self.torn
            }
            Step::Restart { without, shards } => {
                let absent = without.is_empty() || self.may_lose(Fault::Dead, without);
                *shards > 0 && without.iter().all(|&member| self.is_there(member)) && absent && !self.cut_armed
            }
            Step::Scrub | Step::Settle => !self.cut_armed,
        }
    }

    fn is_known(&self, member: usize) -> bool {
        member < self.lost.len()
    }

    /// The drive of the member is in the machine. The faults of drives on targets are the faults of
    /// the path there.
    fn is_own(&self, member: usize) -> bool {
        self.is_known(member) && !self.remote.has(member) && !self.exchanged[member]
    }

    fn is_there(&self, member: usize) -> bool {
        self.is_own(member) && !self.lost[member]
    }

    fn allows_loss(&self, fault: Fault, member: usize) -> bool {
        self.is_there(member) && self.may_lose(fault, &[member])
    }

    fn allows_crash(&self, kind: CrashKind, lost: &[usize]) -> bool {
        // Acknowledged data in the drives' caches must not be lost because only the drives lose
        // their power.
        if kind == CrashKind::Kill && self.power_due {
            return false;
        }
        // The drives that the group continued with would be disconnected, and the others do not
        // know of that.
        if self.is_torn_running() && self.reconnect_due {
            return false;
        }
        let degraded = self.whole() || self.promised(Fault::PowerCutDegraded);
        let media = self.media.iter().any(|&media| media);
        let losing = lost.is_empty() || self.may_lose(Fault::LostInPowerCut, lost);
        lost.iter().all(|&member| self.is_there(member)) && degraded && losing && !media
    }

    fn allows_silent(&self, member: usize) -> bool {
        if self.protection.has_checksums() {
            return self.allows_loss(Fault::Silent, member);
        }
        self.is_own(member) && self.promised(Fault::Silent) && self.whole() && !self.resync_due
    }

    fn allows_outage(&self, members: &[usize], how: Broken, at_start: bool) -> bool {
        let elsewhere = (0..self.lost.len()).any(|member| self.remote.has(member));
        let fault = if at_start { Fault::OutageAtStart } else { Fault::Outage };
        let noticed = !self.unnoticed.contains(&true) && (self.shape.survives() == 0 || self.may_do_without());
        let all = !elsewhere && !self.affords(members) && noticed;
        let in_place = at_start || !how.is_disconnected();
        let harms = (how == Broken::Power && self.cut_armed) || self.media.contains(&true);
        let are_there = !members.is_empty() && members.iter().all(|&member| self.is_there(member));
        let some = are_there && !self.exchanged.contains(&true);
        // Otherwise the only present drives could be those that the group continued without, and
        // they do not know of that.
        let others_know = !at_start || self.affords(members) || !self.may_start_with_left_ones();
        some && in_place && !harms && others_know && (all || self.may_lose(fault, members))
    }

    fn allows_mishap(&self, member: usize, what: Mishap) -> bool {
        self.is_known(member)
            && self.remote.has(member)
            && (what == Mishap::Reset || self.filling[member] || self.may_lose(what.fault(), &[member]))
    }

    fn note(&mut self, step: &Step) {
        match step {
            Step::Outage { .. } if is_pause(step) => {}
            Step::Outage { members, how, at_start, .. } => {
                self.power_due |= *how == Broken::Power;
                self.reconnect_due |= *at_start;
                self.contested |= self.spared.contains(&true);
                self.leaving = true;
                if self.affords(members) {
                    members.iter().for_each(|&member| self.filling[member] = true);
                } else {
                    // As many members as each set survives may have left, and it is unknown which.
                    self.torn_at_start = *at_start && (self.torn_at_start || !self.torn);
                    self.torn = true;
                    self.filling.fill(self.shape.survives() > 0);
                }
            }
            Step::Crash { lost, .. } => {
                self.cut_armed = true;
                (self.power_due, self.reconnect_due) = (false, false);
                self.resync_due = true;
                self.lose(lost);
                lost.iter().for_each(|&member| self.unnoticed[member] = true);
            }
            Step::Die { member, .. } | Step::Hang { member, .. } | Step::Errors { member, .. } => {
                self.lose(&[*member]);
                self.unnoticed[*member] = true;
                self.dying[*member] = matches!(step, Step::Die { after: 1.., .. } | Step::Hang { after: 1.., .. });
                self.faltering |= matches!(step, Step::Errors { .. });
            }
            Step::Hiccup { member, .. } => self.hiccup[*member] = true,
            Step::Exchange { member } => self.exchanged[*member] = true,
            Step::Media { member, .. } => self.media[*member] = true,
            Step::Silent { member, .. } if self.protection.has_checksums() => self.media[*member] = true,
            // The member may leave, and comes back when everything is settled.
            Step::Mishap { member, what, .. } => self.filling[*member] |= *what != Mishap::Reset,
            Step::Replace { member, spare } => {
                (self.lost[*member], self.filling[*member]) = (false, true);
                (self.unnoticed[*member], self.dying[*member]) = (false, false);
                self.spared[*member] |= *spare;
                self.contested |= *spare && self.leaving;
            }
            Step::Restart { without, .. } => {
                self.lose(without);
                (self.power_due, self.reconnect_due) = (false, false);
                self.start();
            }
            Step::Settle => {
                if self.contested {
                    self.lost.iter_mut().zip(&self.spared).for_each(|(lost, spared)| *lost |= *spared);
                }
                self.contested = false;
                self.spared.fill(false);
                self.filling.fill(false);
                self.exchanged.fill(false);
                self.resync_due = false;
                (self.torn, self.leaving, self.power_due, self.reconnect_due) = (false, false, false, false);
            }
            // With members lost, not everything can be compared.
            Step::Scrub if !self.torn && !self.lost.contains(&true) && !self.filling.contains(&true) => {
                self.media.fill(false)
            }
            _ => {}
        }
    }

    /// The group is assembled, and notices the members that do not answer.
    fn start(&mut self) {
        if !self.faltering {
            self.unnoticed.copy_from_slice(&self.dying);
        }
    }

    fn lose(&mut self, members: &[usize]) {
        members.iter().for_each(|&member| self.lost[member] = true);
        self.contested |= !members.is_empty() && self.spared.contains(&true);
    }

    /// The power was cut, or will not be cut any more. Says whether a cut was pending.
    pub fn disarm(&mut self) -> bool {
        std::mem::take(&mut self.cut_armed)
    }

    /// The power cut is pending again.
    pub fn arm(&mut self) {
        self.cut_armed = true;
    }
}

/// Every step is within the promises.
pub fn is_promised(program: &Program) -> bool {
    let mut ledger = Ledger::new(&program.setup);
    program.steps.iter().all(|step| {
        // A power cut comes before the next step that needs to know that it happened.
        if matches!(step, Step::Crash { .. }) || fires_cut(step) {
            ledger.disarm();
        }
        ledger.enter(step)
    })
}

/// A step before which a pending power cut happens at once.
pub fn fires_cut(step: &Step) -> bool {
    matches!(
        step,
        Step::Settle
            | Step::Scrub
            | Step::Restart { .. }
            | Step::Replace { .. }
            | Step::Exchange { .. }
            | Step::Silent { .. }
            | Step::Media { .. }
            | Step::Return { .. }
    )
}

/// The longest silence of members in microseconds that has no consequences.
pub const PAUSE_US_MAX: u64 = 30_000;

/// Members that are silent for a moment: the group does not count them as lost.
pub fn is_pause(step: &Step) -> bool {
    matches!(step, Step::Outage { how: Broken::Silent, us, .. } if *us <= PAUSE_US_MAX)
}
