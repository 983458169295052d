//! Maintenance of groups: scrubs that start when due, continue after a restart, pause for rebuilds,
//! and log their findings.
//!
//! Invariants:
//! 1. Repairs before a scrub's recorded place are durable before the place is recorded.
//! 2. The start, pause, resume or stop of a scrub is on the members before its request is answered.
//! 3. Over all groups, only one scrub at a time starts automatically.

use std::sync::Arc;
use std::time::{Duration, Instant};

use array::{Array, GroupStatus, JobKind, JobState, JobStatus, ScrubMode, ScrubProgress};
use format::{Catalogue, ScrubEnd, ScrubPoint, ScrubRecord};
use runtime::ShardEnv;

use crate::engine::Engine;
use crate::engine::group::{Group, block_error, findings, schedule};
use crate::http::Answer;

/// The maintenance interval.
const PERIOD: Duration = Duration::from_secs(1);

/// A running scrub's place is recorded this often. After a crash, up to this much is compared
/// again.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// The place is recorded this often while the scrub finds something.
const NOTE_FINDINGS_EVERY: Duration = Duration::from_secs(10);

/// How long after a failed scrub the next one starts automatically, at the earliest.
const RETRY_AFTER_S: u64 = 24 * 3600;

/// A group as one look found it.
struct Look {
    status: GroupStatus,
    catalogue: Catalogue,
    progress: Option<ScrubProgress>,
}

impl Look {
    async fn at(group: &Group) -> Answer<Look> {
        group
            .lead(|array| async move {
                Look { status: array.status(), catalogue: array.catalogue(), progress: array.scrub_progress() }
            })
            .await
    }

    fn scrub(&self) -> Option<&JobStatus> {
        self.status.jobs.iter().rfind(|job| job.kind == JobKind::Scrub)
    }
}

fn point(progress: &ScrubProgress, started_unix_s: u64, held: bool) -> ScrubPoint {
    ScrubPoint {
        started_unix_s,
        repair: progress.mode != ScrubMode::Report,
        paused: progress.paused && !held,
        next_byte: progress.next_byte,
        compared_bytes: progress.done_bytes,
        found: progress.found,
        repaired: progress.repaired,
        unchecked: progress.unchecked,
    }
}

fn progress(point: &ScrubPoint) -> ScrubProgress {
    ScrubProgress {
        mode: if point.repair { ScrubMode::Repair } else { ScrubMode::Report },
        paused: point.paused,
        next_byte: point.next_byte,
        done_bytes: point.compared_bytes,
        found: point.found,
        repaired: point.repaired,
        unchecked: point.unchecked,
    }
}

/// The catalogue's record of a complete scrub.
pub(crate) fn end_of(job: &JobStatus, ended_unix_s: u64) -> ScrubEnd {
    let (found, repaired, unchecked) = (job.found, job.repaired, job.unchecked);
    ScrubEnd { ended_unix_s, repair: job.repairs, found, repaired, unchecked }
}

impl Engine {
    /// Maintains all groups once a second, for as long as the engine lives.
    pub fn start_maintenance(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(engine) = engine.upgrade() else { return };
                engine.look_after_groups().await;
                engine.histories.keep();
            }
        });
    }

    /// Maintains every group once: records the progress of scrubs, resumes interrupted ones, logs
    /// their findings, and starts one that is due. Also maintains the copies of members to other
    /// drives.
    pub async fn look_after_groups(&self) {
        self.look_after_replacements().await;
        let mut due: Vec<(u64, Arc<Group>)> = Vec::new();
        for group in self.all() {
            match self.look_after(&group).await {
                Ok(Some(since)) => due.push((since, group)),
                Ok(None) => {}
                // A group that is being stopped does not answer.
                Err(error) => tracing::debug!(group = group.name, %error, "not looked after"),
            }
        }
        due.sort_by(|one, other| (one.0, &one.1.name).cmp(&(other.0, &other.1.name)));
        if let Some((_, group)) = due.first()
            && self.scrubbed_now().is_none()
        {
            match self.begin_scrub(group, ScrubMode::Repair).await {
                Ok(true) => tracing::info!(group = group.name, "scrub started: it is due"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(group = group.name, %error, "a scrub that is due could not be started");
                    group.maintenance.lock().not_before_unix_s = self.clock.unix_s().saturating_add(RETRY_AFTER_S);
                }
            }
        }
    }

    /// Records a scrub in the catalogue, then starts it. Returns false if a scrub or resync exists
    /// already.
    pub(crate) async fn begin_scrub(&self, group: &Group, mode: ScrubMode) -> Answer<bool> {
        let _one = self.changes.lock().await;
        if group.catalogue().await?.scrub.current.is_some() {
            return Ok(false);
        }
        let fresh = ScrubPoint {
            started_unix_s: self.clock.unix_s(),
            repair: mode != ScrubMode::Report,
            paused: false,
            next_byte: 0,
            compared_bytes: 0,
            found: 0,
            repaired: 0,
            unchecked: 0,
        };
        group.change_catalogue(|catalogue| catalogue.scrub.current = Some(fresh)).await?;
        let started = group.lead(move |array| async move { array.start_scrub(mode) }).await?;
        if started {
            let mut state = group.maintenance.lock();
            (state.working, state.noted) = (true, Some(Instant::now()));
        } else {
            group.change_catalogue(|catalogue| catalogue.scrub.current = None).await?;
        }
        Ok(started)
    }

    /// The group that is being scrubbed, if any.
    pub(crate) fn scrubbed_now(&self) -> Option<String> {
        self.all().iter().find(|group| group.maintenance.is_working()).map(|group| group.name.clone())
    }

    /// Maintains a group. Returns since when a scrub is due, if it could start.
    pub(crate) async fn look_after(&self, group: &Group) -> Answer<Option<u64>> {
        let look = Look::at(group).await?;
        if look.status.superblock.is_read_only() {
            return Ok(None);
        }
        self.log_findings(group, &look);
        let now = self.clock.unix_s();
        if let Some(job) = look.scrub()
            && !schedule::is_open(job)
            && !group.maintenance.has_recorded(job.id)
        {
            self.note_end(group, job, now).await?;
            return Ok(None);
        }
        match &look.progress {
            Some(progress) => {
                self.make_room(group, &look.status, progress).await?;
                self.note_place(group, &look, progress).await?;
                Ok(None)
            }
            None => {
                group.maintenance.lock().working = false;
                self.begin(group, &look, now).await
            }
        }
    }

    /// Resumes a scrub that was interrupted, or returns since when one is due.
    async fn begin(&self, group: &Group, look: &Look, now: u64) -> Answer<Option<u64>> {
        let scrub = &look.catalogue.scrub;
        let is_open = |job: &JobStatus| job.kind == JobKind::Scrub && schedule::is_open(job);
        if look.status.jobs.iter().any(is_open) {
            return Ok(None); // It is being stopped.
        }
        if scrub.current.is_some() {
            self.take_up(group, schedule::more_urgent(&look.status).is_some()).await?;
            return Ok(None);
        }
        let due = schedule::due_unix_s(&look.status, &look.catalogue.settings, scrub, now);
        let is_due = |due: &u64| *due <= now && group.maintenance.not_before_unix_s() <= now;
        Ok(due.filter(is_due).filter(|_| schedule::obstacle(&look.status).is_none()))
    }

    /// Resumes a scrub that was interrupted. Unless it is paused, it waits for more urgent jobs.
    async fn take_up(&self, group: &Group, is_urgent: bool) -> Answer<()> {
        let _one = self.changes.lock().await;
        // Read the record again under the lock: the scrub may be starting, or may have been
        // stopped.
        let Some(point) = group.catalogue().await?.scrub.current else { return Ok(()) };
        if is_urgent && !point.paused {
            return Ok(());
        }
        let from = progress(&point);
        if group.lead(move |array| async move { array.continue_scrub(&from) }).await? {
            tracing::info!(group = group.name, paused = point.paused, "scrub taken up where it was interrupted");
            let mut state = group.maintenance.lock();
            (state.working, state.noted) = (!point.paused, Some(Instant::now()));
        }
        Ok(())
    }

    /// Pauses the scrub while a member is being filled, and resumes it afterwards.
    async fn make_room(&self, group: &Group, status: &GroupStatus, progress: &ScrubProgress) -> Answer<()> {
        let urgent = schedule::more_urgent(status);
        let acts = if urgent.is_some() { !progress.paused } else { group.maintenance.is_held() };
        if !acts {
            return Ok(());
        }
        let _one = self.changes.lock().await;
        let held = group.maintenance.is_held();
        match urgent {
            Some(reason) if !progress.paused && group.lead(|array| async move { array.pause_scrub() }).await? => {
                tracing::info!(group = group.name, reason, "scrub makes room");
                group.maintenance.lock().held = true;
            }
            None if held && group.lead(|array| async move { array.resume_scrub() }).await? => {
                tracing::info!(group = group.name, "scrub goes on");
                group.maintenance.lock().held = false;
            }
            _ => {}
        }
        Ok(())
    }

    /// Records the place of a scrub if it is due.
    async fn note_place(&self, group: &Group, look: &Look, progress: &ScrubProgress) -> Answer<()> {
        let (held, noted) = {
            let mut state = group.maintenance.lock();
            state.working = !progress.paused;
            (state.held, state.noted)
        };
        let known = look.catalogue.scrub.current.as_ref();
        let fresh = point(progress, known.map_or(0, |known| known.started_unix_s), held);
        let age = noted.map(|noted| noted.elapsed());
        let is_worth_it = match (known, age) {
            (Some(known), _) if *known == fresh => false,
            (None, _) | (_, None) => true,
            (Some(known), Some(age)) => {
                let found = (known.found, known.unchecked) != (fresh.found, fresh.unchecked);
                progress.paused || age >= NOTE_EVERY || (found && age >= NOTE_FINDINGS_EVERY)
            }
        };
        if is_worth_it {
            let _one = self.changes.lock().await;
            self.note_scrub(group).await?;
        }
        Ok(())
    }

    /// Records the progress of a scrub now. The caller holds the lock for changes.
    ///
    /// # Errors
    /// If the members cannot store it. The last record stays then.
    pub(crate) async fn note_scrub(&self, group: &Group) -> Answer<()> {
        let found = group
            .lead(|array: Array<ShardEnv>| async move {
                let progress = array.scrub_progress()?;
                Some(array.flush().await.map(|()| progress))
            })
            .await?;
        let Some(progress) = found else { return Ok(()) };
        let progress = progress.map_err(|error| block_error(&group.name, &error))?;
        let held = group.maintenance.is_held();
        let now = self.clock.unix_s();
        group
            .change_catalogue(|catalogue| {
                let started = catalogue.scrub.current.as_ref().map_or(now, |known| known.started_unix_s);
                catalogue.scrub.current = Some(point(&progress, started, held));
            })
            .await?;
        group.maintenance.lock().noted = Some(Instant::now());
        Ok(())
    }

    /// Records the progress or the end of a scrub before its group is stopped. The caller holds the
    /// lock for changes.
    ///
    /// # Errors
    /// As for [`Engine::note_scrub`].
    pub(crate) async fn note_scrub_at_stop(&self, group: &Group) -> Answer<()> {
        let look = Look::at(group).await?;
        match look.scrub() {
            Some(job) if !schedule::is_open(job) => self.note_end_held(group, job, self.clock.unix_s()).await,
            _ => self.note_scrub(group).await,
        }
    }

    /// Records that a scrub ended.
    async fn note_end(&self, group: &Group, job: &JobStatus, now: u64) -> Answer<()> {
        let _one = self.changes.lock().await;
        self.note_end_held(group, job, now).await
    }

    /// Like [`Engine::note_end`]. The caller holds the lock for changes.
    async fn note_end_held(&self, group: &Group, job: &JobStatus, now: u64) -> Answer<()> {
        if group.maintenance.has_recorded(job.id) {
            return Ok(()); // Somebody else has, while this one waited.
        }
        match &job.state {
            JobState::Done => {
                let flushed = group.lead(|array| async move { array.flush().await }).await?;
                flushed.map_err(|error| block_error(&group.name, &error))?;
                let last = Some(end_of(job, now));
                group
                    .change_catalogue(|catalogue| {
                        catalogue.scrub = ScrubRecord { last, skipped_unix_s: None, current: None };
                    })
                    .await?;
            }
            JobState::Failed(reason) => {
                tracing::error!(group = group.name, reason, "scrub failed");
                group.maintenance.lock().not_before_unix_s = now.saturating_add(RETRY_AFTER_S);
                group.change_catalogue(|catalogue| catalogue.scrub.current = None).await?;
            }
            JobState::Running | JobState::Paused | JobState::Stopped => self.note_stop(group).await?,
        }
        let mut state = group.maintenance.lock();
        (state.recorded, state.held, state.working) = (job.id, false, false);
        Ok(())
    }

    /// Records that a scrub was stopped on request. The caller holds the lock for changes.
    pub(crate) async fn note_stop(&self, group: &Group) -> Answer<()> {
        let now = self.clock.unix_s();
        group
            .change_catalogue(|catalogue| {
                catalogue.scrub.current = None;
                catalogue.scrub.skipped_unix_s = Some(now);
            })
            .await
            .map(|_| ())
    }

    /// Logs the findings since the last look, each place once.
    fn log_findings(&self, group: &Group, look: &Look) {
        let Some(job) = look.scrub() else { return };
        let logged = {
            let mut state = group.maintenance.lock();
            let known = if state.logged.0 == job.id { state.logged.1 } else { 0 };
            state.logged = (job.id, job.findings.len());
            known
        };
        for finding in job.findings.iter().skip(logged) {
            let place = findings::place(group, &look.status, &look.catalogue, finding);
            tracing::warn!(
                group = group.name,
                drive = place.drive.as_deref().unwrap_or("unknown"),
                offset = place.member_offset_bytes,
                fault = place.fault.as_str(),
                content = findings::words(&place),
                repaired = place.repaired,
                "scrub found a difference"
            );
        }
    }
}
