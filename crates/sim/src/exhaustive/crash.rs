//! A crash: the states that it left, and the recovery from them.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use ::drive::{BlockError, BufMut};
use array::Array;

use super::Counts;
use super::explore::{Explorer, VolumeContent};
use super::programs::Case;
use super::states::{BLOCK_BYTES, Cut, Drives};
use super::tape::{Point, Tape, in_turn, options};
use crate::campaign::attempt;
use crate::engine::history::{History, Loss, Version, Violation};
use crate::engine::{Group, KIB};
use crate::rng::mix;
use crate::{Latency, Sim, SimDrive, SimEnv};

/// A crash, and the members that are lost with it or before.
pub(super) struct Crash<'a> {
    pub case: &'a Case,
    /// The contents that may be read after it.
    pub history: &'a History,
    /// The drives at this point of the tape.
    pub drives: &'a Rc<RefCell<Drives>>,
    /// The previous crash and the state that it left, if this crash comes in the recovery from it.
    pub recovering_from: Option<(&'a Crash<'a>, &'a Explorer)>,
    pub point: Point,
    /// Events on the tape.
    pub of: usize,
    pub lost: &'a [usize],
    /// Groups of members that may be exchanged: it does not matter which of them kept what.
    pub exchangeable: &'a [Vec<usize>],
}

impl fmt::Display for Crash<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crash { case, point: Point { number: point, .. }, of, lost, .. } = self;
        match self.recovering_from {
            None => write!(formatter, "{case}\n  crash after {point} of {of} drive events, lost {lost:?}"),
            Some((first, state)) => {
                write!(formatter, "{first}, kept:{}\n  ", state.text())?;
                write!(formatter, "crash after {point} of {of} drive events of the recovery, lost {lost:?}")
            }
        }
    }
}

/// The result of a recovery.
pub(super) struct Recovered {
    pub tape: Tape,
    pub outcome: Vec<Option<Version>>,
}

impl Crash<'_> {
    /// The members that were lost before it.
    pub fn lost_before(&self) -> &[usize] {
        self.recovering_from.map_or(&self.case.degraded, |(first, _)| first.lost)
    }

    /// The losses one after the other, each with all members lost before.
    pub fn losses(&self) -> Vec<&[usize]> {
        let mut losses = self.recovering_from.map_or(vec![&*self.case.degraded], |(first, _)| first.losses());
        losses.push(self.lost);
        losses
    }

    /// The choices of the power cut.
    pub fn cut(&self) -> Cut {
        self.drives.borrow().cut(self.lost, self.exchangeable)
    }

    /// The states that it left.
    pub fn explorer(&self, cut: Cut) -> Explorer {
        // Recovery depends on the set of present members.
        let lost = self.lost.iter().fold(1_u64, |sum, &member| sum | 2 << member);
        let root = u128::from(mix(lost)) << 64 | u128::from(lost);
        match self.recovering_from {
            None => Explorer::new(self.drives.clone(), cut, root),
            Some((_, state)) => state.over(self.drives.clone(), cut, root),
        }
    }

    /// Whether users may read this after it.
    pub fn may_be(&self, outcome: &VolumeContent) -> bool {
        self.history.allows(outcome, &self.lost_in_crash())
    }

    /// Recovers, reads everything and compares. The state is decided as it is read. `taped`: gives
    /// the tape of the drives until everything was read. Otherwise it gives the content that was
    /// read.
    pub fn recover(&self, states: &Rc<RefCell<Explorer>>, counts: &Counts, taped: bool) -> Result<Recovered, String> {
        let recovered = attempt(|| {
            let sim = Sim::new(1);
            let env = sim.env();
            let members = 0..usize::from(self.case.shape.members);
            let members: Vec<usize> = members.filter(|member| !self.lost.contains(member)).collect();
            let drives = members.iter().map(|&member| {
                let states = states.clone();
                let image = move |page| states.borrow_mut().page((member as u32, page));
                let latency = if taped { in_turn() } else { Latency::IMMEDIATE };
                SimDrive::with_image(&env, options(self.case, member, latency), Rc::new(image))
            });
            let drives = drives.collect();
            if taped {
                sim.tape_start();
            }
            let group = Group::open(&sim, drives, 1);
            let mut histories = Vec::from_iter(taped.then(|| (0, self.history.clone())));
            let mut outcome = Vec::new();
            let lost = self.lost_in_crash();
            let check = |start: u64, read: Option<&[u8]>| match read {
                _ if taped => {
                    // Content that was read once has to stay. The last request ended with the
                    // power.
                    let mut history = histories.last().expect("there is the first").1.clone();
                    history.power_cut();
                    match read {
                        Some(read) => history.settle(start, read)?,
                        None => history.settle_unreadable(start, &lost)?,
                    }
                    histories.push((sim.tape_len(), history));
                    Ok(())
                }
                Some(read) => {
                    outcome.extend(self.history.check(start, read)?.into_iter().map(Some));
                    Ok(())
                }
                None => {
                    outcome.push(None);
                    self.history.check_unreadable(start, &lost)
                }
            };
            let unreadable = sim.block_on(read_all(group.leader(), check))?;
            sim.block_on(group.jobs_end());
            let mut events = sim.tape_take();
            for event in &mut events {
                event.drive_index = members[event.drive_index as usize] as u32;
            }
            counts.excused.fetch_add(u64::from(!unreadable.is_empty()), Ordering::Relaxed);
            sim.block_on(self.rewrite(&group, &unreadable))?;
            Ok(Recovered { tape: Tape { events, histories }, outcome })
        });
        recovered?.map_err(|Violation(why)| why)
    }

    /// Members that were lost in a crash, and not before.
    fn lost_in_crash(&self) -> Vec<Loss> {
        let here = self.lost.iter().filter(|member| !self.case.degraded.contains(member));
        here.map(|&member| Loss::in_power_cut(member)).collect()
    }

    /// Unreadable blocks can be written again, and read then; and data and parity agree.
    async fn rewrite(&self, group: &Group, unreadable: &[u64]) -> Result<(), Violation> {
        let array = group.leader();
        let bytes = vec![0x5A; BLOCK_BYTES as usize];
        for start in unreadable {
            let failed = |what: &str, error: BlockError| {
                Violation(format!(
                    "block {start} could not be read, as it may be, but cannot be {what} either: {error}"
                ))
            };
            array.write(*start, bytes.clone().into(), false).await.map_err(|error| failed("written", error))?;
            let read = array.read(*start, BufMut::zeroed(BLOCK_BYTES as usize)).await;
            let read = read.map_err(|error| failed("read after it was written again", error))?;
            if read[..] != bytes[..] {
                return Err(Violation(format!("block {start} is not what was written again")));
            }
        }
        if self.lost.is_empty() && group.differences().await != 0 {
            return Err(Violation("data and parity disagree after recovery".into()));
        }
        Ok(())
    }
}

/// Reads everything. `check` gets the content and offset of each read, or that it failed. Gives the
/// unreadable blocks.
async fn read_all(
    array: &Array<SimEnv>,
    mut check: impl FnMut(u64, Option<&[u8]>) -> Result<(), Violation>,
) -> Result<Vec<u64>, Violation> {
    let size = array.size_bytes();
    let mut unreadable = Vec::new();
    for at in (0..size).step_by(64 << 10) {
        let len = (64 * KIB).min(size - at);
        if let Ok(read) = array.read(at, BufMut::zeroed(len as usize)).await {
            check(at, Some(&read))?;
            continue;
        }
        for block in (at..at + len).step_by(BLOCK_BYTES as usize) {
            match array.read(block, BufMut::zeroed(BLOCK_BYTES as usize)).await {
                Ok(read) => check(block, Some(&read))?,
                Err(BlockError::Stopped) => return Err(Violation("the group has stopped".into())),
                Err(_) => {
                    check(block, None)?;
                    unreadable.push(block);
                }
            }
        }
    }
    Ok(unreadable)
}
