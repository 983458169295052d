//! Output to stdout and stderr. Its reader may go away at any time, as in `2>&1 | head`.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use api::{Changed, is_obeyed};
use serde::Serialize;

use crate::Failure;
use crate::common_args::{Common, Format};

/// `text` in a form that is safe for a terminal. Untrusted text (names on drives, models, answers
/// of other machines) can neither move the cursor nor reverse the text. New lines stay, and with
/// `has_colours` the colors of our own tables.
pub fn for_terminal(text: &str, has_colours: bool) -> Cow<'_, str> {
    let is_plain = |c: char| !is_obeyed(c) || c == '\n';
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 64);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let len = if has_colours { colour_len(rest) } else { 0 };
        if len > 0 {
            shown.push_str(&rest[..len]);
        } else if is_plain(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
        rest = &rest[len.max(c.len_utf8())..];
    }
    Cow::Owned(shown)
}

/// Bytes of the color (Select Graphic Rendition: ECMA-48, clause 8.3.117) at the start of `text`; 0
/// if there is none.
fn colour_len(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\u{1b}[") else { return 0 };
    let digits = parameters.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    if parameters.as_bytes().get(digits) == Some(&b'm') { 2 + digits + 1 } else { 0 }
}

/// Prints a message for a person on stderr.
pub fn on_stderr(text: &str) {
    print_on_stderr(&format!("{text}\n"));
}

/// Prints text that ends with a newline on stderr. The exit status of the command is the same if
/// that fails.
pub fn print_on_stderr(text: &str) {
    let _ = io::stderr().write_all(for_terminal(text, false).as_bytes());
}

/// Prints text that ends with a newline. If the reader has gone (`| head`), the command ends
/// quietly.
///
/// # Errors
/// [`Failure::Local`] if stdout fails for another reason.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Local { what: "cannot write the output".to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// Prints an answer as JSON, or as a table made by `table`.
///
/// # Errors
/// As [`print`].
pub fn show<T: Serialize>(common: &Common, answer: &T, table: impl FnOnce(&T) -> String) -> Result<(), Failure> {
    match common.output {
        Format::Table => print(&for_terminal(&table(answer), has_colour())),
        Format::Json => print(&json(answer)),
    }
}

/// Pretty JSON with a newline. Characters that terminals obey are escaped, which keeps their
/// meaning.
pub fn json<T: Serialize>(answer: &T) -> String {
    let mut text = serde_json::to_string_pretty(answer).expect("answers have string keys only");
    // Outside of strings the only such character is the new line. Controls below U+0020 are escaped
    // already.
    if text.contains(|c| is_obeyed(c) && c != '\n') {
        let escaped = |c: char| match c {
            '\n' => "\n".to_owned(),
            c if is_obeyed(c) => format!("\\u{:04x}", u32::from(c)),
            c => c.to_string(),
        };
        text = text.chars().map(escaped).collect();
    }
    text.push('\n');
    text
}

/// Prints a change that was made, or the plan of a dry run. `done` makes the sentence for the
/// former.
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
        if changed.dry_run && changed.steps.is_empty() {
            text.push_str("there is nothing to change\n");
        } else if changed.dry_run {
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

/// Whether stdout takes color: it is a terminal that is not dumb, and NO_COLOR is not set (see
/// no-color.org).
pub fn has_colour() -> bool {
    let said_no = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !said_no && !dumb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_drives_do_not_drive_the_terminal() {
        let table = "NAME\n\u{1b}[32mgood\u{1b}[0m\u{1b}[2J\u{9b}1A\u{202e}x\r\n";
        assert_eq!(for_terminal(table, true), "NAME\n\u{1b}[32mgood\u{1b}[0m\\u{1b}[2J\\u{9b}1A\\u{202e}x\\r\n");
        assert!(!for_terminal(table, false).contains('\u{1b}'));
        assert!(matches!(for_terminal("é\n日本\n", false), Cow::Borrowed(_)));
        for end in ["\u{1b}", "\u{1b}[", "\u{1b}[1", "\u{1b}[1;x"] {
            assert!(!for_terminal(end, true).contains('\u{1b}'), "{end:?}");
        }
    }

    #[test]
    fn json_means_the_same_and_moves_no_cursor() {
        let names = ["plain é", "\u{9b}2J", "\u{202e}gpj", "\u{1b}[2J\n\u{7f}"];
        let text = json(&names);
        assert!(!text.contains(|c| is_obeyed(c) && c != '\n'), "{text:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), names);
    }
}
