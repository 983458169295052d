//! Bytes that are exchanged before an NVMe host has a TLS session.

use std::sync::Arc;

use nvme::Nqn;
use nvme::auth::Hash;
use nvme::tls::{TlsIdentity, TlsKey};
use psk::{Find, Key, Session};

use super::nvme_target::SUBSYSTEM;
use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "nvme-tls",
    checks: "keys and identities of TLS: written as they are read; and a host's handshake, with which nobody gets in without the key",
    run,
    seeds,
    stored: Vec::new,
    dictionary: &[
        b"NVMe0R01 ",
        b"NVMe1R02 ",
        b"nqn.2026-11.",
        b"NVMeTLSkey-1:01:",
        &[0x16, 3, 1],
        &[0x16, 3, 3],
        &[0, 41],
        &[0, 43, 0, 3, 2, 3, 4],
        &[0x13, 1],
        &[0, 0],
    ],
    input_bytes_max: 4096,
    memory: Memory { base_bytes: 256 << 10, per_input_byte: 64 },
};

fn key(seed: u8) -> TlsKey {
    TlsKey::generate(Hash::Sha256, &[seed; 32])
}

/// The keys that both ends derive from a key.
fn made(key: &TlsKey) -> Vec<Key> {
    let subsystem = SUBSYSTEM.parse().expect("a name");
    let psks = key.psks(&Nqn::of_uuid(&[7; 16]), &subsystem);
    let made = psks.iter().map(|psk| Key {
        identity: psk.identity.text().into_bytes(),
        secret: psk.secret().to_vec().into(),
        hash: psk::Hash::Sha256,
    });
    made.collect()
}

/// Hellos of a host that knows the names but has another secret, and of a stranger; identities, a
/// key.
fn seeds() -> Vec<Seed> {
    let hello = |keys: &[Key]| {
        let mut session = Session::client(keys).expect("TLS is there");
        session.shake(&[]).expect("it begins");
        session.to_send()
    };
    let keys = made(&key(1));
    // The names that the server knows, with another secret.
    let wrong = keys.iter().map(|key| Key { secret: vec![9; 32].into(), ..key.clone() }).collect::<Vec<_>>();
    vec![
        Seed::new("hello", hello(&wrong)),
        Seed::new("hello-of-a-stranger", hello(&made(&key(2)))),
        Seed::new("identity-0", keys[1].identity.clone()),
        Seed::new("identity-1", keys[0].identity.clone()),
        Seed::new("key", key(3).text().as_bytes()),
    ]
}

fn run(input: &[u8]) {
    if let Some(identity) = TlsIdentity::parse(input) {
        let text = identity.text();
        assert_eq!(text.as_bytes(), input.strip_suffix(&[0]).unwrap_or(input), "an identity is written as it is read");
    }
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(key) = text.parse::<TlsKey>()
    {
        assert_eq!(*key.text(), text, "a key is printed as it is read");
    }
    let keys = made(&key(1));
    let find: Find = Arc::new(move |identity| keys.iter().find(|key| key.identity == identity).cloned());
    let mut session = Session::server(find).expect("TLS is there");
    let mut rest = input;
    while let Ok((taken, is_done)) = session.shake(rest) {
        assert!(!is_done && session.identity().is_none(), "nobody gets in without the key");
        rest = &rest[taken..];
        if rest.is_empty() || taken == 0 {
            break;
        }
    }
    // The answer is a few messages, even if the input is long.
    assert!(session.to_send().len() < 4096);
}
