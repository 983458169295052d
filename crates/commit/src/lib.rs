//! The commit of the source, for the build scripts of programs.
//!
//! A build script calls [`tell_cargo`]. Its package then has two variables at compile time:
//! - `PURLIN_VERSION`: the version, with the commit where that is known, such as `0.1.0 (297b581,
//!   2026-11-28)`.
//! - `PURLIN_BUILT_FROM`: the commit alone, such as `297b581, 2026-11-28`. It is set only where the
//!   commit is known.
//!
//! The commit is that of the environment variable `PURLIN_COMMIT`, which packagers set. Without it,
//! git is asked where the source is a git checkout. An empty `PURLIN_COMMIT` leaves the commit out.
#![forbid(unsafe_code)]

mod checkout;

use std::ffi::OsStr;
use std::path::Path;

use checkout::Checkout;

/// The root of the source, from the folder of a package in `crates`: Cargo runs a build script in
/// the folder of its package. A relative path is right in each of the checkouts that share a build
/// cache.
const ROOT: &str = "../..";

/// The variable that packagers set.
const GIVEN: &str = "PURLIN_COMMIT";

/// The longest commit that a packager may give.
const GIVEN_BYTES_MAX: usize = 100;

/// Does the work of a build script: prints the variables for the compiler, and when Cargo is to run
/// the script again.
///
/// # Panics
/// If this is not a build script, or `PURLIN_COMMIT` is not a short line of ASCII characters.
pub fn tell_cargo() {
    let version = std::env::var("CARGO_PKG_VERSION").expect("Cargo sets it for build scripts");
    for instruction in instructions(Path::new(ROOT), &version, std::env::var_os(GIVEN).as_deref()) {
        println!("cargo::{instruction}");
    }
}

/// The instructions for Cargo about the source at `root`.
fn instructions(root: &Path, version: &str, given: Option<&OsStr>) -> Vec<String> {
    let mut instructions = vec![format!("rerun-if-env-changed={GIVEN}")];
    let commit = match (given, Checkout::at(root)) {
        (Some(given), _) => checked(given),
        (None, Some(checkout)) => {
            let files = checkout.files_of_head();
            instructions.extend(files.iter().map(|file| format!("rerun-if-changed={}", file.display())));
            checkout.commit()
        }
        (None, None) => None,
    };
    match commit {
        Some(commit) => {
            instructions.push(format!("rustc-env=PURLIN_VERSION={version} ({commit})"));
            instructions.push(format!("rustc-env=PURLIN_BUILT_FROM={commit}"));
        }
        None => instructions.push(format!("rustc-env=PURLIN_VERSION={version}")),
    }
    instructions
}

/// The commit that a packager has given, `None` if it is empty.
fn checked(given: &OsStr) -> Option<String> {
    let is_line = |text: &&str| text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    let commit = given.to_str().filter(is_line).filter(|text| text.len() <= GIVEN_BYTES_MAX);
    let commit = commit.unwrap_or_else(|| panic!("{GIVEN} is not a line of up to {GIVEN_BYTES_MAX} ASCII characters"));
    Some(commit.to_owned()).filter(|commit| !commit.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packagers_commit_wins() {
        let root = Path::new("../..");
        assert_eq!(
            instructions(root, "1.2.3", Some(OsStr::new("deb 1.2.3-1"))),
            [
                "rerun-if-env-changed=PURLIN_COMMIT",
                "rustc-env=PURLIN_VERSION=1.2.3 (deb 1.2.3-1)",
                "rustc-env=PURLIN_BUILT_FROM=deb 1.2.3-1"
            ]
        );
        let without = ["rerun-if-env-changed=PURLIN_COMMIT", "rustc-env=PURLIN_VERSION=1.2.3"];
        assert_eq!(instructions(root, "1.2.3", Some(OsStr::new(""))), without);
    }

    #[test]
    fn source_without_git_has_only_a_version() {
        let without = ["rerun-if-env-changed=PURLIN_COMMIT", "rustc-env=PURLIN_VERSION=1.2.3"];
        // The folder is in a checkout, but is not the root of one.
        assert_eq!(instructions(Path::new("."), "1.2.3", None), without);
    }

    #[test]
    #[should_panic(expected = "PURLIN_COMMIT is not a line")]
    fn a_commit_of_two_lines_is_refused() {
        let _ = checked(OsStr::new("297b581\ncargo::rustc-env=X=Y"));
    }
}
