//! Running a program, and recording its drives' operations.

use std::cell::RefCell;
use std::ops::{ControlFlow, Range};

use array::{Geometry, StripeGroup};
use format::{CrashSafety, Layout, LayoutError, Shape};

use super::programs::{Before, Case, Op};
use super::states::{BLOCK_BYTES, Drives, Page};
use crate::engine::history::{History, Request, Shared, perform};
use crate::engine::{Group, KIB, Protection};
use crate::trace::TapeEvent;
use crate::{DriveOptions, Latency, Sim, SimDrive};

/// The smallest drive size for a group of this shape, with two stripe groups.
fn drive_bytes(shape: &Shape, protection: Protection) -> u64 {
    let need = match Layout::plan(shape, 0, protection.has_checksums()) {
        Err(LayoutError::TooSmall { need, .. }) => need,
        other => unreachable!("no drive is large enough to be a member with nothing: {other:?}"),
    };
    need.next_multiple_of(4 * KIB)
}

/// The layout of a member on such a drive.
fn layout(shape: &Shape, protection: Protection) -> Layout {
    let layout = Layout::plan(shape, drive_bytes(shape, protection), protection.has_checksums());
    layout.expect("the drive is large enough")
}

/// The members of the first stripe, by role.
pub(super) fn first_stripe(shape: &Shape, protection: Protection) -> Vec<usize> {
    let geometry = Geometry::new(shape, &layout(shape, protection), BLOCK_BYTES as u32);
    (0..geometry.strips()).map(|role| usize::from(geometry.member(StripeGroup(0), 0, role).0)).collect()
}

/// The drives' operations, and the contents that may be read after a crash.
pub(super) struct Tape {
    pub events: Vec<TapeEvent>,
    /// From which point of the tape on which history holds.
    pub histories: Vec<(usize, History)>,
}

impl Tape {
    /// Goes through the points of the tape, from before the first event to after the last. The
    /// drives advance with it.
    pub fn each_point(
        &self,
        drives: &RefCell<Drives>,
        mut look: impl FnMut(Point, &History) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let history = |number| {
            let holds = self.histories.iter().rfind(|(from, _)| *from <= number);
            &holds.expect("one holds from the beginning").1
        };
        let mut leaves_fewer = false;
        for number in 0..=self.events.len() {
            let now = history(number);
            let next = self.events.get(number).filter(|_| {
                let then = history(number + 1);
                std::ptr::eq(now, then) || now.fingerprint() == then.fingerprint()
            });
            let next_leaves_fewer = next.map(|event| drives.borrow().makes_durable(event));
            look(Point { number, stood_for: leaves_fewer || next_leaves_fewer == Some(false) }, now)?;
            leaves_fewer = next_leaves_fewer == Some(true);
            if let Some(event) = self.events.get(number) {
                drives.borrow_mut().apply(event);
            }
        }
        ControlFlow::Continue(())
    }
}

/// A point of a tape.
#[derive(Clone, Copy)]
pub(super) struct Point {
    /// Events before it.
    pub number: usize,
    /// All states that a power cut could leave here it could also leave at the point before or
    /// after, with the same allowed contents.
    pub stood_for: bool,
}

/// The result of running a program.
pub(super) struct Recording {
    pub tape: Tape,
    /// The point of the tape at which the last request begins, if it is not the only one.
    pub last: usize,
    /// The drives before the program, by page.
    images: Vec<Vec<Page>>,
    /// Blocks of the data region.
    data: Range<u64>,
    /// Blocks of the log region that hold its rings.
    rings: Range<u64>,
}

impl Recording {
    /// The drives before the program. `all_counts`: a damaged frame of the log counts as a
    /// different state from a missing one.
    pub fn drives(&self, shape: &Shape, all_counts: bool) -> Drives {
        let rings = if all_counts { 0..0 } else { self.rings.clone() };
        Drives::new(self.images.clone(), self.data.clone(), rings, shape.members_per_set() as u32)
    }
}

/// Every operation takes a turn: operations that do not wait for each other are in flight together
/// on the tape.
pub(super) fn in_turn() -> Latency {
    Latency::between(1, 1)
}

/// The options of a member's drive.
pub(super) fn options(case: &Case, index: usize, latency: Latency) -> DriveOptions {
    let bytes = drive_bytes(&case.shape, case.protection);
    DriveOptions { latency, ..DriveOptions::new(&format!("d{index}"), bytes, BLOCK_BYTES as u32) }
}

/// Runs a program to its end, and records the drives' operations.
pub(super) fn record(case: &Case) -> Recording {
    let sim = Sim::new(1);
    let env = sim.env();
    let drives: Vec<SimDrive> = (0..usize::from(case.shape.members))
        .map(|index| SimDrive::with_options(&env, options(case, index, in_turn())))
        .collect();
    let mut group = Group::create_with(&sim, case.shape, case.protection, drives.clone(), 1);
    let history = History::shared(&group);
    if case.protection.safety == CrashSafety::Strict {
        history.borrow_mut().make_strict();
    }
    if !case.degraded.is_empty() {
        sim.block_on(group.stop());
        let left = (0..drives.len()).filter(|index| !case.degraded.contains(index));
        group = Group::open(&sim, left.map(|index| drives[index].clone()).collect(), 1);
    }
    let size = group.size();
    let range = |op: &Op| if op.len == u64::MAX { (0, size) } else { (op.start, op.len) };
    if case.before == Before::Written {
        sim.block_on(async {
            perform(group.leader(), &history, Request::Write { fua: false }, 0, size).await.expect("writable");
            perform(group.leader(), &history, Request::Flush, 0, 0).await.expect("flushes");
        });
    }
    sim.block_on(async {
        for drive in &group.drives {
            ::drive::Drive::flush(drive).await.expect("flushes");
        }
    });
    let page = |index: usize, number: u64| {
        Page::new(&drives[index].read_raw(number * BLOCK_BYTES, BLOCK_BYTES), (index as u32, number))
    };
    let pages = drive_bytes(&case.shape, case.protection) / BLOCK_BYTES;
    let images = (0..drives.len()).map(|index| (0..pages).map(|number| page(index, number)).collect()).collect();
    let geometry = group.leader().shared().geometry.clone();
    let first = geometry.data_start / BLOCK_BYTES;
    let data = first..first + geometry.bands * geometry.stripe_group_bytes / BLOCK_BYTES;
    let rings = format::log::rings(&layout(&case.shape, case.protection), false);
    let rings = rings.offset / BLOCK_BYTES..rings.end() / BLOCK_BYTES;
    sim.tape_start();
    let mut histories = vec![(0, history.borrow().clone())];
    let mut last = 0;
    for (index, op) in case.ops.iter().enumerate() {
        let (start, len) = range(op);
        let at = sim.tape_len();
        last = if index == 0 { 0 } else { at + 1 };
        let before: Shared = history.clone();
        sim.block_on(async {
            let request = perform(group.leader(), &before, op.request, start, len);
            let noted = async {
                // The request has begun when this future is polled after it.
                histories.push((at, before.borrow().clone()));
            };
            both_in_order(async { request.await.expect("nothing is wrong") }, noted).await;
        });
        histories.push((sim.tape_len(), history.borrow().clone()));
    }
    Recording { tape: Tape { events: sim.tape_take(), histories }, last, images, data, rings }
}

async fn both_in_order(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let futures: [std::pin::Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(first), Box::pin(second)];
    ::drive::join_all(futures).await;
}
