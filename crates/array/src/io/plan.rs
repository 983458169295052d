//! The cheapest way to write a component: a run of member offsets of one stripe. Pure functions;
//! the cost is counted in drive operations.
//!
//! | way | reads | right when |
//! |---|---|---|
//! | full stripe | nothing | every strip is covered |
//! | reconstruct-write | what the writes do not cover | most of the stripe is written |
//! | read-modify-write | the old data and parity of the writes | little of it is written |
//! | restore | `k` strips, to compute what is lost | an unreadable strip is needed |
//!
//! A full-stripe write is a reconstruct-write with nothing to read. All ways write the same: the
//! touched sectors of every data strip that takes writes, and every parity strip that takes writes.

use smallvec::SmallVec;

use crate::geometry::Role;
use crate::geometry::ranges::{Range, Ranges};

/// How an operation can use a strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strip {
    /// It can be read and written.
    Good,
    /// Reading it failed here, but its member takes writes: restore it and write it back.
    Unreadable,
    /// Its member is gone, or has not been rebuilt this far.
    Lost,
}

/// How the new parity is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the old parity and the difference of old and new data.
    ReadModifyWrite,
    /// From the whole stripe: the written data, and the rest as read.
    ReconstructWrite,
    /// From the whole stripe, restored from `k` readable strips first.
    Restore,
    /// There is no parity to compute. Only the sectors that are written in part are read.
    NoParity,
}

/// Member offsets of strips to read.
pub type StripReads = SmallVec<[(Role, Range); 8]>;

/// The reads of a component, and the way to use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The way.
    pub way: Way,
    /// The member offsets to read, by strip.
    pub reads: StripReads,
}

/// A component to write.
#[derive(Debug)]
pub struct PlanInput<'a> {
    /// Number of data strips.
    pub data: usize,
    /// State of all strips, by role.
    pub strips: &'a [Strip],
    /// The member offsets.
    pub offsets: Range,
    /// The sectors that are touched, by data strip.
    pub touched: &'a [Ranges],
    /// The sectors that are covered entirely, by data strip.
    pub full: &'a [Ranges],
}

/// Finds the cheapest way. If there is none, the error is the number of lost strips.
pub fn choose(input: &PlanInput<'_>) -> Result<Plan, usize> {
    let PlanInput { data, strips, offsets, touched, full } = *input;
    let parity = strips.len() - data;
    let lost = strips.iter().filter(|&&strip| strip != Strip::Good).count();
    if lost > parity {
        return Err(lost);
    }
    if strips[data..].iter().all(|&strip| strip == Strip::Lost) {
        let edges = (0..data).flat_map(|role| {
            let edges = touched[role].iter().flat_map(move |range| full[role].gaps(range).iter().collect::<Vec<_>>());
            edges.map(move |range| (role, range))
        });
        return Ok(Plan { way: Way::NoParity, reads: edges.collect() });
    }
    // An unreadable strip is healed in passing, which needs the whole stripe.
    let candidates = if strips.contains(&Strip::Unreadable) {
        [None, None, restore(input)]
    } else {
        match reconstruct_write(input) {
            // Nothing is cheaper than a full stripe.
            Some(plan) if plan.reads.is_empty() => return Ok(plan),
            whole => [whole, read_modify_write(input), restore(input)],
        }
    };
    let cost = |plan: &Plan| (plan.reads.len(), plan.reads.iter().map(|(_, range)| range.len()).sum::<u64>());
    let best = candidates.into_iter().flatten().min_by_key(cost);
    debug_assert!(best.is_some(), "{offsets:?}: restoring works with up to m strips lost");
    best.ok_or(lost)
}

fn reconstruct_write(input: &PlanInput<'_>) -> Option<Plan> {
    let mut reads = StripReads::new();
    for role in 0..input.data {
        let gaps = input.full[role].gaps(input.offsets);
        if input.strips[role] != Strip::Good && !gaps.is_empty() {
            return None;
        }
        reads.extend(gaps.iter().map(|range| (role, range)));
    }
    Some(Plan { way: Way::ReconstructWrite, reads })
}

fn read_modify_write(input: &PlanInput<'_>) -> Option<Plan> {
    let mut reads = StripReads::new();
    for role in 0..input.data {
        if input.strips[role] != Strip::Good && !input.touched[role].is_empty() {
            return None;
        }
        reads.extend(input.touched[role].iter().map(|range| (role, range)));
    }
    for role in input.data..input.strips.len() {
        if input.strips[role] == Strip::Good {
            reads.push((role, input.offsets));
        }
    }
    Some(Plan { way: Way::ReadModifyWrite, reads })
}

fn restore(input: &PlanInput<'_>) -> Option<Plan> {
    let good = (0..input.strips.len()).filter(|&role| input.strips[role] == Strip::Good);
    let reads: StripReads = good.take(input.data).map(|role| (role, input.offsets)).collect();
    (reads.len() == input.data).then_some(Plan { way: Way::Restore, reads })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    fn plan(data: usize, strips: &[Strip], offsets: Range, writes: &[(Role, Range)]) -> Result<Plan, usize> {
        let mut touched = vec![Ranges::new(); data];
        for &(role, range) in writes {
            touched[role].add(range);
        }
        choose(&PlanInput { data, strips, offsets, touched: &touched, full: &touched })
    }

    fn block(index: u64) -> Range {
        Range::new(index * BLOCK, (index + 1) * BLOCK)
    }

    #[test]
    fn a_small_write_to_raid6_costs_three_reads() {
        let plan = plan(8, &[Strip::Good; 10], block(0), &[(3, block(0))]).expect("healthy");
        assert_eq!(plan.way, Way::ReadModifyWrite);
        assert_eq!(plan.reads, StripReads::from_iter([(3, block(0)), (8, block(0)), (9, block(0))]));
    }

    #[test]
    fn a_full_stripe_costs_no_read() {
        let whole = Range::new(0, 65536);
        let writes: Vec<_> = (0..8).map(|role| (role, whole)).collect();
        let plan = plan(8, &[Strip::Good; 10], whole, &writes).expect("healthy");
        assert_eq!(plan, Plan { way: Way::ReconstructWrite, reads: StripReads::new() });
    }

    #[test]
    fn a_wide_write_reads_what_it_does_not_cover() {
        let writes: Vec<_> = (0..6).map(|role| (role, block(0))).collect();
        let plan = plan(8, &[Strip::Good; 10], block(0), &writes).expect("healthy");
        assert_eq!(
            plan,
            Plan { way: Way::ReconstructWrite, reads: StripReads::from_iter([(6, block(0)), (7, block(0))]) }
        );
    }

    #[test]
    fn a_write_to_a_lost_strip_reads_the_others() {
        let mut strips = [Strip::Good; 6];
        strips[1] = Strip::Lost;
        let plan = plan(4, &strips, block(0), &[(1, block(0))]).expect("one lost");
        assert_eq!(plan.way, Way::ReconstructWrite);
        assert_eq!(plan.reads, StripReads::from_iter([(0, block(0)), (2, block(0)), (3, block(0))]));
    }

    #[test]
    fn a_write_beside_a_lost_strip_modifies() {
        let mut strips = [Strip::Good; 6];
        strips[1] = Strip::Lost;
        let plan = plan(4, &strips, block(0), &[(0, block(0))]).expect("one lost");
        assert_eq!(plan.way, Way::ReadModifyWrite);
        assert_eq!(plan.reads.len(), 3);
    }

    #[test]
    fn a_lost_strip_written_beside_another_lost_one_is_restored() {
        let mut strips = [Strip::Good; 6];
        strips[0] = Strip::Lost;
        strips[1] = Strip::Lost;
        let plan = plan(4, &strips, block(0), &[(1, block(0))]).expect("two lost");
        assert_eq!(plan.way, Way::Restore);
        assert_eq!(plan.reads.len(), 4);
    }

    #[test]
    fn without_parity_nothing_is_read() {
        let mut strips = [Strip::Good; 4];
        strips[3] = Strip::Lost;
        let plan = plan(3, &strips, block(0), &[(1, block(0))]).expect("one lost");
        assert_eq!(plan, Plan { way: Way::NoParity, reads: StripReads::new() });
    }

    #[test]
    fn too_many_lost_strips_are_counted() {
        let mut strips = [Strip::Good; 6];
        strips[0..3].fill(Strip::Lost);
        assert_eq!(plan(4, &strips, block(0), &[(4 - 1, block(0))]), Err(3));
    }

    #[test]
    fn an_unreadable_strip_is_healed_by_any_write_beside_it() {
        let mut strips = [Strip::Good; 6];
        strips[2] = Strip::Unreadable;
        let plan = plan(4, &strips, block(0), &[(0, block(0))]).expect("one unreadable");
        assert_eq!(plan.way, Way::Restore);
    }
}
