//! `purlin`: drives, drive groups, volumes and exports from the shell.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let line = cli::Line::parse();
    match cli::run(line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            cli::on_stderr(&format!("purlin: {failure}"));
            ExitCode::from(failure.exit_code())
        }
    }
}
