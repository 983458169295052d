//! What people see.

use insta::assert_snapshot;

use crate::Daemon;

#[test]
fn an_empty_daemon_says_what_to_do_first() {
    let daemon = Daemon::start();
    assert_eq!(daemon.ok("group list"), "no groups; make one with: purlin group create\n");
    assert_eq!(daemon.ok("volume list"), "no volumes; make one with: purlin volume create GROUP/VOLUME --size SIZE\n");
    assert_eq!(
        daemon.ok("export list"),
        "no exports; make one with: purlin export create GROUP/VOLUME --ublk, --nvme-tcp, or --nbd unix:PATH\n"
    );
    assert_eq!(daemon.ok("drive list"), "no drives\n");
    assert_eq!(
        daemon.ok("status"),
        "purlind 0.1.0  up 2h 01m  2 shards busy 0% 12%  memory 48 MiB\n\nno groups; make one with: purlin group \
         create\n"
    );
}

#[test]
fn an_export_says_how_clients_connect() {
    let daemon = Daemon::filled();
    let said = daemon.ok("export create tank/db --nvme-tcp 10.0.0.5:4420 --host nqn.2026-11.com.example:a --host nqn.2026-11.com.example:b");
    let id = said.split_whitespace().nth(2).expect("created export ID of ...").to_owned();
    assert_snapshot!(daemon.ok(&format!("export show {id}")));
    daemon.ok("export create tank/db --nvme-tcp --allow-any-host");
    assert_snapshot!(daemon.ok("export list"));
}

#[test]
fn an_export_is_reached_as_it_was_told() {
    let daemon = Daemon::filled();
    let said = daemon.ok("export create tank/db --nvme-tcp 10.0.0.5:4420 --allow-any-host");
    let id = said.split_whitespace().nth(2).expect("created export ID of ...").to_owned();
    let set = |state: &str| format!("export set {id} --ana {state}");
    let done = format!("{id}: tell hosts that the export {id} is non-optimized\n");
    assert_eq!(daemon.ok(&set("non-optimized")), done);
    assert_eq!(daemon.ok(&set("non-optimized")), format!("{id}: nothing to change\n"));
    let said = daemon.run(&set("inaccessible --dry-run"));
    assert!(said.code == 0 && said.out.contains("no other address reaches it"), "{} {}", said.out, said.err);
    assert!(
        daemon.ok(&format!("export show {id}")).contains("ANA state    non-optimized\n"),
        "a dry run changes nothing"
    );
    let said = daemon.run(&set("lost"));
    assert!(said.code == 2 && said.err.contains("choose optimized, non-optimized or inaccessible"), "{}", said.err);
    assert_eq!(daemon.fails("export set 2 --ana optimized"), "purlin: the export \"2\" has no ANA state\n");
    assert_eq!(daemon.fails("export set 77 --ana optimized"), "purlin: there is no export \"77\"\n");
}

#[test]
fn hosts_are_shown_with_what_they_may_use_and_what_they_did() {
    let daemon = Daemon::filled();
    assert_eq!(daemon.ok("host list"), "no hosts; an export over NVMe/TCP names those that may use it\n");
    let (a, b) = ("nqn.2026-11.com.example:a", "nqn.2026-11.com.example:b");
    let said = daemon.ok(&format!("export create tank/db --nvme-tcp 10.0.0.5:4420 --host {a}"));
    let id = said.split_whitespace().nth(2).expect("created export ID of ...").to_owned();
    assert_eq!(daemon.ok(&format!("host allow {b} {id}")), format!("{b} may use the export {id}\n"));
    assert_snapshot!(daemon.ok("host list"));
    assert_snapshot!(daemon.ok(&format!("host show {b}")));
    assert!(daemon.ok("status").ends_with(&daemon.ok("host list")), "the status shows them, too");
    assert_eq!(daemon.ok(&format!("host deny {a} {id}")), format!("{a} may use the export {id} no longer\n"));
    let gone = format!("purlin: no export names the host \"{a}\", and it has used none\n");
    assert_eq!(daemon.fails(&format!("host show {a}")), gone);
}

#[test]
fn shared_drives_are_shown_with_their_names_on_other_machines() {
    let daemon = Daemon::filled();
    assert_eq!(daemon.ok("drive shares"), "no shared drives; share one with: purlin drive share DRIVE --host NQN\n");
    let host = "nqn.2026-11.com.example:a";
    let nobody = daemon.run("drive share /drives/x");
    assert_eq!((nobody.code, nobody.err.contains("nobody could use it")), (2, true));
    assert_snapshot!(daemon.ok(&format!("drive share /drives/x /drives/y --nvme-tcp 10.0.0.5:4420 --host {host}")));
    daemon.ok("drive share /drives/z --nvme-tcp 10.0.0.5:4420 --allow-any-host");
    assert_snapshot!(daemon.ok("drive shares"));
    assert_eq!(daemon.ok("drive unshare /drives/y"), "/drives/y is shared no longer\n");
    let gone = daemon.fails("drive unshare /drives/y");
    assert_eq!(gone, "purlin: /drives/y is not shared: see `purlin drive shares`\n");
}

#[test]
fn a_host_is_given_a_secret_from_a_file_which_nothing_shows() {
    let daemon = Daemon::filled();
    let host = "nqn.2026-11.com.example:a";
    let folder = daemon.socket().parent().expect("a folder").to_owned();
    let (own, target) = (folder.join("host.key"), folder.join("target.key"));
    let made = daemon.ok("host key generate --hash sha384");
    assert!(made.starts_with("DHHC-1:02:") && made.ends_with(":\n"), "{made}");
    assert_eq!(daemon.ok(&format!("host key generate --out {}", own.display())), "");
    std::fs::write(&target, made).expect("the folder is writable");
    #[cfg(unix)]
    {
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&own).expect("it is there").permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
    let exists = format!("purlin: cannot write the secret to {}: file exists\n", own.display());
    assert_eq!(daemon.fails(&format!("host key generate --out {}", own.display())), exists);

    let said = daemon.ok(&format!("export create tank/db --nvme-tcp 10.0.0.5:4420 --host {host}"));
    let id = said.split_whitespace().nth(2).expect("created export ID of ...").to_owned();
    let keys = format!("--dhchap-secret {} --dhchap-ctrl-secret {}", own.display(), target.display());
    let set = daemon.ok(&format!("host key set {host} tank {keys} --dh-group ffdhe4096"));
    assert_eq!(set, format!("{host} authenticates for tank from its next connection on\n"));
    let shown = daemon.ok(&format!("host show {host}")) + &daemon.ok("host list --output json");
    assert!(shown.contains("for tank, both ways, ffdhe4096") && !shown.contains("DHHC"), "{shown}");
    assert_eq!(
        daemon.ok(&format!("host key remove {host} tank")),
        format!("{host} is let in to tank by its name alone\n")
    );
    daemon.ok(&format!("host allow nqn.2026-11.com.example:b {id} --dhchap-secret {}", own.display()));
    assert!(daemon.ok("host show nqn.2026-11.com.example:b").contains("for tank, one way, ffdhe3072"));
}

#[test]
fn a_host_is_given_a_key_of_tls_from_a_file_and_shown_how_it_connects() {
    let daemon = Daemon::filled();
    let host = "nqn.2026-11.com.example:a";
    let file = daemon.socket().parent().expect("a folder").join("host.tls");
    let made = daemon.ok("host key generate --tls");
    assert!(made.starts_with("NVMeTLSkey-1:01:") && made.ends_with(":\n"), "{made}");
    assert_eq!(daemon.ok(&format!("host key generate --tls --hash sha384 --out {}", file.display())), "");
    let set = format!("host key set {host} tank --tls-key {}", file.display());
    assert_eq!(daemon.ok(&set), format!("{host} uses TLS for tank from its next connection on\n"));
    let said = daemon.ok(&format!("export create tank/db --nvme-tcp 10.0.0.5:4420 --host {host}"));
    let id = said.split_whitespace().nth(2).expect("created export ID of ...").to_owned();
    let shown = daemon.ok(&format!("host show {host}")) + &daemon.ok("host list --output json");
    assert!(shown.contains("uses TLS") && shown.contains("for tank\n") && !shown.contains("NVMeTLS"), "{shown}");
    let export = daemon.ok(&format!("export show {id}"));
    let (connect, others) = ("nvme connect -t tcp -a 10.0.0.5 -s 4420 -n ", export.contains("on Linux"));
    assert!(export.contains(connect) && export.contains(" --tls\n") && !others, "{export}");
    daemon.ok(&format!("{set} --keep-old"));
    assert!(daemon.ok(&format!("host show {host}")).contains("for tank, one key is being exchanged for another"));
    let removed = daemon.ok(&format!("host key remove {host} tank --tls"));
    assert_eq!(removed, format!("{host} is let in to tank without TLS\n"));
    daemon.ok(&format!("host allow nqn.2026-11.com.example:b {id} --tls-key {}", file.display()));
    assert!(daemon.ok("host show nqn.2026-11.com.example:b").contains("uses TLS"));
}

#[test]
fn a_host_of_shared_drives_is_given_a_key_of_tls_before_it_sees_them() {
    let daemon = Daemon::filled();
    let host = "nqn.2026-11.com.example:a";
    let file = daemon.socket().parent().expect("a folder").join("host.tls");
    daemon.ok(&format!("host key generate --tls --out {}", file.display()));
    let key = format!("--tls-key {}", file.display());
    let misused = daemon.run(&format!("drive share /drives/x --allow-any-host {key}"));
    assert_eq!(
        (misused.code, misused.err.as_str()),
        (2, "purlin: a secret or key is for one host: name it with --host\n")
    );
    daemon.ok(&format!("drive share /drives/x --host {host} {key} --dry-run"));
    assert!(daemon.ok("drive shares").starts_with("no shared drives"));
    let shared = daemon.ok(&format!("drive share /drives/x --host {host} {key}"));
    assert!(shared.contains(&format!("{host} has to use TLS: there, &tls-key=FILE goes behind them")), "{shared}");
    assert_eq!(
        daemon.ok(&format!("host key remove {host} --shares --tls")),
        format!("{host} is let in to shared drives without TLS\n")
    );
    let set = format!("host key set {host} --shares");
    assert_eq!(
        daemon.ok(&format!("{set} {key}")),
        format!("{host} uses TLS for shared drives from its next connection on\n")
    );
    assert!(daemon.ok("drive shares").contains("has to use TLS"));
    assert_eq!(daemon.run(&format!("{set} tank {key}")).code, 2, "one place at a time");
}

#[test]
fn a_secret_on_the_command_line_and_a_file_without_one_are_refused() {
    let daemon = Daemon::filled();
    let set = "host key set nqn.2026-11.com.example:a tank";
    let misused = |line: &str| {
        let said = daemon.run(line);
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{line}");
        said.err
    };
    assert_eq!(misused(set), "purlin: say which: --dhchap-secret FILE or --tls-key FILE, or - for stdin\n");
    let typed = format!("{set} --dhchap-secret DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:");
    let said = misused(&typed);
    assert!(said.contains("seen by every user of this machine") && !said.contains("ia6z"), "{said}");
    let said = misused(&format!("{set} --tls-key NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"));
    assert!(
        said.contains("a key of TLS on the command line is seen by every user") && !said.contains("VRLb"),
        "{said}"
    );
    let file = daemon.socket().parent().expect("a folder").join("none.key");
    std::fs::write(&file, "DHHC-1:00:ia7zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:").expect("it is writable");
    let said = misused(&format!("{set} --dhchap-secret {}", file.display()));
    assert!(
        said.contains("holds no secret of an NVMe host: its checksum is wrong") && !said.contains("ia7z"),
        "{said}"
    );
}

#[test]
fn tables_are_aligned_and_have_no_borders() {
    let daemon = Daemon::filled();
    daemon.ok("group create wide --level raid60 --sets 2 --strip 128KiB --spares mem:s:2GiB --yes --drives \
        mem:a:2GiB,mem:b:2GiB,mem:c:2GiB,mem:d:2GiB,mem:e:2GiB,mem:f:2GiB,mem:g:2GiB,mem:h:2GiB");
    daemon
        .ok("export create tank/db --nbd 127.0.0.1:10809 --read-only --tls-cert c.pem --tls-key k.pem --tls-ca a.pem");
    assert_snapshot!("group_list", daemon.ok("group list"));
    assert_snapshot!("group_show", daemon.ok("group show tank"));
    assert_snapshot!("group_show_sets", daemon.ok("group show wide"));
    assert_snapshot!("volume_list", daemon.ok("volume list"));
    assert_snapshot!("volume_show", daemon.ok("volume show tank/db"));
    assert_snapshot!("export_list", daemon.ok("export list"));
    assert_snapshot!("drive_list", daemon.ok("drive list"));
    assert_snapshot!("drive_show", daemon.ok("drive show mem:a"));
    assert_snapshot!("drive_show_not_said", daemon.ok("drive show mem:b"));
    for line in daemon.ok("status").lines() {
        assert_eq!(line, line.trim_end());
    }
}

#[test]
fn the_status_shows_health_load_and_a_rebuild_without_a_terminals_codes() {
    let daemon = Daemon::filled();
    assert_eq!(daemon.ok("drive fail tank 2"), "failed slot 2 of tank; the group is degraded\n");
    assert_eq!(daemon.ok("spare add tank mem:g:1GiB"), "added spare mem:g:1GiB to tank; the group is degraded\n");
    daemon.ok("group show tank");
    let text = daemon.ok("status");
    assert!(!text.contains('\x1b'), "{text:?}");
    assert_snapshot!("status_rebuild", text);
    daemon.ok("group show tank");
    assert!(daemon.ok("group list").contains("optimal"), "the rebuild has ended");
}

#[test]
fn every_change_is_told_in_one_line() {
    let daemon = Daemon::filled();
    for (line, sentence) in [
        ("volume create tank/log --size 512MiB", "created volume tank/log: 512 MiB"),
        ("volume resize tank/log --size 1GiB", "resized volume tank/log: 1 GiB"),
        ("volume limit tank/log --iops 20k --bandwidth 500MiB --burst 2s", "limited the volume \"tank/log\""),
        ("volume limit tank/log --iops off --bandwidth off", "limited the volume \"tank/log\" no longer"),
        ("volume resize tank/log --size 1MiB --yes", "resized volume tank/log: 1 MiB"),
        (
            "export create tank/log --nbd 127.0.0.1:10809",
            "created export 4 of tank/log: nbd://127.0.0.1:10809/tank/log",
        ),
        ("export delete 4", "deleted export 4"),
        ("volume delete tank/log --yes", "deleted volume tank/log"),
        ("spare add tank /drives/s", "added spare /drives/s to tank; the group is optimal"),
        ("spare remove tank /drives/s", "removed spare /drives/s from tank"),
        (
            "drive replace tank 3 --with /drives/new",
            "rebuilding slot 3 of tank onto /drives/new; the group is degraded",
        ),
        (
            "drive replace tank 3 --with /drives/newer --wait",
            "rebuilt slot 3 of tank onto /drives/newer; the group is optimal",
        ),
        (
            "group scrub tank",
            "tank: scrub  [..............................]   0.0%  512 MiB/s  2s left, no differences",
        ),
        ("group scrub tank --pause", "tank: scrub  [..............................]   0.0%  paused, no differences"),
        (
            "group scrub tank --resume",
            "tank: scrub  [..............................]   0.0%  512 MiB/s  2s left, no differences",
        ),
        ("group scrub tank --stop", "tank: scrub  stopped at 0.0%, no differences"),
        ("group scrub tank --wait", "tank: scrub  done in 2s, no differences"),
        ("group scrub tank --status", "tank: scrub  done in 2s, no differences"),
        (
            "group set tank --client-p99 1.5ms --retire-slow on --scrub-every off",
            "tank: set client_p99_us to 1500; set retire_slow to true; set scrub_every_s to 0",
        ),
        ("group stop tank", "stopped group tank; its drives hold all of it"),
        (
            "group create lake --level raid5 --drives mem:a:1G,mem:b:1G,mem:c:1G --yes",
            "created group lake: raid5, optimal, 2 GiB",
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
    daemon.ok(&format!("export create tank/db --nvme-tcp 10.0.0.5:4420 --host {host}"));
    daemon.ok(&format!("host limit {host} 3 --bandwidth 1.5GiB"));
    assert_snapshot!(daemon.ok("volume list"));
    assert_snapshot!(daemon.ok("volume show tank/db"));
    assert_snapshot!(daemon.ok(&format!("host show {host}")));
    assert_eq!(
        daemon.ok(&format!("host limit {host} 3 --bandwidth off --dry-run")),
        format!("nothing was changed; this would be done:\n  limit {host} no longer\n")
    );
}

#[test]
fn a_group_shows_how_it_is_looked_after() {
    let daemon = Daemon::filled();
    let upkeep = |daemon: &Daemon| -> Vec<String> {
        let text = daemon.ok("group show tank");
        let from = text.lines().skip_while(|line| !line.starts_with("client p99"));
        from.take(5).map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(upkeep(&daemon), ["no target", "off", "30d", "never", "2023-12-14 22:13 UTC"]);
    daemon.ok("group set tank --client-p99 5ms --retire-slow on --scrub-every 7d");
    daemon.ok("group scrub tank");
    daemon.ok("group scrub tank --pause");
    assert_eq!(upkeep(&daemon), ["5ms", "on", "7d", "never", "paused"]);
    assert!(daemon.ok("status").contains("never       paused\n"));
    daemon.ok("group scrub tank --resume --wait");
    assert_eq!(upkeep(&daemon), ["5ms", "on", "7d", "2023-11-14 22:13 UTC, no differences", "2023-11-21 22:13 UTC"]);
    assert_eq!(
        daemon.ok("group set tank --scrub-every off --dry-run"),
        "nothing was changed; this would be done:\n  set scrub_every_s to 0\n"
    );
    assert_eq!(upkeep(&daemon)[2], "7d");
}

#[test]
fn a_dry_run_says_what_would_be_done_and_asks_nothing() {
    let daemon = Daemon::filled();
    assert_eq!(
        daemon.ok("group create new --level raid1 --drives a,b --create-files 1GiB --dry-run"),
        "nothing was changed; this would be done:\n  write a superblock to /a\n  write a superblock to /b\n"
    );
    daemon.ok("export delete 2");
    assert_eq!(
        daemon.ok("volume delete tank/db --dry-run"),
        "nothing was changed; this would be done:\n  give 1 GiB back to tank\n"
    );
    assert!(daemon.ok("volume list").contains("tank/db"));
}

#[test]
fn help_has_examples_for_every_command() {
    use clap::CommandFactory;
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

#[test]
fn every_example_in_the_help_is_a_line_that_parses() {
    use clap::{CommandFactory, Parser};
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

#[test]
fn an_import_is_shown_with_what_is_left_out() {
    let daemon = Daemon::start();
    assert_eq!(
        daemon.ok("import list"),
        "no imports; make one with: purlin group import-md --drives DRIVE,... or purlin nvme connect --ublk\n"
    );
    let array = "md name   host:old
md uuid   3aaa0122:29827cfa:5331ad66:ca767371
metadata  1.2
level     raid5, left-symmetric
chunk     512 KiB
size      2 GiB
state     clean, 18 events
made      2020-09-13 12:26 UTC
updated   2023-11-14 22:13 UTC

SLOT  DRIVE
   0  /drives/a
   1  /drives/b
   2  ";
    assert_eq!(
        daemon.ok("group import-md --drives /drives/a,/drives/b,/drives/c,/drives/d,/drives/ext4 --dry-run"),
        format!(
            "nothing was changed; this would be done:
  read the array \"host:old\" as the volume \"old/md\"

{array}/drives/c
left out:
  /drives/d: a spare

no members:
  /drives/ext4: it holds an ext4 file system
"
        )
    );
    assert_eq!(
        daemon.ok("group import-md --drives /drives/a,/drives/b --name kept"),
        "imported kept: raid5, degraded, 2 GiB; it can be read as the volume kept/md\nwarning: slot 2 is missing\n"
    );
    assert_eq!(
        daemon.ok("import list"),
        "NAME  LEVEL  HEALTH    MEMBERS   SIZE  VOLUME   EXPORTS\nkept  raid5  degraded      2/3  2 GiB  kept/md  -\n"
    );
    assert_eq!(
        daemon.ok("import show kept"),
        format!(
            "name     kept\nvolume   kept/md\nhealth   degraded\nexports  none\nreads    0, 0 B\n\n{array}missing\n"
        )
    );
    assert_eq!(daemon.ok("import forget kept"), "forgot import kept; its drives are as they were\n");
    assert_eq!(daemon.fails("import show kept"), "purlin: there is no import \"kept\"\n");
    assert_eq!(
        daemon.fails("group import-md --drives /drives/a"),
        "purlin: the array \"host:old\" is not read: 2 of 3 members are missing\n"
    );
}

#[test]
fn a_namespace_that_is_a_block_device_is_listed_with_its_paths_and_disconnected() {
    let daemon = Daemon::start();
    let said = daemon
        .ok("nvme connect 10.0.0.5,10.0.1.5:4421 nqn.2026-11.com.example:shelf --nsid 3 --ublk --name disk --ctrl-loss-tmo 60");
    assert_eq!(said, "namespace 3 of nqn.2026-11.com.example:shelf, 2 GiB, is /dev/purlin/disk/nvme\n");
    let shown = daemon.ok("import show disk");
    let drive = "nvme-tcp://10.0.0.5:4420/nqn.2026-11.com.example:shelf?nsid=3&path=10.0.1.5:4421&loss=1m";
    assert!(shown.contains(drive), "{shown}");
    let listed = daemon.ok("nvme list");
    for word in ["optimal", "10.0.0.5:4420 optimized, 10.0.1.5:4421 optimized", "/dev/purlin/disk/nvme"] {
        assert!(listed.contains(word), "{word}: {listed}");
    }
    assert_eq!(
        daemon.fails("nvme disconnect nqn.2026-11.com.example:shelf --nsid 4"),
        "purlin: no such namespace is connected; `purlin nvme list` shows those that are\n"
    );
    assert_eq!(
        daemon.ok("nvme disconnect nqn.2026-11.com.example:shelf"),
        "disconnected namespace 3 of nqn.2026-11.com.example:shelf; /dev/purlin/disk/nvme is gone\n"
    );
    assert!(daemon.ok("import list").starts_with("no imports"));
    // Without its device it is of no use: the number is taken.
    daemon.ok("nvme connect 10.0.0.5 nqn.2026-11.com.example:shelf --nsid 3 --ublk --name disk --number 5");
    let refused =
        daemon.fails("nvme connect 10.0.0.6 nqn.2026-11.com.example:shelf --nsid 3 --ublk --name other --number 5");
    assert!(refused.ends_with("listens on /dev/ublkb5 already\n"), "{refused}");
    assert_eq!(daemon.fails("import show other"), "purlin: there is no import \"other\"\n");
}
