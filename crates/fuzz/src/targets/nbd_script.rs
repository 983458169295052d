//! NBD connections as scripts: an input selects the messages of a client, so that most of them are
//! well formed.

use nbd::client;
use nbd::wire::{cmd, info, opt};

use super::connection::{self, DISK_BYTES, Way};
use crate::target::{Memory, Seed, Target};

/// Most messages of one connection.
const MESSAGES_MAX: usize = 64;

pub(super) const TARGET: Target = Target {
    name: "nbd-script",
    checks: "well-formed NBD connections of up to 64 messages: the same promises as nbd-stream, deeper inside",
    run,
    seeds: || {
        vec![
            Seed::new("options", [0, 1, 3, 4, 0, 1, 1, 2, 2, 1, 0, 2, 1, 0, 1, 5].as_slice()),
            Seed::new(
                "session",
                [4, 9, 3, 2, 1, 0, 1, 1, 0, 7, 8, 1, 2, 3, 4, 9, 1, 0, 200, 3, 10, 1, 7, 1, 9, 9, 11, 12].as_slice(),
            ),
            // Ranges just past the end of the disk, and past the largest number: read, trim, zero,
            // status.
            Seed::new(
                "edges",
                [0, 1, 3, 1, 0, 0, 8, 1, 2, 9, 0, 200, 8, 1, 3, 5, 0, 9, 10, 0, 4, 1, 3, 5, 0, 9].as_slice(),
            ),
            Seed::new(
                "writes",
                [5, 0, 1, 1, 0, 7, 9, 1, 0, 255, 11, 9, 2, 0, 90, 9, 9, 3, 255, 3, 1, 14, 3, 9, 1].as_slice(),
            ),
        ]
    },
    stored: Vec::new,
    dictionary: &[&[3], &[1, 1, 0, 7], &[9, 0, 0, 1, 1], &[2, 1, 0, 1]],
    input_bytes_max: 1024,
    // The stream that the script makes, with writes of up to 127 KiB.
    memory: Memory { base_bytes: 64 << 20, per_input_byte: 0 },
};

/// Takes numbers off the front; zeroes when nothing is left.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u64 {
        // Small, near the end of the disk, near the largest number, or anything.
        let (form, value) = (self.byte(), u64::from(self.byte()));
        match form % 5 {
            0 => value,
            1 => value * 512,
            2 => (DISK_BYTES + 16).wrapping_sub(value),
            3 => u64::MAX - value,
            _ => value << (form / 5),
        }
    }

    fn name(&mut self) -> &'static str {
        ["disk", "", "image", "leaving", "barred", "nothing", "a\0b"][usize::from(self.byte()) % 7]
    }

    fn queries(&mut self) -> Vec<&'static str> {
        const ALL: [&str; 6] = ["base:allocation", "base:", "qemu:dirty-bitmap:x", "base", "", "base:allocation:x"];
        (0..self.byte() % 5).map(|_| ALL[usize::from(self.byte()) % ALL.len()]).collect()
    }

    fn wanted(&mut self) -> Vec<u16> {
        let bits = self.byte();
        let all = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, info::EXPORT, 99];
        all.into_iter().enumerate().filter(|(bit, _)| bits & 1 << bit != 0).map(|(_, kind)| kind).collect()
    }

    fn message(&mut self) -> Vec<u8> {
        match self.byte() % 16 {
            0 => client::info(self.name(), &self.wanted()),
            1 => client::go(self.name(), &self.wanted()),
            2 => client::meta_context(self.byte() % 2 == 1, self.name(), &self.queries()),
            3 => client::option(opt::STRUCTURED_REPLY, &[]),
            4 => client::option(opt::LIST, &[]),
            5 => client::option(opt::ABORT, &[]),
            6 => client::option(opt::STARTTLS, &[]),
            7 => client::option(opt::EXPORT_NAME, self.name().as_bytes()),
            8 => client::read(self.byte().into(), self.number(), self.number() as u32),
            9 => {
                let (cookie, offset, len) =
                    (self.byte(), self.number(), usize::from(self.byte()) << (self.byte() % 10));
                client::write(cookie.into(), offset, &vec![cookie; len], self.byte().into())
            }
            10 => {
                let (flags, command) = (u16::from(self.byte()), u16::from(self.byte() % 10));
                client::request(flags, command, self.byte().into(), self.number(), self.number() as u32)
            }
            11 => client::flush(self.byte().into()),
            12 => client::disconnect(),
            13 => client::option(u32::from(self.byte()) % 16, &vec![1; usize::from(self.byte()) << (self.byte() % 9)]),
            14 => {
                client::request(self.byte().into(), cmd::WRITE, self.byte().into(), self.number(), self.number() as u32)
            }
            _ => (0..self.byte() % 40).map(|_| self.byte()).collect(),
        }
    }
}

/// `[mode, pieces, message*]`.
fn run(input: &[u8]) {
    let mut script = Script(input);
    let (mode, pieces) = (script.byte(), script.byte());
    let mut stream = client::flags(mode & 8 == 0, mode & 16 == 0);
    for _ in 0..MESSAGES_MAX {
        if script.0.is_empty() {
            break;
        }
        stream.extend(script.message());
    }
    connection::check(&stream, Way { tls: connection::policy(mode), pieces: pieces.max(1), direct: mode & 4 != 0 });
}
