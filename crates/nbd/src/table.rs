//! The rules as tables, so that a change of the rules shows as a change of the documentation.

use std::fmt::Write;

use crate::handshake::{Data, InClear, OPTIONS};
use crate::transmission::COMMANDS;
use crate::wire::cmd_flag;

/// The rules for options and requests as two Markdown tables. `docs/protocols/nbd.md` holds them
/// word for word.
pub fn tables() -> String {
    let mut text = String::from(
        "| option | number | data | in the clear, where TLS is required | structured replies first |\n\
         |---|---|---|---|---|\n",
    );
    for rule in &OPTIONS {
        let data = match rule.data {
            Data::Empty => "none, else `ERR_INVALID`",
            Data::Ignored => "ignored",
            Data::Parsed => "parsed",
        };
        let in_clear = match rule.in_clear {
            InClear::Serve => "served",
            InClear::Refuse => "`ERR_TLS_REQD`",
            InClear::Close => "connection closed",
        };
        let first = if rule.structured_first { "yes, else `ERR_INVALID`" } else { "no" };
        line(&mut text, format_args!("| `{}` | {} | {data} | {in_clear} | {first} |", rule.name, rule.option));
    }
    text.push_str(
        "\n| request | number | flags | on a read-only export | longer than 32 MiB | past the end |\n\
         |---|---|---|---|---|---|\n",
    );
    for rule in &COMMANDS {
        let flags: Vec<&str> = [
            (cmd_flag::FUA, "`FUA`"),
            (cmd_flag::NO_HOLE, "`NO_HOLE`"),
            (cmd_flag::DF, "`DF`"),
            (cmd_flag::REQ_ONE, "`REQ_ONE`"),
            (cmd_flag::FAST_ZERO, "`FAST_ZERO`"),
        ]
        .iter()
        .filter(|(bit, _)| rule.flags & bit != 0)
        .map(|(_, name)| *name)
        .collect();
        let read_only = if rule.changes { "`EPERM`" } else { "served" };
        let long = if rule.payload { "refused" } else { "served" };
        let past_end = match rule.past_end {
            Some(errno) => format!("`E{}`", format!("{errno:?}").to_uppercase()),
            None => "has no range".into(),
        };
        line(
            &mut text,
            format_args!(
                "| `{}` | {} | {} | {read_only} | {long} | {past_end} |",
                rule.name,
                rule.command,
                flags.join(" ")
            ),
        );
    }
    text
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes every text");
}
