//! Writes one component: a run of member offsets of one stripe.
//!
//! Guarantees:
//! 1. Strips of a chunk that was written before change only after a record on the log holders says
//!    so. With the record, a recovery makes the stripe agree again: each strip old or new, parity
//!    to fit.
//! 2. A component in a chunk that was never written needs no record: the chunk's bit in the
//!    allocation map is set last, and a chunk without the bit reads as zeroes.
//! 3. If no more members are lost than there are parity strips, the write succeeds with the strips
//!    that are left. A lost data strip is written into the parity alone.
//! 4. If a member fails in the middle, the data are kept and written again
//!    ([`crate::io::write_retry`]).
//!
//! Example: 4 KiB are written to strip D1 of a stripe of RAID 6 with 4+2 members, at the first
//! block. All strips can be read.
//!
//! ```text
//!             D0    D1    D2    D3    P     Q       (first byte of each block)
//! before      01    02    80    ff    7c    94      P = 01+02+80+ff, Q = 01+2*02+4*80+8*ff
//! plan        reconstruct-write reads D0, D2, D3; read-modify-write would read D1, P, Q, as many
//! read        01          80    ff                  (3 reads)
//! compute     without D1: P' = 01+80+ff = 7e, Q' = 01+4*80+8*ff = 90     the partial parity
//! log         record {D1 changes, P' on the member of P, Q' on the member of Q}, 2 log writes
//! complete    P = 7e+44 = 3a, Q = 90+2*44 = 18                    in the memory of P' and Q'
//! write             44                3a    18      (3 writes)
//! ```
//!
//! The record is computed before the new parity, and the new parity is computed in its memory once
//! the record is durable ([`Deferred`]). So a small write needs no memory besides its buffers.
//!
//! Tests: the operations of each write are counted in `sim/tests/engine/counts.rs` and
//! `paper.rs`; every crash point of small programs is tried in `sim/tests/exhaustive.rs`; members
//! that fail in between are in `sim/tests/engine/incomplete_writes.rs`.

use std::rc::Rc;

use drive::{BlockError, Buf, BufMut, Env};
use smallvec::smallvec;

use crate::array::ArrayShard;
use crate::geometry::ranges::{Range, Ranges};
use crate::geometry::{Role, StripeGroup};
use crate::io::compute::{Parity, Reads};
use crate::io::overlay::Overlay;
use crate::io::plan::{PlanInput, Strip, Way, choose};
use crate::io::types::{Bases, Change, Logged, RowView, Runs, StripWrite};

/// A run of member offsets of one stripe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Component {
    pub(super) offsets: Range,
    /// The chunk was never written. Member offsets without data become zero, on the drives too.
    pub(super) fresh: bool,
}

/// A write as its batch asks for it.
#[derive(Clone, Copy)]
struct Target<'a> {
    stripe_group: StripeGroup,
    overlay: &'a Overlay,
    component: Component,
    fua: bool,
}

/// Parity that is computed once the log record is durable.
enum Deferred {
    Nothing,
    /// Compute the parity, from the new content of all data strips.
    Parity(Vec<Runs>),
    /// Add the new content of this strip to the parity.
    Strip(Role, Bases),
}

impl Deferred {
    fn of_strip(role: Role, bases: Parity) -> Deferred {
        Deferred::Strip(role, bases.into_iter().map(BufMut::freeze).collect())
    }

    /// The partial parity of the record.
    fn bases(&self) -> &[Buf] {
        match self {
            Deferred::Strip(_, bases) => bases,
            Deferred::Nothing | Deferred::Parity(_) => &[],
        }
    }
}

/// The strips to write.
struct Computed {
    writes: Vec<StripWrite>,
    deferred: Deferred,
}

/// The result of planning and reading.
enum Prepared {
    Computed(Computed),
    /// More strips cannot be read: plan again.
    Again,
    /// Strips cannot be read in different places: each half needs a plan of its own.
    Halves([Range; 2]),
}

impl<E: Env> ArrayShard<E> {
    /// Writes a component: plan, read, compute, log, write.
    pub(super) async fn write_component(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        overlay: &Overlay,
        component: Component,
        fua: bool,
    ) -> Result<(), BlockError> {
        let target = Target { stripe_group, overlay, component, fua };
        let mut unreadable: Vec<Role> = Vec::new();
        loop {
            let view = self.view(stripe_group, component.offsets.start, &unreadable);
            let prepared = match component.fresh {
                true => self.prepare_first_write(target, &view)?,
                false => self.prepare(target, &view, &mut unreadable).await?,
            };
            let computed = match prepared {
                Prepared::Computed(computed) => computed,
                Prepared::Again => continue,
                Prepared::Halves(halves) => {
                    for offsets in halves {
                        let half = Component { offsets, ..component };
                        Box::pin(self.write_component(stripe_group, overlay, half, fua)).await?;
                    }
                    return Ok(());
                }
            };
            let logged = match component.fresh {
                true => Logged::Nothing,
                false => {
                    let Computed { writes, deferred } = &computed;
                    let bases = deferred.bases();
                    let change = Change { overlay, offsets: component.offsets, writes, bases, fua };
                    self.log_component(stripe_group, &view, &change).await?
                }
            };
            if matches!(logged, Logged::Again) {
                continue;
            }
            let writes = self.complete(target, &view, computed);
            return self.write_logged(target, &view, writes, logged, !unreadable.is_empty()).await;
        }
    }

    /// Computes all strips of a component that was never written.
    fn prepare_first_write(&self, target: Target<'_>, view: &RowView<E::Drive>) -> Result<Prepared, BlockError> {
        let survives = self.shared.geometry.parity_count;
        if view.lost() > survives {
            return Err(BlockError::Lost { lost: view.lost(), survives });
        }
        let writes = self.compute_fresh(target.overlay, target.component.offsets, view);
        Ok(Prepared::Computed(Computed { writes, deferred: Deferred::Nothing }))
    }

    /// Plans a write over data, reads what the plan needs, and computes the strips. Adds strips
    /// that turn out to be unreadable to `unreadable`.
    async fn prepare(
        self: &Rc<Self>,
        target: Target<'_>,
        view: &RowView<E::Drive>,
        unreadable: &mut Vec<Role>,
    ) -> Result<Prepared, BlockError> {
        let Target { stripe_group, overlay, component: Component { offsets, .. }, .. } = target;
        let geometry = &self.shared.geometry;
        let touched: Vec<_> = (0..geometry.data).map(|role| overlay.touched(role, offsets, geometry)).collect();
        let full: Vec<_> = (0..geometry.data).map(|role| overlay.full(role, offsets, geometry)).collect();
        let strips = view.strips();
        let input = PlanInput { data: geometry.data, strips: &strips, offsets, touched: &touched, full: &full };
        let plan = match choose(&input) {
            Ok(plan) => plan,
            // Other strips may be unreadable in other places.
            Err(lost) => match offsets.halves().filter(|_| !unreadable.is_empty()) {
                Some(halves) => return Ok(Prepared::Halves(halves)),
                None => return Err(BlockError::Lost { lost, survives: geometry.parity_count }),
            },
        };
        match self.read_strips(stripe_group, view, &plan.reads).await {
            Ok(reads) => Ok(Prepared::Computed(self.compute(target, view, plan.way, &touched, reads))),
            Err(mut failed) => {
                unreadable.append(&mut failed);
                Ok(Prepared::Again)
            }
        }
    }

    /// Computes the strips to write, as the plan says. Parity that the record does not need is
    /// deferred.
    fn compute(
        &self,
        target: Target<'_>,
        view: &RowView<E::Drive>,
        way: Way,
        touched: &[Ranges],
        reads: Reads,
    ) -> Computed {
        let Target { overlay, component: Component { offsets, .. }, fua, .. } = target;
        let is_written = |role: Role| view.0[role].strip != Strip::Lost;
        let mut deferred = Deferred::Nothing;
        let writes = match way {
            Way::ReadModifyWrite => {
                let alone = self.changes_alone(view, offsets, touched);
                let (mut writes, parity) = self.compute_modified(overlay, offsets, view, reads, alone.is_some());
                match alone {
                    Some(role) => deferred = Deferred::of_strip(role, parity),
                    None => self.push_parity(&mut writes, parity, offsets, is_written),
                }
                writes
            }
            Way::ReconstructWrite => {
                let is_silent = reads.is_empty() && self.record_leaves_out_parity(view, fua);
                let (mut writes, mut content) = self.compute_whole(overlay, offsets, view, touched, reads);
                if is_silent {
                    deferred = Deferred::Parity(content);
                } else if let Some(role) = self.changes_alone(view, offsets, touched) {
                    content[role] = smallvec![(offsets.start, Buf::zeroes(offsets.len() as usize))];
                    deferred = Deferred::of_strip(role, self.encode(&content, offsets));
                } else {
                    self.push_whole(&mut writes, &content, offsets, is_written);
                }
                writes
            }
            Way::NoParity => self.compute_plain(overlay, offsets, touched, reads),
            Way::Restore => self.compute_restored(overlay, offsets, view, touched, reads),
        };
        Computed { writes, deferred }
    }

    /// Computes the parity that was deferred. This comes after the record, because the strips are
    /// then still in the processor's cache when they are written.
    fn complete(&self, target: Target<'_>, view: &RowView<E::Drive>, computed: Computed) -> Vec<StripWrite> {
        let Computed { mut writes, deferred } = computed;
        let offsets = target.component.offsets;
        let is_written = |role: Role| view.0[role].strip != Strip::Lost;
        match deferred {
            Deferred::Nothing => {}
            Deferred::Parity(content) => self.push_whole(&mut writes, &content, offsets, is_written),
            Deferred::Strip(role, bases) => self.push_completed(&mut writes, role, bases, offsets, is_written),
        }
        writes
    }

    /// Writes the strips. `heals`: strips that could not be read are among them.
    async fn write_logged(
        self: &Rc<Self>,
        target: Target<'_>,
        view: &RowView<E::Drive>,
        writes: Vec<StripWrite>,
        logged: Logged,
        heals: bool,
    ) -> Result<(), BlockError> {
        let Target { stripe_group, component, fua, .. } = target;
        self.buggify_delay("a record is durable, and the strips wait").await;
        let failed = match self.write_strips(stripe_group, view, &writes, fua).await {
            Ok(failed) => failed,
            Err(error) => {
                // The chunk of a first write stays unallocated, so its content does not matter.
                if !component.fresh {
                    self.keep_incomplete(stripe_group, component.offsets, writes, logged);
                }
                return Err(error);
            }
        };
        if heals {
            self.tell_healed_by(stripe_group, view, &writes, &failed);
        }
        if let Logged::Durable(open, overwritten) = logged
            && self.has_lost_any(&overwritten)
        {
            // The record names a strip that is lost now. A recovery has to know that the other
            // strips are new.
            drop(open);
            Box::pin(self.flush_and_checkpoint()).await?;
        }
        let is_lost = |role: &Role| view.0[*role].strip == Strip::Lost || failed.contains(role);
        let lost = (0..view.0.len()).filter(is_lost).count();
        let survives = self.shared.geometry.parity_count;
        if lost > survives { Err(BlockError::Lost { lost, survives }) } else { Ok(()) }
    }
}
