//! The exact error messages of the command when it refuses a request.

use std::process::Command;

use crate::{Daemon, client, purlin};

#[test]
fn without_a_daemon_it_says_how_to_start_one() {
    let said = purlin("/nowhere/purlind.sock".as_ref(), "status --once");
    assert_eq!(said.code, 1);
    assert_eq!(
        said.err,
        "purlin: cannot reach purlind at /nowhere/purlind.sock: no such file or directory; is it running? start it \
         with: purlind --state DIR\n"
    );
    let stale = std::env::temp_dir().join(format!("purlin-stale-{}.sock", std::process::id()));
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let said = purlin(&stale, "group list");
    std::fs::remove_file(&stale).unwrap();
    assert_eq!(
        said.err,
        format!(
            "purlin: cannot reach purlind at {}: connection refused; is it running? start it with: purlind --state \
             DIR\n",
            stale.display()
        )
    );
}

#[test]
fn something_else_on_the_socket_is_no_daemon() {
    let path = std::env::temp_dir().join(format!("purlin-other-{}.sock", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let other = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\noops").unwrap();
    });
    let said = purlin(&path, "group list");
    other.join().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(said.code, 1);
    assert_eq!(
        said.err,
        format!(
            "purlin: purlind at {} gave no usable answer: HTTP status 502 Bad Gateway without a reason\n",
            path.display()
        )
    );
}

/// Asserts that the daemon refuses each line with its sentence.
fn refuses(daemon: &Daemon, refusals: &[(&str, &str)]) {
    for (line, sentence) in refusals {
        assert_eq!(daemon.fails(line), format!("purlin: {sentence}\n"), "{line}");
    }
}

#[test]
fn the_daemons_sentence_about_a_group_is_passed_on() {
    let daemon = Daemon::filled();
    daemon.foreign("ext4");
    let refusals = [
        ("group show lake", "there is no group \"lake\""),
        ("group scrub lake", "there is no group \"lake\""),
        ("group scrub tank --stop", "the group \"tank\" is not being scrubbed"),
        ("group scrub tank --pause", "the group \"tank\" is not being scrubbed"),
        ("group scrub tank --resume", "the group \"tank\" has no scrub that is paused"),
        ("group set lake --retire-slow on", "there is no group \"lake\""),
        ("group stop lake", "there is no group \"lake\""),
        ("group delete lake --yes", "there is no group \"lake\""),
        (
            "group create tank --level raid1 --drives mem:a###:64M,mem:b###:64M --yes",
            "there is a group \"tank\" already",
        ),
        ("group create new --level raid6 --drives mem:a###:64M,mem:b###:64M", "raid6 needs at least 4 members, not 2"),
        (
            "group create new --level raid1 --drives DIR/a,DIR/ext4 --create-files 64MiB",
            "DIR/ext4 holds ext4 file system at byte 1080 (label \"home\"): nothing was written; to overwrite it, say \
             --wipe-foreign",
        ),
        (
            "group create new --level raid1 --drives mem:0###:64MiB,mem:a###:64MiB",
            "mem:0### is part of the group \"tank\" already",
        ),
        ("group create new --level raid1 --drives mem:a###:64MiB,/elsewhere/b", "/elsewhere/b does not exist"),
        ("group assemble mem:a###:64MiB", "none of the drives belongs to a Purlin array: mem:a###: not a Purlin drive"),
    ];
    refuses(&daemon, &refusals);
    assert!(!daemon.file("a").exists(), "what a refused request made is gone");
}

#[test]
fn the_daemons_sentence_about_a_volume_or_an_export_is_passed_on() {
    let refusals = [
        ("volume show tank/x", "there is no volume \"tank/x\""),
        ("volume create tank/db --size 1M", "there is a volume \"tank/db\" already"),
        ("volume create lake/db --size 1M", "there is no group \"lake\""),
        (
            "volume create tank/big --size 1TiB",
            "the volume \"tank/big\" needs 1 TiB, and the group \"tank\" has 189 MiB free",
        ),
        (
            "volume resize tank/db --size 1TiB",
            "the volume \"tank/db\" needs 1 TiB more, and the group \"tank\" has 189 MiB free",
        ),
        ("volume delete tank/db --yes", "the volume \"tank/db\" is exported as tank-2: delete that first"),
        ("volume resize tank/x --size 1M", "there is no volume \"tank/x\""),
        (
            "export create tank/db --nbd unix:DIR/db.sock",
            "the volume \"tank/db\" is exported at unix:DIR/db.sock already",
        ),
        ("export delete 9", "there is no export \"9\""),
    ];
    refuses(&Daemon::filled(), &refusals);
}

#[test]
fn the_daemons_sentence_about_a_drive_is_passed_on() {
    let refusals = [
        (
            "drive fail tank d3",
            "the group \"tank\" has no member d3: name a slot or a drive as `purlin group show tank` does",
        ),
        ("drive fail tank 6", "the group \"tank\" has no slot 6: its slots are 0 to 5"),
        (
            "drive replace tank 2 --with mem:y###:1MiB",
            "the group \"tank\": the drive has 1048576 bytes, a member of this group needs 67047424",
        ),
        ("spare add tank mem:1###:64MiB", "mem:1### is part of the group \"tank\" already"),
        (
            "spare add tank mem:x###:1MiB",
            "the group \"tank\": the drive has 1048576 bytes, a member of this group needs 67047424",
        ),
        ("spare remove tank mem:9###", "mem:9### is not a spare of the group \"tank\""),
        ("spare remove tank mem:1###", "mem:1### is not a spare of the group \"tank\""),
    ];
    refuses(&Daemon::filled(), &refusals);
}

#[test]
fn a_member_that_a_group_cannot_do_without_stays() {
    let daemon = Daemon::filled();
    daemon.ok("drive fail tank mem:0###");
    assert_eq!(
        daemon.fails("drive fail tank mem:1###"),
        "purlin: this takes mem:1### out of slot 1 of tank: data are lost if another drive fails then, and there is no terminal \
         to ask on: say --yes to do it without asking\n"
    );
    daemon.ok("drive fail tank mem:1### --dry-run");
    daemon.ok("drive fail tank mem:1### --yes");
    assert_eq!(
        daemon.fails("drive replace tank 0 --with mem:x###:1MiB"),
        "purlin: the group \"tank\": the drive has 1048576 bytes, a member of this group needs 67047424\n"
    );
    assert_eq!(
        daemon.fails("drive fail tank 2"),
        "purlin: the group \"tank\" cannot do without slot 2: data would be lost\n"
    );
    assert_eq!(
        daemon.fails("drive fail tank 2 --dry-run"),
        "purlin: the group \"tank\" cannot do without slot 2: data would be lost\n"
    );
}

#[test]
fn a_question_without_a_terminal_is_refused_and_nothing_happens() {
    let daemon = Daemon::filled();
    daemon.foreign("ext4");
    daemon.ok("volume create tank/scratch --size 64MiB");
    let before = daemon.ok("group list --output json");
    let then = "and there is no terminal to ask on: say --yes to do it without asking";
    for (line, what) in [
        (
            "group create new --level raid1 --drives mem:a###:64M,mem:b###:64M --spares mem:c###:64M",
            "this overwrites 3 drives",
        ),
        ("volume delete tank/scratch", "this destroys volume tank/scratch and all that is on it"),
        ("volume resize tank/scratch --size 16MiB", "this destroys the last 48 MiB of volume tank/scratch"),
        // In whole blocks it loses one.
        ("volume resize tank/scratch --size 67100673", "this destroys the last 4 KiB of volume tank/scratch"),
        ("spare add tank DIR/ext4 --wipe-foreign", "this overwrites what DIR/ext4 holds"),
    ] {
        assert_eq!(daemon.fails(line), format!("purlin: {what}, {then}\n"), "{line}");
    }
    assert_eq!(
        daemon.fails("group delete tank"),
        format!("purlin: this destroys group tank and every volume in it, {then}\n")
    );
    assert_eq!(daemon.ok("group list --output json"), before);
    daemon.ok("drive fail tank 0 --yes");
    assert_eq!(
        daemon.fails("drive replace tank 0 --with DIR/ext4 --wipe-foreign"),
        format!("purlin: this overwrites what DIR/ext4 holds, {then}\n")
    );
}

#[test]
fn connected_clients_keep_a_group_from_being_stopped_and_from_being_deleted() {
    let daemon = Daemon::filled();
    daemon.ok("export create tank/db --nbd unix:DIR/other.sock");
    let client = client::connect(&daemon.file("db.sock"), "tank/db").unwrap();
    assert_eq!(
        daemon.fails("group stop tank"),
        "purlin: 1 client is connected to volumes of the group \"tank\", as tank-2: disconnect it, or say --force\n"
    );
    let others = [0; 2].map(|_| client::connect(&daemon.file("other.sock"), "tank/db").unwrap());
    let refused = "purlin: 3 clients are connected to volumes of the group \"tank\", as tank-2, tank-3: disconnect them, or \
                   delete the exports first\n";
    assert_eq!(daemon.fails("group delete tank --yes"), refused);
    assert_eq!(daemon.fails("group delete tank --dry-run"), refused);
    assert!(daemon.ok("volume list").contains("tank/db"));
    daemon.ok("export delete tank-3");
    drop((client, others));
    // The daemon notices a moment later that they are gone.
    while daemon.ok("export show tank-2 --output json").contains("\"connection_count\": 1") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(daemon.ok("group delete tank --yes"), "deleted group tank\n", "an export that nobody uses goes with it");
}

#[test]
fn a_group_is_stopped_under_its_clients_if_told_so() {
    let daemon = Daemon::filled();
    let _client = client::connect(&daemon.file("db.sock"), "tank/db").unwrap();
    assert_eq!(daemon.ok("group stop tank --force"), "stopped group tank; its drives hold all of it\n");
}

#[test]
fn arguments_that_make_no_sense_end_with_2_and_name_the_argument() {
    let daemon = Daemon::start();
    for (line, sentence) in [
        (
            "volume create tank/db --size ten",
            "invalid value 'ten' for '--size <SIZE>': \"ten\" is not a size: write a number with a unit, such as 64KiB, \
             10GiB or 1.5TiB",
        ),
        (
            "volume create tank --size 1G",
            "invalid value 'tank' for '<NAME>': \"tank\" is not a volume name: write GROUP/VOLUME, such as tank/db",
        ),
        (
            "group create tank --level raid9 --drives a,b",
            "invalid value 'raid9' for '--level <LEVEL>': \"raid9\" is not a level: choose raid0, raid1, raid10, raid5, \
             raid6, raid7, raid50, raid60 or nm",
        ),
        (
            "export create tank/db --nbd 10809",
            "invalid value '10809' for '--nbd <unix:PATH|HOST:PORT>': \"10809\" is not an address: write unix:PATH or \
             HOST:PORT, such as unix:/run/db.sock or 127.0.0.1:10809",
        ),
        (
            "group create tank --level raid1 --drives mem:a,mem:b:x",
            "invalid value 'mem:b:x' for '--drives <DRIVE,...>': \"mem:b:x\" is not a memory drive: \"x\" is not a \
             size: write a number with a unit, such as 64KiB, 10GiB or 1.5TiB",
        ),
        ("export create tank/db --nbd unix:/a --tls-ca ca.pem", "the following required arguments were not provided:"),
        ("group scrub tank --stop --wait", "the argument '--stop' cannot be used with '--wait'"),
        ("group scrub tank --pause --resume", "the argument '--pause' cannot be used with '--resume'"),
        (
            "group set tank --client-p99 5",
            "invalid value '5' for '--client-p99 <DURATION|off>': \"5\" is not a duration: write a number with a unit, such \
             as 500us, 5ms, 90s, 12h or 30d",
        ),
        ("group set tank --retire-slow maybe", "invalid value 'maybe' for '--retire-slow <on|off>'"),
        ("frobnicate", "unrecognized subcommand 'frobnicate'"),
        (
            "volume create tank/db --size 101%",
            "invalid value '101%' for '--size <SIZE>': \"101%\" is not a share: write 1% to 100%",
        ),
    ] {
        let said = daemon.run(line);
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{line}: {}", said.err);
        assert_eq!(said.err.lines().next().unwrap(), format!("error: {sentence}"), "{line}");
    }
    for (line, sentence) in [
        (
            "group create Tank --level raid1 --drives a,b --yes",
            "\"Tank\" is not a group name: use a-z, 0-9, '.', '_' and '-', and begin with a letter or digit",
        ),
        ("group create tank --level raid1 --drives a,b,a --yes", "the drive \"/a\" is named twice"),
        (
            "group create tank --level raid1 --drives mem:a,mem:b:1G --yes",
            "\"mem:a\" is not a memory drive: write mem:NAME:SIZE, such as mem:a:1GiB",
        ),
        ("group set tank", "there is nothing to change: name at least one setting"),
        ("group set tank --client-p99 1us", "a latency target of 1us makes no sense: choose 100us to 10s, or off"),
        ("group set tank --scrub-every 1m", "a scrub every 1m makes no sense: choose 1h to 3650d, or off"),
        ("volume create tank/db --size 0", "a volume of 0 bytes holds nothing: give it a size"),
    ] {
        let said = daemon.run(line);
        assert_eq!((said.code, said.err), (2, format!("purlin: {sentence}\n")), "{line}");
    }
}

#[test]
fn settings_of_thin_volumes_that_make_no_sense_end_with_2_and_one_sentence() {
    let daemon = Daemon::start();
    for (line, sentence) in [
        (
            "volume create tank/db --size 1GiB --compress lz4",
            "settings of thin volumes are for thin volumes: make it thin as well",
        ),
        (
            "volume create tank/db --size 1GiB --thin --reserve 2GiB",
            "a volume of 1 GiB cannot use a reserve of 2 GiB: choose less",
        ),
        ("volume set tank/db", "there is nothing to change: name at least one setting"),
        (
            "volume set tank/db --repack-after 3651d",
            "content cannot be packed again after 3651d: choose at most 3650d, or off",
        ),
        ("volume set tank/db --when-full wait:1m", "a write cannot wait for 1m: choose at most 20s, or error"),
        ("group set tank --thin-warn 90,80", "levels come in ascending order, each once: write such as 80%,90%,95%"),
    ] {
        let said = daemon.run(line);
        assert_eq!((said.code, said.err), (2, format!("purlin: {sentence}\n")), "{line}");
    }
    for (line, problem) in [
        ("volume set tank/db --compress zstd:10", "\"10\" is no level of zstd: choose 1 to 9"),
        ("volume set tank/db --compress gzip", "\"gzip\" is no compression: write off, lz4, zstd or zstd:LEVEL"),
        ("volume set tank/db --quota 0", "0 bytes are no size here: write a size such as 500GiB, or off"),
    ] {
        let said = daemon.run(line);
        assert!(said.code == 2 && said.err.contains(problem), "{line}: {}", said.err);
    }
}

#[test]
fn a_verb_that_there_is_not_is_answered_with_the_one_that_was_meant_or_with_all() {
    let tip = |line: &str| {
        let said = purlin("/nowhere/purlind.sock".as_ref(), line);
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{line}");
        said.err.lines().find_map(|line| line.trim().strip_prefix("tip: ").map(str::to_owned)).unwrap_or_default()
    };
    assert_eq!(tip("volume rname tank/a b"), "a similar subcommand exists: 'rename'");
    assert_eq!(tip("--socket x group lsit"), "a similar subcommand exists: 'list'");
    let said = tip("volume make tank/a");
    assert!(said.starts_with("purlin volume takes one of: create, set, convert, list,"), "{said}");
    let said = tip("frobnicate");
    assert!(said.starts_with("purlin takes one of: status, iostat, group,"), "{said}");
}

#[test]
fn a_scrub_that_leaves_differences_ends_with_1() {
    let daemon = Daemon::start();
    daemon.ok("group create rotten --level raid6 --drives DIR/a,DIR/b,DIR/c,DIR/d --create-files 64MiB --yes");
    daemon.ok("volume create rotten/db --size 16MiB");
    daemon.ok("export create rotten/db --nbd unix:DIR/db.sock");
    client::write(&daemon.file("db.sock"), "rotten/db", 0, &vec![7; 16 << 20]).unwrap();
    daemon.bench.rot("b", 4 << 20);
    let found = "  rotten/db at byte 6815744: slot 1 (DIR/b) is damaged at byte 4194304";
    let scrubbed = |said: &str, result: &str| {
        let rest = said.strip_prefix("rotten: scrub  done in ").and_then(|rest| rest.split_once(", "));
        assert_eq!(rest.map(|(_, found)| found), Some(result), "{said}");
    };
    let said = daemon.run("group scrub rotten --wait");
    assert_eq!(said.code, 1);
    scrubbed(&said.out, &format!("1 difference, 0 put right\n{found}, left as it is\n"));
    assert_eq!(said.err, "purlin: the scrub of rotten found 1 difference, 0 of them put right\n");
    let said = daemon.ok("group scrub rotten --wait --repair");
    scrubbed(&said, &format!("1 difference, 1 put right\n{found}, put right\n"));
    scrubbed(&daemon.ok("group scrub rotten --wait"), "no differences\n");
}

#[test]
fn a_namespace_that_nobody_could_use_or_that_cannot_be_is_refused() {
    let daemon = Daemon::filled();
    let hosts = "--host nqn.2026-11.com.example:a";
    for (line, sentence) in [
        (
            "",
            "no host could use it: name those that may with --host NQN, or say --allow-any-host for all that reach the \
             address (in the API: hosts, allow_any_host)",
        ),
        (
            "--host me",
            "\"me\" is not the name of an NVMe host: it begins with \"nqn.\" (on Linux it is in /etc/nvme/hostnqn)",
        ),
        (&format!("{hosts} --nsid 0"), "there is no namespace 0: they are 1 to 65535"),
        (&format!("{hosts} --block-size 1KiB"), "blocks of 1024 bytes: a namespace has blocks of 512 or 4096"),
    ] {
        let line = format!("export create tank/db --nvme-tcp {line}");
        let said = daemon.run(&line);
        assert_eq!((said.code, said.err), (2, format!("purlin: {sentence}\n")), "{line}");
    }
    let said = daemon.run(&format!("export create tank/db --nvme-tcp=unix:/run/x {hosts}"));
    assert_eq!(
        (said.code, said.err.as_str()),
        (2, "purlin: \"unix:/run/x\" is not an address: write HOST:PORT, such as 0.0.0.0:4420\n")
    );
    assert_eq!(daemon.fails("export show 77"), "purlin: there is no export \"77\"\n");
    assert_eq!(daemon.fails("host allow nqn.2026-11.com.example:a 77"), "purlin: there is no export \"77\"\n");
    assert_eq!(daemon.fails("host deny nqn.2026-11.com.example:a 77"), "purlin: there is no export \"77\"\n");
    let limit = "host limit nqn.2026-11.com.example:a 77 --iops 5";
    assert_eq!(daemon.fails(limit), "purlin: there is no export \"77\"\n");
    assert_eq!(daemon.fails("volume limit tank/gone --iops 5"), "purlin: there is no volume \"tank/gone\"\n");
    for (options, sentence) in [
        ("", "there is nothing to change: name iops, a bandwidth or a burst"),
        ("--burst 5ms", "a burst of 5ms makes no sense: choose 10ms to 1h"),
        ("--iops 0", "\"0\" is not a number of requests: write one such as 500, 20k or 1.5M, or off"),
        ("--bandwidth 0", "0 bytes a second are no limit: write a size such as 500MiB, or off"),
        ("--iops 2000M", "2000000000 requests a second are no limit: choose 1 to 1000000000, or off"),
    ] {
        let said = daemon.run(&format!("volume limit tank/db {options}"));
        assert!(said.code != 0 && said.err.contains(sentence), "{options}: {}", said.err);
    }
    let said = daemon.run("host allow me 77");
    assert!(said.code == 2 && said.err.contains("is not the name of an NVMe host"), "{}", said.err);
}

#[test]
fn what_the_daemon_cannot_do_for_a_namespace_is_refused_before_it_is_asked() {
    let daemon = Daemon::start();
    let connect = "nvme connect 10.0.0.5 nqn.2026-11.com.example:target --ublk";
    assert_eq!(
        daemon.run(&format!("{connect} --nsid 1 --ctrl-loss-tmo -1")).err,
        "purlin: with --ublk, --ctrl-loss-tmo is from 2 to 600\n"
    );
    assert_eq!(
        daemon.run(&format!("{connect} --nsid 1 --dhchap-secret -")).err,
        "purlin: with --ublk, secrets and keys are in files: the daemon reads them again when it is restarted\n"
    );
    for digest in ["--hdr-digest", "--data-digest"] {
        let said = daemon.run(&format!("{connect} --nsid 1 {digest}"));
        assert!(
            said.code == 2 && said.err.contains(&format!("'--ublk' cannot be used with '{digest}'")),
            "{}",
            said.err
        );
    }
    let said = daemon.run(connect);
    assert!(said.code == 2 && said.err.contains("--nsid <NSID>"), "{}", said.err);
    let said = daemon.run(&format!("{connect} --nsid 1 --hostnqn nqn.2026-11.com.example:me"));
    assert!(said.code == 2 && said.err.contains("cannot be used with"), "{}", said.err);
    assert!(daemon.ok("import list").starts_with("no imports"));
}

/// An image made by other software, with its size: the sectors that are not zero, as
/// `format/tests/foreign/make.sh` stores them.
fn made_by_others(name: &str) -> (u64, Vec<(u64, Vec<u8>)>) {
    let folder = "../format/tests/foreign";
    let stored = std::fs::read(format!("{folder}/{name}.sectors")).unwrap();
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let sectors = stored[8..].chunks_exact(8 + 512).map(|sector| (number(&sector[..8]), sector[8..].to_vec()));
    (number(&stored[..8]), sectors.collect())
}

#[test]
fn what_other_software_keeps_on_a_drive_is_named_and_left_as_it_is() {
    use std::os::unix::fs::FileExt;
    let daemon = Daemon::start();
    for (name, what) in [
        ("bcache", "bcache device"),
        ("btrfs", "btrfs file system"),
        ("exfat", "exFAT file system"),
        ("ext2", "ext2 file system"),
        ("ext3", "ext3 file system"),
        ("ext4", "ext4 file system"),
        ("f2fs", "F2FS file system"),
        ("fat12", "FAT file system"),
        ("fat16", "FAT file system"),
        ("fat32", "FAT32 file system"),
        ("gpt", "GPT partition table"),
        ("iso9660", "ISO 9660 file system"),
        ("luks1", "LUKS1 encrypted volume"),
        ("luks2", "LUKS2 encrypted volume"),
        ("lvm2", "LVM2 physical volume"),
        ("mbr", "MBR partition table"),
        ("ntfs", "NTFS file system"),
        ("swap", "Linux swap"),
        ("xfs", "XFS file system"),
    ] {
        let (bytes, sectors) = made_by_others(name);
        // Smaller files would be refused as too small. Data from the end of a small image is then
        // in the middle.
        let bytes = bytes.max(64 << 20);
        let file = std::fs::File::create_new(daemon.file(name)).unwrap();
        file.set_len(bytes).unwrap();
        for (at, sector) in &sectors {
            file.write_all_at(sector, *at).unwrap();
        }
        let before = std::fs::read(daemon.file(name)).unwrap();
        let line = format!("group create new --level raid1 --drives DIR/{name},mem:a###:64MiB --yes");
        let said = daemon.fails(&line);
        assert!(said.starts_with(&format!("purlin: DIR/{name} holds {what} at byte ")), "{name}: {said}");
        assert!(said.ends_with(": nothing was written; to overwrite it, say --wipe-foreign\n"), "{name}: {said}");
        assert!(std::fs::read(daemon.file(name)).unwrap() == before, "{name}");
        std::fs::remove_file(daemon.file(name)).unwrap();
    }
    assert!(daemon.ok("group list").starts_with("no groups; "));
}

#[test]
fn a_volume_is_not_extracted_to_a_place_without_room_and_leaves_nothing_there() {
    let daemon = Daemon::start();
    daemon.ok("group create tank --level raid1 --create-files 64MiB --yes --drives DIR/a,DIR/b");
    daemon.ok("volume create tank/db --size 8MiB");
    daemon.ok("group stop tank");
    // No file may have more than 64 blocks: as on a file system with a limit below the volume.
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$0\" rescue extract a b --volume tank/db --to out";
    let run =
        Command::new("sh").args(["-c", limited, env!("CARGO_BIN_EXE_purlin")]).current_dir(daemon.file("")).output();
    let output = run.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said.lines().last(),
        Some("purlin: out: there is no room: a file of the volume's 8388608 bytes is too large there")
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(!daemon.file("out").exists());
}

#[test]
fn a_reader_that_has_gone_does_not_change_the_exit_status() {
    for (line, code) in [
        ("rescue list /nowhere/drive", 2),
        ("rescue check /nowhere/drive", 2),
        ("rescue check /nowhere/drive --output json", 2),
        ("rescue extract /nowhere/drive --volume tank/db --to -", 2),
        ("--socket /nowhere/purlind.sock group list", 1),
        ("no-such-command", 2),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_purlin"));
        command.args(line.split_whitespace());
        let status = command.stdout(writer.try_clone().unwrap()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(code), "{line}");
    }
}
