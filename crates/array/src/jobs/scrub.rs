//! Scrub: compares the strips of a stripe, and finds the one that is wrong.

use std::collections::VecDeque;
use std::rc::Rc;

use drive::{BlockError, Buf, BufMut, Env, Segments, join_all};
use gf::Verdict;

use crate::array::{Array, ArrayShard};
use crate::geometry::ranges::Range;
use crate::geometry::{Role, StripeGroup};
use crate::io::plan::Strip;
use crate::io::types::RowView;
use crate::jobs::job::FINDINGS_MAX;
use crate::jobs::scrub_job::ScrubProgress;
use crate::state::event::{Event, JobKind, JobState};
use crate::state::findings::{Fault, Finding, ScrubMode, ScrubReport};
use crate::state::job::Job;
use crate::state::message::{Op, Reply, Request};

/// The resolution of findings, in bytes of a strip.
const FINDING_BYTES: u64 = 4096;

/// Most passes over a stripe whose strips turn out to be unreadable. Without a limit, a drive that
/// takes writes and still cannot be read would hold up the scrub forever.
const HEALS_MAX: usize = 4;

type Strips = Vec<(Role, Range, BufMut)>;

impl<E: Env> Array<E> {
    /// Begins to compare all data that was written. Leader only. Returns false if a scrub is under
    /// way.
    pub fn start_scrub(&self, mode: ScrubMode) -> bool {
        self.start_scrub_at(mode, None)
    }

    /// Begins at a given place, or at the start.
    pub(crate) fn start_scrub_at(&self, mode: ScrubMode, from: Option<&ScrubProgress>) -> bool {
        let inner = self.0.clone();
        let jobs = inner.leader().jobs.borrow();
        // A resync must not wait for an operator to resume a paused scrub.
        let in_the_way = |job: &Rc<Job>| mode != ScrubMode::Resync || !job.is_parked();
        let busy = |job: &Rc<Job>| {
            !matches!(job.kind, JobKind::Rebuild(_) | JobKind::Replace(_))
                && job.ended.get().is_none()
                && in_the_way(job)
        };
        if jobs.iter().any(busy) || inner.shared.geometry.parity_count == 0 {
            return false;
        }
        drop(jobs);
        let kind = if mode == ScrubMode::Resync { JobKind::Resync } else { JobKind::Scrub };
        let job = inner.new_job(
            kind,
            mode != ScrubMode::Report,
            inner.allocated_bytes_per_member() * inner.shared.geometry.sets,
        );
        if let Some(from) = from {
            inner.take_up(&job, from);
        }
        if !job.is_parked() {
            self.0.env.spawn(async move { inner.scrub(&job, mode).await });
        }
        true
    }
}

impl<E: Env> ArrayShard<E> {
    pub(crate) async fn scrub(self: &Rc<Self>, job: &Rc<Job>, mode: ScrubMode) {
        let result = loop {
            let result = self.scrub_stripe_groups(job, mode).await;
            let is_all = self.next_stripe_group(job.next.get(), None).is_none();
            if result.is_err() || is_all || job.canceled.get() {
                break result;
            }
            if job.held.get() {
                job.park();
                return;
            }
        };
        let result = match result {
            // So that repairs last: a crash after the end of a scrub does not undo them.
            Ok(()) => self.forget_logs().await,
            failed => failed,
        };
        if mode == ScrubMode::Resync && result.is_ok() && job.unchecked.get() == 0 {
            self.shared.set_resync_due(false);
        }
        let state = match result {
            Err(error) => JobState::Failed(error.to_string()),
            Ok(()) if job.canceled.get() => JobState::Stopped,
            Ok(()) => {
                let (found, repaired) = (job.found.get(), job.repaired.get());
                (self.leader().listener)(Event::ScrubFinished { found, repaired });
                JobState::Done
            }
        };
        job.end(self.env.now(), state);
    }

    /// Flushes, and writes checkpoint records that say that no earlier record is needed. If a drive
    /// silently lost a frame, it would show only in a recovery. There an older record of the same
    /// blocks would be used in its place.
    pub(crate) async fn forget_logs(self: &Rc<Self>) -> Result<(), BlockError> {
        let checkpointed = join_all((0..self.shards).map(|shard| self.on_shard(shard, Request::CheckpointAll))).await;
        checkpointed.into_iter().try_for_each(|checkpointed| checkpointed.map(|_| ()))
    }

    async fn scrub_stripe_groups(self: &Rc<Self>, job: &Rc<Job>, mode: ScrubMode) -> Result<(), BlockError> {
        let mut under_way = VecDeque::new();
        let mut next = Some(job.next.get());
        loop {
            let (began, users) = (self.env.now(), self.users_begun());
            while under_way.len() < self.stripe_groups_in_flight()
                && let Some(stripe_group) = next.and_then(|next| self.next_stripe_group(next, None))
            {
                under_way.push_back((stripe_group, self.dispatch(stripe_group, Op::Scrub { mode })));
                next = Some(StripeGroup(stripe_group.0 + 1));
            }
            let Some((stripe_group, reply)) = under_way.pop_front() else { return Ok(()) };
            match reply.await.unwrap_or(Err(BlockError::Stopped))? {
                Reply::Scrubbed(report) => self.note(job, report),
                other => unreachable!("a scrub is answered by {other:?}"),
            }
            job.next.set(StripeGroup(stripe_group.0 + 1));
            if self.shared.is_stopped() {
                return Err(BlockError::Stopped);
            }
            if job.canceled.get() || job.held.get() {
                next = None;
            }
            self.make_room(began, users).await;
        }
    }

    fn note(&self, job: &Job, report: ScrubReport) {
        job.advance(self.env.now(), report.bytes);
        job.unchecked.set(job.unchecked.get() + report.unchecked);
        job.found.set(job.found.get() + report.findings.len() as u64);
        let repaired = report.findings.iter().filter(|finding| finding.repaired).count() as u64;
        job.repaired.set(job.repaired.get() + repaired);
        let mut findings = job.findings.borrow_mut();
        let room = FINDINGS_MAX - findings.len();
        findings.extend(report.findings.into_iter().take(room));
    }

    /// Compares the strips of a stripe group, under its lock.
    pub async fn scrub_stripe_group(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        mode: ScrubMode,
    ) -> Result<ScrubReport, BlockError> {
        let mut report = ScrubReport::default();
        self.check_saved_sums(stripe_group, mode, &mut report).await;
        for row in self.shared.geometry.row_ranges() {
            for offsets in self.allocated(stripe_group, row).iter() {
                if self.shared.checksums.is_some() {
                    self.audit(stripe_group, offsets, mode, &mut report).await?;
                    continue;
                }
                match self.read_row(stripe_group, offsets).await? {
                    Some((view, strips)) => {
                        report.bytes += offsets.len();
                        self.compare(stripe_group, offsets, &view, strips, mode, &mut report).await?;
                    }
                    None => report.unchecked += 1,
                }
            }
        }
        Ok(report)
    }

    /// Reads all strips of a stripe, and heals them where the medium failed. `None` if strips are
    /// lost.
    async fn read_row(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        offsets: Range,
    ) -> Result<Option<(RowView<E::Drive>, Strips)>, BlockError> {
        let geometry = &self.shared.geometry;
        let reads: Vec<(Role, Range)> = (0..geometry.strips()).map(|role| (role, offsets)).collect();
        for _ in 0..HEALS_MAX {
            let view = self.view(stripe_group, offsets.start, &[]);
            if view.lost() > 0 {
                return Ok(None);
            }
            match self.read_strips(stripe_group, &view, &reads).await {
                Ok(strips) => return Ok(Some((view, strips))),
                // Each pass heals the strips that it found unreadable, or loses a member.
                Err(unreadable) => match self.heal(stripe_group, offsets, unreadable).await {
                    Err(BlockError::Lost { .. }) => return Ok(None),
                    healed => healed?,
                },
            }
        }
        Ok(None)
    }

    /// Computes unreadable strips from the others and writes them back.
    async fn heal(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        offsets: Range,
        unreadable: Vec<Role>,
    ) -> Result<(), BlockError> {
        let survives = self.shared.geometry.parity_count;
        let mut unreadable = unreadable;
        loop {
            let view = self.view(stripe_group, offsets.start, &unreadable);
            let lost: Vec<Role> = (0..view.0.len()).filter(|&role| view.0[role].strip != Strip::Good).collect();
            if lost.len() > survives {
                return Err(BlockError::Lost { lost: lost.len(), survives });
            }
            let decoder = self.decoder(&lost);
            let reads: Vec<(Role, Range)> = decoder.sources().iter().map(|&role| (role, offsets)).collect();
            let sources = match self.read_strips(stripe_group, &view, &reads).await {
                Ok(sources) => sources,
                Err(mut more) => {
                    unreadable.append(&mut more);
                    continue;
                }
            };
            let sources: Vec<&[u8]> = sources.iter().map(|(_, _, buf)| &**buf).collect();
            let mut out: Vec<BufMut> = lost.iter().map(|_| self.env.alloc(offsets.len() as usize)).collect();
            decoder.reconstruct(&sources, &mut out.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
            for (role, strip) in lost.into_iter().zip(out) {
                if view.0[role].strip == Strip::Unreadable
                    && self.put_right(stripe_group, &view, role, offsets.start, strip.freeze()).await?
                {
                    self.tell_healed(&view.0[role], stripe_group, offsets.start, offsets.len());
                }
            }
            return Ok(());
        }
    }

    /// Writes a strip that was found wrong or unreadable. Returns false if its member failed
    /// meanwhile.
    pub async fn put_right(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        view: &RowView<E::Drive>,
        role: Role,
        offset: u64,
        strip: Buf,
    ) -> Result<bool, BlockError> {
        let written =
            self.write_member(&view.0[role], stripe_group, offset, &Segments::from_iter([strip]), false).await?;
        if written {
            self.counters().healed.count();
        }
        Ok(written)
    }

    async fn compare(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        offsets: Range,
        view: &RowView<E::Drive>,
        strips: Strips,
        mode: ScrubMode,
        report: &mut ScrubReport,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let all: Vec<&[u8]> = strips.iter().map(|(_, _, buf)| &**buf).collect();
        if self.shared.code.check(&all[..geometry.data], &all[geometry.data..]) {
            return Ok(());
        }
        let mut start = offsets.start;
        while start < offsets.end {
            let block = Range::new(start, (start + FINDING_BYTES).min(offsets.end));
            start = block.end;
            let parts: Vec<&[u8]> = all.iter().map(|strip| &strip[block.relative(offsets.start)]).collect();
            self.compare_block(stripe_group, block, view, &parts, mode, report).await?;
        }
        Ok(())
    }

    /// Compares one block of all strips.
    pub async fn compare_block(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        block: Range,
        view: &RowView<E::Drive>,
        parts: &[&[u8]],
        mode: ScrubMode,
        report: &mut ScrubReport,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let (data, parity) = parts.split_at(geometry.data);
        let wrong = match self.shared.code.locate(data, parity) {
            Verdict::Consistent => return Ok(()),
            Verdict::OneWrong(role) => Some(role),
            Verdict::Unknown => None,
        };
        let repaired = match (mode, wrong) {
            (ScrubMode::Report, _) | (ScrubMode::Repair, None) => false,
            (ScrubMode::Repair, Some(role)) => {
                let strip = self.recompute(role, parts);
                self.put_right(stripe_group, view, role, block.start, strip).await?;
                true
            }
            (ScrubMode::Resync, _) => {
                let mut fresh: Vec<BufMut> = parity.iter().map(|_| self.env.alloc(block.len() as usize)).collect();
                self.shared.code.encode(data, &mut fresh.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
                for (index, parity_strip) in fresh.into_iter().enumerate() {
                    self.put_right(stripe_group, view, geometry.data + index, block.start, parity_strip.freeze())
                        .await?;
                }
                true
            }
        };
        report.findings.push(Finding {
            offset: geometry.offset(stripe_group, wrong.filter(|&role| role < geometry.data).unwrap_or(0), block.start),
            member: wrong.map(|role| view.0[role].member),
            member_offset: geometry.drive_offset(stripe_group, block.start),
            fault: Fault::Contradiction,
            repaired,
        });
        Ok(())
    }

    /// Computes a strip from the others.
    fn recompute(&self, role: Role, parts: &[&[u8]]) -> Buf {
        let decoder = self.decoder(&[role]);
        let sources: Vec<&[u8]> = decoder.sources().iter().map(|&source| parts[source]).collect();
        let mut strip = self.env.alloc(parts[role].len());
        decoder.reconstruct(&sources, &mut [&mut strip]);
        strip.freeze()
    }
}
