//! All short programs.

use std::collections::BTreeMap;
use std::fmt;

use format::{Level, Shape};

use crate::engine::history::Request;
use crate::engine::{KIB, Protection, shape, valid};

/// Bytes of a strip: two blocks, so that there are sizes below it.
pub(crate) const STRIP_BYTES: u64 = 8 * KIB;

/// A request of a program, in bytes of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// The kind of request.
    pub request: Request,
    /// Start in bytes.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Its name.
    name: &'static str,
}

impl fmt::Display for Op {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Op { request, start, len, name } = self;
        match request {
            Request::Flush => formatter.write_str("flush"),
            Request::Write { fua: true } => write!(formatter, "write-fua {start}+{len} ({name})"),
            Request::Discard => write!(formatter, "discard {start}+{len} ({name})"),
            _ => write!(formatter, "write {start}+{len} ({name})"),
        }
    }
}

/// The state before the program begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// A new group, never written.
    Fresh,
    /// All blocks of the program were written and flushed.
    Written,
}

/// A program, and the group it runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The group.
    pub shape: Shape,
    /// The protection of the group against crashes.
    pub protection: Protection,
    /// The state before the program.
    pub before: Before,
    /// Members that are missing while the program runs.
    pub degraded: Vec<usize>,
    /// The requests, one after the other.
    pub ops: Vec<Op>,
}

impl Case {
    /// They begin on the same drives.
    pub(super) fn begins_like(&self, other: &Case) -> bool {
        let begin = |case: &Case| (case.shape, case.protection, case.before, case.degraded.clone());
        begin(self) == begin(other)
    }

    /// Groups of members that play the same part: their strips are overwritten at the same member
    /// offsets by each request, or they hold parity, or no request touches them. `first_stripe`:
    /// the members of the group's first stripe by role. All requests lie in that stripe, except
    /// those of the whole group.
    pub(super) fn alike(&self, first_stripe: &[usize]) -> Vec<Vec<usize>> {
        self.parts(first_stripe).into_values().collect()
    }

    /// Those of them that hold data. Of the data strips all present ones are read, in any order. Of
    /// the parity strips only the first ones that are needed are read, so it matters which of them
    /// are right.
    pub(super) fn alike_in_data(&self, first_stripe: &[usize]) -> Vec<Vec<usize>> {
        let parts = self.parts(first_stripe).into_iter();
        parts.filter_map(|((_, part), members)| matches!(part, Part::Data(_)).then_some(members)).collect()
    }

    /// The members by their set and their part in it.
    fn parts(&self, first_stripe: &[usize]) -> BTreeMap<(usize, Part), Vec<usize>> {
        let mut parts: BTreeMap<(usize, Part), Vec<usize>> = BTreeMap::new();
        for member in 0..usize::from(self.shape.members) {
            let part = match first_stripe.iter().position(|&other| other == member) {
                Some(role) if role < self.shape.data_per_set() => Part::Data(self.written(role)),
                Some(_) => Part::Parity,
                None => Part::Nothing,
            };
            parts.entry((member / self.shape.members_per_set(), part)).or_default().push(member);
        }
        parts
    }

    /// The member offsets of a data strip of the first stripe that each request covers.
    fn written(&self, role: usize) -> Vec<(u64, u64)> {
        let strip = role as u64 * STRIP_BYTES;
        let column = |byte: u64| byte.clamp(strip, strip + STRIP_BYTES) - strip;
        let columns = self.ops.iter().map(|op| (column(op.start), column(op.start.saturating_add(op.len))));
        columns.map(|(start, end)| if start < end { (start, end) } else { (0, 0) }).collect()
    }
}

/// The part of a member in a program.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Member offsets, by request, as start and end.
    Data(Vec<(u64, u64)>),
    Parity,
    Nothing,
}

/// Whether this is the first of all losses that differ only in members that are `alike`. `losses`:
/// the losses one after the other, each with all members lost before.
pub(super) fn is_first_of_alike(alike: &[Vec<usize>], losses: &[&[usize]]) -> bool {
    let lost_at = |member: &usize| losses.iter().position(|lost| lost.contains(member)).unwrap_or(losses.len());
    alike.iter().all(|members| members.is_sorted_by_key(lost_at))
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { shape, protection, before, degraded, ops } = self;
        write!(formatter, "{shape} of {} members, {protection}, {before:?}", shape.members)?;
        if !degraded.is_empty() {
            write!(formatter, ", without members {degraded:?}")?;
        }
        ops.iter().try_for_each(|op| write!(formatter, "; {op}"))
    }
}

/// The small geometries that are checked.
pub fn shapes() -> Vec<(&'static str, Shape)> {
    let strip = STRIP_BYTES;
    vec![
        ("raid5", shape(Level::Raid5, 3, strip)),
        ("raid6", shape(Level::Raid6, 4, strip)),
        ("raid7", shape(Level::Raid7, 5, strip)),
        ("nm", valid(Shape::of(Level::Nm, 8).parity(4), strip)),
        ("raid10", shape(Level::Raid10, 4, strip)),
        ("raid50", shape(Level::Raid50, 6, strip)),
    ]
}

/// All requests that a program may consist of: writes of a part of a strip, of a strip, across two
/// strips and of a stripe, plain and with FUA; discards of a part of a strip and of everything;
/// flush.
pub fn alphabet(shape: &Shape) -> Vec<Op> {
    let strip = STRIP_BYTES;
    let stripe = strip * shape.data_per_set() as u64;
    let mut writes =
        vec![(0, strip / 2, "part of a strip"), (0, strip, "a strip"), (strip / 2, strip, "across strips")];
    if stripe > strip {
        writes.push((0, stripe, "a stripe"));
    }
    let mut all = Vec::new();
    for fua in [false, true] {
        all.extend(writes.iter().map(|&(start, len, name)| Op { request: Request::Write { fua }, start, len, name }));
    }
    all.push(Op { request: Request::Discard, start: 0, len: strip / 2, name: "part of a strip" });
    all.push(Op { request: Request::Discard, start: 0, len: u64::MAX, name: "everything" });
    all.push(Op { request: Request::Flush, start: 0, len: 0, name: "flush" });
    all
}

/// All programs with exactly `len` requests.
pub fn programs(alphabet: &[Op], len: usize) -> Vec<Vec<Op>> {
    let mut all = vec![Vec::new()];
    for _ in 0..len {
        all = all
            .into_iter()
            .flat_map(|program: Vec<Op>| {
                alphabet.iter().map(move |op| {
                    let mut longer = program.clone();
                    longer.push(*op);
                    longer
                })
            })
            .collect();
    }
    all
}
