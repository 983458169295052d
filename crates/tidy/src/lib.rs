//! Checks of the source and the documents that no compiler makes, for `./x test`.
//!
//! A rule looks at files and gives [`Finding`]s: a file, a line, the rule and a sentence. The
//! [`baseline`] lists the findings that a rule had when it was introduced. A finding is an error
//! only if a file got worse. A file that got better lowers its baseline (`tidy --update`), so that
//! it cannot get worse again.
//!
//! The rules:
//! - `width`: comments and Markdown have at most 100 columns.
//! - `file`: a source file has at most 600 lines.
//! - `function`: a function has at most 70 lines.
//! - `words`: retired words, and openings of sentences that are hard to read.
//! - `cycle`: no more than 8 files of a crate import each other in a circle.
//! - `layers`: a module imports only its own layer and those below, as a crate's file `layers`
//!   says.
//! - `links`: links between documents lead somewhere.
//! - `names`: source files that documents and comments name are there.
//! - `book`: the book has every document of `docs`. [`check_book`] checks the links of the built
//!   book, which `./x book` ends with.

pub mod baseline;
pub mod rules;
mod tree;

use std::fmt;
use std::io;
use std::path::Path;

pub use tree::{File, Kind};

/// Something that a rule found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, from the root of the repository.
    pub file: String,
    /// Which line of it, from 1.
    pub line: usize,
    /// The rule.
    pub rule: &'static str,
    /// The function it is about, for rules with several findings in a file.
    pub item: String,
    /// How bad it is, in what the rule counts: lines, files. Findings of one item add up.
    pub weight: usize,
    /// One sentence that says what is wrong.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { file, line, rule, message, .. } = self;
        write!(formatter, "{file}:{line}: {rule}: {message}")
    }
}

/// Applies all rules to the repository at `root`. The findings are in order.
///
/// # Errors
/// A file cannot be read, or is no Rust.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let files = tree::read(root)?;
    let mut findings = Vec::new();
    for file in &files {
        findings.extend(rules::width::check(file));
        findings.extend(rules::words::check(file));
        findings.extend(rules::length::check(file)?);
    }
    findings.extend(rules::links::check(&files));
    findings.extend(rules::names::check(&files));
    findings.extend(rules::book::check(&files));
    findings.extend(rules::imports::check(&files)?);
    findings.sort();
    Ok(findings)
}

/// Checks the links of the built book at `root`. The findings are in order.
///
/// # Errors
/// A file cannot be read.
pub fn check_book(root: &Path) -> io::Result<Vec<Finding>> {
    Ok(rules::book::broken_links(&tree::read(root)?))
}
