//! Command lines of `purlin`.

use clap::Parser;
use cli::Line;

use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "arguments",
    checks: "any command line: understood, or refused with exit status 2 and a sentence, or help with 0",
    run,
    seeds: || {
        let lines = [
            "status --once --output json",
            "group create tank --level raid6 --drives /a,/b,mem:c:1GiB --spares /d --strip 64KiB --create-files 1GiB",
            "group create tank --level nm --parity 4 --copies 2 --sets 2 --drives a --wipe-foreign --dry-run",
            "group assemble /a /b --dry-run -y",
            "group scrub tank --repair --wait",
            "group delete tank --socket /run/x",
            "volume create tank/db --size 1.5TiB",
            "volume resize tank/db --size 4096 -o table",
            "export create tank/db --nbd unix:/a --tls-cert c --tls-key k --tls-ca a --read-only",
            "export delete 1",
            "drive replace tank 2 --with /x --create-files 1G",
            "spare remove tank mem:a",
            "help group create",
            "completions zsh",
            "group set tank --client-p99 5ms --retire-slow on --scrub-every off --dry-run",
        ];
        lines.iter().enumerate().map(|(n, line)| Seed::new(format!("line-{n:02}"), line.replace(' ', "\n"))).collect()
    },
    stored: Vec::new,
    dictionary: &[
        b"\n--level\n",
        b"\n--drives\n",
        b"\n--size\n",
        b"\n--client-p99\n",
        b"\n--dry-run\n",
        b"\n--\n",
        b"\n-\n",
        b"\n--help\n",
        b"\n-V\n",
        b"=",
        b",,",
        b"\n--nbd=",
        b"\n--output\nyaml\n",
        b"\ngroup\n",
        b"\nvolume\n",
        b"\nexport\n",
        b"\ndrive\n",
        b"\nspare\n",
        b"\x1B[2J",
    ],
    input_bytes_max: 512,
    // clap's data about all commands, and a usage text.
    memory: Memory { base_bytes: 4 << 20, per_input_byte: 512 },
};

/// The input has one word in each line.
fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let words = std::iter::once("purlin").chain(text.split('\n').filter(|word| !word.is_empty()));
    match Line::try_parse_from(words) {
        Ok(line) => assert!(!format!("{line:?}").is_empty()),
        Err(error) => {
            assert!([0, 2].contains(&error.exit_code()));
            assert!(!error.to_string().is_empty());
        }
    }
}
