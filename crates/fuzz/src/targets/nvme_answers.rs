//! An NVMe controller's answers, as a host's dialogues read them.

use nvme::fabrics_data::{DiscoveryEntry, DiscoveryHead};
use nvme::host::{
    AccessStates, DISCOVERY_ENTRIES_MAX, Dialogue, DiscoveredSubsystem, DiscoveryLog, HostError, Next, Setup, Shutdown,
    Survey, Wish, access_log_bytes,
};
use nvme::identify::{IdentifyController, IdentifyNamespace};
use nvme::target::Host;
use nvme::{Access, Completion, Nqn, Status};
use zerocopy::{FromZeros, IntoBytes};

use super::nvme_target::SUBSYSTEM;
use crate::target::{Memory, Seed, Target};

/// Most namespaces that a survey may find.
const NAMESPACES_MAX: usize = 2000;

pub(super) const TARGET: Target = Target {
    name: "nvme-answers",
    checks: "an NVMe controller's answers: connecting, listing and discovering end in something valid or in an error",
    run,
    seeds: || {
        // Well-formed answers: status, form and patches of the data, result.
        let answer = |form: u8, result: u64| [&[0, form, 0][..], &result.to_le_bytes()].concat();
        let setup =
            [(0, 5), (0, 31 | 1 << 24 | 1 << 37), (0, 0x2_0000), (0, 0), (0, 0), (0, 1), (1, 0), (0, 0x3_0003), (0, 0)];
        let survey = [(3, 0), (2, 0), (4, 0), (2, 0), (4, 0), (2, 0), (4, 0), (0, 0)];
        let discovery = [(5, 0), (6, 0), (5, 0)];
        let huge = || {
            let bytes: Vec<u8> = (0..8).flat_map(|at| [at, 0, 0xFF]).collect();
            [&[0, 2, 8][..], &bytes, &[0; 8]].concat()
        };
        let dialogue = |which: u8, answers: &[(u8, u64)]| {
            let answers: Vec<u8> = answers.iter().flat_map(|(form, result)| answer(*form, *result)).collect();
            [&[which][..], &answers].concat()
        };
        vec![
            Seed::new("setup", dialogue(0, &setup)),
            Seed::new("survey", dialogue(1, &survey)),
            Seed::new("survey-long", [&[1][..], &answer(7, 0), &[0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat()),
            // Another number twice, and a namespace of 2^64 - 1 blocks.
            Seed::new(
                "survey-twice",
                [&[1, 0, 3, 1, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0][..], &dialogue(1, &survey)[12..]].concat(),
            ),
            Seed::new("survey-huge", [&dialogue(1, &survey)[..12], &huge(), &dialogue(1, &survey)[23..]].concat()),
            Seed::new("discovery", dialogue(2, &discovery)),
            Seed::new("access", [&[4][..], &access(2)].concat()),
            Seed::new("access-short", [&[4][..], &access(2)[..60]].concat()),
            Seed::new("access-of-more", [&[4][..], &access(0xFFFF)].concat()),
            Seed::new("shutdown", dialogue(3, &[(0, 0), (0, 0b0100), (0, 0b1000)])),
        ]
    },
    stored: Vec::new,
    dictionary: &[&[0, 1, 0], &[0, 2, 1], &[0, 3, 1], &[0, 4, 2, 0, 0, 3], &[1, 0, 0, 0, 0x20, 0, 0, 0]],
    input_bytes_max: 2048,
    // A list of namespaces and their descriptions; a piece of the discovery log, and the log.
    memory: Memory { base_bytes: 512 << 10, per_input_byte: 4096 },
};

/// Takes answers off the front.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let len = N.min(self.0.len());
        let (first, rest) = self.0.split_at(len);
        bytes[..len].copy_from_slice(first);
        self.0 = rest;
        bytes
    }

    /// `[status, form, patches, patch*, result]`: data of this form, patched in some places. Mostly
    /// it has the requested length.
    fn answer(&mut self, reply_bytes: u32) -> (Completion, Vec<u8>) {
        let [status, form, patches] = self.bytes();
        let mut data = template(form);
        data.resize(reply_bytes as usize, 0);
        for _ in 0..patches % 32 {
            let [low, high, value] = self.bytes();
            match usize::from(u16::from_le_bytes([low, high])) {
                0xFFFF => data.truncate(usize::from(value) * 16),
                at => {
                    let len = data.len().max(1);
                    if let Some(byte) = data.get_mut(at % len) {
                        *byte = value;
                    }
                }
            }
        }
        let result = u64::from_le_bytes(self.bytes());
        let statuses = [Status::SUCCESS, Status::INVALID_FIELD, Status::CONNECT_INVALID_PARAMETERS];
        let status = if status < 250 { Status::SUCCESS } else { statuses[usize::from(status) % 3] };
        (Completion::new(0, status, result), data)
    }
}

/// Well-formed data of a form.
fn template(form: u8) -> Vec<u8> {
    let nqn: Nqn = SUBSYSTEM.parse().expect("a name");
    match form % 8 {
        1 => {
            let mut data = IdentifyController::new_zeroed();
            (data.sqes, data.cqes, data.cntrltype, data.mdts) = (0x66, 0x44, 1, 8);
            (data.ioccsz, data.oaes) = (516.into(), 0x900.into());
            data.subnqn = nqn.field();
            data.as_bytes().to_vec()
        }
        2 => {
            let mut data = IdentifyNamespace::new_zeroed();
            data.nsze = (1 << 20).into();
            data.lbaf[0].lbads = 12;
            data.as_bytes().to_vec()
        }
        3 => (1..4_u32).flat_map(u32::to_le_bytes).collect(),
        4 => [&[2, 16, 0, 0][..], &[7; 16], &[3, 16, 0, 0], &[8; 16], &[4, 1, 0, 0, 0]].concat(),
        5 => {
            let mut head = DiscoveryHead::new_zeroed();
            (head.genctr, head.numrec) = (7.into(), 2.into());
            head.as_bytes().to_vec()
        }
        6 => {
            let mut entry = DiscoveryEntry::new_zeroed();
            (entry.trtype, entry.subtype, entry.subnqn) = (3, 2, nqn.field());
            [entry.as_bytes(), entry.as_bytes()].concat()
        }
        // A list that continues.
        7 => (1..=1024_u32).flat_map(u32::to_le_bytes).collect(),
        _ => Vec::new(),
    }
}

/// An ANA log with two groups that claims to have `groups`.
fn access(groups: u16) -> Vec<u8> {
    let group = |id: u32, state: u8| [&id.to_le_bytes()[..], &[0; 12], &[state], &[0; 15]].concat();
    [&[9, 0, 0, 0, 0, 0, 0, 0][..], &groups.to_le_bytes(), &[0; 6], &group(1, 1), &group(7, 3)].concat()
}

/// Continues a dialogue while there are answers.
fn carry_on<D: Dialogue>(dialogue: &mut D, script: &mut Script) -> Option<Result<D::Outcome, HostError>> {
    let mut waits = 0;
    while !script.0.is_empty() {
        match dialogue.next() {
            Next::Send(submission) => {
                assert!(submission.reply_bytes <= 64 << 10 && submission.data.len() <= 1024);
                assert_eq!(
                    submission.command.dptr.length.get(),
                    submission.reply_bytes.max(submission.data.len() as u32)
                );
                let (completion, data) = script.answer(submission.reply_bytes);
                if let Err(error) = dialogue.answer(&completion, &data) {
                    assert!(!error.to_string().is_empty());
                    return Some(Err(error));
                }
                waits = 0;
            }
            Next::Wait(ms) => {
                waits += 1;
                assert!(ms > 0 && waits == 1, "after a wait something is asked");
            }
            Next::Done(outcome) => return Some(Ok(outcome)),
        }
    }
    None
}

/// `[dialogue, answer*]`, or `[4, byte*]`: an ANA log.
fn run(input: &[u8]) {
    let Some((&which, answers)) = input.split_first() else { return };
    let mut script = Script(answers);
    match which % 5 {
        0 => {
            let host = Host { nqn: Nqn::of_uuid(&[7; 16]), id: [7; 16] };
            let subsystem = SUBSYSTEM.parse().expect("a name");
            let wish = Wish { host, subsystem, queue_entries: 32, keep_alive_ms: 5000, queues: 4, events: u32::MAX };
            if let Some(Ok(established)) = carry_on(&mut Setup::new(wish), &mut script) {
                assert!(established.queues <= 4 && (1..=1 << 16).contains(&established.queue_entries_max));
                assert!(established.info.transfer_bytes_max.is_none_or(|most| most >= 4096));
            }
        }
        1 => {
            if let Some(Ok(found)) = carry_on(&mut Survey::new(NAMESPACES_MAX), &mut script) {
                assert!(found.len() <= NAMESPACES_MAX && found.is_sorted_by(|one, other| one.0 < other.0));
                for info in found.iter().filter_map(|(_, info)| info.as_ref().ok()) {
                    assert!(info.block_bytes.is_power_of_two() && info.bytes() >= u64::from(info.block_bytes));
                    let last = info.range(info.bytes() - u64::from(info.block_bytes), info.block_bytes);
                    assert!(last.is_some_and(|last| last.first + 1 == info.blocks));
                    assert_eq!(info.range(info.bytes(), info.block_bytes), None);
                }
            }
        }
        2 => {
            if let Some(Ok((_, entries))) = carry_on(&mut DiscoveryLog::new(), &mut script) {
                assert!(entries.len() as u64 <= DISCOVERY_ENTRIES_MAX);
                for found in entries.iter().filter_map(|entry| DiscoveredSubsystem::of(entry).ok()) {
                    assert!(found.address.len() <= 256 && found.port.len() <= 32);
                }
            }
        }
        4 => match AccessStates::of(answers) {
            Ok(Ok(states)) => {
                let is_listed = |id: u32| answers[16..].chunks_exact(32).any(|group| group[..4] == id.to_le_bytes());
                for id in 0..1024 {
                    assert!(is_listed(id) || states.group(id) == Access::Inaccessible, "group {id}");
                }
            }
            Ok(Err(groups)) => assert!(access_log_bytes(groups) as usize > answers.len()),
            Err(error) => assert!(!error.to_string().is_empty()),
        },
        _ => drop(carry_on(&mut Shutdown::new(1000), &mut script)),
    }
}
