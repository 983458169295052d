//! Builds the log record of a component that is about to be written.
//!
//! Guarantees:
//! 1. A record is durable on all of its holders before a strip that it names is overwritten.
//! 2. With the record and any strips that are left after the promised losses, a recovery knows the
//!    content of every strip that the record does not name.
//! 3. A record has its partial parity from durable strips, except for those that it names.
//! 4. No record begins while a member is suspect: it could not be right for both outcomes.
//!
//! A record has an *entry* for each range in which the same strips change. An entry says which
//! strips are *overwritten* in place, and which are *carried in parity* because their own member
//! cannot be read or trusted. Its payload, one for each parity member, is the parity without the
//! overwritten strips.
//!
//! Example: 12 KiB are written to a 4+2 stripe with strips of 64 KiB. They cover the last 8 KiB of
//! D0 and the first 4 KiB of D1. D1's member is lost.
//!
//! ```text
//! strip   member offsets    change
//! D0      56 KiB .. 64 KiB  written in place
//! D1       0 KiB ..  4 KiB  its member is lost: the content goes into the parity alone
//!
//! entry   range             overwritten   carried in parity   payload for P and for Q
//! 1        0 ..  4 KiB      -             D1                  parity after the write, 4 KiB each
//! 2       56 .. 64 KiB      D0            -                   parity without D0, 8 KiB each
//!
//! holders  the members of P and Q; and the member of one data strip if checksums are kept
//! ```
//!
//! Tests: `sim/tests/engine/paper.rs` computes what each record must cost; `records.rs` and
//! `overwritten.rs` there check what a recovery makes of them; `sim/tests/exhaustive.rs` tries all
//! crashes of small programs.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use drive::{BlockError, Buf, BufMut, Env, Segments, join_all};
use format::log::Entry;
use format::{CrashSafety, MemberState, RoleSet};
use smallvec::{SmallVec, smallvec};

use crate::array::ArrayShard;
use crate::geometry::ranges::{Range, Ranges};
use crate::geometry::{MemberIndex, Role, StripeGroup};
use crate::io::overlay::Overlay;
use crate::io::plan::Strip;
use crate::io::types::{Bases, Change, Logged, Overwritten, RowView, StripView, StripWrite};
use crate::log::{Appended, Entries, ExtraHolders, Log, Record, Share};
use crate::state::slot::DriveId;
use crate::util::semaphore::Turn;

/// How often a write checks whether the end of a rebuild still blocks it.
const HOLD_LOOK: Duration = Duration::from_micros(100);

/// How often a write checks whether a suspect member has been declared faulty or cleared.
const DECISION_LOOK: Duration = Duration::from_millis(1);

/// The members that may hold a record, as the strips that they have.
struct Holders {
    /// Parity strips.
    parity: RoleSet,
    /// Data strips, one of which may be an extra holder.
    data: RoleSet,
    /// A data member holds the record besides those of the parity.
    wants_extra: bool,
}

impl Holders {
    fn are_none(&self) -> bool {
        self.parity.is_empty() && (!self.wants_extra || self.data.is_empty())
    }
}

impl<E: Env> ArrayShard<E> {
    /// Logs a write to a stripe that was written before.
    pub async fn log_component(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        view: &RowView<E::Drive>,
        change: &Change<'_>,
    ) -> Result<Logged, BlockError> {
        let &Change { overlay, offsets, writes, bases, .. } = change;
        let Some(log) = &self.log() else { return Ok(Logged::Nothing) };
        let geometry = &self.shared.geometry;
        let trusted = self.trusted(view);
        let holders = self.holders(view, trusted);
        if holders.are_none() {
            // Data members may hold older whole records of these strips: no new one is written.
            if self.shared.crash_safety == CrashSafety::Strict {
                Box::pin(self.void_records(stripe_group, offsets)).await?;
            }
            return Ok(Logged::Nothing);
        }
        let mut entries = self.entries(overlay, offsets, view, writes, trusted);
        if !bases.is_empty() && !matches!(&entries[..], [entry] if entry.in_parity.is_empty()) {
            // The member of the strip is not trusted any more.
            return Ok(Logged::Again);
        }
        while log.conflicts(stripe_group, &entries, geometry.data) {
            // Boxed, like all rare paths here: the future is part of the task of each stripe group.
            Box::pin(self.flush_row_or_all(log, stripe_group, offsets)).await?;
        }
        let is_whole = self.shared.crash_safety == CrashSafety::Strict;
        let whole = is_whole && entries.iter().any(|entry| self.is_indeterminate(entry));
        // The log may hold an older whole record of these member offsets, on data members too. If a
        // crash costs all parity, this one must still be found, or the older one would be rolled
        // forward over it. At most as many members as parity strips are lost, so an extra holder
        // survives.
        let wants_extra = holders.wants_extra || log.has_whole(stripe_group);
        let extra_holder = |role: Role| (role, view.0[role].member, view.0[role].id);
        let extra_holders = match wants_extra && !whole {
            true => holders.data.iter().map(extra_holder).collect(),
            false => ExtraHolders::new(),
        };
        let shares = self.shares(view, change, &mut entries, holders.parity, whole);
        let indeterminate = self.indeterminate_count(&entries);
        let indeterminate = match indeterminate > 0 && !whole {
            true => Some(Box::pin(self.leave_indeterminate(log, indeterminate)).await?),
            false => None,
        };
        let Some(turn) = self.turn(log, stripe_group).await else { return Ok(Logged::Again) };
        let place = |role: Role| (view.0[role].member, view.0[role].id);
        let overwritten: Overwritten = overwritten_by(&entries).iter().map(place).collect();
        let is_unverified = |entry: &Entry| self.is_indeterminate(entry) && entry.checksums.is_empty();
        let unverified = !whole && entries.iter().any(is_unverified);
        if unverified {
            self.counters().uncovered.store(true, Ordering::SeqCst);
        }
        let in_sync = self.in_sync(view);
        let record = Record { stripe_group, entries, whole, in_sync, unverified, indeterminate, shares, extra_holders };
        Ok(match self.append(log, record, turn).await? {
            Appended::Durable(open) => Logged::Durable(open, overwritten),
            Appended::HolderLeft => Logged::Again,
        })
    }

    /// The members that may hold a record of a stripe.
    ///
    /// If a crash costs all parity members, all data strips are present, but checksums may be
    /// stale. So one data member also stores the record, which names the ranges. The remaining
    /// parity may lie on drives that are being filled, which a recovery makes right but does not
    /// read. The record then says that this parity has to be computed again.
    fn holders(&self, view: &RowView<E::Drive>, trusted: RoleSet) -> Holders {
        let geometry = &self.shared.geometry;
        let parity = trusted - geometry.data_strips();
        let is_filling = view.0[geometry.data..].iter().any(|strip| strip.strip != Strip::Lost);
        let wants_extra = self.shared.checksums.is_some() || (parity.is_empty() && is_filling);
        Holders { parity, data: trusted & geometry.data_strips(), wants_extra }
    }

    /// The parts of a record, for each of its holders: the partial parity, or the new content of a
    /// whole record.
    fn shares(
        &self,
        view: &RowView<E::Drive>,
        change: &Change<'_>,
        entries: &mut Entries,
        parity_holders: RoleSet,
        whole: bool,
    ) -> SmallVec<[Share; 4]> {
        let &Change { offsets, writes, bases, fua, .. } = change;
        let share = |role: Role, payload: Buf| {
            let strip = &view.0[role];
            Share { role, member: strip.member, drive: strip.id, payload }
        };
        if whole {
            let holders = overwritten_by(entries) | parity_holders;
            return holders.iter().map(|role| share(role, self.new_content(role, entries, writes))).collect();
        }
        let computed: Bases;
        let payload = if bases.is_empty() {
            computed = self.partial_parity(offsets, entries, writes, fua);
            &computed
        } else {
            bases
        };
        let data = self.shared.geometry.data;
        parity_holders.iter().map(|role| share(role, payload[role - data].clone())).collect()
    }

    /// Waits for the permit to begin a record. Returns `None` if the members may have changed
    /// meanwhile, so that the write has to be planned again.
    async fn turn(&self, log: &Log, stripe_group: StripeGroup) -> Option<Turn> {
        let turn = log.turn().await;
        if self.shared.is_any_suspect_in(self.shared.geometry.set(stripe_group)) {
            drop(turn);
            self.until_decided(stripe_group).await;
            return None;
        }
        if self.shared.is_quiesced() {
            // A rebuild is ending. The plan must include its drive.
            drop(turn);
            while self.shared.is_quiesced() {
                self.env.sleep(HOLD_LOOK).await;
            }
            return None;
        }
        Some(turn)
    }

    /// Whether a power cut during the write may leave the range of an entry indeterminate. Several
    /// strips change together, or one strip and content that is carried in parity: if one of them
    /// is lost, the partial parity alone cannot tell its content.
    fn is_indeterminate(&self, entry: &Entry) -> bool {
        let count = entry.overwritten.len();
        self.shared.geometry.data > 1 && (count > 1 || (count == 1 && !entry.in_parity.is_empty()))
    }

    /// Number of ranges that a power cut may make indeterminate through these entries: of each as
    /// many as strips that may be lost.
    fn indeterminate_count(&self, entries: &Entries) -> usize {
        let of_entry = |entry: &Entry| {
            let changed = entry.overwritten.len();
            self.shared.geometry.parity_count.min(changed)
        };
        entries.iter().filter(|entry| self.is_indeterminate(entry)).map(of_entry).sum()
    }

    /// Returns the data strip that alone changes, over all member offsets of a component, and is
    /// overwritten in place. The payloads of its record are the entire parity without that strip.
    /// They are computed first, and become the new parity in the same memory once the record is
    /// durable.
    pub fn changes_alone(&self, view: &RowView<E::Drive>, offsets: Range, touched: &[Ranges]) -> Option<Role> {
        let _ = self.log()?;
        let mut changing = touched.iter().enumerate().filter(|(_, touched)| !touched.is_empty());
        let (role, touched) = changing.next().filter(|_| self.shared.geometry.data > 1 && changing.next().is_none())?;
        let is_in_place = (good(view) & self.trusted(view)).contains(role);
        (is_in_place && touched.gaps(offsets).is_empty()).then_some(role)
    }

    /// Whether the record contains nothing of the parity, because the write covers all data strips
    /// over all member offsets. The parity then need not be computed before the record is logged.
    pub fn record_leaves_out_parity(&self, view: &RowView<E::Drive>, fua: bool) -> bool {
        let in_place = good(view) & self.trusted(view);
        let data = self.shared.geometry.data_strips();
        !fua && self.shared.crash_safety != CrashSafety::Strict && (data - in_place).is_empty()
    }

    /// Waits until no member of the set is suspect any more: each has been declared faulty, or
    /// stays. A record cannot be right for both cases. It would take the contents of a suspect
    /// member for lost, and others may be lost in a crash before the decision, or if the member
    /// stays.
    async fn until_decided(&self, stripe_group: StripeGroup) {
        while self.shared.is_any_suspect_in(self.shared.geometry.set(stripe_group)) {
            self.env.sleep(DECISION_LOOK).await;
        }
    }

    /// Writes a record that voids older records of a stripe group. They must not be applied to
    /// member offsets that are about to be written without a record: chunks that are again written
    /// for the first time.
    pub async fn void_records(self: &Rc<Self>, stripe_group: StripeGroup, chunk: Range) -> Result<(), BlockError> {
        let Some(log) = &self.log() else { return Ok(()) };
        while log.has(stripe_group) {
            // Parity, and so the record holders, are on other members in each stripe.
            let rows = self.shared.geometry.row_ranges().map(|row| row.intersect(chunk));
            let void = |offsets| self.void_row(log, stripe_group, offsets);
            let voided = join_all(rows.filter(|offsets| !offsets.is_empty()).map(void)).await;
            if voided.into_iter().collect::<Result<Vec<bool>, BlockError>>()?.into_iter().all(|durable| durable) {
                break;
            }
        }
        Ok(())
    }

    /// Voids older records of member offsets of one stripe. Returns false if a member left
    /// meanwhile.
    async fn void_row(
        self: &Rc<Self>,
        log: &Rc<Log>,
        stripe_group: StripeGroup,
        offsets: Range,
    ) -> Result<bool, BlockError> {
        let turn = log.turn().await;
        if self.shared.is_any_suspect_in(self.shared.geometry.set(stripe_group)) {
            drop(turn);
            self.until_decided(stripe_group).await;
            return Ok(false);
        }
        let geometry = &self.shared.geometry;
        let view = self.view(stripe_group, offsets.start, &[]);
        let entry = entry(offsets, RoleSet::EMPTY, RoleSet::EMPTY);
        let in_sync = self.in_sync(&view);
        let trusted = self.trusted(&view);
        let holders = trusted - geometry.data_strips();
        // Data members may hold records, too.
        let count = match self.shared.crash_safety {
            CrashSafety::Strict => geometry.data,
            _ => usize::from(self.shared.checksums.is_some() || holders.is_empty()),
        };
        let holders = holders.iter().chain((trusted & geometry.data_strips()).iter().take(count));
        let share = |role: Role| {
            let strip = &view.0[role];
            Share { role, member: strip.member, drive: strip.id, payload: Buf::zeroes(0) }
        };
        let shares: SmallVec<[Share; 4]> = holders.map(share).collect();
        if shares.is_empty() {
            return Ok(true);
        }
        let record = Record {
            stripe_group,
            entries: smallvec![entry],
            whole: false,
            in_sync,
            unverified: false,
            indeterminate: None,
            shares,
            extra_holders: ExtraHolders::new(),
        };
        // Completed at once: it overwrites nothing, and the records that it voids are reclaimed
        // before it is.
        Ok(matches!(self.append(log, record, turn).await?, Appended::Durable(_)))
    }

    /// Strips whose members are in sync by the superblocks.
    fn in_sync(&self, view: &RowView<E::Drive>) -> RoleSet {
        strips_where(view, |strip| {
            let slot = self.shared.slot(strip.member);
            slot.drive == strip.id && slot.state == MemberState::InSync
        })
    }

    /// Strips that a recovery would trust as it finds them.
    fn trusted(&self, view: &RowView<E::Drive>) -> RoleSet {
        let is_trusted =
            |strip: &StripView<E::Drive>| strip.strip != Strip::Lost && self.is_trusted_member(strip.member, strip.id);
        strips_where(view, is_trusted)
    }

    /// Whether the member is in sync and not suspect.
    fn is_trusted_member(&self, member: MemberIndex, drive: DriveId) -> bool {
        // A member becomes suspect before the flush that precedes the change of its slot. So the
        // suspect flag is checked last.
        let slot = self.shared.slot(member);
        slot.state == MemberState::InSync && slot.drive == drive && !self.shared.is_suspect(member)
    }

    /// Whether a strip was overwritten that a recovery would now count as lost.
    pub fn has_lost_any(&self, overwritten: &Overwritten) -> bool {
        !overwritten.iter().all(|&(member, drive)| self.is_trusted_member(member, drive))
    }

    /// The member offsets that change, cut where a strip begins or ends to change.
    fn entries(
        &self,
        overlay: &Overlay,
        offsets: Range,
        view: &RowView<E::Drive>,
        writes: &[StripWrite],
        trusted: RoleSet,
    ) -> Entries {
        let geometry = &self.shared.geometry;
        if geometry.data == 1 {
            // Any copy is right, old or new, whichever strip is lost.
            return smallvec![entry(offsets, RoleSet::below(1), RoleSet::EMPTY)];
        }
        let lost = strips_where(view, |strip| strip.strip == Strip::Lost) & geometry.data_strips();
        // Writes to lost strips go into the parity alone.
        let of_lost: RoleSet = lost.iter().filter(|&role| overlay.touches(role, offsets)).collect();
        let of_data = || writes.iter().filter(|write| write.role < geometry.data);
        let written = of_lost | of_data().map(|write| write.role).collect();
        // A strip that could not be read is carried in parity: its old content is only in the
        // parity. There are two exceptions. First, there may be too little parity, because more
        // strips are on members that a recovery does not trust. Then the strip's own member tells
        // its content, and it may be back in a moment. Second, a whole record has the strip's new
        // content. So it needs no parity, which strips that are lost in a crash may need.
        let good = good(view);
        let to_solve = (written - good) | (geometry.data_strips() - trusted);
        let parity = trusted - geometry.data_strips();
        let is_strict = self.shared.crash_safety == CrashSafety::Strict;
        let may_carry = !is_strict && to_solve.len() <= parity.len();
        let in_place = if may_carry { trusted & good } else { trusted };
        let mut ranges = of_data().map(StripWrite::range);
        if let Some(range) = ranges.next()
            && of_lost.is_empty()
            && ranges.all(|other| other == range)
        {
            return smallvec![entry(range, written & in_place, written - in_place)];
        }
        let mut changed: SmallVec<[Ranges; 8]> = (0..geometry.data).map(|_| Ranges::new()).collect();
        for write in of_data() {
            changed[write.role].add(write.range());
        }
        for role in of_lost.iter() {
            for range in overlay.touched(role, offsets, geometry).iter() {
                changed[role].add(range);
            }
        }
        entries_of(&changed, written, in_place)
    }

    /// New content of a strip, entry after entry. Zeroes where nothing is written to it.
    fn new_content(&self, role: Role, entries: &[Entry], writes: &[StripWrite]) -> Buf {
        let mut content = self.env.alloc(entries.iter().map(|entry| entry.len as usize).sum());
        content.fill(0);
        let mut at = 0;
        for entry in entries {
            let range = Range::new(entry.offset, entry.offset + u64::from(entry.len));
            for (start, bytes) in slices(writes, role, range) {
                let from = at + (start - range.start) as usize;
                content[from..from + bytes.len()].copy_from_slice(bytes);
            }
            at += entry.len as usize;
        }
        content.freeze()
    }

    /// The payloads by parity strip. Also sets the checksums of the entries that need them: no
    /// checkpoint record follows a durable write to say that its strips are written.
    fn partial_parity(&self, offsets: Range, entries: &mut [Entry], writes: &[StripWrite], durable: bool) -> Bases {
        let geometry = &self.shared.geometry;
        let with_base = |entry: &&Entry| entry.has_base(geometry.data);
        let len: usize = entries.iter().filter(with_base).map(|entry| entry.len as usize).sum();
        if len == 0 && (geometry.data == 1 || !durable) {
            return (0..geometry.parity_count).map(|_| Buf::zeroes(0)).collect();
        }
        let parity_strip = |role: Role| writes.iter().find(|write| write.role == role);
        let mut bases: SmallVec<[BufMut; 4]> = (0..geometry.parity_count).map(|_| self.env.alloc(len)).collect();
        let mut at = 0;
        for entry in entries {
            let range = Range::new(entry.offset, entry.offset + u64::from(entry.len));
            debug_assert!(offsets.contains(range));
            let overwritten = entry.overwritten;
            let strips = || overwritten.iter();
            if entry.has_base(geometry.data) {
                let into = at..at + entry.len as usize;
                for (index, base) in bases.iter_mut().enumerate() {
                    match parity_strip(geometry.data + index) {
                        Some(write) => copy_of(write, range, &mut base[into.clone()]),
                        // Not written, because it is lost. The value computed here is never read.
                        None => base[into.clone()].fill(0),
                    }
                }
                for role in strips() {
                    for (start, bytes) in slices(writes, role, range) {
                        let from = at + (start - range.start) as usize;
                        let mut targets: SmallVec<[&mut [u8]; 4]> =
                            bases.iter_mut().map(|base| &mut base[from..from + bytes.len()]).collect();
                        self.shared.code.accumulate(role, bytes, &mut targets);
                    }
                }
                at = into.end;
            }
            if durable && self.is_indeterminate(entry) {
                let mut checksums = Vec::new();
                for start in (range.start..range.end).step_by(geometry.sector_bytes as usize) {
                    let piece = Range::new(start, start + geometry.sector_bytes);
                    for role in strips().chain(geometry.data..geometry.strips()) {
                        let sum = |sum, (_, bytes): (u64, &[u8])| gf::crc32c_append(sum, bytes);
                        checksums.push(slices(writes, role, piece).fold(0, sum));
                    }
                }
                entry.checksums = checksums;
            }
        }
        bases.into_iter().map(BufMut::freeze).collect()
    }
}

/// The strips of a stripe with this property, one bit each.
fn strips_where<D>(view: &RowView<D>, is_such: impl Fn(&StripView<D>) -> bool) -> RoleSet {
    view.0.iter().enumerate().filter(|(_, strip)| is_such(strip)).map(|(role, _)| role).collect()
}

fn entry(range: Range, overwritten: RoleSet, in_parity: RoleSet) -> Entry {
    Entry { offset: range.start, len: range.len() as u32, overwritten, in_parity, checksums: Vec::new() }
}

/// Cuts what changes where a strip begins or ends to change. `changed`: the changes by data strip.
fn entries_of(changed: &[Ranges], written: RoleSet, in_place: RoleSet) -> Entries {
    let mut cuts: SmallVec<[u64; 16]> =
        changed.iter().flat_map(|ranges| ranges.iter().flat_map(|range| [range.start, range.end])).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut entries = Entries::new();
    for cut in cuts.windows(2) {
        let range = Range::new(cut[0], cut[1]);
        let changes = |ranges: &Ranges| ranges.iter().any(|changed| changed.contains(range));
        let all: RoleSet = written.iter().filter(|&role| changes(&changed[role])).collect();
        let (overwritten, in_parity) = (all & in_place, all - in_place);
        match entries.last_mut() {
            Some(last)
                if (last.overwritten, last.in_parity) == (overwritten, in_parity)
                    && last.offset + u64::from(last.len) == range.start =>
            {
                last.len += range.len() as u32;
            }
            _ if all.is_empty() => {}
            _ => entries.push(entry(range, overwritten, in_parity)),
        }
    }
    entries
}

/// All strips that these entries overwrite.
fn overwritten_by(entries: &Entries) -> RoleSet {
    entries.iter().fold(RoleSet::EMPTY, |strips, entry| strips | entry.overwritten)
}

/// Strips that can be read.
fn good<D>(view: &RowView<D>) -> RoleSet {
    strips_where(view, |strip| strip.strip == Strip::Good)
}

/// The slices that are written to a strip within some member offsets, in order of address, each
/// with its member offset.
fn slices(writes: &[StripWrite], role: Role, within: Range) -> impl Iterator<Item = (u64, &[u8])> {
    let writes = writes.iter().filter(move |write| write.role == role);
    writes.flat_map(move |write| slices_of(&write.data, write.offset, within))
}

fn slices_of(data: &Segments, offset: u64, within: Range) -> impl Iterator<Item = (u64, &[u8])> {
    let mut start = offset;
    data.iter().filter_map(move |segment| {
        let range = Range::new(start, start + segment.len() as u64);
        start = range.end;
        let part = range.intersect(within);
        (!part.is_empty()).then(|| (part.start, &segment[part.relative(range.start)]))
    })
}

fn copy_of(write: &StripWrite, range: Range, into: &mut [u8]) {
    for (start, bytes) in slices_of(&write.data, write.offset, range) {
        let at = (start - range.start) as usize;
        into[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
