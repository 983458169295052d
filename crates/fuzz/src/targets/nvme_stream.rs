//! NVMe/TCP connections as a host's bytes.

use nvme::nvm;
use nvme::{Command, Sgl};

use super::nvme_host::Session;
use super::nvme_target::{self, Way};
use crate::target::{Memory, Seed, Target};

/// Bits of the first byte; the two lowest bits are the digests.
const DIRECT: u8 = 1 << 2;
const INITIALIZED: u8 = 1 << 3;
const ADMIN: u8 = 1 << 4;
const IO: u8 = 1 << 5;

pub(super) const TARGET: Target = Target {
    name: "nvme-stream",
    checks: "an NVMe/TCP host's bytes, cut in two ways: the same commands, data and answers, each command in bounds",
    run,
    seeds,
    stored: Vec::new,
    dictionary: &[
        b"\x00\x00\x80\x00\x80\x00\x00\x00",
        b"\x04\x00\x48\x00\x48\x00\x00\x00",
        b"\x04\x00\x48\x48",
        b"\x06\x04\x18\x18",
        b"\x02\x00\x18\x00\x18\x00\x00\x00",
        b"\x7F\x40",
        b"\x02\x40",
        b"\x5A",
        b"nqn.2014-08.org.nvmexpress.discovery",
        b"\xFF\xFF\xFF\xFF",
    ],
    input_bytes_max: 64 << 10,
    // A log page of 1 MiB, twice while it is made; received and sent data, twice.
    memory: Memory { base_bytes: 8 << 20, per_input_byte: 64 },
};

fn seeds() -> Vec<Seed> {
    let seed = |name, mode: u8, session: Session| Seed::new(name, [&[mode, 3], &session.bytes[..]].concat());
    let mut handshake = Session::new(3);
    handshake.connect(0).enable();
    let mut admin = Session::silent(0);
    admin
        .identify(1, 0)
        .identify(2, 0)
        .identify(0, 1)
        .identify(3, 1)
        .log(2, 0, 512)
        .log(0xC, 0, 64)
        .features()
        .events();
    let mut io = Session::silent(0);
    let write = |cid, len| {
        let mut command = Command::new(nvm::WRITE, cid, 1);
        command.set_cdw(12, len / 4096 - 1);
        command.dptr = Sgl::transport(len);
        command
    };
    let mut ranges = Command::new(nvm::DATASET_MANAGEMENT, 5, 1);
    ranges.set_cdw(11, 4);
    ranges.dptr = Sgl::in_capsule(16);
    io.command(write(1, 8192), &[])
        .command(write(2, 20 << 10), &[])
        .data(1, 0, 0, &[1; 4096], false)
        .data(2, 1, 0, &[2; 20 << 10], true)
        .data(1, 0, 4096, &[3; 4096], true)
        .command(ranges, &[0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
        .command(Command::new(nvm::FLUSH, 6, 1), &[]);
    vec![
        seed("handshake", 3, handshake),
        seed("admin", INITIALIZED | ADMIN, admin),
        seed("io", INITIALIZED | IO | DIRECT, io),
    ]
}

/// `[mode, pieces, bytes of the host]`.
fn run(input: &[u8]) {
    let Some((&[mode, pieces], bytes)) = input.split_first_chunk::<2>() else { return };
    let mut session = Session::silent(mode & 3);
    if mode & INITIALIZED != 0 {
        session = Session::new(mode & 3);
        if mode & ADMIN != 0 {
            session.connect(0).enable();
        } else if mode & IO != 0 {
            session.connect(1);
        }
    }
    session.bytes.extend_from_slice(bytes);
    nvme_target::check(&session.bytes, Way { pieces, direct: mode & DIRECT != 0 });
}
