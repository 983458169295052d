//! NBD connections as a client's bytes.

use nbd::client;
use nbd::wire::{cmd, info, opt};

use super::connection::{self, Way};
use crate::target::{Memory, Seed, Target};

/// Bits of the first byte; the two lowest bits are the policy.
const DIRECT: u8 = 1 << 2;
const AFTER_FLAGS: u8 = 1 << 3;
const IN_TRANSMISSION: u8 = 1 << 4;
const STRUCTURED: u8 = 1 << 5;

pub(super) const TARGET: Target = Target {
    name: "nbd-stream",
    checks: "an NBD client's bytes, cut in two ways: the same answers and requests, each request allowed, little output",
    run,
    seeds,
    stored: Vec::new,
    dictionary: &[
        b"IHAVEOPT",
        b"IHAVEOPT\0\0\0\x07\0\0\0\x0A\0\0\0\x04disk\0\0",
        b"IHAVEOPT\0\0\0\x08\0\0\0\0",
        b"IHAVEOPT\0\0\0\x05\0\0\0\0",
        b"IHAVEOPT\0\0\0\x03\0\0\0\0",
        b"IHAVEOPT\0\0\0\x01\0\0\0\x05image",
        b"\x25\x60\x95\x13",
        b"\x25\x60\x95\x13\0\0\0\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x10\0\0\0\0\x20",
        b"base:allocation",
        b"base:",
        b"image",
        b"leaving",
        b"\0\0\x80\0",
        b"\x02\0\0\0",
        b"\x04\0\0\0",
    ],
    input_bytes_max: 64 << 10,
    // Answers to options of 16 bytes that list all exports, twice, in buffers that double.
    memory: Memory { base_bytes: 2 << 20, per_input_byte: 6 * 512 },
};

fn seeds() -> Vec<Seed> {
    let seed = |name, mode: u8, parts: &[Vec<u8>]| Seed::new(name, [&[mode, 3], &parts.concat()[..]].concat());
    let structured = || client::option(opt::STRUCTURED_REPLY, &[]);
    let requests = || {
        vec![
            client::read(1, 4096, 512),
            client::write(2, 0, &[0xAB; 20], 1),
            client::request(0, cmd::WRITE, 3, u64::MAX, 3),
            b"abc".to_vec(),
            client::write(8, 5, &[], 0),
            client::request(8, cmd::BLOCK_STATUS, 4, 0, 1 << 20),
            client::request(2, cmd::WRITE_ZEROES, 5, 4096, 4096),
            client::request(0, cmd::TRIM, 6, 0, u32::MAX),
            client::request(0, cmd::CACHE, 6, 0, 1),
            client::flush(7),
            client::disconnect(),
        ]
    };
    let all = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE];
    vec![
        seed("go", DIRECT, &[client::flags(true, true), structured(), client::go("disk", &all)]),
        seed(
            "haggling",
            AFTER_FLAGS,
            &[
                client::option(opt::LIST, &[]),
                client::info("image", &all),
                client::meta_context(false, "disk", &["base:"]),
                structured(),
                client::meta_context(true, "disk", &["base:allocation", "x:y"]),
                client::option(77, b"unknown"),
                client::option(opt::ABORT, &[]),
            ],
        ),
        seed(
            "oldest",
            0,
            &[client::flags(false, false), client::option(opt::EXPORT_NAME, b"image"), client::read(1, 0, 9)],
        ),
        seed("requests", IN_TRANSMISSION | STRUCTURED, &requests()),
        seed("requests-simple", IN_TRANSMISSION | DIRECT, &requests()),
        seed("long-write", IN_TRANSMISSION | DIRECT, &[client::write(9, 0, &[1; 20_000], 0), client::flush(1)]),
        seed(
            "tls",
            AFTER_FLAGS | 2,
            &[
                client::option(opt::LIST, &[]),
                client::option(opt::STARTTLS, &[]),
                structured(),
                client::go("disk", &[]),
            ],
        ),
    ]
}

fn run(input: &[u8]) {
    let Some((&[mode, pieces], bytes)) = input.split_first_chunk::<2>() else { return };
    let mut stream = Vec::new();
    if mode & (AFTER_FLAGS | IN_TRANSMISSION) != 0 {
        stream.extend(client::flags(true, true));
    }
    let tls = connection::policy(mode);
    if mode & IN_TRANSMISSION != 0 {
        if tls == nbd::TlsPolicy::Required {
            stream.extend(client::option(opt::STARTTLS, &[]));
        }
        if mode & STRUCTURED != 0 {
            stream.extend(client::option(opt::STRUCTURED_REPLY, &[]));
            stream.extend(client::meta_context(true, "disk", &["base:allocation"]));
        }
        stream.extend(client::go("disk", &[]));
    }
    stream.extend_from_slice(bytes);
    connection::check(&stream, Way { tls, pieces, direct: mode & DIRECT != 0 });
}
