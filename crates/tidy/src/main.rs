//! Checks the repository, and says where what is wrong: `tidy [--all | --update | --reset | --book
//! DIR]`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use tidy::baseline::{Baseline, Difference};

const HELP: &str = "\
Checks the source and the documents in the current folder, the root of the repository.
The rules are in crates/tidy/src/lib.rs.

  tidy            says what is worse than crates/tidy/baseline, and where
  tidy --all      says all that the rules find
  tidy --update   lowers the baseline to what there is
  tidy --reset    writes the baseline anew, when a rule is introduced or changed
  tidy --book DIR says which links of the built book in a folder lead nowhere
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints a line. A reader that has gone away does not want the rest.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Returns whether all is well.
fn run(arguments: &[&str]) -> Result<bool, String> {
    if let ["--book", folder] = arguments {
        let findings = tidy::check_book(Path::new(folder)).map_err(|error| format!("{folder}: {error}"))?;
        findings.iter().for_each(|finding| say(&finding.to_string()));
        return Ok(findings.is_empty());
    }
    let root = Path::new(".");
    let path = root.join("crates/tidy/baseline");
    let findings = tidy::check(root).map_err(|error| error.to_string())?;
    let read = || -> Result<Baseline, String> {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Baseline::parse(&text)
    };
    let write = |baseline: Baseline| {
        std::fs::write(&path, baseline.text()).map_err(|error| format!("{}: {error}", path.display()))
    };
    match arguments {
        [] => {}
        ["--all"] => {
            findings.iter().for_each(|finding| say(&finding.to_string()));
            return Ok(findings.is_empty());
        }
        ["--update"] => return write(read()?.lowered_to(&findings)).map(|()| true),
        ["--reset"] => return write(Baseline::of(&findings)).map(|()| true),
        ["--help" | "-h"] => {
            print!("{HELP}");
            return Ok(true);
        }
        _ => return Err(format!("unknown arguments: {}\n\n{HELP}", arguments.join(" "))),
    }
    let differences = read()?.compare(&findings);
    for difference in &differences {
        match difference {
            Difference::Worse(findings) => findings.iter().for_each(|finding| say(&finding.to_string())),
            Difference::Better(what, accepted, is) => {
                say(&format!("{what}: {is} instead of {accepted}: run `cargo run -p tidy -- --update`"));
            }
        }
    }
    Ok(differences.is_empty())
}
