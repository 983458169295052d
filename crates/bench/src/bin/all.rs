//! Runs all benchmarks, one after the other, each as a process of its own. Then prints one table of
//! all rows with targets.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use bench::Error;
use bench::report::{Report, Row, Target, table};
use clap::Parser;
use serde_json::Value;

/// Runs every benchmark and prints a summary.
#[derive(Parser)]
struct Arguments {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// gf has its own form of report, because its peer may be missing.
const GF: &str = "gf";

const NAMES: [&str; 5] = [GF, "engine", "nbd", "raid6", "large"];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments.json) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("all: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether everything could be measured.
fn run(json: bool) -> Result<bool, Error> {
    let own = std::env::current_exe()?;
    // Cargo has built only this program. The variable names the `cargo` that runs it.
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--release", "--locked", "--quiet", "--package", "bench", "--bins"]);
        if !build.status()?.success() {
            return Err("the benchmarks cannot be built".into());
        }
    }
    let mut rows = Vec::new();
    let mut reports = Vec::new();
    let mut complete = true;
    for name in NAMES {
        eprintln!("measuring: {name}");
        match measure(name, &own.with_file_name(name)) {
            Ok((report, found)) => {
                if found.is_empty() {
                    eprintln!("{name}: its peer is missing, so its targets are not judged: see `./x bench {name}`");
                    complete = false;
                }
                reports.push(report);
                rows.extend(found);
            }
            Err(error) => {
                eprintln!("{error}");
                complete = false;
            }
        }
    }
    rows.retain(|row| row.target.is_some());
    if json {
        println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "reports": reports, "targets": rows }))?);
    } else {
        let met = rows.iter().filter(|row| row.met == Some(true)).count();
        println!("{}", table(&rows));
        println!("{met} of {} targets met", rows.len());
    }
    Ok(complete)
}

fn measure(name: &str, program: &Path) -> Result<(Value, Vec<Row>), Error> {
    let output = Command::new(program).arg("--json").stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("{name} could not be measured").into());
    }
    let value: Value = serde_json::from_slice(&output.stdout)?;
    let rows = if name == GF { gf_rows(&value)? } else { serde_json::from_value::<Report>(value.clone())?.rows };
    Ok((value, rows))
}

/// The rows of gf that have a target: 8+2, compared with ISA-L.
fn gf_rows(report: &Value) -> Result<Vec<Row>, Error> {
    let rows = report["rows"].as_array().ok_or("gf's report has another form")?;
    let row = |row: &Value| -> Option<Row> {
        let operation = row["operation"].as_str()?;
        let target = match operation {
            "encode 8+2" => Target::AtLeast(0.95),
            "8+2, two data strips lost" => Target::AtLeast(0.9),
            _ => return None,
        };
        let ratio: [f64; 3] = serde_json::from_value(row["ratio"].clone()).ok()?;
        Some(Row {
            what: format!("{operation}, {} KiB, {}", row["strip_kib"], row["place"].as_str()?),
            unit: "GB/s".into(),
            ours: row["gf_gb_per_s"].as_f64()?,
            peer_name: format!("ISA-L {}", report["isal_version"].as_str()?),
            peer: row["isal_gb_per_s"].as_f64()?,
            basis: "wall".into(),
            ratio,
            target: Some(target),
            met: Some(target.is_met_by(ratio[1])),
        })
    };
    Ok(rows.iter().filter_map(row).collect())
}
