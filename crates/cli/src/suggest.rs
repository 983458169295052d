//! Tips for an unknown subcommand: similar ones if it looks like a typing error, otherwise all of
//! them. Similarity alone misleads: `make` is not `man`.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error};

use crate::Line;

/// Maximum number of letters that may be wrong, additional, missing or swapped.
const SLIPS_MAX: usize = 2;

/// Adds useful tips to an error of the command line.
pub fn with_tips(mut error: Error) -> Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand).cloned() else { return error };
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (line, below) = reached(&Line::command(), &words, &wrong);
    let near: Vec<String> = below.iter().filter(|name| is_near(&wrong, name)).cloned().collect();
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::Suggested);
    if near.is_empty() {
        let all = format!("{line} takes one of: {}", below.join(", "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![all.into()]));
    } else {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near));
    }
    error
}

/// The command that the words before the wrong one lead to, and the names of its subcommands.
fn reached(root: &Command, words: &[String], wrong: &str) -> (String, Vec<String>) {
    let (mut at, mut line) = (root, root.get_name().to_owned());
    for word in words.iter().take_while(|word| *word != wrong) {
        if let Some(below) = at.find_subcommand(word) {
            line = format!("{line} {}", below.get_name());
            at = below;
        }
    }
    (line, at.get_subcommands().filter(|it| !it.is_hide_set()).map(|it| it.get_name().to_owned()).collect())
}

/// Whether `wrong` may mean `name`: `name` begins with it, or only a few letters differ, fewer in
/// short words.
fn is_near(wrong: &str, name: &str) -> bool {
    let slips = SLIPS_MAX.min(wrong.chars().count().min(name.chars().count()) / 3);
    let begins = wrong.chars().count() >= 3 && name.starts_with(wrong);
    begins || distance(wrong, name) <= slips
}

/// Number of letters to change, insert, remove or swap with the next (optimal string alignment).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            rows[i][j] = match (i, j) {
                (0, cost) | (cost, 0) => cost,
                _ => {
                    let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                    let best = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    let is_swap = i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
                    if is_swap { best.min(rows[i - 2][j - 2] + 1) } else { best }
                }
            };
        }
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_near_and_another_word_is_not() {
        for (wrong, name) in [("rname", "rename"), ("lsit", "list"), ("creat", "create"), ("dele", "delete")] {
            assert!(is_near(wrong, name), "{wrong} {name}");
        }
        for (wrong, name) in
            [("make", "man"), ("remove", "rename"), ("mv", "man"), ("destroy", "delete"), ("rm", "show")]
        {
            assert!(!is_near(wrong, name), "{wrong} {name}");
        }
    }
}
