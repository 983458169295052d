//! Instructions for connecting hosts to an export over NVMe/TCP: for each host the options that it
//! needs besides its name.

use std::collections::BTreeSet;

use api::Export;

/// How a host authenticates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// By its name alone.
    Name,
    /// By its secret (DH-HMAC-CHAP).
    Secret,
    /// By its secret, and the target authenticates by another one.
    Mutual,
}

/// The target's requirements for a host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Needs {
    tls: bool,
    proof: Proof,
}

const NOTHING: Needs = Needs { tls: false, proof: Proof::Name };

impl Needs {
    fn of(export: &Export, host: &String) -> Needs {
        let proof = match (export.secret_hosts.contains(host), export.mutual_hosts.contains(host)) {
            (false, _) => Proof::Name,
            (true, false) => Proof::Secret,
            (true, true) => Proof::Mutual,
        };
        Needs { tls: export.tls_hosts.contains(host), proof }
    }

    fn label(self) -> &'static str {
        match (self.tls, self.proof) {
            (false, Proof::Name) => "on Linux",
            (false, Proof::Secret) => "with a secret",
            (false, Proof::Mutual) => "with secrets",
            (true, Proof::Name) => "with TLS",
            (true, Proof::Secret) => "with TLS, a secret",
            (true, Proof::Mutual) => "with TLS, secrets",
        }
    }

    /// Options of `nvme connect`.
    fn options(self) -> String {
        let secrets = match self.proof {
            Proof::Name => "",
            Proof::Secret => " --dhchap-secret HOST-SECRET",
            Proof::Mutual => " --dhchap-secret HOST-SECRET --dhchap-ctrl-secret TARGET-SECRET",
        };
        format!("{}{secrets}", if self.tls { " --tls" } else { "" })
    }
}

/// The hosts that have to use TLS or to authenticate.
pub fn who(export: &Export) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if !export.tls_hosts.is_empty() {
        rows.push(("with TLS only", export.tls_hosts.join(", ")));
    }
    if !export.secret_hosts.is_empty() {
        let way = |host: &String| {
            let both = if export.mutual_hosts.contains(host) { " (both ways)" } else { "" };
            format!("{host}{both}")
        };
        rows.push(("authenticate", export.secret_hosts.iter().map(way).collect::<Vec<_>>().join(", ")));
    }
    rows
}

/// The commands for hosts.
pub fn commands(export: &Export, nqn: &str, nsid: u32) -> Vec<(&'static str, String)> {
    let (host, port) = export.address.rsplit_once(':').unwrap_or((&export.address, "4420"));
    let host = host.trim_matches(['[', ']']);
    // The export listens at every address of this machine. It is unknown which of them a host
    // reaches.
    let host = if matches!(host, "0.0.0.0" | "::") { "ADDRESS" } else { host };
    let named = export.hosts.iter().flatten().chain(&export.tls_hosts).chain(&export.secret_hosts);
    let mut all: BTreeSet<Needs> = named.map(|host| Needs::of(export, host)).collect();
    if export.hosts.is_none() {
        all.insert(NOTHING);
    }
    let (plain, tls) = (all.contains(&NOTHING), all.iter().any(|needs| needs.tls));
    let proof = all.iter().map(|needs| needs.proof).max().unwrap_or(Proof::Name);
    let mut rows = Vec::new();
    for needs in &all {
        let connect = format!("nvme connect -t tcp -a {host} -s {port} -n {nqn}{}", needs.options());
        if needs.tls {
            let insert = format!("nvme check-tls-key --insert --subsysnqn {nqn} --keydata TLS-KEY --identity 1");
            rows.extend([(needs.label(), insert), ("", connect)]);
        } else {
            rows.push((needs.label(), connect));
        }
    }
    let esxi = "hosts that have to use TLS or to authenticate cannot: vSphere 8.0 has an option for neither";
    let windows = format!("in the initiator: target {host}, port {port}, subsystem NQN {nqn}");
    if plain {
        rows.push(("on ESXi", format!("esxcli nvme fabrics connect -a vmhbaN -i {host} -p {port} -s {nqn}")));
    }
    if tls || proof > Proof::Name {
        rows.push((if plain { "" } else { "on ESXi" }, esxi.to_owned()));
    }
    rows.push(("on Windows", windows));
    if proof > Proof::Name {
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let purlin = format!("purlin nvme connect {bracketed}:{port} {nqn} --nsid {nsid} --dhchap-secret FILE");
        rows.push(("", format!("hosts that have to authenticate: an initiator that can, such as {purlin}")));
    }
    if tls {
        rows.push((
            "",
            "hosts that have to use TLS: an initiator that can; purlin nvme connect can on Linux only".into(),
        ));
    }
    rows.extend(meanings(host, tls, proof));
    rows
}

/// The meanings of the words in capitals.
fn meanings(host: &str, tls: bool, proof: Proof) -> Vec<(&'static str, String)> {
    let given = |option: &str| format!("what is in the file that `purlin host key set` took with {option}");
    let mut rows = Vec::new();
    if host == "ADDRESS" {
        rows.push(("ADDRESS", "any address of the daemon's machine that the host reaches".to_owned()));
    }
    if tls {
        rows.push(("TLS-KEY", format!("{}; Linux needs tlshd running, too", given("--tls-key"))));
    }
    if proof > Proof::Name {
        rows.push(("HOST-SECRET", given("--dhchap-secret")));
    }
    if proof > Proof::Secret {
        let own = given("--dhchap-ctrl-secret");
        rows.push(("TARGET-SECRET", format!("{own}; without it the target need not prove itself")));
    }
    rows
}
