//! Secrets and TLS keys of hosts: from files only, and shown by nothing.

use crate::Daemon;

#[test]
fn a_host_is_given_a_secret_from_a_file_which_nothing_shows() {
    let daemon = Daemon::filled();
    let host = "nqn.2026-11.com.example:a";
    let (own, target) = (daemon.file("host.key"), daemon.file("target.key"));
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
    let exists = "purlin: cannot write the secret to DIR/host.key: file exists\n";
    let json = |line: &str| serde_json::from_str::<cli::HostKey>(&daemon.ok(line)).expect("as documented");
    let made = json("host key generate --output json");
    assert!(made.file.is_none() && made.secret.expect("it is in no file").starts_with("DHHC-1:01:"));
    let made = json("host key generate --out DIR/other.key --output json");
    assert_eq!((made.file.map(|file| file.ends_with("/other.key")), made.secret), (Some(true), None));
    assert_eq!(daemon.fails(&format!("host key generate --out {}", own.display())), exists);

    let said = daemon.ok(&format!("export create tank/db --nvme-tcp HOST:4420 --host {host}"));
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
    let file = daemon.file("host.tls");
    let made = daemon.ok("host key generate --tls");
    assert!(made.starts_with("NVMeTLSkey-1:01:") && made.ends_with(":\n"), "{made}");
    assert_eq!(daemon.ok(&format!("host key generate --tls --hash sha384 --out {}", file.display())), "");
    let written = std::fs::read_to_string(&file).expect("it is text");
    assert!(
        written.starts_with("NVMeTLSkey-1:02:") && written.ends_with(':'),
        "SPDK takes a new line for a part of it"
    );
    let set = format!("host key set {host} tank --tls-key {}", file.display());
    assert_eq!(daemon.ok(&set), format!("{host} uses TLS for tank from its next connection on\n"));
    let said = daemon.ok(&format!("export create tank/db --nvme-tcp HOST:4420 --host {host}"));
    let id = said.split_whitespace().nth(2).expect("created export ID of ...").to_owned();
    let shown = daemon.ok(&format!("host show {host}")) + &daemon.ok("host list --output json");
    assert!(shown.contains("uses TLS") && shown.contains("for tank\n") && !shown.contains("NVMeTLS"), "{shown}");
    let export = daemon.ok(&format!("export show {id}"));
    let (connect, others) = ("nvme connect -t tcp -a HOST -s 4420 -n ", export.contains("\non Linux"));
    assert!(export.contains(connect) && export.contains(" --tls\n") && !others, "{export}");
    let new = daemon.file("new.tls");
    daemon.ok(&format!("host key generate --tls --out {}", new.display()));
    daemon.ok(&format!("host key set {host} tank --tls-key {} --keep-old", new.display()));
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
    let file = daemon.file("host.tls");
    daemon.empty_file("x");
    daemon.ok(&format!("host key generate --tls --out {}", file.display()));
    let key = format!("--tls-key {}", file.display());
    let misused = daemon.run(&format!("drive share DIR/x --nvme-tcp HOST:4420 --allow-any-host {key}"));
    assert_eq!(
        (misused.code, misused.err.as_str()),
        (2, "purlin: a secret or key is for one host: name it with --host\n")
    );
    daemon.ok(&format!("drive share DIR/x --nvme-tcp HOST:4420 --host {host} {key} --dry-run"));
    assert!(daemon.ok("drive shares").starts_with("no shared drives"));
    let shared = daemon.ok(&format!("drive share DIR/x --nvme-tcp HOST:4420 --host {host} {key}"));
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
    let file = daemon.file("none.key");
    std::fs::write(&file, "DHHC-1:00:ia7zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:").expect("it is writable");
    let said = misused(&format!("{set} --dhchap-secret {}", file.display()));
    assert!(
        said.contains("holds no secret of an NVMe host: its checksum is wrong") && !said.contains("ia7z"),
        "{said}"
    );
}
