//! Progress bars, and waiting for the end of a job.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use api::{Job, JobState};

use crate::fit::WIDTH;
use crate::table::job_line;
use crate::{Client, Failure};

/// Interval between checks of a job.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A bar of `width` characters.
pub fn bar(done_percent: f64, width: usize) -> String {
    let done = (done_percent.clamp(0.0, 100.0) / 100.0 * width as f64) as usize;
    let done = done.min(width);
    format!("{}{}", "#".repeat(done), ".".repeat(width - done))
}

/// A share with one decimal, rounded down: 100.0% means all.
pub fn percent(done_percent: f64) -> String {
    let tenths = (done_percent.clamp(0.0, 100.0) * 10.0) as u64;
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// A time: `42s`, `3m 05s`, `2h 10m`, `4d 03h`.
pub fn duration(seconds: u64) -> String {
    match seconds {
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m {:02}s", s / 60, s % 60),
        s if s < 86400 => format!("{}h {:02}m", s / 3600, s / 60 % 60),
        s => format!("{}d {:02}h", s / 86400, s / 3600 % 24),
    }
}

/// Waits until a job of a group ends, with its progress bar on stderr if that is a terminal.
///
/// # Errors
/// [`Failure::Ended`] if the job failed, was stopped or is gone; other errors if the daemon cannot
/// be asked.
pub async fn wait(client: &Client, group: &str, id: u64) -> Result<Job, Failure> {
    let shown = io::stderr().is_terminal();
    loop {
        let jobs = client.group(group).await?.jobs;
        let Some(job) = jobs.into_iter().find(|job| job.id == id) else {
            return Err(Failure::Ended(format!("the job that was waited for is gone from {group}")));
        };
        if shown {
            // Carriage return and erase to the end of the line (ECMA-48, CR and EL).
            let mut stderr = io::stderr();
            // Some terminals wrap a line that reaches the last column.
            let columns = crossterm::terminal::size().map_or(WIDTH, |(columns, _)| usize::from(columns));
            let room = if job.state.has_ended() { usize::MAX } else { columns.saturating_sub(1) };
            let end = if job.state.has_ended() { "\n" } else { "" };
            // An error of the display does not end the wait.
            let _ = write!(stderr, "\r\x1b[K{}{end}", job_line(&job, room)).and_then(|()| stderr.flush());
        }
        match job.state {
            JobState::Done => return Ok(job),
            JobState::Failed | JobState::Stopped => {
                return Err(Failure::Ended(format!("{group}: {}", job_line(&job, usize::MAX))));
            }
            JobState::Running | JobState::Waiting | JobState::Paused | JobState::Unknown => {
                tokio::time::sleep(LOOK_EVERY).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_only_when_all_is_done() {
        assert_eq!(bar(0.0, 4), "....");
        assert_eq!(bar(50.0, 4), "##..");
        assert_eq!(bar(99.99, 4), "###.");
        assert_eq!(bar(100.0, 4), "####");
        assert_eq!(bar(f64::NAN, 4), "....");
        assert_eq!((percent(99.99).as_str(), percent(100.0).as_str()), ("99.9%", "100.0%"));
    }

    #[test]
    fn times_have_two_units() {
        let shown: Vec<String> = [0, 42, 185, 7800, 356_400].map(duration).into();
        assert_eq!(shown, ["0s", "42s", "3m 05s", "2h 10m", "4d 03h"]);
    }
}
