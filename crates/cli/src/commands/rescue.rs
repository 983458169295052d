//! `purlin rescue`.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rescue::{DriveRole, ExtractReport, Extraction, FileTarget, ListReport, StreamTarget, Survey};

use super::counted;
use crate::common_args::{Common, Format};
use crate::output::{self, has_colour, json, show};
use crate::progress::{bar, percent};
use crate::rescue_args::{RescueCommand, RescueExtractArgs};
use crate::{Failure, rescued};

/// Interval of progress output.
const SHOW_EVERY: Duration = Duration::from_millis(200);

pub(super) fn run(common: &Common, command: RescueCommand) -> Result<(), Failure> {
    match command {
        RescueCommand::List { drives } => list(common, &drives),
        RescueCommand::Check { drives, parity } => check(common, &drives, parity),
        RescueCommand::Extract(args) => extract(common, &args),
    }
}

fn list(common: &Common, drives: &[PathBuf]) -> Result<(), Failure> {
    let survey = Survey::open(drives);
    let report: ListReport = rescue::list(&survey);
    show(common, &report, |report| rescued::list(has_colour(), report))?;
    let unreadable = report.drives.iter().filter(|drive| drive.role == DriveRole::Unreadable).count();
    if unreadable == 0 {
        return Ok(());
    }
    Err(Failure::Incomplete(format!("{} could not be read", counted(unreadable, "drive"))))
}

fn check(common: &Common, drives: &[PathBuf], parity: bool) -> Result<(), Failure> {
    let survey = Survey::open(drives);
    let mut shown = Shown::new("comparing");
    let report = rescue::check(&survey, parity, &mut |done, total| shown.show(done, total));
    shown.end();
    show(common, &report, rescued::check)?;
    let findings = counted(report.findings.len(), "finding");
    match (report.complete, report.findings.is_empty()) {
        (true, true) => Ok(()),
        (true, false) => Err(Failure::Ended(findings)),
        (false, _) => Err(Failure::Incomplete(format!("not everything could be checked: {findings}"))),
    }
}

fn extract(common: &Common, args: &RescueExtractArgs) -> Result<(), Failure> {
    let to_stdout = args.to == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "a volume's bytes are nothing for a terminal: give --to FILE, or a pipe".to_owned(),
        ));
    }
    let survey = Survey::open(&args.drives);
    for unopened in &survey.unopened {
        output::on_stderr(&format!("warning: {}: {}", unopened.name, unopened.why));
    }
    let mut extraction = Extraction::new(&survey, &args.volume.group, &args.volume.volume, args.partial)?;
    if args.from_segments {
        extraction = extraction.from_segments();
    }
    for warning in extraction.warnings() {
        output::on_stderr(&format!("warning: {warning}"));
    }
    let mut shown = Shown::new("extracting");
    let mut progress = |done, total| shown.show(done, total);
    let report = if to_stdout {
        let mut target = StreamTarget::new(io::stdout().lock());
        let report = extraction.run(&mut target, &mut progress);
        shown.end();
        report?
    } else {
        let mut target = FileTarget::open(&args.to, extraction.size_bytes(), args.force, &survey.drives)?;
        let report = extraction.run(&mut target, &mut progress);
        shown.end();
        match report {
            Ok(report) => target.finish().map(|()| report)?,
            Err(error) => {
                target.abandon();
                return Err(error.into());
            }
        }
    };
    for warning in &report.warnings[extraction.warnings().len()..] {
        output::on_stderr(&format!("warning: {warning}"));
    }
    tell(common, &report, to_stdout)?;
    match (report.lost_bytes, report.unread_bytes) {
        (0, 0) => Ok(()),
        (0, unread) => Err(Failure::Ended(format!(
            "{unread} bytes of segments cannot be read: {} may have older content",
            report.volume
        ))),
        (lost, _) => Err(Failure::Ended(format!("{lost} bytes of {} are lost", report.volume))),
    }
}

/// Reports what was written: on stderr if the volume goes to stdout.
fn tell(common: &Common, report: &ExtractReport, on_stderr: bool) -> Result<(), Failure> {
    if !on_stderr {
        return show(common, report, rescued::extract);
    }
    match common.output {
        Format::Table => output::print_on_stderr(&rescued::extract(report)),
        Format::Json => output::print_on_stderr(&json(report)),
    }
    Ok(())
}

/// A progress bar on stderr, if that is a terminal.
struct Shown {
    what: &'static str,
    on_terminal: bool,
    last: Option<Instant>,
}

impl Shown {
    fn new(what: &'static str) -> Self {
        Shown { what, on_terminal: io::stderr().is_terminal(), last: None }
    }

    fn show(&mut self, done: u64, total: u64) {
        if !self.on_terminal || self.last.is_some_and(|last| last.elapsed() < SHOW_EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let share = 100.0 * done as f64 / total.max(1) as f64;
        let mut stderr = io::stderr();
        // An error of the display does not end the operation.
        let _ = write!(stderr, "\r\x1b[K{} [{}] {}", self.what, bar(share, 30), percent(share))
            .and_then(|()| stderr.flush());
    }

    /// Removes the bar.
    fn end(&mut self) {
        if self.last.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
