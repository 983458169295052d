//! The output for the examples of docs/cli/json.md. They contain values that drives and loads of a
//! test do not have, such as wear, latencies, a job half way, hosts with reservations.
//! `tests/command` tests the output of a running daemon.

use api::*;
use insta::assert_snapshot;
use serde::de::DeserializeOwned;

use crate::{hosts, imported, maintenance, scanned, screen, table};

pub fn example<T: DeserializeOwned>(name: &str) -> T {
    let page = include_str!("../../../docs/cli/json.md");
    let (_, rest) = page.split_once(&format!("<!-- type: {name} -->\n```json\n")).expect("it is on the page");
    serde_json::from_str(rest.split("```").next().expect("it ends")).expect("a test says that it is one")
}

#[test]
fn the_status_shows_health_load_and_a_rebuild_without_a_terminals_codes() {
    let text = screen::render(false, &example("Status"));
    assert!(!text.contains('\x1b'), "{text:?}");
    assert_snapshot!("status", text);
}

#[test]
fn a_group_shows_members_spares_and_what_is_wrong() {
    let groups = example::<GroupList>("GroupList").groups;
    assert_snapshot!("group_list", table::groups(false, &groups));
    assert_snapshot!("group_show", table::group(false, &groups[0]));
}

#[test]
fn drives_are_shown_with_their_latencies_and_what_they_say_of_themselves() {
    assert_snapshot!("drive_list", table::drives(false, &example::<DriveList>("DriveList").drives));
    let details: DriveDetails = example("DriveDetails");
    assert_snapshot!("drive_show", table::drive(&details));
    let refusal = Some("it is no NVMe namespace".to_owned());
    let passthrough = Some(DrivePassthrough { node: None, refusal, command_count: 0 });
    let shown = table::drive(&DriveDetails { passthrough, health: None, ..details });
    assert!(shown.contains("block device /dev/nvme0n1; no pass-through: it is no NVMe namespace\n"), "{shown}");
    assert!(shown.contains("temperature          not said by this drive\n"), "{shown}");
}

#[test]
fn volumes_are_shown_with_how_requests_have_waited_for_their_limits() {
    let volumes = example::<VolumeList>("VolumeList").volumes;
    assert_snapshot!("volume_list", table::volumes(false, &volumes));
    assert_snapshot!("volume_show", table::volume(&volumes[0]));
}

#[test]
fn exports_say_how_they_are_reached_and_who_has_reserved_what() {
    let nbd = example::<ExportList>("ExportList").exports.remove(0);
    let mutual = nbd.tls.clone().map(|tls| ExportTls { ca: Some("/etc/purlin/ca.pem".into()), ..tls });
    let nqn = "nqn.2014-08.org.nvmexpress:uuid:5b5b5b5b-5b5b-5b5b-5b5b-5b5b5b5b5b5b";
    let [a, b] = ["nqn.2026-11.com.example:a", "nqn.2026-11.com.example:b"].map(str::to_owned);
    let registrant = |host: Option<&String>, key: &str| Registrant {
        host_id: "0123456789abcdef0123456789abcdef".into(),
        host: host.cloned(),
        key: key.into(),
        is_holder: host == Some(&a),
    };
    let namespace = Export {
        id: "tank-3".into(),
        protocol: Protocol::NvmeTcp,
        address: "10.0.0.5:4420".into(),
        uri: format!("nvme-tcp://10.0.0.5:4420/{nqn}?nsid=1"),
        tls: None,
        block_bytes: Some(4096),
        atomic_bytes: Some(512),
        nqn: Some(nqn.into()),
        nsid: Some(1),
        ana: Some(AnaState::Optimized),
        hosts: Some(vec![a.clone(), b.clone()]),
        reservation: Some(Reservation {
            kind: Some(ReservationKind::WriteExclusive),
            persists: true,
            registrants: vec![registrant(Some(&a), "0x10"), registrant(Some(&b), "0x11"), registrant(None, "0x12")],
        }),
        ..nbd.clone()
    };
    assert_snapshot!("export_show", table::export(&namespace));
    let anywhere = table::export(&Export { address: "0.0.0.0:4420".into(), ..namespace.clone() });
    assert!(anywhere.contains("nvme connect -t tcp -a ADDRESS -s 4420 "), "{anywhere}");
    assert!(
        anywhere.contains("\nADDRESS      any address of the daemon's machine that the host reaches\n"),
        "{anywhere}"
    );
    let [c, d] = ["nqn.2026-11.com.example:c", "nqn.2026-11.com.example:d"].map(str::to_owned);
    let guarded = Export {
        hosts: Some(vec![a.clone(), b.clone(), c.clone(), d.clone()]),
        tls_hosts: vec![b.clone(), d.clone()],
        secret_hosts: vec![c.clone(), d.clone()],
        mutual_hosts: vec![d.clone()],
        reservation: None,
        ..namespace.clone()
    };
    assert_snapshot!("export_show_guarded", table::export(&guarded));
    let all = Export { hosts: Some(vec![c.clone()]), tls_hosts: vec![], secret_hosts: vec![c], ..guarded };
    let shown = table::export(&all);
    assert!(!shown.contains("esxcli") && !shown.contains("on Linux") && !shown.contains("TLS-KEY"), "{shown}");
    assert!(shown.contains(" --dhchap-secret HOST-SECRET\n") && !shown.contains("--dhchap-ctrl-secret T"), "{shown}");
    let gone = Export { listening: false, message: Some("the address is in use".into()), ..nbd.clone() };
    let read_only = Export { tls: mutual, read_only: true, ..nbd.clone() };
    assert_snapshot!("export_list", table::exports(false, &[nbd, read_only, gone, namespace]));
}

#[test]
fn hosts_are_shown_with_what_they_may_use_and_what_they_did() {
    let mut hosts = example::<HostList>("HostList").hosts;
    let limit = example::<VolumeList>("VolumeList").volumes[0].limit;
    hosts[0].exports[0].limit = limit;
    assert_snapshot!("host_list", hosts::list(false, &hosts));
    assert_snapshot!("host_show", hosts::one(false, &hosts[0]));
}

/// Asserts that all lines of a text fit into the width.
pub fn assert_fits(text: &str) {
    let wide = text.lines().find(|line| line.chars().count() > crate::fit::WIDTH);
    assert_eq!(wide, None, "{text}");
}

/// A drive with the longest names and figures.
fn long_drive(name: &str) -> Drive {
    let drive = example::<DriveList>("DriveList").drives.remove(0);
    let slow = Some(LatencyUs { p50: 999_000.0, p99: 999_000.0, max: 999_000.0 });
    Drive {
        name: name.to_owned(),
        group: Some("a-group-with-quite-a-long-name".to_owned()),
        state: DriveState::Unreachable,
        slot: Some(63),
        size_bytes: Some(30_725_970_923_520),
        errors: ErrorCounts { read_count: 123_456, damaged_count: 99_999_999, ..drive.errors },
        read_latency_us: slow,
        write_latency_us: slow,
        note: Some(
            "belongs to the Purlin array tank (6f1c2f0e-6d0a-4b57-9c7e-0f6a3a1d2b4c), which does not run here".into(),
        ),
        ..drive
    }
}

#[test]
fn drives_with_long_names_fit_in_80_columns() {
    let by_id = "/dev/disk/by-id/nvme-SAMSUNG_MZQL23T8HCLS-00A07-AND-A-MODEL-OF-40-_S64HNE0R123456";
    let remote = "nvme-tcp://10.0.0.5:4420/nqn.2014-08.org.nvmexpress:uuid:2cd402d7-8b0b-4a4f-9d4c-0e1f6a3b5c7d?nsid=1";
    let text = table::drives(false, &[long_drive(by_id), long_drive("/dev/nvme0n1"), long_drive(remote)]);
    assert_fits(&text);
    assert_snapshot!("drive_list_long", text);
}

#[test]
fn exports_with_long_names_fit_in_80_columns() {
    let nbd = example::<ExportList>("ExportList").exports.remove(0);
    let volume = "production/postgresql-main-tablespace-0001".to_owned();
    let uri = format!("nbds+unix:///{volume}?socket=/run/purlin/exports/{volume}.sock");
    let gone =
        Some("cannot listen on /run/purlin/exports/production/postgresql.sock: no such file or directory".into());
    let long = Export { id: "production-1234".into(), volume, uri, ..nbd.clone() };
    let failed = Export { listening: false, message: gone, ..long.clone() };
    let text = table::exports(false, &[long, failed, nbd]);
    assert_fits(&text);
    assert_snapshot!("export_list_long", text);
}

#[test]
fn hosts_with_long_names_fit_in_80_columns() {
    let uuid = "nqn.2014-08.org.nvmexpress:uuid:2cd402d7-8b0b-4a4f-9d4c-0e1f6a3b5c7d".to_owned();
    let long = format!("nqn.2026-11.com.example:{}-end", "x".repeat(195));
    let text = hosts::list(false, &[busy(uuid), busy(long)]);
    assert_fits(&text);
    assert_snapshot!("host_list_long", text);
}

#[test]
fn the_status_of_a_large_machine_fits_in_80_columns() {
    let mut status: Status = example("Status");
    let shard = status.shards[0].clone();
    status.shards = (0..64).map(|number| ShardStatus { shard: number, busy_percent: 100.0, ..shard.clone() }).collect();
    let long = "a-group-with-quite-a-long-name";
    let mut group = GroupStatus { name: long.to_owned(), capacity_bytes: 1 << 50, ..status.groups[0].clone() };
    group.warnings = vec![format!(
        "member 4, /dev/disk/by-id/nvme-SAMSUNG_MZQL23T8HCLS: its media is read only; its spare blocks run out"
    )];
    group.jobs[0].findings = Some(ScrubFindings {
        repair: true,
        mismatch_count: 1234,
        repaired_count: 1200,
        unchecked_count: 0,
        places: vec![],
    });
    status.groups.push(group);
    status.hosts = vec![busy("nqn.2014-08.org.nvmexpress:uuid:2cd402d7-8b0b-4a4f-9d4c-0e1f6a3b5c7d".to_owned())];
    let text = screen::render(false, &status);
    assert_fits(&text);
    assert_snapshot!("status_long", text);
}

#[test]
fn a_progress_bar_has_the_room_that_there_is() {
    let mut job = example::<Status>("Status").groups[0].jobs[0].clone();
    job.kind = JobKind::Scrub;
    job.left_s = Some(360_000);
    job.findings = Some(ScrubFindings {
        repair: true,
        mismatch_count: 123_456,
        repaired_count: 123_400,
        unchecked_count: 0,
        places: vec![],
    });
    for room in [200, 80, 79, 60, 40] {
        let line = table::job_line(&job, room);
        assert!(line.chars().count() <= room, "{room}: {line}");
        assert!(room < 60 || line.contains("50.0%"), "{room}: {line}");
    }
    assert!(table::job_line(&job, 200).contains(&format!("[{}{}]", "#".repeat(15), ".".repeat(15))));
}

#[test]
fn a_scan_shows_what_was_found_and_how_it_is_started() {
    let text = scanned::scanned(false, &example("Scanned"));
    assert_fits(&text);
    assert_snapshot!("group_scan", text);
}

/// A host with the longest figures.
fn busy(nqn: String) -> Host {
    let host = example::<HostList>("HostList").hosts.remove(0);
    let slow = Some(LatencyUs { p50: 999_000.0, p99: 999_000.0, max: 999_000.0 });
    let moved = 1_099_511_627_775;
    Host {
        nqn,
        controller_count: 65_000,
        queue_count: 65_000,
        error_count: 999_999,
        read_latency_us: slow,
        write_latency_us: slow,
        io: IoCounters { read_bytes: moved, write_bytes: moved, ..host.io },
        ..host
    }
}

#[test]
fn the_hosts_of_the_status_fit_in_80_columns_and_those_with_a_uuid_are_told_apart_whole() {
    let uuid = "uuid:2cd402d7-8b0b-4a4f-9d4c-0e1f6a3b5c7d";
    let long = format!("nqn.2026-11.com.example:{}-end", "x".repeat(195));
    let shown = hosts::overview(false, &[busy(format!("nqn.2014-08.org.nvmexpress:{uuid}")), busy(long)]);
    assert_fits(&shown);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[2] == uuid && lines[4].contains("xxx...xxx") && lines[4].ends_with("x-end"), "{shown}");
    assert!(lines[3].contains("  999 ms  "), "{shown}");
}

#[test]
fn the_status_of_a_machine_without_groups_shows_its_hosts() {
    let hosts = example::<HostList>("HostList").hosts;
    let status = Status { groups: Vec::new(), not_started: Vec::new(), hosts, ..example("Status") };
    assert_snapshot!("status_hosts", screen::render(false, &status));
}

#[test]
fn an_import_is_shown_with_what_is_left_out() {
    let imports = example::<ImportList>("ImportList").imports;
    assert_snapshot!("import_list", imported::imports(false, &imports));
    assert_snapshot!("import_show", imported::import(false, &imports[0]));
    assert_snapshot!("imported", imported::answer(false, &example("Imported")));
}

#[test]
fn a_scrub_shows_how_far_it_is_and_what_it_found() {
    let done: Scrub = example("Scrub");
    assert_snapshot!("scrub_done", maintenance::scrub("tank", &done));
    let at = |state: JobState, left_s: Option<u64>, message: Option<&str>| {
        let job = done.job.clone().map(|job| Job {
            state,
            done_percent: 50.0,
            left_s,
            findings: job.findings.clone().map(|findings| ScrubFindings {
                mismatch_count: 0,
                places: vec![],
                ..findings
            }),
            message: message.map(str::to_owned),
            ..job
        });
        maintenance::scrub("tank", &Scrub { job, ..done.clone() })
    };
    let bar = "[###############...............]  50.0%";
    // As long as 80 columns permit.
    let [second, third, fourth] = [22, 23, 26].map(|chars| format!("[{}]  50.0%", crate::progress::bar(50.0, chars)));
    for (shown, line) in [
        (at(JobState::Running, Some(2), None), format!("{second}  512 MiB/s  2s left, no differences")),
        (at(JobState::Running, None, None), format!("{third}  512 MiB/s  ? left, no differences")),
        (at(JobState::Paused, None, None), format!("{bar}  paused, no differences")),
        (
            at(JobState::Waiting, None, Some("slot 1 is being rebuilt")),
            format!("{fourth}  waits: slot 1 is being rebuilt"),
        ),
        (at(JobState::Stopped, None, None), "stopped at 50.0%, no differences".to_owned()),
        (at(JobState::Failed, None, Some("no drive answers")), "failed at 50.0%: no drive answers".to_owned()),
    ] {
        assert_eq!(shown.lines().next(), Some(format!("tank: scrub  {line}").as_str()));
    }
}
