//! What goes to stdout.

use std::io::{self, IsTerminal, Write};

use api::Changed;
use serde::Serialize;

use crate::Failure;
use crate::args::{Common, Format};

/// Prints text that ends with a newline. A reader that went away (`| head`) ends the command quietly.
///
/// # Errors
/// [`Failure::Local`] when stdout fails otherwise.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Local { what: "cannot write the output".to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// Prints an answer: as JSON, or as `table` says.
///
/// # Errors
/// As [`print`].
pub fn show<T: Serialize>(common: &Common, answer: &T, table: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    match common.output {
        Format::Table => print(&table(answer)),
        Format::Json => print(&json(answer)),
    }
}

/// Pretty JSON with a newline.
pub fn json<T: Serialize>(answer: &T) -> String {
    let mut text = serde_json::to_string_pretty(answer).expect("answers have string keys only");
    text.push('\n');
    text
}

/// Prints what was changed, or would be: `done` is the sentence for the first.
///
/// # Errors
/// As [`print`].
pub fn show_changed<T: Serialize>(
    common: &Common,
    changed: &Changed<T>,
    done: impl FnOnce(Option<&T>) -> String,
) -> Result<(), Failure> {
    show(common, changed, |changed| {
        let mut text = String::new();
        if changed.dry_run {
            text.push_str("nothing was changed; this would be done:\n");
            for step in &changed.steps {
                text.push_str(&format!("  {step}\n"));
            }
        } else {
            text.push_str(&done(changed.object.as_ref()));
            text.push('\n');
        }
        for warning in &changed.warnings {
            text.push_str(&format!("warning: {warning}\n"));
        }
        text
    })
}

/// Whether stdout takes colour: a terminal that is not dumb, and nobody said NO_COLOR (see no-color.org).
pub fn has_colour() -> bool {
    let said_no = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !said_no && !dumb
}
