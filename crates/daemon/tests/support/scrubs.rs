//! Scrubs that find what they are told to: nothing, but for the group `rotten`.

use api::*;
use daemon::http::Answer;

use super::state::{State, refuse};

pub fn scrub(state: &mut State, group: &str, request: &ScrubRequest) -> Answer<Scrub> {
    let there = state.group(group)?;
    let last = there.jobs.iter().filter(|job| job.kind == JobKind::Scrub).max_by_key(|job| job.id).cloned();
    let schedule = there.scrub.clone();
    let running = last.as_ref().is_some_and(|job| !job.state.has_ended());
    let paused = last.as_ref().is_some_and(|job| job.state == JobState::Paused);
    let answer = |state: &mut State, job_state: JobState| {
        let group = state.group(group)?;
        let job = group.jobs.iter_mut().find(|job| job.kind == JobKind::Scrub).expect("one is there");
        job.state = job_state;
        group.scrub.paused = job_state == JobState::Paused;
        group.scrub.active = !job_state.has_ended();
        Ok(Scrub { job: Some(job.clone()), schedule: group.scrub.clone() })
    };
    match request.action {
        ScrubAction::Status => Ok(Scrub { job: last, schedule }),
        ScrubAction::Start if running => {
            refuse(ErrorCode::WrongState, format!("a scrub of the group {group:?} is running already"))
        }
        ScrubAction::Start => {
            // The group named "rotten" has one wrong strip.
            let rotten = u64::from(group == "rotten");
            let place = ScrubPlace {
                offset_bytes: 65536,
                member_offset_bytes: 1 << 20,
                slot: Some(1),
                drive: Some("mem:b".into()),
                fault: PlaceFault::Damaged,
                content: PlaceContent::Data,
                volumes: vec![VolumePlace { volume: "rotten/db".into(), offset_bytes: 4096 }],
                repaired: request.repair,
            };
            let findings = ScrubFindings {
                repair: request.repair,
                mismatch_count: rotten,
                repaired_count: rotten * u64::from(request.repair),
                unchecked_count: 0,
                places: vec![place; rotten as usize],
            };
            let job = state.start(group, JobKind::Scrub, None, Some(findings));
            let scrub = &mut state.group(group)?.scrub;
            scrub.active = true;
            Ok(Scrub { job: Some(job), schedule: scrub.clone() })
        }
        ScrubAction::Pause if !running || paused => {
            refuse(ErrorCode::WrongState, format!("no scrub of the group {group:?} is running"))
        }
        ScrubAction::Resume if !paused => {
            refuse(ErrorCode::WrongState, format!("no scrub of the group {group:?} is paused"))
        }
        ScrubAction::Pause => answer(state, JobState::Paused),
        ScrubAction::Resume => answer(state, JobState::Running),
        ScrubAction::Stop if !running => {
            refuse(ErrorCode::WrongState, format!("no scrub of the group {group:?} is running"))
        }
        ScrubAction::Stop => answer(state, JobState::Stopped),
    }
}
