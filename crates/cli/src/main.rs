//! `purlin`: drives, drive groups, volumes and exports from the shell.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let line = match cli::Line::try_parse() {
        Ok(line) => line,
        Err(error) => cli::with_tips(error).exit(),
    };
    match cli::run(line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            cli::on_stderr(&format!("purlin: {failure}"));
            ExitCode::from(failure.exit_code())
        }
    }
}
