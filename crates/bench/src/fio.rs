//! fio, run as a client.

use serde_json::Value;

use crate::Error;
use crate::process::{output, pinned};

/// The result of a run of fio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Done {
    /// Reads and writes together.
    pub operations: f64,
    /// Wall time in seconds.
    pub wall_s: f64,
    /// CPU time in seconds of fio's job, including the kernel.
    pub client_cpu_s: f64,
    /// Completion latency in microseconds of reads, or of writes if there were more of them: p50,
    /// p99, p99.9, p99.99.
    pub latency_us: [f64; 4],
}

/// Runs one job, pinned to a core if one is given.
///
/// # Errors
/// The output of fio, if it failed.
pub fn run(core: Option<usize>, arguments: &[&str]) -> Result<Done, Error> {
    let common = ["--name=bench", "--thread", "--randrepeat=0", "--norandommap", "--output-format=json"];
    let said = output(pinned(core, "fio").args(common).args(arguments))?;
    // Warnings may precede the report.
    let start = said.find('{').ok_or("fio gave no report")?;
    let report: Value = serde_json::from_str(&said[start..])?;
    let job = &report["jobs"][0];
    let number = |value: &Value| value.as_f64().ok_or("fio's report has another form");
    let operations = |way: &str| number(&job[way]["total_ios"]);
    let (reads, writes) = (operations("read")?, operations("write")?);
    let way = if reads >= writes { "read" } else { "write" };
    // In milliseconds of each direction's own running time.
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

/// Writes an NBD export once as a whole, so that reads find data and writes find allocated space.
///
/// # Errors
/// The output of fio, if it failed.
pub fn fill(uri: &str, bytes: u64) -> Result<(), Error> {
    let (uri, size) = (format!("--uri={uri}"), format!("--size={bytes}"));
    run(None, &["--ioengine=nbd", &uri, "--rw=write", "--bs=1m", "--iodepth=4", &size]).map(|_| ())
}
