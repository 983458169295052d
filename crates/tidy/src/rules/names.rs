//! Source files that documents and comments name are there.

use crate::{File, Finding, Kind};

/// Documents about the past: they name files as these were called then.
const OF_THE_PAST: [&str; 2] = ["CHANGELOG.md", "docs/results/"];

/// The names of Rust files in documents and comments that no file has. A name may leave out the
/// first folders of the path.
pub fn check(files: &[File]) -> Vec<Finding> {
    let sources = || files.iter().filter(|file| file.kind == Kind::Rust).map(|file| file.path.as_str());
    let is_there = |name: &str| sources().any(|path| is_end_of(path, name));
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| !OF_THE_PAST.iter().any(|past| file.path.starts_with(past))) {
        for (line, text) in file.prose() {
            for name in text.split('`').skip(1).step_by(2).filter(|code| is_name(code) && !is_there(code)) {
                findings.push(Finding {
                    file: file.path.clone(),
                    line,
                    rule: "names",
                    item: String::new(),
                    weight: 1,
                    message: format!("no source file is called {name}"),
                });
            }
        }
    }
    findings
}

/// Whether `name` is the whole path, or what follows one of its slashes.
fn is_end_of(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// Whether this is the name of one Rust file. `src/{net,target}.rs` stands for two.
fn is_name(code: &str) -> bool {
    let fits = |character: char| character.is_ascii_alphanumeric() || "_-/.".contains(character);
    code.strip_suffix(".rs").is_some_and(|stem| !stem.is_empty()) && code.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_source_file_has_is_found() {
        let files = [
            ("crates/a/src/io/plan.rs", "// See `plan.rs`, `io/plan.rs`, `lan.rs` and `write.rs`.\n"),
            (
                "a.md",
                "`crates/a/src/io/plan.rs`, `old/plan.rs`, `{plan,write}.rs`, `plan.rs --help`\n```\n`b.rs`\n```\n",
            ),
            ("docs/results/old.md", "`gone.rs`\n"),
        ];
        let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
        let found: Vec<String> = check(&files).into_iter().map(|finding| finding.to_string()).collect();
        assert_eq!(
            found,
            [
                "crates/a/src/io/plan.rs:1: names: no source file is called lan.rs",
                "crates/a/src/io/plan.rs:1: names: no source file is called write.rs",
                "a.md:1: names: no source file is called old/plan.rs",
            ]
        );
    }
}
