//! The commands: one file per object.

mod drive;
mod export;
mod group;
mod host;
mod import;
mod referral;
#[cfg(target_os = "linux")]
mod rescue;
mod shell;
mod upgrade;
mod volume;

use std::path::Path;

use api::DriveSpec;

use crate::args::{Command, Line};
use crate::{Client, Failure, glob, iostat, screen};

/// Executes the command line.
///
/// # Errors
/// [`Failure`], one sentence.
pub async fn run(line: Line) -> Result<(), Failure> {
    let Line { common, command } = line;
    let client = Client::new(&common.socket);
    match command {
        Command::Status { once: _, unhealthy: true } => screen::unhealthy(&common, &client).await,
        Command::Status { once, unhealthy: false } => screen::run(&common, &client, once).await,
        Command::Iostat(args) => iostat::run(&common, &client, args).await,
        Command::Group(command) => group::run(&common, &client, command).await,
        Command::Import(command) => import::run(&common, &client, command).await,
        Command::Volume(command) => volume::run(&common, &client, command).await,
        Command::Export(command) => export::run(&common, &client, command).await,
        Command::Host(command) => host::run(&common, &client, command).await,
        Command::Referral(command) => referral::run(&common, &client, command).await,
        Command::Drive(command) => drive::run(&common, &client, command).await,
        Command::Spare(command) => drive::run_spare(&common, &client, command).await,
        #[cfg(target_os = "linux")]
        Command::Rescue(command) => rescue::run(&common, command),
        Command::Nvme(command) => crate::nvme::run(&common, &client, command).await,
        Command::Upgrade { program, dry_run } => upgrade::run(&common, &client, program, dry_run).await,
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { dir } => shell::man(&dir),
    }
}

/// An absolute path for the daemon, which has another current folder.
fn absolute(path: &Path) -> Result<String, Failure> {
    let fail = |source| Failure::Local { what: format!("cannot tell where {} is", path.display()), source };
    Ok(std::path::absolute(path).map_err(fail)?.display().to_string())
}

/// The name of a drive for the daemon.
fn drive_name(drive: &DriveSpec) -> Result<String, Failure> {
    match drive {
        DriveSpec::Memory { .. } | DriveSpec::Nvme(_) => Ok(drive.to_string()),
        DriveSpec::Path(path) => absolute(path),
    }
}

/// The names of drives for the daemon.
fn drive_names(drives: &[DriveSpec]) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for drive in drives {
        match drive {
            DriveSpec::Path(path) if glob::is_pattern(path) => names.extend(matching(path)?),
            drive => names.push(drive_name(drive)?),
        }
    }
    Ok(names)
}

/// The drives that match a pattern.
fn matching(pattern: &Path) -> Result<Vec<String>, Failure> {
    let found = glob::expand(&absolute(pattern)?);
    if found.is_empty() {
        return Err(Failure::Usage(format!("no drive matches {:?}", pattern.display().to_string())));
    }
    Ok(found)
}

/// The message after a rename.
fn renamed(steps: &[String], what: &str, old: &str, new: &str) -> String {
    match steps {
        [] => format!("the {what} is called {old} already"),
        _ => format!("renamed {what} {old} to {new}"),
    }
}

/// The message after a change of a limit: the plan "limit ..." becomes "limited ...".
fn limited(steps: &[String], what: &str) -> String {
    match steps.join("; ") {
        said if said.is_empty() => format!("{what} is limited like that already"),
        said => said.replacen("limit ", "limited ", 1),
    }
}

/// `1 drive`, `2 drives`.
fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
