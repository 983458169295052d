//! `purlin nvme` against a real target.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

#[path = "../../../initiator/tests/suite/common/mod.rs"]
mod common;
mod connect;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use cli::nvme::reports::{NvmeBench, NvmeDiscovery};
use common::proxy::Proxy;
use common::{MIB, Target, Volume, eventually, offer, only, subsystem};

/// A folder for a user's files.
struct Home(PathBuf);

impl Home {
    fn new() -> Home {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("purlin-nvme-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Home(folder)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_purlin"));
        command.args(line.split_whitespace()).env("XDG_CONFIG_HOME", &self.0).env("XDG_RUNTIME_DIR", &self.0);
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// The output of a command that succeeds and prints nothing on stderr.
    fn ok(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        let said = String::from_utf8(stderr).unwrap();
        assert!(status.success() && said.is_empty(), "{line}: {said}");
        String::from_utf8(stdout).unwrap()
    }

    /// The error message of a command that fails.
    fn fails(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        assert!(!status.success() && stdout.is_empty(), "{line}");
        String::from_utf8(stderr).unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Host 1 of the tests' target.
const HOST: &str = "--hostnqn nqn.2026-11.com.example:host-1";

#[test]
fn discovery_prints_what_the_host_may_use() {
    let (home, (target, _volume, _)) = (Home::new(), Target::disk(MIB));
    let table = home.ok(&format!("nvme discover {} {HOST}", target.address));
    let nqn = subsystem();
    assert!(table.contains("KIND") && table.contains(nqn.as_str()), "{table}");
    let by_name = format!("localhost:{}", target.address.port());
    let json = home.ok(&format!("nvme discover {by_name} {HOST} --output json"));
    let found: NvmeDiscovery = serde_json::from_str(&json).unwrap();
    let offered = found.subsystems.iter().find(|subsystem| subsystem.kind == "nvme").unwrap();
    assert_eq!((offered.nqn.as_str(), offered.transport.as_str()), (nqn.as_str(), "tcp"));
    assert_eq!(format!("{}:{}", offered.address, offered.port), target.address.to_string());
    assert_eq!(found.address, by_name);
    let said = home.fails(&format!("nvme discover nobody.invalid {HOST}"));
    assert!(said.contains("cannot reach nobody.invalid:4420"), "{said}");
}

#[test]
fn services_are_either_asked_at_an_address_or_listened_for() {
    let home = Home::new();
    for (line, said) in [
        ("nvme discover", "the following required arguments were not provided"),
        ("nvme discover --mdns 10.0.0.5", "cannot be used with"),
        ("nvme discover --mdns --hostnqn nqn.2026-11.com.example:host-1", "cannot be used with"),
        ("nvme discover 10.0.0.5 --seconds 5", "cannot be used with"),
    ] {
        let Output { status, stderr, .. } = home.run(line);
        let stderr = String::from_utf8(stderr).unwrap();
        assert!(status.code() == Some(2) && stderr.contains(said), "{line}: {stderr}");
    }
}

#[test]
fn referrals_are_followed_once_and_those_that_lead_nowhere_are_told() {
    let (home, (target, _volume, _)) = (Home::new(), Target::disk(MIB));
    let (other, _other_volume, _) = Target::disk(MIB);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    target.portal.refer([other.address, closed].into());
    // Referrals in a circle, and to itself.
    other.portal.refer([target.address, other.address].into());
    let json = home.ok(&format!("nvme discover {} {HOST} --output json", target.address));
    let found: NvmeDiscovery = serde_json::from_str(&json).unwrap();
    let offered = found.subsystems.iter().filter(|subsystem| subsystem.kind == "nvme");
    let offered: Vec<(String, String)> =
        offered.map(|it| (it.found_at.clone(), format!("{}:{}", it.address, it.port))).collect();
    let at = [target.address.to_string(), other.address.to_string()];
    assert_eq!(offered, at.clone().map(|at| (at.clone(), at)));
    let unreachable: Vec<&str> = found.unreachable.iter().map(|service| service.address.as_str()).collect();
    assert_eq!(unreachable, [closed.to_string()]);
    let table = home.ok(&format!("nvme discover {} {HOST}", target.address));
    assert!(table.contains("referral") && table.contains(&format!("not asked: cannot reach {closed}")), "{table}");
    let alone = home.ok(&format!("nvme discover {} {HOST} --no-follow --output json", target.address));
    let alone: NvmeDiscovery = serde_json::from_str(&alone).unwrap();
    let kinds: Vec<&str> = alone.subsystems.iter().map(|subsystem| subsystem.kind.as_str()).collect();
    assert_eq!(kinds, ["discovery", "nvme", "referral", "referral"]);
    assert!(alone.unreachable.is_empty());
}

#[test]
fn a_host_without_a_name_is_named_once() {
    if std::path::Path::new("/etc/nvme/hostnqn").exists() {
        return;
    }
    let (home, (target, _volume, _)) = (Home::new(), Target::disk(MIB));
    let name = || {
        let json = home.ok(&format!("nvme discover {} -o json", target.address));
        serde_json::from_str::<NvmeDiscovery>(&json).unwrap().host_nqn
    };
    let first = name();
    assert!(first.starts_with("nqn.2014-08.org.nvmexpress:uuid:"), "{first}");
    assert_eq!(name(), first);
}

#[test]
fn a_benchmark_counts_what_it_did() {
    let (home, (target, _volume, state)) = (Home::new(), Target::disk(64 * MIB));
    let at = format!("{} {} {HOST} --seconds 1 --depth 8", target.address, subsystem());
    let json = home.ok(&format!("nvme bench {at} --output json"));
    let found: NvmeBench = serde_json::from_str(&json).unwrap();
    assert_eq!((found.pattern.as_str(), found.block_size_bytes, found.depth_count), ("randread", 4096, 8));
    assert_eq!(found.request_count, state.counters().requests[export::Kind::Read as usize]);
    assert!(found.request_count > 100 && found.latency.p50_us > 0.0 && found.latency.p50_us <= found.latency.max_us);
    let writes = home.ok(&format!("nvme bench {at} --write --block-size 64k --queues 2 --data-digest --destroys-data"));
    assert!(writes.contains("write of 64KiB, 8 in flight, 2 queues"), "{writes}");
    let written = state.counters().written_bytes;
    assert!(written > 0 && written.is_multiple_of(65_536), "{written}");
}

#[test]
fn a_benchmark_over_two_paths_goes_on_when_one_is_cut() {
    let home = Home::new();
    let volume = Volume::new(64 * MIB);
    let targets = [Target::start(1, 64), Target::start(1, 64)];
    let states = [0, 1].map(|index| offer(&targets[index], 1, 1, &volume, 4096));
    let reads = || [0, 1].map(|index: usize| states[index].counters().requests[export::Kind::Read as usize]);
    let proxies = [0, 1].map(|index| Proxy::to(targets[index].address));
    let at = format!("{},{} {}", proxies[0].address, proxies[1].address, subsystem());
    let mut bench = home.command(&format!("nvme bench {at} {HOST} --seconds 5 --depth 8 --output json"));
    std::thread::scope(|scope| {
        let bench = scope.spawn(move || bench.output().unwrap());
        eventually("both are used", || reads().iter().all(|count| *count > 100));
        proxies[0].refuse(true);
        proxies[0].cut();
        let left = reads()[1];
        eventually("the other goes on", || reads()[1] > left + 100);
        let Output { status, stdout, stderr } = bench.join().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        let found: NvmeBench = serde_json::from_slice(&stdout).unwrap();
        assert_eq!(found.addresses, [proxies[0].address.to_string(), proxies[1].address.to_string()]);
        // Some reads on the paths that were cut were served twice.
        assert!(found.request_count <= reads().iter().sum::<u64>(), "{} of {:?}", found.request_count, reads());
        assert!(found.request_count > left, "{}", found.request_count);
    });
}

#[test]
fn nothing_is_overwritten_without_being_asked_for() {
    let (home, (target, _volume, state)) = (Home::new(), Target::disk(MIB));
    let said = home.fails(&format!("nvme bench {} {} {HOST} --randwrite", target.address, subsystem()));
    assert!(said.contains("this overwrites namespace 1 of") && said.contains("--yes"), "{said}");
    assert_eq!(state.counters().written_bytes, 0);
    let said = home.fails(&format!("nvme bench {} {} {HOST} --block-size 1000", target.address, subsystem()));
    assert!(said.contains("--block-size"), "{said}");
}

#[test]
fn whoever_is_not_let_in_is_told_why_and_what_to_do() {
    let home = Home::new();
    let target = Target::start(1, 64);
    target.offer(1, Volume::new(MIB), only(&[2]), false);
    let at = target.address;
    let nothing = home.ok(&format!("nvme discover {at} {HOST}"));
    assert!(nothing.contains("offers nothing to nqn.2026-11.com.example:host-1"), "{nothing}");
    let refused = home.fails(&format!("nvme bench {at} {} {HOST}", subsystem()));
    assert!(refused.contains("Connect Invalid Host") && refused.contains("host-1: allow it there"), "{refused}");
    let unknown = home.fails(&format!("nvme bench {at} nqn.2026-11.com.example:none {HOST}"));
    assert!(unknown.contains(&format!("`purlin nvme discover {at}` lists")), "{unknown}");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unreachable = home.fails(&format!("nvme discover {closed} {HOST}"));
    assert!(unreachable.contains(&format!("cannot reach {closed}: ")), "{unreachable}");
    for wrong in
        ["nvme discover a:b", "nvme bench 127.0.0.1 no-nqn", "nvme bench 127.0.0.1 nqn.2026-11.a:b --read --write"]
    {
        assert_eq!(home.run(wrong).status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn a_target_that_wants_tls_is_reached_with_the_key_and_not_without() {
    let (home, (target, _volume, state)) = (Home::new(), Target::disk(64 * MIB));
    let key = |name: &str, hash: &str| {
        let file = home.0.join(name);
        home.ok(&format!("host key generate --tls --hash {hash} --out {}", file.display()));
        (file.display().to_string(), std::fs::read_to_string(&file).unwrap())
    };
    let (own, text) = key("own", "sha384");
    let (other, _) = key("other", "sha384");
    target.secrets.set_tls("nqn.2026-11.com.example:host-1", Some(vec![text.trim().parse().unwrap()]));
    let at = format!("{} {} {HOST}", target.address, subsystem());

    let refused = home.fails(&format!("nvme bench {at}"));
    assert!(refused.contains("or use TLS if it has to (--tls --tls-key FILE)"), "{refused}");
    let refused = home.fails(&format!("nvme bench {at} --tls --tls-key {other}"));
    assert!(refused.contains("the target ended the handshake: it has another key of this host"), "{refused}");
    let measured = home.ok(&format!("nvme bench {at} --seconds 1 --queues 2 --tls --tls-key {own} --output json"));
    let found: NvmeBench = serde_json::from_str(&measured).unwrap();
    assert_eq!(found.request_count, state.counters().requests[export::Kind::Read as usize]);
    for secure in ["", &format!("--tls --tls-key {own}")] {
        let table = home.ok(&format!("nvme discover {} {HOST} {secure}", target.address));
        assert!(table.lines().any(|line| line.contains("nvme") && line.contains("yes")), "{table}");
    }
    // Each option needs the other, and other users could read a key on the command line.
    for wrong in ["--tls".to_owned(), format!("--tls-key {own}"), format!("--tls --tls-key {}", text.trim())] {
        assert_eq!(home.run(&format!("nvme bench {at} {wrong}")).status.code(), Some(2), "{wrong}");
    }
    assert_eq!(home.run("host key generate --tls --hash sha512").status.code(), Some(2));
}
