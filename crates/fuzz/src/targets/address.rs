//! Drives, addresses, names and UUIDs as users write them.

use api::{DriveSpec, Level, NbdAddress, VolumeName};
use format::{Catalogue, ExportKind, ExportRecord, Uuid};

use super::samples;
use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "address",
    checks: "drives, addresses, names, levels, identities: what is accepted reads back, and every layer accepts it",
    run,
    seeds: || {
        let texts = [
            "mem:a:1GiB",
            "mem:fast.1_x-y",
            "/dev/disk/by-id/nvme-x",
            "unix:/run/db.sock",
            "127.0.0.1:10809",
            "[::1]:10809",
            "host.example:1",
            "tank/db",
            "raid-tp",
            "N+M",
            "00112233-4455-6677-8899-aabbccddeeff",
        ];
        texts.iter().enumerate().map(|(n, text)| Seed::new(format!("text-{n}"), *text)).collect()
    },
    stored: Vec::new,
    dictionary: &[
        b"mem:", b"unix:", b":65535", b":+1", b":00080", b"[", b"]", b"..", b"/", b"KiB", b"raid", b"\0", b"\x1B",
    ],
    input_bytes_max: 160,
    memory: Memory { base_bytes: 16 << 10, per_input_byte: 64 },
};

fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    name(&text);
    drive(&text);
    address(&text);
    level(&text);
    if let Ok(uuid) = text.parse::<Uuid>() {
        assert_eq!(uuid.to_string(), text.to_ascii_lowercase());
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
    }
}

fn printable(error: &impl ToString) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.chars().any(char::is_control), "a refusal moves a cursor: {text:?}");
}

fn name(text: &str) {
    let allowed = api::check_name("group", text);
    // The daemon checks names by one rule, and the format by the other.
    assert_eq!(allowed.is_ok(), format::check_name(text).is_ok(), "{text:?}");
    if let Err(error) = allowed {
        printable(&error);
    }
    match text.parse::<VolumeName>() {
        Ok(name) => {
            assert_eq!(name.to_string(), *text);
            assert!(format::check_name(&name.group).is_ok() && format::check_name(&name.volume).is_ok());
        }
        Err(error) => printable(&error),
    }
}

fn drive(text: &str) {
    match text.parse::<DriveSpec>() {
        Ok(drive) => {
            assert_eq!(drive.to_string().parse::<DriveSpec>().as_ref(), Ok(&drive));
            assert!(!drive.name().chars().any(char::is_control));
            // The name alone denotes the same drive.
            assert_eq!(drive.name().parse::<DriveSpec>().map(|named| named.name()), Ok(drive.name()));
            if let DriveSpec::Memory { name, size_bytes: Some(size_bytes) } = drive
                && size_bytes > 0
                && size_bytes.is_multiple_of(4096)
            {
                let wanted = runtime::DriveSpec::Memory { name: name.clone(), size_bytes };
                assert_eq!(
                    format!("mem:{name}:{size_bytes}").parse(),
                    Ok(wanted),
                    "the runtime opens what the API takes"
                );
            }
        }
        Err(error) => printable(&error),
    }
    match text.parse::<runtime::DriveSpec>() {
        Ok(drive) => assert_eq!(drive.to_string().parse(), Ok(drive)),
        Err(error) => printable(&error),
    }
}

fn address(text: &str) {
    let address = match text.parse::<NbdAddress>() {
        Ok(address) => address,
        Err(error) => return printable(&error),
    };
    let shown = address.to_string();
    assert_eq!(shown.parse::<NbdAddress>().as_ref(), Ok(&address));
    if let NbdAddress::Tcp { host, port } = &address {
        assert!(*port > 0 && !host.is_empty());
        assert_eq!(shown, text, "one place has one notation, so that two exports at one place are noticed");
    }
    // The catalogue accepts every address that the API accepts, in either notation, because it is
    // written without another check.
    for address in [text.to_owned(), shown] {
        let kind = ExportKind::Nbd { address, read_only: false, tls: None };
        let catalogue = samples::catalogue();
        let catalogue = Catalogue { exports: vec![ExportRecord { id: 5, volume: 1, kind }], ..catalogue };
        assert_eq!(catalogue.check(u64::MAX), Ok(()));
    }
}

fn level(text: &str) {
    match text.parse::<Level>() {
        Ok(level) => {
            assert_eq!(level.to_string().parse(), Ok(level));
            assert!(level.as_str().parse::<format::Level>().is_ok(), "the format has every level of the API");
        }
        Err(error) => printable(&error),
    }
    if let Ok(level) = text.parse::<format::Level>() {
        assert_eq!(level.name().parse(), Ok(level));
        assert!(text.parse::<Level>().is_ok(), "the API has every level of the format, by every name");
    }
}
