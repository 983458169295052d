//! NVMe hosts as text.

use api::{Host, HostExport, HostKey, HostShare, HostTlsKey, IoCounters, LatencyUs, format_bytes};
use comfy_table::Cell;

use crate::fit::{Column, WIDTH, count, middle_cut, table};
use crate::table::{dash, micros, pairs, rates, waits};

/// `purlin host list`.
pub fn list(colour: bool, hosts: &[Host]) -> String {
    if hosts.is_empty() {
        return "no hosts; an export over NVMe/TCP, or a shared drive, names those that may use it\n".to_owned();
    }
    let row = |host: &Host| {
        vec![
            Cell::new(&host.nqn),
            Cell::new(host.exports.len()),
            Cell::new(host.shares.len()),
            Cell::new(host.queue_count),
            Cell::new(count(host.io.read_count)),
            Cell::new(count(host.io.write_count)),
            Cell::new(format_bytes(host.io.read_bytes)),
            Cell::new(format_bytes(host.io.write_bytes)),
            Cell::new(count(host.error_count)),
            Cell::new(if host.tls_keys.is_empty() { "no" } else { "yes" }),
        ]
    };
    let columns = [
        Column::Long("HOST"),
        Column::Number("EXPORTS"),
        Column::Number("SHARES"),
        Column::Number("QUEUES"),
        Column::Number("READS"),
        Column::Number("WRITES"),
        Column::Number("READ"),
        Column::Number("WRITTEN"),
        Column::Number("ERRORS"),
        Column::Word("TLS"),
    ];
    table(colour, &columns, hosts.iter().map(row).collect())
}

/// A host's name for `purlin status`: most names have the same beginning and differ at the end.
fn short_name(nqn: &str) -> String {
    middle_cut(nqn.strip_prefix("nqn.2014-08.org.nvmexpress:").unwrap_or(nqn), WIDTH)
}

/// Part of `purlin status`.
pub fn overview(colour: bool, hosts: &[Host]) -> String {
    let typical = |latency: Option<LatencyUs>| latency.map_or_else(dash, |us| Cell::new(micros(us.p50)));
    let row = |host: &Host| {
        vec![
            Cell::new(short_name(&host.nqn)),
            Cell::new(host.controller_count),
            Cell::new(host.queue_count),
            Cell::new(format_bytes(host.io.read_bytes)),
            typical(host.read_latency_us),
            Cell::new(format_bytes(host.io.write_bytes)),
            typical(host.write_latency_us),
            Cell::new(count(host.error_count)),
            Cell::new(if host.tls_keys.is_empty() { "no" } else { "yes" }),
        ]
    };
    let columns = [
        Column::Long("HOST"),
        Column::Number("CTRLS"),
        Column::Number("QUEUES"),
        Column::Number("READ"),
        Column::Number("READ P50"),
        Column::Number("WRITTEN"),
        Column::Number("WRITE P50"),
        Column::Number("ERRORS"),
        Column::Word("TLS"),
    ];
    table(colour, &columns, hosts.iter().map(row).collect())
}

/// `purlin host show`.
pub fn one(colour: bool, host: &Host) -> String {
    let latency = |latency: Option<LatencyUs>| {
        latency.map_or_else(String::new, |us| format!(", p50 {} us, p99 {} us, slowest {} us", us.p50, us.p99, us.max))
    };
    let side = |count, bytes, us| format!("{count}, {}{}", format_bytes(bytes), latency(us));
    let IoCounters { read_count, read_bytes, write_count, write_bytes, .. } = host.io;
    let mut lines = vec![
        ("host", host.nqn.clone()),
        ("controllers", host.controller_count.to_string()),
        ("I/O queues", host.queue_count.to_string()),
        ("in flight", host.in_flight_count.to_string()),
        ("reads", side(read_count, read_bytes, host.read_latency_us)),
        ("writes", side(write_count, write_bytes, host.write_latency_us)),
        ("errors", host.error_count.to_string()),
    ];
    let of = |group: &Option<String>| group.clone().unwrap_or_else(|| "shared drives".to_owned());
    for HostKey { group, mutual, dh_group } in &host.keys {
        let way = if *mutual { "both ways" } else { "one way" };
        lines.push(("authenticates", format!("for {}, {way}, {dh_group}", of(group))));
    }
    for HostTlsKey { group, key_count } in &host.tls_keys {
        let keys = if *key_count > 1 { ", one key is being exchanged for another" } else { "" };
        lines.push(("uses TLS", format!("for {}{keys}", of(group))));
    }
    let mut text = pairs(&lines);
    if !host.shares.is_empty() {
        text.push('\n');
        text.push_str(&shared(colour, &host.shares));
    }
    if host.exports.is_empty() {
        let nothing = if host.shares.is_empty() { "\nit may use no export now\n" } else { "" };
        return text + nothing;
    }
    let row = |export: &HostExport| {
        vec![
            Cell::new(&export.id),
            Cell::new(&export.volume),
            Cell::new(&export.address),
            Cell::new(export.nsid),
            Cell::new(if export.named { "named" } else { "any host" }),
            Cell::new(export.queue_count),
            Cell::new(format_bytes(export.io.read_bytes)),
            Cell::new(format_bytes(export.io.write_bytes)),
            export.limit.map_or_else(dash, |limit| Cell::new(rates(&limit))),
            export.limit.map_or_else(dash, |limit| Cell::new(waits(&limit))),
        ]
    };
    let columns = [
        Column::Word("EXPORT"),
        Column::Word("VOLUME"),
        Column::Word("ADDRESS"),
        Column::Number("NSID"),
        Column::Word("ALLOWED AS"),
        Column::Number("QUEUES"),
        Column::Number("READ"),
        Column::Number("WRITTEN"),
        Column::Word("LIMIT"),
        Column::Word("WAITED FOR IT"),
    ];
    text.push('\n');
    text + &table(colour, &columns, host.exports.iter().map(row).collect())
}

fn shared(colour: bool, shares: &[HostShare]) -> String {
    let row = |share: &HostShare| {
        vec![
            Cell::new(&share.id),
            Cell::new(&share.drive),
            Cell::new(share.queue_count),
            Cell::new(format_bytes(share.io.read_bytes)),
            Cell::new(format_bytes(share.io.write_bytes)),
        ]
    };
    let columns = [
        Column::Word("SHARE"),
        Column::Word("DRIVE"),
        Column::Number("QUEUES"),
        Column::Number("READ"),
        Column::Number("WRITTEN"),
    ];
    table(colour, &columns, shares.iter().map(row).collect())
}
