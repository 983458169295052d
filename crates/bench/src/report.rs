//! The result of a benchmark: a table for the user, JSON for programs, and whether the targets were
//! met.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::rounds::{Basis, Rounds, spread};

/// The target for a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// This much or more.
    AtLeast(f64),
    /// This much or less.
    AtMost(f64),
    /// Exactly this much: every operation counts.
    Exactly(f64),
}

impl Target {
    /// True if the ratio meets the target.
    pub fn is_met_by(self, ratio: f64) -> bool {
        match self {
            Target::AtLeast(least) => ratio >= least,
            Target::AtMost(most) => ratio <= most,
            Target::Exactly(value) => ratio == value,
        }
    }

    fn text(self) -> String {
        match self {
            Target::AtLeast(least) => format!(">= {least}"),
            Target::AtMost(most) => format!("<= {most}"),
            Target::Exactly(value) => format!("= {value}"),
        }
    }
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation that was measured.
    pub what: String,
    /// The unit of `ours` and `peer`.
    pub unit: String,
    /// The median of ours.
    pub ours: f64,
    /// Name of the peer.
    pub peer_name: String,
    /// The median of the peer.
    pub peer: f64,
    /// The divisor of the numbers: wall time, CPU time, or none.
    pub basis: String,
    /// Ratio of ours to the peer's over the rounds: least, median, most.
    pub ratio: [f64; 3],
    /// The target for the median ratio. None for a row that is only informative.
    pub target: Option<Target>,
    /// Whether the target is met.
    pub met: Option<bool>,
}

impl Row {
    /// A row that compares two contenders of the same rounds.
    pub fn of(
        (what, unit): (&str, &str),
        rounds: &Rounds,
        basis: Basis,
        ours: usize,
        (peer, peer_name): (usize, &str),
        target: Option<Target>,
    ) -> Row {
        let ratio = rounds.ratio(ours, peer, basis);
        Row {
            what: what.to_owned(),
            unit: unit.to_owned(),
            ours: rounds.median(ours, basis),
            peer_name: peer_name.to_owned(),
            peer: rounds.median(peer, basis),
            basis: basis.name().to_owned(),
            ratio,
            target,
            met: target.map(|target| target.is_met_by(ratio[1])),
        }
    }

    /// A row that compares samples of the same rounds.
    ///
    /// # Panics
    /// If there is no round.
    pub fn beside(
        (what, unit): (&str, &str),
        ours: &[f64],
        (peer, peer_name): (&[f64], &str),
        basis: &str,
        target: Option<Target>,
    ) -> Row {
        let ratio = spread(ours.iter().zip(peer).map(|(ours, peer)| ours / peer).collect());
        Row {
            what: what.to_owned(),
            unit: unit.to_owned(),
            ours: spread(ours.to_vec())[1],
            peer_name: peer_name.to_owned(),
            peer: spread(peer.to_vec())[1],
            basis: basis.to_owned(),
            ratio,
            target,
            met: target.map(|target| target.is_met_by(ratio[1])),
        }
    }

    /// A row that compares a count with the expected count. The target applies to their ratio.
    pub fn count(what: &str, unit: &str, counted: f64, expected: f64, target: Target) -> Row {
        let ratio = counted / expected;
        Row {
            what: what.to_owned(),
            unit: unit.to_owned(),
            ours: counted,
            peer_name: "on paper".to_owned(),
            peer: expected,
            basis: "count".to_owned(),
            ratio: [ratio; 3],
            target: Some(target),
            met: Some(target.is_met_by(ratio)),
        }
    }

    /// A row that compares samples with an upper limit.
    ///
    /// # Panics
    /// If there is no sample.
    pub fn within(what: &str, unit: &str, samples: &[f64], most: f64) -> Row {
        let samples = spread(samples.to_vec());
        let ratio = samples.map(|value| value / most);
        let target = Target::AtMost(1.0);
        Row {
            what: what.to_owned(),
            unit: unit.to_owned(),
            ours: samples[1],
            peer_name: "at most".to_owned(),
            peer: most,
            basis: "limit".to_owned(),
            ratio,
            target: Some(target),
            met: Some(target.is_met_by(ratio[1])),
        }
    }
}

/// The machine, as far as it explains the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the processor.
    pub processor: String,
    /// Number of cores that are online.
    pub cores: usize,
    /// Linux's release.
    pub kernel: String,
    /// Load average of the last minute when the benchmark began.
    pub load_before: f64,
    /// Load average when it ended. If it is more than the benchmark's own threads, other processes
    /// were active.
    pub load_after: f64,
}

impl Machine {
    fn look() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        Machine {
            processor: model.unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: load(),
            load_after: 0.0,
        }
    }
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

/// All results of one program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The program's name.
    pub name: String,
    /// Rounds from which medians are taken.
    pub rounds: usize,
    /// The machine on which it ran.
    pub machine: Machine,
    /// Remarks that the reader needs to understand the numbers.
    pub notes: Vec<String>,
    /// The comparisons.
    pub rows: Vec<Row>,
}

impl Report {
    /// Runs a benchmark program: measures, and prints the report or the error.
    pub fn run(
        name: &str,
        rounds: usize,
        json: bool,
        measure: impl FnOnce(&mut Report) -> Result<(), Error>,
    ) -> ExitCode {
        let mut report = Report::begin(name, rounds);
        match measure(&mut report) {
            Ok(()) => {
                report.print(json);
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{name}: {error}");
                ExitCode::FAILURE
            }
        }
    }

    /// Begins a report. The present load becomes `load_before`.
    fn begin(name: &str, rounds: usize) -> Report {
        Report { name: name.to_owned(), rounds, machine: Machine::look(), notes: Vec::new(), rows: Vec::new() }
    }

    /// Notes whether contenders ran at real-time priority.
    pub fn note_priority(&mut self, first: bool) {
        let how =
            if first { "at real-time priority" } else { "at normal priority, open to what else the machine does" };
        self.notes.push(format!("Contenders ran {how}."));
    }

    /// Ends the report and prints it.
    fn print(mut self, json: bool) {
        self.machine.load_after = load();
        if json {
            println!("{}", serde_json::to_string_pretty(&self).expect("a report is plain data"));
            return;
        }
        let Machine { processor, cores, kernel, load_before, load_after } = &self.machine;
        println!(
            "{}: medians of {} alternating rounds; {processor}, {cores} cores, Linux {kernel}, load {load_before:.1} before and {load_after:.1} after",
            self.name, self.rounds
        );
        println!("{}", table(&self.rows));
        for note in &self.notes {
            println!("- {note}");
        }
    }
}

/// Rows as a table.
pub fn table(rows: &[Row]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["what", "purlin", "beside", "its", "by", "ratio (least - most)", "target", ""]);
    for row in rows {
        let [least, median, most] = row.ratio;
        table.add_row([
            row.what.clone(),
            format!("{} {}", number(row.ours), row.unit),
            row.peer_name.clone(),
            number(row.peer),
            row.basis.clone(),
            if least == most { format!("{median:.4}") } else { format!("{median:.2} ({least:.2} - {most:.2})") },
            row.target.map_or_else(String::new, Target::text),
            row.met.map_or("", |met| if met { "met" } else { "MISSED" }).to_owned(),
        ]);
    }
    table
}

/// Three or four digits, with the suffix k or M.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.3}M", value / 1e6),
        size if size >= 1e4 => format!("{:.1}k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_met_from_their_own_side() {
        assert!(Target::AtLeast(0.9).is_met_by(0.9) && !Target::AtLeast(0.9).is_met_by(0.89));
        assert!(Target::AtMost(0.5).is_met_by(0.5) && !Target::AtMost(0.5).is_met_by(0.51));
        assert_eq!(Row::count("reads", "", 12288.0, 12288.0, Target::Exactly(1.0)).met, Some(true));
        assert_eq!(Row::count("reads", "", 12289.0, 12288.0, Target::Exactly(1.0)).met, Some(false));
        let row = Row::within("made", "s", &[3.0, 0.5, 1.0], 2.0);
        assert_eq!((row.ours, row.ratio, row.met), (1.0, [0.25, 0.5, 1.5], Some(true)));
        assert_eq!(Row::within("made", "s", &[2.1], 2.0).met, Some(false));
    }

    #[test]
    fn numbers_are_short() {
        let text: Vec<String> = [1_290_000.0, 78_123.0, 812.4, 3.0].into_iter().map(number).collect();
        assert_eq!(text, ["1.290M", "78.1k", "812", "3.00"]);
    }
}
