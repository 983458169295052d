//! `purlin status`: one screen of everything.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use api::{GroupStatus, Job, JobState, LoadSide, Status, format_bytes};
use comfy_table::Cell;
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
    EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};

use crate::common_args::{Common, Format};
use crate::ending::Ending;
use crate::fit::{Column, WIDTH, table, wrapped};
use crate::keys::Keys;
use crate::output::{self, has_colour};
use crate::progress::duration;
use crate::table::{self, dash, job_line, micros, per_second, size};
use crate::{Client, Failure, hosts, maintenance, unwell};

/// Longest name that is shown before its job in one line.
const NAME_CHARS_MAX: usize = 16;

/// Interval of the refresh.
const REFRESH_EVERY: Duration = Duration::from_secs(1);

/// Shows the status: once, or until q or Ctrl-C if stdout is a terminal.
///
/// # Errors
/// As [`Client::status`] if it is shown once, or the first time; later failures are shown on the
/// screen. [`Failure::Ended`] if it is shown once and a group is not started.
pub async fn run(common: &Common, client: &Client, once: bool) -> Result<(), Failure> {
    let status = client.status().await?;
    if once || common.output == Format::Json || !io::stdout().is_terminal() {
        output::show(common, &status, |status| render(has_colour(), status))?;
        let not_started: Vec<&str> = status.not_started.iter().map(|group| group.name.as_str()).collect();
        return match not_started[..] {
            [] => Ok(()),
            _ => Err(Failure::Ended(format!("not started: {}", not_started.join(", ")))),
        };
    }
    let fail = |source| Failure::Local { what: "cannot use the terminal".to_owned(), source };
    let mut ending = Ending::listen().map_err(fail)?;
    let mut keys = Keys::listen().map_err(fail)?;
    let screen = Screen::open().map_err(fail)?;
    let mut text = render(has_colour(), &status);
    loop {
        screen.draw(&text).map_err(fail)?;
        tokio::select! {
            () = tokio::time::sleep(REFRESH_EVERY) => {}
            () = ending.told() => return Ok(()),
            () = keys.quit() => return Ok(()),
        }
        text = match client.status().await {
            Ok(status) => render(has_colour(), &status),
            Err(failure) => format!("{failure}\n\ntrying again every second\n"),
        };
    }
}

/// Shows unhealthy objects, once.
///
/// # Errors
/// As [`Client::status`]; [`Failure::Unwell`] if something is unhealthy.
pub async fn unhealthy(common: &Common, client: &Client) -> Result<(), Failure> {
    let unwell = unwell::unwell(client.status().await?);
    output::show(common, &unwell, |unwell| match unwell::is_all_well(unwell) {
        true => "all is well\n".to_owned(),
        false => objects(has_colour(), unwell).trim_start_matches('\n').to_owned(),
    })?;
    unwell::verdict(&unwell)
}

/// The terminal's alternate screen. Dropping it restores the first one.
struct Screen;

impl Screen {
    fn open() -> io::Result<Screen> {
        // The guard is created first, so that a failure half way is undone as well.
        let screen = Screen;
        execute!(io::stdout(), EnterAlternateScreen, Hide, DisableLineWrap)?;
        Ok(screen)
    }

    /// Draws as many lines as fit; the terminal cuts long ones.
    fn draw(&self, text: &str) -> io::Result<()> {
        let rows = crossterm::terminal::size().map_or(24, |(_, rows)| usize::from(rows));
        let text = output::for_terminal(text, has_colour());
        let lines: Vec<&str> = text.lines().collect();
        let fits = rows.saturating_sub(1);
        let mut stdout = io::stdout().lock();
        queue!(stdout, BeginSynchronizedUpdate, MoveTo(0, 0))?;
        let shown = if lines.len() > fits { fits.saturating_sub(1) } else { lines.len() };
        for line in &lines[..shown] {
            write!(stdout, "{line}")?;
            queue!(stdout, Clear(ClearType::UntilNewLine))?;
            write!(stdout, "\r\n")?;
        }
        if shown < lines.len() {
            write!(stdout, "... {} more lines; see purlin status --once", lines.len() - shown)?;
            queue!(stdout, Clear(ClearType::UntilNewLine))?;
            write!(stdout, "\r\n")?;
        }
        queue!(stdout, Clear(ClearType::FromCursorDown), EndSynchronizedUpdate)?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A closed terminal does not have to be restored.
        let _ = execute!(io::stdout(), EnableLineWrap, Show, LeaveAlternateScreen);
    }
}

/// The whole screen as text.
pub fn render(colour: bool, status: &Status) -> String {
    let busy: Vec<String> = status.shards.iter().map(|shard| format!("{:.0}%", shard.busy_percent)).collect();
    let shards = if busy.len() == 1 { "shard" } else { "shards" };
    let head = format!(
        "purlind {}  up {}  memory {}  {} {shards} busy ",
        status.version,
        duration(status.uptime_s),
        format_bytes(status.resident_bytes),
        busy.len(),
    );
    let mut text = wrapped(&head, &busy.join(" "));
    text.push('\n');
    if status.groups.is_empty() && status.not_started.is_empty() {
        text.push_str(table::NO_GROUPS);
    }
    text + &objects(colour, status)
}

/// Groups with their jobs and warnings, exports and hosts.
fn objects(colour: bool, status: &Status) -> String {
    let mut text = String::new();
    if !status.groups.is_empty() {
        text.push_str(&groups(colour, &status.groups));
        text.push('\n');
        text.push_str(&loads(colour, &status.groups));
    }
    text.push_str(&table::not_started(&status.not_started));
    let jobs: Vec<String> = status
        .groups
        .iter()
        .flat_map(|group| group.jobs.iter().map(move |job| (group, job)))
        .filter(|(_, job)| job.state != JobState::Done)
        .map(|(group, job)| job_of(&group.name, job))
        .collect();
    if !jobs.is_empty() {
        text.push('\n');
        text.push_str(&jobs.concat());
    }
    let warnings: Vec<String> = status
        .groups
        .iter()
        .flat_map(|group| group.warnings.iter().map(move |warning| warned(&group.name, warning)))
        .collect();
    if !warnings.is_empty() {
        text.push('\n');
        text.push_str(&warnings.concat());
    }
    if !status.exports.is_empty() {
        text.push('\n');
        text.push_str(&table::exports(colour, &status.exports));
    }
    if !status.hosts.is_empty() {
        text.push('\n');
        text.push_str(&hosts::overview(colour, &status.hosts));
    }
    text
}

/// A job of a group: in one line, unless the group has a long name.
fn job_of(group: &str, job: &Job) -> String {
    let chars = group.chars().count();
    if chars > NAME_CHARS_MAX {
        return format!("{group}\n  {}\n", job_line(job, WIDTH - 2));
    }
    format!("{group}  {}\n", job_line(job, WIDTH - 2 - chars))
}

/// A warning of a group.
fn warned(group: &str, warning: &str) -> String {
    wrapped(&format!("{group}  warning: "), warning)
}

/// Groups without their volumes, spares and last scrub, which `group show` shows.
fn groups(colour: bool, groups: &[GroupStatus]) -> String {
    let row = |group: &GroupStatus| {
        vec![
            Cell::new(&group.name),
            Cell::new(group.level),
            table::health(group.health),
            Cell::new(format!("{}/{}", group.in_sync_count, group.member_count)),
            Cell::new(group.losses_left),
            size(group.capacity_bytes),
            size(group.used_bytes),
            Cell::new(maintenance::next_cell(&group.scrub)),
        ]
    };
    let columns = [
        Column::Long("GROUP"),
        Column::Word("LEVEL"),
        Column::Word("HEALTH"),
        Column::Number("IN SYNC"),
        Column::Number("MAY LOSE"),
        Column::Number("CAPACITY"),
        Column::Number("WRITTEN"),
        Column::Word("NEXT SCRUB"),
    ];
    table(colour, &columns, groups.iter().map(row).collect())
}

fn loads(colour: bool, groups: &[GroupStatus]) -> String {
    let side = |group: &GroupStatus, what: &str, side: &LoadSide| {
        let latency = |pick: fn(&api::LatencyUs) -> f64| {
            side.latency_us.as_ref().map_or_else(dash, |us| Cell::new(micros(pick(us))))
        };
        vec![
            Cell::new(&group.name),
            Cell::new(what),
            Cell::new(per_second(side.ops_per_s)),
            Cell::new(format!("{}/s", format_bytes(side.bytes_per_s.max(0.0) as u64))),
            latency(|us| us.p50),
            latency(|us| us.p99),
            latency(|us| us.max),
        ]
    };
    let rows = groups
        .iter()
        .flat_map(|group| [side(group, "read", &group.load.read), side(group, "write", &group.load.write)])
        .collect();
    let columns = [
        Column::Long("GROUP"),
        Column::Word("LOAD"),
        Column::Number("IOPS"),
        Column::Number("BANDWIDTH"),
        Column::Number("P50"),
        Column::Number("P99"),
        Column::Number("MAX"),
    ];
    table(colour, &columns, rows)
}
