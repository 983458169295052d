//! Retired words, and openings of sentences that are hard to read.
//!
//! The words are those of the term table that `docs/glossary.md` comes from: each was a private
//! name for something that the field has a name for.

use crate::{File, Finding, Kind};

/// Words that prose does without, in lower case.
const PROSE: &[&str] = &["whoever", "nobody", "whatever", "somebody"];

/// How no sentence begins. Questions may.
const OPENINGS: &[&str] = &["Who ", "What ", "Whoever ", "Whatever ", "Nobody ", "Of which "];

/// Parts of identifiers that have a standard term, which is what to write instead. Also retired in
/// prose.
const TERMS: &[(&str, &str)] = &[
    ("ailing", "fail-slow"),
    ("astray", "superblock mismatch"),
    ("dawdle", "buggify_delay"),
    ("doubted", "suspect"),
    ("mend", "write retry"),
    ("newcomer", "unassigned drive"),
    ("restated", "carried in parity"),
    ("resum", "recompute checksums"),
    ("seldom", "rate limiter"),
    ("shelf", "target"),
    ("shelves", "targets"),
    ("syndromes", "parity"),
    ("turnstile", "fair async semaphore"),
    ("unended", "incomplete write"),
    ("upkeep", "maintenance"),
    ("weigh", "majority vote"),
    ("witness", "extra log holder"),
];

/// Files with all retired words: this list, and the glossary, which says what they were.
const LISTS: &[&str] = &["crates/tidy/src/rules/words.rs", "docs/glossary.md"];

/// The retired words of a file.
pub fn check(file: &File) -> Vec<Finding> {
    if LISTS.contains(&file.path.as_str()) || matches!(file.kind, Kind::Layers | Kind::Other) {
        return Vec::new();
    }
    let finding = |line: usize, message: String| Finding {
        file: file.path.clone(),
        line,
        rule: "words",
        item: String::new(),
        weight: 1,
        message,
    };
    let mut findings = Vec::new();
    for (line, text) in file.prose() {
        let lower = text.to_lowercase();
        for word in lower.split(|character: char| !character.is_alphanumeric()).filter(|word| PROSE.contains(word)) {
            findings.push(finding(line, format!("{word:?} hides who acts: name it")));
        }
        for opening in OPENINGS.iter().filter(|opening| begins(text, opening)) {
            findings
                .push(finding(line, format!("a sentence begins with {:?}: begin with its subject", opening.trim())));
        }
    }
    // Of documents the prose, of source the identifiers too.
    let lines: Vec<(usize, &str)> = match file.kind {
        Kind::Rust => file.text.lines().enumerate().map(|(index, line)| (index + 1, line)).collect(),
        _ => file.prose(),
    };
    for (line, text) in lines {
        for part in parts(text) {
            if let Some((term, standard)) = TERMS.iter().find(|(term, _)| *term == part) {
                findings.push(finding(line, format!("{term:?} is retired: {standard}")));
            }
        }
    }
    findings
}

/// A sentence of this line begins so, and is no question.
fn begins(text: &str, opening: &str) -> bool {
    let prose = text.trim_start().trim_start_matches(['/', '!', '-', '*', ' ']);
    let sentences = prose.split_inclusive(['.', '?', '!', ':', ';']);
    sentences.into_iter().any(|sentence| sentence.trim_start().starts_with(opening) && !sentence.ends_with('?'))
}

/// The words of a line, and those that its identifiers are made of, in lower case.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for character in text.chars() {
        let begins = !character.is_alphanumeric() || (was_lower && character.is_uppercase());
        if begins {
            parts.push(String::new());
        }
        if character.is_alphanumeric() {
            parts.last_mut().expect("there is one").extend(character.to_lowercase());
        }
        was_lower = character.is_lowercase();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&File::new(path, text)).into_iter().map(|finding| (finding.line, finding.message)).collect()
    }

    #[test]
    fn retired_terms_are_found_in_identifiers_and_prose() {
        let text = "fn mend_all(astray: &UnendedWrites) {}\n// It is weighed.\n// A newcomer.\n";
        let lines: Vec<usize> = found("a.rs", text).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [1, 1, 1, 3], "\"weighed\" is another word");
    }

    #[test]
    fn hard_openings_are_found_and_questions_are_not() {
        let wrong = "a sentence begins with \"What\": begin with its subject".to_owned();
        assert_eq!(found("a.md", "What is written is kept.\n"), [(1, wrong.clone())]);
        assert_eq!(found("a.rs", "/// A write. What it changes is logged.\n"), [(1, wrong)]);
        assert_eq!(found("a.md", "What keeps the memory bounded?\n"), []);
        assert_eq!(found("a.rs", "let what = \"What is it\";\n"), [], "code is no prose");
    }

    #[test]
    fn words_that_hide_the_subject_are_found() {
        assert_eq!(found("a.md", "Nobody waits.\n").len(), 2, "the word, and the opening");
        assert_eq!(found("a.md", "```\nnobody\n```\n"), []);
    }
}
