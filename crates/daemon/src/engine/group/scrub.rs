//! Requests about a group's scrub.

use std::time::Duration;

use api::ErrorCode;
use array::{JobKind, ScrubMode};

use crate::engine::Engine;
use crate::engine::group::{Group, schedule};
use crate::http::{Answer, ControlError};

/// How long to wait for the end of a scrub that was stopped.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// How often its end is checked.
const STOP_LOOK: Duration = Duration::from_millis(10);

impl Engine {
    pub(super) async fn start_scrub(&self, group: &Group, repair: bool) -> Answer<()> {
        // First record the end of the previous scrub, and resume an interrupted one, so that this
        // request is refused because of it.
        self.look_after(group).await?;
        let mode = if repair { ScrubMode::Repair } else { ScrubMode::Report };
        let status = group.status().await?;
        if status.superblock.shape.survives() == 0 {
            return Err(refusal(group, "has no redundancy: there is nothing to compare"));
        }
        if self.begin_scrub(group, mode).await? {
            return Ok(());
        }
        let paused = group.lead(|array| async move { array.scrub_progress() }).await?.is_some_and(|at| at.paused);
        Err(if paused && !group.maintenance.is_held() {
            refusal(group, "has a scrub that is paused: resume or stop it")
        } else {
            refusal(group, "is being scrubbed or resynced already")
        })
    }

    pub(super) async fn pause_scrub(&self, group: &Group) -> Answer<()> {
        self.look_after(group).await?;
        let _one = self.changes.lock().await;
        // A scrub that makes room for a rebuild is paused already. Now it stays paused.
        let paused = group.maintenance.end_hold() || group.lead(|array| async move { array.pause_scrub() }).await?;
        if !paused {
            let there = group.lead(|array| async move { array.scrub_progress() }).await?;
            let why = if there.is_some() { "has a scrub that is paused already" } else { "is not being scrubbed" };
            return Err(refusal(group, why));
        }
        tracing::info!(group = group.name, "scrub paused");
        self.note_scrub(group).await
    }

    pub(super) async fn resume_scrub(&self, group: &Group) -> Answer<()> {
        self.look_after(group).await?;
        let _one = self.changes.lock().await;
        let resumed = !group.maintenance.is_held() && group.lead(|array| async move { array.resume_scrub() }).await?;
        if !resumed {
            let urgent = schedule::more_urgent(&group.status().await?);
            let paused = group.lead(|array| async move { array.scrub_progress() }).await?.filter(|at| at.paused);
            return Err(match (urgent, paused) {
                (Some(reason), Some(_)) => refusal(group, &format!("cannot be scrubbed now: {reason}")),
                _ => refusal(group, "has no scrub that is paused"),
            });
        }
        tracing::info!(group = group.name, "scrub resumed");
        self.note_scrub(group).await
    }

    pub(super) async fn stop_scrub(&self, group: &Group) -> Answer<()> {
        self.look_after(group).await?;
        let _one = self.changes.lock().await;
        let status = group.status().await?;
        let running = group.lead(|array| async move { array.stop_scrub() }).await?;
        // A scrub that was interrupted and not resumed has no job.
        let interrupted = group.catalogue().await?.scrub.current.is_some();
        if !running && !interrupted {
            return Err(refusal(group, "is not being scrubbed"));
        }
        group.maintenance.end_hold();
        tracing::info!(group = group.name, "scrub stopped");
        self.note_stop(group).await?;
        let Some(job) = status.jobs.iter().rfind(|job| job.kind == JobKind::Scrub) else { return Ok(()) };
        group.maintenance.record(job.id);
        // The API shows the stop from now on. The job ends after the stripes that it is working on.
        let ended = async {
            loop {
                let is_open = |other: &array::JobStatus| other.id == job.id && schedule::is_open(other);
                if !group.status().await?.jobs.iter().any(is_open) {
                    return Ok(());
                }
                tokio::time::sleep(STOP_LOOK).await;
            }
        };
        tokio::time::timeout(STOP_WITHIN, ended).await.unwrap_or(Ok(()))
    }
}

fn refusal(group: &Group, why: &str) -> ControlError {
    ControlError::new(ErrorCode::WrongState, format!("the group {:?} {why}", group.name))
}
