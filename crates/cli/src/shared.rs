//! Shared drives as text.

use std::collections::BTreeSet;

use api::{Share, format_bytes};
use comfy_table::Cell;

use crate::fit::{Column, table};

/// `purlin drive shares`.
pub fn list(colour: bool, shares: &[Share]) -> String {
    if shares.is_empty() {
        return "no shared drives; share one with: purlin drive share DRIVE --host NQN\n".to_owned();
    }
    let row = |share: &Share| {
        vec![
            Cell::new(&share.id),
            Cell::new(&share.drive),
            Cell::new(share.size_bytes.map_or_else(|| "-".to_owned(), format_bytes)),
            Cell::new(if share.failure.is_none() { "offered" } else { "not offered" }),
            Cell::new(share.hosts.as_ref().map_or_else(|| "any".to_owned(), |hosts| hosts.len().to_string())),
            Cell::new(share.tls_hosts.len()),
            Cell::new(share.queue_count),
            Cell::new(format_bytes(share.io.read_bytes)),
            Cell::new(format_bytes(share.io.write_bytes)),
        ]
    };
    let columns = [
        Column::Word("SHARE"),
        Column::Word("DRIVE"),
        Column::Number("SIZE"),
        Column::Word("STATE"),
        Column::Number("HOSTS"),
        Column::Number("WITH TLS"),
        Column::Number("QUEUES"),
        Column::Number("READ"),
        Column::Number("WRITTEN"),
    ];
    let failures = shares.iter().filter_map(|share| Some(format!("{}: {}\n", share.id, share.failure.as_ref()?)));
    table(colour, &columns, shares.iter().map(row).collect()) + &failures.collect::<String>() + "\n" + &urls(shares)
}

/// The names of the drives on other machines.
pub fn urls(shares: &[Share]) -> String {
    let lines = shares.iter().map(|share| format!("  {}  {}\n", share.drive, share.url));
    let tls_hosts: BTreeSet<&String> = shares.iter().flat_map(|share| &share.tls_hosts).collect();
    let hint = |host| format!("{host} has to use TLS: there, &tls-key=FILE goes behind them\n");
    "on other machines they are drives under these names:\n".to_owned()
        + &lines.collect::<String>()
        + &tls_hosts.into_iter().map(hint).collect::<String>()
}
