//! Runs that are guided by coverage. This program starts itself as libFuzzer, once for each job,
//! and follows what libFuzzer prints.
//!
//! Files of a run lie in a folder for each target beside the program, so in the build cache: `new`
//! (inputs that reached new code, from this run and earlier ones), and `seeds`, `words` and `found`
//! of the last run.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use fuzz::{INPUT_TIME_MAX, Target, corpus};

use crate::{Extent, read};

/// The environment variable with the target's name. Only a process that is libFuzzer has it.
const TARGET_VARIABLE: &str = "PURLIN_FUZZ_TARGET";

/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Resident memory of the process at which libFuzzer stops it. Each input's own limit is in its
/// target; this one is for memory that remains allocated from input to input.
const RESIDENT_MIB_MAX: u32 = 2048;

/// The target that this process has to run as libFuzzer.
#[cfg(feature = "guided")]
pub(crate) fn requested_target() -> Option<&'static Target> {
    fuzz::find(&env::var(TARGET_VARIABLE).ok()?)
}

/// Fuzzes each target in turn, and shows a table of the results. Returns false if a violation was
/// found.
pub(crate) fn fuzz(targets: &[Target], extent: Extent) -> io::Result<bool> {
    let mut rows = Vec::new();
    let mut is_clean = true;
    for target in targets {
        let start = Instant::now();
        let result = fuzz_one(target, extent)?;
        is_clean &= result.crash.is_none();
        rows.push(format!(
            "{:<14}{:>12}{:>10}{:>12}{:>8} s  {}",
            target.name,
            result.inputs,
            result.edges,
            result.new_inputs,
            start.elapsed().as_secs(),
            if result.crash.is_none() { "clean" } else { "CRASHED" },
        ));
    }
    println!("{:<14}{:>12}{:>10}{:>12}{:>10}  result", "target", "inputs", "edges", "new inputs", "time");
    rows.iter().for_each(|row| println!("{row}"));
    Ok(is_clean)
}

/// The result of all processes of one target.
#[derive(Debug, Default)]
struct Total {
    inputs: u64,
    /// Edges of the program that the process with the most of them reached.
    edges: u64,
    new_inputs: u64,
    /// How the first process ended that found a violation.
    crash: Option<ExitStatus>,
}

/// Fuzzes one target, in one process for each job. The first crash ends all of them.
fn fuzz_one(target: &Target, extent: Extent) -> io::Result<Total> {
    let folder = Folder::prepare(target)?;
    let mut children = (0..extent.jobs)
        .map(|job| folder.command(target, extent, extent.seed.saturating_add(job))?.spawn())
        .collect::<io::Result<Vec<Child>>>()?;
    let (ended, outputs) = mpsc::channel();
    for (job, child) in children.iter_mut().enumerate() {
        let stderr = child.stderr.take().expect("it is a pipe");
        let (ended, name) =
            (ended.clone(), format!("{}, seed {}", target.name, extent.seed.saturating_add(job as u32)));
        thread::spawn(move || ended.send((job, follow(&name, stderr))));
    }
    drop(ended);
    let mut total = Total::default();
    for (job, output) in outputs {
        total.inputs += output.inputs;
        total.edges = total.edges.max(output.edges);
        total.new_inputs += output.new_inputs;
        let status = children[job].wait()?;
        if status.success() || total.crash.is_some() {
            continue;
        }
        total.crash = Some(status);
        output.notes.iter().for_each(|note| println!("  {note}"));
        for other in &mut children {
            other.kill()?;
        }
    }
    let found = folder.found()?;
    if let (Some(status), []) = (total.crash, &found[..]) {
        println!("{}: CRASH without an input: libFuzzer ended with {status}", target.name);
    }
    for input in found {
        let (name, path) = (target.name, keep(target, &input)?);
        println!("{name}: CRASH, kept as {path}");
        println!("  again:   ./x fuzz replay {name} {path}");
        println!("  smaller: ./x fuzz minimise {name} {path}");
    }
    Ok(total)
}

/// Keeps an input that caused a crash. Returns its path from the root of the checkout.
fn keep(target: &Target, input: &[u8]) -> io::Result<String> {
    let root = corpus::home().join("../..").canonicalize()?;
    let path = corpus::keep_crash(target, input)?;
    Ok(path.strip_prefix(root).unwrap_or(&path).display().to_string())
}

/// Counts and messages that libFuzzer printed.
#[derive(Debug, Default)]
struct Output {
    inputs: u64,
    edges: u64,
    new_inputs: u64,
    per_s: u64,
    /// Lines about a crash.
    notes: Vec<String>,
    shows_input: bool,
}

impl Output {
    /// Takes a line of libFuzzer. Returns true if it is one of progress.
    fn take(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
        let Some(first) = words.first() else { return false };
        if let Some(Ok(inputs)) = first.strip_prefix('#').map(str::parse) {
            self.inputs = inputs;
            for (at, word) in words.iter().enumerate() {
                match *word {
                    "cov:" => self.edges = number(at + 1),
                    "exec/s:" => self.per_s = number(at + 1),
                    _ => {}
                }
            }
            return true;
        }
        match *first {
            "stat::number_of_executed_units:" => self.inputs = number(1),
            "stat::new_units_added:" => self.new_inputs = number(1),
            // The input as numbers and as text follows. It is kept as a file.
            "MS:" => self.shows_input = true,
            _ if self.shows_input && !first.starts_with("==") => {}
            _ if NOISE.contains(first) => {}
            _ => self.notes.push(line.to_owned()),
        }
        false
    }
}

/// First words of lines that say nothing about a crash.
const NOISE: [&str; 7] = ["INFO:", "WARNING:", "NOTE:", "Combine", "DEDUP_TOKEN:", "Dictionary:", "SUMMARY:"];

/// Reads what a process prints until it ends, and shows its progress now and then.
fn follow(name: &str, stderr: ChildStderr) -> Output {
    let mut output = Output::default();
    let mut told = Instant::now();
    for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
        if output.take(&String::from_utf8_lossy(&line)) && told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            println!("{name}: {} inputs, {}/s, {} edges", output.inputs, output.per_s, output.edges);
        }
    }
    output
}

/// The files of a target.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn of(target: &Target) -> io::Result<Folder> {
        Ok(Folder(env::current_exe()?.with_file_name("inputs").join(target.name)))
    }

    /// Writes the corpus and the words of a target, and removes what an earlier run found.
    fn prepare(target: &Target) -> io::Result<Folder> {
        let folder = Folder::of(target)?;
        for name in ["seeds", "found"] {
            let path = folder.0.join(name);
            if path.exists() {
                fs::remove_dir_all(&path)?;
            }
            fs::create_dir_all(&path)?;
        }
        fs::create_dir_all(folder.0.join("new"))?;
        for (index, seed) in corpus::load(target)?.iter().enumerate() {
            fs::write(folder.0.join("seeds").join(index.to_string()), &seed.bytes)?;
        }
        let words = target.dictionary.iter().map(|word| {
            let escaped: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("\"{escaped}\"\n")
        });
        fs::write(folder.0.join("words"), format!("# {}\n{}", target.name, words.collect::<String>()))?;
        Ok(folder)
    }

    fn command(&self, target: &Target, extent: Extent, seed: u32) -> io::Result<Command> {
        let mut command = libfuzzer(target)?;
        command.arg(format!("-seed={seed}"));
        command.arg(format!("-max_len={}", target.input_bytes_max));
        command.arg(format!("-dict={}", self.0.join("words").display()));
        command.arg(format!("-artifact_prefix={}/", self.0.join("found").display()));
        command.args(["-print_final_stats=1", "-print_funcs=0"]);
        match extent.runs {
            Some(runs) => command.arg(format!("-runs={runs}")),
            None => command.arg(format!("-max_total_time={}", extent.seconds)),
        };
        command.arg(self.0.join("new")).arg(self.0.join("seeds"));
        Ok(command)
    }

    /// Inputs that caused a crash, did not end, or left the process with too much memory.
    fn found(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut inputs = Vec::new();
        for entry in fs::read_dir(self.0.join("found"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if ["crash-", "timeout-", "oom-"].iter().any(|kind| name.starts_with(kind)) {
                inputs.push(fs::read(path)?);
            }
        }
        Ok(inputs)
    }
}

/// This program as libFuzzer, without what it has to do.
fn libfuzzer(target: &Target) -> io::Result<Command> {
    if !cfg!(feature = "guided") {
        return Err(io::Error::other("this program is built without libFuzzer; `./x fuzz` builds one with it"));
    }
    let mut command = Command::new(env::current_exe()?);
    command.env(TARGET_VARIABLE, target.name).stdin(Stdio::null()).stderr(Stdio::piped());
    command.arg(format!("-timeout={}", INPUT_TIME_MAX.as_secs())).arg(format!("-rss_limit_mb={RESIDENT_MIB_MAX}"));
    Ok(command)
}

/// Makes the input in `file` as small as possible, and stores the result beside other crashes.
pub(crate) fn minimise(target: &Target, file: &Path, patience: Duration) -> io::Result<()> {
    let before = read(file)?;
    let folder = Folder::of(target)?;
    fs::create_dir_all(&folder.0)?;
    let smallest = folder.0.join("smallest");
    let output = libfuzzer(target)?
        .arg("-minimize_crash=1")
        .arg(format!("-max_total_time={}", patience.as_secs()))
        .arg(format!("-exact_artifact_path={}", smallest.display()))
        .arg(file)
        .output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rfind(|line| line.starts_with("ERROR:")).unwrap_or("libFuzzer failed");
        return Err(io::Error::other(last.to_owned()));
    }
    let after = fs::read(&smallest)?;
    println!("{}: {} of {} bytes, kept as {}", target.name, after.len(), before.len(), keep(target, &after)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_the_message_of_a_crash_are_taken_and_the_rest_is_left_out() {
        let mut output = Output::default();
        let lines = [
            "INFO: Seed: 1",
            "#2\tINITED cov: 530 ft: 531 corp: 1/214b exec/s: 0 rss: 40Mb",
            "",
            "#1024\tpulse  cov: 612 ft: 900 corp: 40/9Kb lim: 226 exec/s: 512 rss: 41Mb",
            "md: panicked at superblock.rs:330:31: index out of bounds",
            "==19047== ERROR: libFuzzer: deadly signal",
            "NOTE: libFuzzer has rudimentary signal handlers.",
            "MS: 1 ChangeBit-; base unit: adc83b19e793491b1c6ea0fd8b46cd9f32e592fc",
            "0x3,0xfc,",
            "\\003\\374",
            "artifact_prefix='found/'; Test unit written to found/crash-1",
            "stat::number_of_executed_units: 1030",
            "stat::new_units_added:          7",
        ];
        let is_progress = lines.map(|line| output.take(line));
        assert_eq!(is_progress.iter().filter(|progress| **progress).count(), 2);
        assert_eq!((output.inputs, output.edges, output.per_s, output.new_inputs), (1030, 612, 512, 7));
        assert_eq!(output.notes, [lines[4], lines[5]]);
    }
}
