//! The output for people. Figures that a daemon cannot produce at will are in `src/examples.rs`.

use insta::assert_snapshot;

use crate::{Daemon, client, narrow, without_identities};

#[test]
fn an_empty_daemon_says_what_to_do_first() {
    let daemon = Daemon::start();
    let none = "\
no groups; make one with: purlin group create
groups that are on drives already are found by: purlin group scan
and without the daemon by: purlin rescue list DRIVE...
";
    assert_eq!(daemon.ok("group list"), none);
    assert_eq!(daemon.ok("volume list"), "no volumes; make one with: purlin volume create GROUP/VOLUME --size SIZE\n");
    assert_eq!(
        daemon.ok("export list"),
        "no exports; make one with: purlin export create GROUP/VOLUME --ublk, --nvme-tcp, or --nbd unix:PATH\n"
    );
    assert_eq!(daemon.ok("drive list"), "no drives\n");
    let status = daemon.ok("status");
    let (first, rest) = status.split_once('\n').unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(first.starts_with(&format!("purlind {version}  up ")) && first.contains("  2 shards busy "), "{first}");
    assert_eq!(rest, format!("\n{none}"));
}

#[test]
fn a_group_says_what_its_crash_safety_risks() {
    let daemon = Daemon::start();
    let parity =
        "off: when a crash meets lost members, untouched blocks of stripes in flight may be lost, and nothing says so";
    let mirror = "off: after a crash, copies of blocks in flight may differ until the resync has passed them";
    let strict = "strict: untouched blocks never change, blocks in flight are old or new, whatever is lost";
    for (level, safety, count, note) in [
        ("raid5", "off", 3, parity),
        ("raid6", "off", 4, parity),
        ("raid1", "off", 2, mirror),
        ("raid6", "strict", 4, strict),
        ("raid0", "off", 2, "no parity: a crash leaves blocks in flight old or new"),
    ] {
        let name = format!("{level}-{safety}");
        let drives: Vec<String> = (0..count).map(|drive| format!("mem:{name}-{drive}-###:64M")).collect();
        let drives = drives.join(",");
        daemon.ok(&format!("group create {name} --level {level} --crash-safety {safety} --drives {drives} --yes"));
        let shown = daemon.ok(&format!("group show {name}"));
        assert!(shown.contains(&format!("\ncrash safety  {note}\n")), "{name}: {shown}");
    }
}

#[test]
fn an_export_says_how_clients_connect() {
    let daemon = Daemon::filled();
    let made = daemon.ok(
        "export create tank/db --nvme-tcp HOST:4420 --host nqn.2026-11.com.example:a --host nqn.2026-11.com.example:b",
    );
    let shown: api::Export =
        serde_json::from_str(&daemon.ok("export show tank-3 --output json")).expect("as documented");
    let nqn = shown.nqn.expect("it is a namespace");
    assert_eq!(made, format!("created export tank-3 of tank/db: namespace 1 of {nqn} at HOST:4420\n"));
    assert_snapshot!("export_show", without_identities(&daemon.ok("export show tank-3")));
    daemon.ok("export create tank/db --nbd HOST:10809 --read-only");
    assert_snapshot!("export_list", narrow(&daemon.ok("export list")));
}

#[test]
fn an_export_is_reached_as_it_was_told() {
    let daemon = Daemon::filled();
    let said = daemon.ok("export create tank/db --nvme-tcp HOST:4420 --allow-any-host");
    let id = said.split_whitespace().nth(2).expect("created export ID of ...").to_owned();
    let set = |state: &str| format!("export set {id} --ana {state}");
    let done = format!("{id}: tell hosts that the export {id} is non-optimized at HOST:4420\n");
    assert_eq!(daemon.ok(&set("non-optimized")), done);
    assert_eq!(daemon.ok(&set("non-optimized")), format!("{id}: nothing to change\n"));
    let said = daemon.run(&set("inaccessible --dry-run"));
    assert!(said.code == 0 && said.out.contains("no other address reaches tank/db"), "{} {}", said.out, said.err);
    assert!(
        daemon.ok(&format!("export show {id}")).contains("ANA state    non-optimized\n"),
        "a dry run changes nothing"
    );
    let said = daemon.run(&set("lost"));
    assert!(said.code == 2 && said.err.contains("choose optimized, non-optimized or inaccessible"), "{}", said.err);
    assert_eq!(
        daemon.fails("export set tank-2 --ana optimized"),
        "purlin: the export \"tank-2\" is not one over NVMe/TCP: only those have an ANA state\n"
    );
    assert_eq!(daemon.fails("export set 77 --ana optimized"), "purlin: there is no export \"77\"\n");
}

#[test]
fn hosts_are_shown_with_what_they_may_use_and_what_they_did() {
    let daemon = Daemon::filled();
    assert_eq!(
        daemon.ok("host list"),
        "no hosts; an export over NVMe/TCP, or a shared drive, names those that may use it\n"
    );
    let (a, b) = ("nqn.2026-11.com.example:a", "nqn.2026-11.com.example:b");
    let said = daemon.ok(&format!("export create tank/db --nvme-tcp HOST:4420 --host {a}"));
    let id = said.split_whitespace().nth(2).expect("created export ID of ...").to_owned();
    assert_eq!(daemon.ok(&format!("host allow {b} {id}")), format!("{b} may use the export {id}\n"));
    assert_snapshot!("host_list", daemon.ok("host list"));
    assert_snapshot!("host_show", narrow(&daemon.ok(&format!("host show {b}"))));
    let status = daemon.ok("status");
    assert!(
        status.contains("\nHOST\n") && status.contains(&format!("\n{b}\n")),
        "the status shows them, too: {status}"
    );
    assert_eq!(daemon.ok(&format!("host deny {a} {id}")), format!("{a} may use the export {id} no longer\n"));
    let gone = format!("purlin: no export or shared drive names the host \"{a}\", and it has used none\n");
    assert_eq!(daemon.fails(&format!("host show {a}")), gone);
}

#[test]
fn shared_drives_are_shown_with_their_names_on_other_machines() {
    let daemon = Daemon::start();
    for name in ["x", "y", "z"] {
        daemon.empty_file(name);
    }
    assert_eq!(daemon.ok("drive shares"), "no shared drives; share one with: purlin drive share DRIVE --host NQN\n");
    let host = "nqn.2026-11.com.example:a";
    let unnamed = daemon.run("drive share DIR/x");
    assert_eq!((unnamed.code, unnamed.err.contains("name those that may with --host NQN")), (2, true));
    let shared = daemon.ok(&format!("drive share DIR/x DIR/y --nvme-tcp HOST:4420 --host {host}"));
    assert_snapshot!("drive_share", without_identities(&shared));
    daemon.ok("drive share DIR/z --nvme-tcp HOST:4420 --allow-any-host");
    assert_snapshot!("drive_shares", without_identities(&narrow(&daemon.ok("drive shares"))));
    let other = "nqn.2026-11.com.example:b";
    let status = daemon.ok("status");
    assert!(status.contains("no groups; ") && status.contains(&format!("\n{host}\n")), "{status}");
    assert_eq!(daemon.ok(&format!("host allow {other} share-1")), format!("{other} may use the shared drive DIR/x\n"));
    let shown = daemon.ok(&format!("host show {other}"));
    assert!(shown.contains("\nshare-1  DIR/x") && !shown.contains("share-2"), "{shown}");
    let denied = format!("{host} may use the shared drive DIR/x no longer\n");
    assert_eq!(daemon.ok(&format!("host deny {host} DIR/x")), denied);
    let last =
        format!("purlin: {other} is the last host of the shared drive \"share-1\": share it no longer instead\n");
    assert_eq!(daemon.fails(&format!("host deny {other} share-1")), last);
    assert_eq!(daemon.fails(&format!("host deny {other} share-9")), "purlin: there is no export \"share-9\"\n");
    assert_eq!(daemon.ok("drive unshare DIR/y"), "DIR/y is shared no longer\n");
    let gone = daemon.fails("drive unshare DIR/y");
    assert_eq!(gone, "purlin: DIR/y is not shared: see `purlin drive shares`\n");
}

/// `group show` without random values: the identity, and the start of the next scrub within the
/// last tenth of its interval; and without values that depend on the machine and the load.
fn settled(text: &str) -> String {
    let line = |line: &str| match line {
        scrub if scrub.starts_with("next scrub  ") => "next scrub    LATER\n".to_owned(),
        shards if shards.starts_with("shards  ") => "shards        SOME\n".to_owned(),
        other => format!("{other}\n"),
    };
    without_identities(&text.lines().map(line).collect::<String>())
}

#[test]
fn tables_are_aligned_and_have_no_borders() {
    let daemon = Daemon::filled();
    let drives: Vec<String> = "abcdefgh".chars().map(|drive| format!("mem:{drive}###:128MiB")).collect();
    let sets = "--level raid60 --sets 2 --strip 128KiB --spares mem:s###:128MiB";
    daemon.ok(&format!("group create wide {sets} --yes --drives {}", drives.join(",")));
    assert_snapshot!("group_list", daemon.ok("group list"));
    assert_snapshot!("group_show", settled(&daemon.ok("group show tank")));
    assert_snapshot!("group_show_sets", settled(&daemon.ok("group show wide")));
    assert_snapshot!("volume_list", daemon.ok("volume list"));
    assert_snapshot!("volume_show", daemon.ok("volume show tank/db"));
    assert_snapshot!("drive_show", daemon.ok("drive show mem:a###"));
    // Without the latency columns.
    let listed = daemon.ok("drive list");
    let cells = |line: &str| {
        let all: Vec<&str> = line.split_whitespace().collect();
        let size = all.iter().position(|cell| *cell == "MiB").expect("each drive has a size");
        all[..size + 3].join(" ")
    };
    assert_snapshot!("drive_list", listed.lines().skip(1).map(|line| cells(line) + "\n").collect::<String>());
    for line in daemon.ok("status").lines() {
        assert_eq!(line, line.trim_end());
    }
}

#[test]
fn a_lost_member_is_rebuilt_onto_a_spare_and_the_status_says_so() {
    let daemon = Daemon::filled();
    assert_eq!(daemon.ok("drive fail tank 2"), "failed slot 2 of tank; the group is degraded\n");
    let status = daemon.ok("status");
    assert!(status.contains("tank  warning: member 2 is faulty\n") && !status.contains('\x1b'), "{status:?}");
    let added = daemon.ok("spare add tank mem:g###:64MiB");
    assert!(added.starts_with("added spare mem:g###:64MiB to tank; the group is "), "{added}");
    while !daemon.ok("group list").contains("optimal") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let shown = daemon.ok("group show tank");
    assert!(shown.contains("   2    0  in-sync  mem:g###  64 MiB"), "{shown}");
}

#[test]
fn every_change_is_told_in_one_line() {
    let daemon = Daemon::filled();
    let drives = ["0", "w", "2", "n", "4", "5"].map(|drive| format!("mem:{drive}###:64MiB")).join(" ");
    for (line, sentence) in [
        ("volume create tank/log --size 32MiB", "created volume tank/log: 32 MiB"),
        ("volume create tank/odd --size 10000", "created volume tank/odd: 12 KiB"),
        ("volume resize tank/log --size 64MiB", "resized volume tank/log: 64 MiB"),
        (
            "volume limit tank/log --iops 20k --bandwidth 500MiB --burst 2s",
            "limited the volume \"tank/log\" to 20000 requests and 500 MiB a second, and what 2s allow at once",
        ),
        ("volume limit tank/log --iops off --bandwidth off", "limited the volume \"tank/log\" no longer"),
        ("volume resize tank/log --size 1MiB --yes", "resized volume tank/log: 1 MiB"),
        ("export create tank/log --nbd HOST:10809", "created export tank-5 of tank/log: nbd://HOST:10809/tank/log"),
        ("export delete tank-5", "deleted export tank-5"),
        ("volume delete tank/log --yes", "deleted volume tank/log"),
        ("spare add tank mem:s###:64MiB", "added spare mem:s###:64MiB to tank; the group is optimal"),
        ("spare remove tank mem:s###", "removed spare mem:s### from tank"),
        ("drive fail tank 3", "failed slot 3 of tank; the group is degraded"),
        (
            "drive replace tank 3 --with mem:n###:64MiB --wait",
            "rebuilt slot 3 of tank onto mem:n###:64MiB; the group is optimal",
        ),
        (
            "drive replace tank 1 --with mem:w###:64MiB --wait",
            "copied slot 1 of tank to mem:w###:64MiB; the group is optimal",
        ),
        (
            "group set tank --client-p99 1.5ms --retire-slow on --scrub-every off",
            "tank: let rebuilds and scrubs keep the 99th percentile of clients' latency below 1500us; give a slow member's place to a \
             spare; scrub on request only\nwarning: there is no spare: a slow member can only be reported until there is one",
        ),
        ("group stop tank", "stopped group tank; its drives hold all of it"),
        (&format!("group assemble {drives}"), "assembled group tank: raid6, optimal, 253 MiB"),
        (
            "group create lake --level raid5 --drives mem:a###:64M,mem:b###:64M,mem:c###:64M --yes",
            "created group lake: raid5, optimal, 126 MiB",
        ),
        ("group delete lake --yes", "deleted group lake"),
    ] {
        assert_eq!(daemon.ok(line), format!("{sentence}\n"), "{line}");
    }
}

#[test]
fn limits_are_shown_with_how_requests_have_waited() {
    let daemon = Daemon::filled();
    let host = "nqn.2026-11.com.example:a";
    daemon.ok("volume limit tank/db --iops 20k --bandwidth 500MiB --burst 2s");
    daemon.ok(&format!("export create tank/db --nvme-tcp HOST:4420 --host {host}"));
    daemon.ok(&format!("host limit {host} tank-3 --bandwidth 1.5GiB"));
    assert_snapshot!("volume_list_limit", daemon.ok("volume list"));
    assert_snapshot!("volume_show_limit", daemon.ok("volume show tank/db"));
    assert_snapshot!("host_show_limit", narrow(&daemon.ok(&format!("host show {host}"))));
    assert_eq!(
        daemon.ok(&format!("host limit {host} tank-3 --bandwidth off --dry-run")),
        format!(
            "nothing was changed; this would be done:\n  limit what {host} does with the export tank-3 no longer\n"
        )
    );
}

#[test]
fn a_group_shows_how_it_is_looked_after() {
    let daemon = Daemon::filled();
    client::write(&daemon.file("db.sock"), "tank/db", 0, &vec![7; 1 << 20]).unwrap();
    let maintenance = |daemon: &Daemon| -> Vec<String> {
        let text = daemon.ok("group show tank");
        let from = text.lines().skip_while(|line| !line.starts_with("client p99"));
        from.take(5).map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(maintenance(&daemon)[..4], ["no target", "off", "30d", "never"]);
    daemon.ok("group set tank --client-p99 5ms --retire-slow on --scrub-every 7d");
    assert!(daemon.ok("status").contains("  2023-11-2"));
    let done = daemon.ok("group scrub tank --wait");
    assert!(done.starts_with("tank: scrub  done in ") && done.ends_with(", no differences\n"), "{done}");
    while maintenance(&daemon)[3] == "never" {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let shown = maintenance(&daemon);
    assert_eq!(shown[..4], ["5ms", "on", "7d", "2023-11-14 22:13 UTC, no differences"]);
    assert!(shown[4].starts_with("2023-11-2") && shown[4].ends_with(" UTC"), "{shown:?}");
    assert_eq!(
        daemon.ok("group set tank --scrub-every off --dry-run"),
        "nothing was changed; this would be done:\n  scrub on request only\nwarning: there is no spare: a slow member can only be \
         reported until there is one\n"
    );
    assert_eq!(maintenance(&daemon)[2], "7d");
}

#[test]
fn a_dry_run_says_what_would_be_done_and_asks_nothing() {
    let daemon = Daemon::filled();
    assert_eq!(
        daemon.ok("group create new --level raid1 --drives DIR/a,DIR/b --create-files 64MiB --dry-run"),
        "nothing was changed; this would be done:\n  write the group \"new\" to 2 members\n  raid1 of 63.1 MiB usable, any member may \
         be lost\n  create DIR/a with 64 MiB\n  create DIR/b with 64 MiB\n  checksums on: what a drive damages is noticed and put \
         right when it is read\n"
    );
    daemon.empty_file("old");
    let with_spares =
        "group create new --level raid1 --drives DIR/a,DIR/old --create-files 64MiB --dry-run --spares DIR/b";
    let steps = daemon.ok(with_spares);
    assert!(steps.contains("  write the group \"new\" to 2 members and 1 spare\n"), "{steps}");
    assert!(
        steps.contains("  create DIR/a with 64 MiB\n  overwrite DIR/old: it holds nothing that is recognised\n"),
        "{steps}"
    );
    let steps = daemon.ok(&format!("{with_spares},DIR/c"));
    assert!(steps.contains(" and 2 spares\n") && steps.contains("  create DIR/c with 64 MiB\n"), "{steps}");
    assert!(!daemon.file("a").exists());
    daemon.ok("export delete tank-2");
    assert_eq!(
        daemon.ok("volume delete tank/db --dry-run"),
        "nothing was changed; this would be done:\n  destroy the volume \"tank/db\" of 64 MiB\n"
    );
    assert!(daemon.ok("volume list").contains("tank/db"));
    assert_eq!(
        daemon.ok("volume resize tank/db --size 16MiB --dry-run"),
        "nothing was changed; this would be done:\n  resize the volume \"tank/db\" from 64 MiB to 16 MiB\n  destroy the data in its \
         last 48 MiB\n"
    );
    let grown = daemon.ok("volume resize tank/db --size 65MiB --dry-run");
    assert!(!grown.contains("destroy"), "{grown}");
}

#[test]
fn drives_without_an_array_are_named_with_what_they_hold() {
    let daemon = Daemon::start();
    daemon.foreign("ext4");
    daemon.empty_file("x");
    assert_eq!(
        daemon.ok("import list"),
        "no imports; make one with: purlin group import-md --drives DRIVE,... or purlin nvme connect --ublk\n"
    );
    assert_eq!(
        daemon.ok("group import-md --drives DIR/ext4,DIR/x --dry-run"),
        "nothing was changed; nothing can be imported as asked\nwarning: the drives hold no md array: DIR/ext4: it holds ext4 file \
         system at byte 1080 (label \"home\"); DIR/x: there is no md superblock\n\nno members:\n  DIR/ext4: it holds ext4 file system at \
         byte 1080 (label \"home\")\n  DIR/x: there is no md superblock\n"
    );
    assert_eq!(
        daemon.fails("group import-md --drives DIR/ext4,DIR/x"),
        "purlin: the drives hold no md array: DIR/ext4: it holds ext4 file system at byte 1080 (label \"home\"); DIR/x: there is no md \
         superblock\n"
    );
    assert_eq!(daemon.fails("import show kept"), "purlin: there is no import \"kept\"\n");
    assert_eq!(daemon.fails("import forget kept"), "purlin: there is no import \"kept\"\n");
}

#[test]
fn groups_and_volumes_are_renamed_and_groups_found_and_started_by_their_names() {
    let daemon = Daemon::start();
    let create = "group create tank --level raid1 --yes --create-files 64MiB";
    daemon.ok(&format!("{create} --drives DIR/d1,DIR/d2"));
    daemon.ok("volume create tank/db --size 1MiB");
    assert_eq!(daemon.ok("volume rename tank/db tank/old"), "renamed volume tank/db to tank/old\n");
    assert_eq!(daemon.ok("volume rename tank/old old"), "the volume is called tank/old already\n");
    let moved = daemon.run("volume rename tank/old lake/old");
    assert_eq!((moved.code, moved.err.contains("tank/old stays in its group")), (2, true), "{}", moved.err);
    assert_eq!(
        daemon.ok("group rename tank lake --dry-run"),
        "nothing was changed; this would be done:\n  rename the group \"tank\" to \"lake\"\n"
    );
    assert_eq!(daemon.ok("group rename tank lake"), "renamed group tank to lake\n");
    assert!(daemon.ok("volume list").contains("lake/old"));
    daemon.ok("group stop lake");
    std::fs::write(daemon.file("d3"), vec![1; 1 << 20]).unwrap();
    let uuid = "00000000-0000-0000-0000-000000000000";
    let found = format!(
        "GROUP  LEVEL  FOUND  STATE      UUID\nlake   raid1    2/2  can start  {uuid}\n\nlake ({uuid})\n\
         drives: DIR/d1 DIR/d2\nstart:  purlin group start lake\n\nno part of any group:\nDIR/d3: holds no group\n"
    );
    // No shell expands the pattern.
    assert_eq!(without_identities(&daemon.ok("group scan --drives DIR/d[1-3]")), found);
    assert_eq!(daemon.ok("group start lake"), "started group lake: raid1, optimal, 63.1 MiB\n");
    daemon.ok("group stop lake");
    let said = daemon.ok("group assemble --drives DIR/d* --name sea");
    assert!(said.starts_with("assembled group sea: raid1, optimal, "), "{said}");
    assert!(said.contains("warning: DIR/d3 is left out: not a Purlin drive"), "{said}");
    let none = daemon.run("group scan --drives DIR/x*");
    assert_eq!((none.code, none.err.as_str()), (2, "purlin: no drive matches \"DIR/x*\"\n"));
}

#[test]
fn a_volume_may_have_a_share_of_what_is_free() {
    let daemon = Daemon::filled();
    let free = |daemon: &Daemon| {
        let group: api::Group = serde_json::from_str(&daemon.ok("group show tank --output json")).unwrap();
        group.free_bytes
    };
    let before = free(&daemon);
    daemon.ok("volume create tank/half --size 50%");
    assert!(free(&daemon).abs_diff(before / 2) < 4 << 20, "{} of {before}", free(&daemon));
    daemon.ok("volume create tank/rest --size 100%");
    assert_eq!(free(&daemon), 0);
    let full = daemon.run("volume create tank/more --size 100%");
    assert_eq!((full.code, full.err.as_str()), (2, "purlin: 100% of 0 free bytes hold no volume\n"));
    daemon.ok("volume delete tank/half --yes");
    daemon.ok("volume resize tank/rest --size 100%");
    assert_eq!(free(&daemon), 0);
}

#[test]
fn the_status_of_what_is_not_well_says_by_its_exit_status_how_bad_it_is() {
    let daemon = Daemon::filled();
    assert_eq!(daemon.ok("status -x"), "all is well\n");
    daemon.ok("group create good --level raid1 --yes --drives mem:x###:64MiB,mem:y###:64MiB");
    daemon.ok("drive fail tank 1 --yes");
    let said = daemon.run("status -x");
    assert_eq!((said.code, said.err.as_str()), (3, "purlin: degraded: tank\n"));
    assert!(said.out.contains("degraded") && said.out.contains("tank  warning: member 1 is faulty"), "{}", said.out);
    assert!(!said.out.contains("good") && !said.out.contains("tank-2"), "what is well is left out: {}", said.out);
    let status: api::Status = serde_json::from_str(&daemon.run("status -x --output json").out).unwrap();
    assert_eq!(status.groups.len(), 1);
}

#[test]
fn iostat_shows_groups_and_with_v_volumes_and_drives() {
    let daemon = Daemon::filled();
    let said = daemon.ok("iostat --every 10ms");
    let idle = "tank  group        0         0  0 B/s    0 B/s\n";
    assert_eq!(said, format!("NAME  KIND   READS/S  WRITES/S   READ  WRITTEN\n{idle}"));
    let said = daemon.ok("iostat -v --every 10ms --count 2");
    assert_eq!(said.matches("tank/db").count(), 2, "{said}");
    assert!(said.contains("mem:0###") && said.contains("  volume  ") && said.contains("  drive   "), "{said}");
}
