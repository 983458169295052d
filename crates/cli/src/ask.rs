//! Questions before data are lost.
//!
//! Invariant: nothing is asked unless both stdin and stderr are a terminal, so a script never hangs
//! on a question.

use std::io::{self, BufRead, IsTerminal, Write};

use api::Changed;

use crate::Failure;
use crate::common_args::Common;
use crate::output::for_terminal;

/// Asks before data are lost. `what` is the first half of a sentence: "this destroys the volume
/// tank/db".
///
/// # Errors
/// [`Failure::Unasked`] without a terminal, [`Failure::Declined`] for any answer but yes.
pub fn consent(common: &Common, what: &str) -> Result<(), Failure> {
    question(common, &[], what, "go on? [y/N] ", |answer| {
        answer.eq_ignore_ascii_case("y") || answer.eq_ignore_ascii_case("yes")
    })
}

/// As [`consent`], below the plan of the change, which names the drives and their content.
///
/// # Errors
/// As for [`consent`].
pub fn consent_to<T>(common: &Common, planned: &Changed<T>, what: &str) -> Result<(), Failure> {
    let is_yes = |answer: &str| answer.eq_ignore_ascii_case("y") || answer.eq_ignore_ascii_case("yes");
    question(common, &planned.steps, what, "go on? [y/N] ", is_yes)
}

/// Asks for the name of the object to be destroyed, below the plan of the change. A typing error
/// must not be enough to destroy it.
///
/// # Errors
/// [`Failure::Unasked`] without a terminal, [`Failure::Declined`] for any answer but the name.
pub fn consent_by_name<T>(common: &Common, planned: &Changed<T>, what: &str, name: &str) -> Result<(), Failure> {
    question(common, &planned.steps, what, &format!("type {name} to go on: "), |answer| answer == name)
}

fn question(
    common: &Common,
    plan: &[String],
    what: &str,
    prompt: &str,
    is_yes: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    if common.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::Unasked { what: what.to_owned() });
    }
    let mut stderr = io::stderr();
    let mut answer = String::new();
    let plan: String = plan.iter().map(|step| format!("  {step}\n")).collect();
    write!(stderr, "{}", for_terminal(&format!("{plan}{what}; {prompt}"), false))
        .and_then(|()| stderr.flush())
        .and_then(|()| io::stdin().lock().read_line(&mut answer))
        .map_err(|source| Failure::Local { what: "cannot ask".to_owned(), source })?;
    if is_yes(answer.trim()) { Ok(()) } else { Err(Failure::Declined) }
}
