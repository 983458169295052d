//! Keys of TLS, compared with what others make of them.

use nvme::Nqn;
use nvme::auth::Hash;
use nvme::tls::{TlsIdentity, TlsKey, TlsKeyError};
use proptest::prelude::*;

/// The key of the specification's example, for SHA-256.
const KEY_32: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
/// The same, and its last 16 bytes again: that of the tests of libnvme, for SHA-384.
const KEY_48: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn nqn(text: &str) -> Nqn {
    text.parse().unwrap()
}

fn host() -> Nqn {
    nqn("nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
}

fn subsystem() -> Nqn {
    nqn("nqn.2014-08.org.nvmexpress:uuid:36ebf5a9-1df9-47b3-a6d0-e9ba32e428a2")
}

/// Identity and secret of version 1 and of version 0.
fn made(key: &str) -> Vec<(String, String)> {
    let key: TlsKey = key.parse().unwrap();
    let psks = key.psks(&host(), &subsystem());
    psks.iter().map(|psk| (psk.identity.text(), hex(psk.secret()))).collect()
}

/// Computed with OpenSSL 3.0: `openssl kdf ... HKDF` to extract, `openssl kdf ... TLS13-KDF` to
/// expand a label, `openssl dgst -mac HMAC` for the digest. The same steps give the identities in
/// the tests of libnvme for the names that those have.
#[test]
fn a_key_becomes_what_openssl_makes_of_it() {
    let names = format!("{} {}", host(), subsystem());
    assert_eq!(
        made(KEY_32),
        [
            (
                format!("NVMe1R01 {names} E7SfPmB1H5RQCPDO/jPElNLoNkv7agzvJauAf6yCO9E="),
                "5a21fd02f19a9eaec7b166edabff907304b7625b7927d7398f9d654dff4087f7".to_owned()
            ),
            (
                format!("NVMe0R01 {names}"),
                "8e981666c96a88ef69f6e6a0460ff77ba9039e3d38cbdeee264c4de09d75d246".to_owned()
            ),
        ]
    );
    assert_eq!(
        made(KEY_48),
        [
            (
                format!("NVMe1R02 {names} VBVoKmkv4uYslaZD4DgAzhaFB3IRHvt+41ckH4rG0i3lgYK4XjkIjIED+k5sCf9u"),
                "c93e6ca8ea4b0ec73d66f852fb33c6ba40543dc5bae088408968ffcca01e1eb763d32c3325aaa76747ec1fef8f85d4d9"
                    .to_owned()
            ),
            (
                format!("NVMe0R02 {names}"),
                "051e9924174204ffcd2c29216827b8714da37a8734e483aff6ba9d821371a91f4c1536cf74514848c7a19d478a627af1"
                    .to_owned()
            ),
        ]
    );
}

/// Computed with Python's `hmac`; the same steps give the identities in the tests of libnvme for
/// the names that those have.
#[test]
fn an_old_libnvme_derives_otherwise_and_both_are_known() {
    let names = format!("{} {}", host(), subsystem());
    let cases = [
        (
            KEY_32,
            format!("NVMe1R01 {names} 784yr0+Smfy2PtrzNKX2MKuuRLLE5iehfelFUZozXoM="),
            "c730c74e327cc78140397f570a5613d8437bbec49a56e4b9cd9e889325b65f0c",
        ),
        (
            KEY_48,
            format!("NVMe1R02 {names} bzy8LaZWQ5y/SB0yDkTqdOG0TkI8FS9BtYEJv6vItoqZ27VBHJLjI4C2IohWRnuv"),
            "6ed253fdbaee15d85a5535fadeecb9057d6626af6e1525fa60319596b6df1864d3ae9d7b7c824cd5dcd088c68491c8f4",
        ),
    ];
    for (text, identity, secret) in cases {
        let key: TlsKey = text.parse().unwrap();
        let offered = key.offered(&host(), &subsystem());
        let versions: Vec<bool> = offered.iter().map(|psk| psk.identity.digest.is_some()).collect();
        assert_eq!(versions, [true, true, false]);
        assert_eq!((offered[1].identity.text(), hex(offered[1].secret())), (identity, secret.to_owned()));
        // The retained key stands for it, by this name alone.
        let kept: TlsKey = key.of_old_libnvme().retained(&host()).text().parse().unwrap();
        let psks = kept.of_old_libnvme().psks(&host(), &subsystem());
        assert!(psks.len() == 1 && psks[0].secret() == offered[1].secret() && psks[0].identity == offered[1].identity);
    }
    // One that is not transformed for the host has the same name for both: it is the
    // specification's.
    let plain: TlsKey = KEY_32.replace(":01:", ":00:").parse().unwrap();
    assert_eq!(plain.offered(&host(), &subsystem()).len(), 2);
}

/// Each host has a key of its own of the same text, unless that is forbidden, and each subsystem
/// another handshake.
#[test]
fn names_are_part_of_what_is_derived() {
    let secrets = |key: &str, host: &Nqn, subsystem: &Nqn| -> Vec<Vec<u8>> {
        let key: TlsKey = key.parse().unwrap();
        key.psks(host, subsystem).iter().map(|psk| psk.secret().to_vec()).collect()
    };
    let other = nqn("nqn.2026-11.com.example:other");
    let plain = KEY_32.replace(":01:", ":00:");
    let all = [
        secrets(KEY_32, &host(), &subsystem()),
        secrets(KEY_32, &other, &subsystem()),
        secrets(KEY_32, &host(), &other),
        secrets(&plain, &host(), &subsystem()),
    ]
    .concat();
    for (at, secret) in all.iter().enumerate() {
        assert!(!all[..at].contains(secret), "{at}");
    }
}

/// A retained key does for its host what the key does, and nothing for another host.
#[test]
fn a_retained_key_stands_for_the_configured_one() {
    let other = nqn("nqn.2026-11.com.example:other");
    for text in [KEY_32, KEY_48] {
        let key: TlsKey = text.parse().unwrap();
        let retained: TlsKey = key.retained(&host()).text().parse().unwrap();
        assert!(retained.text().starts_with("NVMeTLSkey-1:00:") && retained.hash() == key.hash());
        let made = |key: &TlsKey, host: &Nqn| key.psks(host, &subsystem())[0].secret().to_vec();
        assert_eq!(made(&retained, &host()), made(&key, &host()));
        assert_ne!(made(&retained, &other), made(&key, &other));
    }
}

#[test]
fn names_that_are_too_long_for_version_0_have_version_1() {
    let long = nqn(&format!("nqn.2026-11.com.example:{}", "a".repeat(199)));
    let key: TlsKey = KEY_48.parse().unwrap();
    let psks = key.psks(&long, &long);
    assert_eq!(psks.len(), 1);
    assert!(psks[0].identity.digest.is_some());
    assert_eq!(TlsIdentity::parse(psks[0].identity.text().as_bytes()).as_ref(), Some(&psks[0].identity));
}

/// The example of the specification, those of libnvme's tests, and keys that nvme-cli 2.3 has made.
#[test]
fn keys_of_others_are_read() {
    for (text, hash) in [
        (KEY_32, Hash::Sha256),
        (&*KEY_32.replace(":01:", ":00:"), Hash::Sha256),
        (KEY_48, Hash::Sha384),
        (&*KEY_48.replace(":02:", ":00:"), Hash::Sha384),
        ("NVMeTLSkey-1:01:6aJYwcKGhj8GIQsp1X7KRz5a5D1w886Foig46KAOUjaf7xiB:", Hash::Sha256),
        ("NVMeTLSkey-1:02:sNTgIRCPWtC6Khc96pJxhrCK4fLhN4dZFGuWCkrIE5D8ronBse2v0oGQBjku8jMJu2mFeg==:", Hash::Sha384),
    ] {
        let key: TlsKey = text.parse().unwrap();
        assert_eq!((&*key.text().clone(), key.hash()), (&text.to_owned(), hash));
    }
}

#[test]
fn a_key_is_read_as_it_is_printed_and_never_printed_by_accident() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let key = TlsKey::generate(hash, &[0x5A; 64]);
        assert_eq!(key.text().parse::<TlsKey>(), Ok(key.clone()));
        let psks = key.psks(&host(), &subsystem());
        let printed = format!("{key:?}");
        assert_eq!(printed, "TlsKey(..)");
        assert!(psks.iter().all(|psk| !format!("{psk:?}").contains(&hex(psk.secret()))));
    }
}

#[test]
fn what_is_no_key_is_refused() {
    let (head, tail) = KEY_32.split_at(20);
    let short = "NVMeTLSkey-1:01:AAAA:";
    for (text, expected) in [
        ("", TlsKeyError::Form),
        ("NVMeTLSkey-1:01:", TlsKeyError::Form),
        (KEY_32.trim_end_matches(':'), TlsKeyError::Form),
        (&KEY_32.replace("key-1", "key-2"), TlsKeyError::Form),
        (&KEY_32.replace(":01:", ":03:"), TlsKeyError::Hash),
        (&KEY_32.replace(":01:", ":02:"), TlsKeyError::Length),
        (&KEY_48.replace(":02:", ":01:"), TlsKeyError::Length),
        (short, TlsKeyError::Length),
        (&format!("{head}{}", tail.replacen('W', "X", 1)), TlsKeyError::Checksum),
        ("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", TlsKeyError::Form),
    ] {
        assert_eq!(text.parse::<TlsKey>().map(drop), Err(expected), "{text}");
    }
}

#[test]
fn what_is_no_identity_names_nobody() {
    let (host, subsystem) = (host(), subsystem());
    let good = format!("NVMe0R01 {host} {subsystem}");
    let whole = TlsIdentity { host: host.clone(), subsystem: subsystem.clone(), hash: Hash::Sha256, digest: None };
    assert_eq!(TlsIdentity::parse(good.as_bytes()), Some(whole.clone()));
    assert_eq!(TlsIdentity::parse(format!("{good}\0").as_bytes()), Some(whole));
    for bad in [
        "",
        "NVMe0R01",
        &format!("NVMe0R01 {host}"),
        &format!("NVMe0R03 {host} {subsystem}"),
        &format!("NVMe2R01 {host} {subsystem} AAAA"),
        &format!("NVMe0G01 {host} {subsystem}"),
        &format!("NVMe0R01 {host} {subsystem} AAAA"),
        &format!("NVMe1R01 {host} {subsystem}"),
        &format!("NVMe1R01 {host} {subsystem} AAAA"),
        &format!("NVMe0R01  {host} {subsystem}"),
        &format!("NVMe0R01 host {subsystem}"),
        &format!(" {good}"),
    ] {
        assert_eq!(TlsIdentity::parse(bad.as_bytes()), None, "{bad}");
    }
    assert_eq!(TlsIdentity::parse(&[0xFF; 20]), None);
}

proptest! {
    #[test]
    fn any_bytes_are_no_identity_or_one_that_is_written_as_it_was_read(
        head in prop::sample::select(vec!["NVMe0R01 ", "NVMe1R02 ", "NVMe0R02 nqn.2026-11.a nqn.2026-11.b", ""]),
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [head.as_bytes(), &rest].concat();
        if let Some(identity) = TlsIdentity::parse(&bytes) {
            let text = identity.text();
            prop_assert_eq!(text.as_bytes(), bytes.strip_suffix(&[0]).unwrap_or(&bytes));
        }
    }

    #[test]
    fn any_text_is_a_key_or_an_error(text in ".{0,120}") {
        let _ = text.parse::<TlsKey>();
        let _ = format!("NVMeTLSkey-1:{text}:").parse::<TlsKey>();
    }
}
