//! fio, run as a client.

use serde_json::Value;

use crate::Error;
use crate::process::{output, pinned};

/// What a run of fio did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Done {
    /// Reads and writes together.
    pub operations: f64,
    /// Seconds on the wall.
    pub wall_s: f64,
    /// Seconds of CPU that fio's job took, kernel included.
    pub client_cpu_s: f64,
    /// Completion latency in microseconds of whichever there were more, reads or writes: p50, p99,
    /// p99.9, p99.99.
    pub latency_us: [f64; 4],
}

/// Runs one job, on one core only if one is given.
///
/// # Errors
/// With what fio said, if it failed.
pub fn run(core: Option<usize>, arguments: &[&str]) -> Result<Done, Error> {
    let common = ["--name=bench", "--thread", "--randrepeat=0", "--norandommap", "--output-format=json"];
    let said = output(pinned(core, "fio").args(common).args(arguments))?;
    // Warnings may stand before the report.
    let start = said.find('{').ok_or("fio gave no report")?;
    let report: Value = serde_json::from_str(&said[start..])?;
    let job = &report["jobs"][0];
    let number = |value: &Value| value.as_f64().ok_or("fio's report has another form");
    let operations = |way: &str| number(&job[way]["total_ios"]);
    let (reads, writes) = (operations("read")?, operations("write")?);
    let way = if reads >= writes { "read" } else { "write" };
    // In milliseconds of the direction's own running time.
    let wall_s = number(&job["read"]["runtime"])?.max(number(&job["write"]["runtime"])?) / 1e3;
    let percentile = |name: &str| number(&job[way]["clat_ns"]["percentile"][name]).map(|ns| ns / 1e3);
    Ok(Done {
        operations: reads + writes,
        wall_s,
        client_cpu_s: (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0 * wall_s,
        latency_us: [
            percentile("50.000000")?,
            percentile("99.000000")?,
            percentile("99.900000")?,
            percentile("99.990000")?,
        ],
    })
}

/// Writes all of an NBD export once, so that reads find data and writes find space.
///
/// # Errors
/// With what fio said, if it failed.
pub fn fill(uri: &str, bytes: u64) -> Result<(), Error> {
    let (uri, size) = (format!("--uri={uri}"), format!("--size={bytes}"));
    run(None, &["--ioengine=nbd", &uri, "--rw=write", "--bs=1m", "--iodepth=4", &size]).map(|_| ())
}
