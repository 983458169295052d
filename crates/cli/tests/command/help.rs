//! The help of the commands, and the version.

use clap::{CommandFactory, Parser};

use crate::{Daemon, Said, purlin};

#[test]
fn the_version_and_the_status_name_the_commit_that_was_built() {
    let commit = option_env!("PURLIN_BUILT_FROM");
    let shown = commit.map_or_else(String::new, |commit| format!(" ({commit})"));
    let out = format!("purlin {}{shown}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(purlin("/nowhere/purlind.sock".as_ref(), "--version"), Said { code: 0, out, err: String::new() });
    // The daemon of the tests is built from the same source.
    let status: api::Status = serde_json::from_str(&Daemon::start().ok("status --output json")).unwrap();
    assert_eq!((status.version.as_str(), status.commit.as_deref()), (env!("CARGO_PKG_VERSION"), commit));
}

#[test]
fn help_has_examples_for_every_command() {
    fn visit(command: &clap::Command) {
        let verbs: Vec<&clap::Command> = command.get_subcommands().filter(|c| c.get_name() != "help").collect();
        if verbs.is_empty() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  purlin "), "{} has no example", command.get_name());
        }
        assert!(command.get_about().is_some(), "{}", command.get_name());
        verbs.into_iter().for_each(visit);
    }
    let line = cli::Line::command();
    line.clone().debug_assert();
    visit(&line);
}

/// docs/cli/README.md lists the ones that change something.
#[test]
fn these_commands_go_without_a_dry_run() {
    fn visit(command: &clap::Command, way: &str, without: &mut Vec<String>) {
        let verbs: Vec<&clap::Command> = command.get_subcommands().filter(|c| c.get_name() != "help").collect();
        if verbs.is_empty() && !command.get_arguments().any(|argument| argument.get_id() == "dry_run") {
            without.push(way.trim_start().to_owned());
        }
        verbs.into_iter().for_each(|verb| visit(verb, &format!("{way} {}", verb.get_name()), without));
    }
    let mut without = Vec::new();
    visit(&cli::Line::command(), "", &mut without);
    let reads = ["list", "show", "shares", "status", "iostat", "scan", "discover", "bench", "check"];
    without.retain(|way| !reads.iter().any(|read| way.ends_with(read)));
    assert_eq!(
        without,
        [
            "group scrub",
            "export create",
            "export delete",
            "host allow",
            "host key generate",
            "host key set",
            "host key remove",
            "host deny",
            "referral add",
            "referral remove",
            "drive unshare",
            "rescue extract",
            "nvme connect",
            "nvme disconnect",
            "completions",
            "man"
        ]
    );
}

#[test]
fn every_example_in_the_help_is_a_line_that_parses() {
    fn visit(command: &clap::Command, tried: &mut u32) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for example in help.lines().filter_map(|line| line.strip_prefix("  purlin ")) {
            let example = example.split([' ']).take_while(|word| !["|", ">"].contains(word)).filter(|w| !w.is_empty());
            let words: Vec<String> = example.map(|word| word.trim_end_matches(",...").to_owned()).collect();
            *tried += 1;
            let line = std::iter::once("purlin".to_owned()).chain(words.clone());
            if let Err(error) = cli::Line::try_parse_from(line) {
                panic!("{words:?}: {error}");
            }
        }
        command.get_subcommands().for_each(|verb| visit(verb, tried));
    }
    let mut tried = 0;
    visit(&cli::Line::command(), &mut tried);
    assert!(tried > 30, "{tried}");
}
