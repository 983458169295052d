//! Messages of the authentication of NVMe hosts and controllers.

use nvme::auth::{
    ControllerAuth, Credentials, DhGroup, Hash, HostAuth, Message, Names, Policy, RANDOM_BYTES, Random, Secret, Turn,
};
use nvme::{Completion, Nqn, Status};

use super::nvme_target::SUBSYSTEM;
use crate::target::{Memory, Seed, Target};

pub(super) const TARGET: Target = Target {
    name: "nvme-auth",
    checks: "messages of authentication: read as they are written, and without the secret nobody is let in or taken for the target",
    run,
    seeds,
    stored: Vec::new,
    dictionary: &[&[0, 0], &[1, 1], &[1, 2], &[1, 3], &[1, 4], &[0, 0xF0], &[0, 0xF1], &[77, 0], &[32, 0], &[64, 0]],
    input_bytes_max: 2048,
    memory: Memory { base_bytes: 64 << 10, per_input_byte: 64 },
};

/// T_ID.
const TRANSACTION: u16 = 77;

fn names() -> Names {
    Names { host: Nqn::of_uuid(&[7; 16]), subsystem: SUBSYSTEM.parse().expect("a name") }
}

fn secret(seed: u8) -> Secret {
    Secret::generate(Some(Hash::Sha256), &[seed; 32])
}

fn controller(seed: u8) -> ControllerAuth {
    let names = names();
    let (host_key, controller_key) = (secret(1).key(&names.host), Some(secret(2).key(&names.subsystem)));
    let policy = Policy { names, host_key, controller_key, group: DhGroup::Null };
    ControllerAuth::new(policy, Random::of(&[seed; RANDOM_BYTES]))
}

fn host(seed: u8) -> HostAuth {
    let credentials = Credentials { host: secret(1), controller: Some(secret(2)) };
    HostAuth::new(credentials, names(), TRANSACTION, Random::of(&[seed; RANDOM_BYTES]))
}

/// Messages, each after its length in two bytes.
fn script(messages: &[Vec<u8>]) -> Vec<u8> {
    let framed = |message: &Vec<u8>| [&(message.len() as u16).to_le_bytes()[..], message].concat();
    messages.iter().flat_map(framed).collect()
}

/// A transaction with other random bytes than in [`run`]: its answers are correct, but not accepted
/// there.
fn seeds() -> Vec<Seed> {
    let (mut host, mut controller) = (host(5), controller(6));
    let (mut from_host, mut from_controller) = (Vec::new(), Vec::new());
    loop {
        match host.turn() {
            Turn::Done => break,
            Turn::Work(work) => host.worked(work.run()),
            Turn::Send(submission) => {
                let mut data = Vec::new();
                if submission.reply_bytes == 0 {
                    from_host.push(submission.data.clone());
                    if let Some(work) = controller.received(&submission.data) {
                        controller.worked(work.run());
                    }
                } else if let Some(message) = controller.reply() {
                    controller.was_read();
                    data = message;
                    from_controller.push(data.clone());
                }
                host.answer(&Completion::new(0, Status::SUCCESS, 0), &data).expect("both have the secrets");
            }
        }
    }
    let all: Vec<Vec<u8>> = from_host.iter().chain(&from_controller).cloned().collect();
    vec![
        Seed::new("host", script(&from_host)),
        Seed::new("controller", script(&from_controller)),
        Seed::new("both", script(&all)),
    ]
}

fn run(input: &[u8]) {
    let (mut host, mut controller) = (host(3), controller(4));
    let mut is_host_there = true;
    let mut rest = input;
    while let Some((len, behind)) = rest.split_first_chunk::<2>() {
        let (message, behind) = behind.split_at(behind.len().min(u16::from_le_bytes(*len).into()));
        rest = behind;
        if let Ok(message) = Message::parse(message) {
            assert_eq!(Message::parse(&message.encode()), Ok(message), "what is written is read");
        }
        if let Some(work) = controller.received(message) {
            controller.worked(work.run());
        }
        if let Some(reply) = controller.reply() {
            Message::parse(&reply).expect("a controller sends messages");
            controller.was_read();
        }
        assert!(controller.outcome() != Some(Ok(())), "nobody is let in without the secret");
        if is_host_there {
            is_host_there = match host.turn() {
                Turn::Done => panic!("nobody is taken for the controller without its secret"),
                Turn::Work(work) => {
                    host.worked(work.run());
                    true
                }
                Turn::Send(_) => host.answer(&Completion::new(0, Status::SUCCESS, 0), message).is_ok(),
            };
        }
    }
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(secret) = text.parse::<Secret>()
    {
        assert_eq!(*secret.text(), text, "a secret is printed as it is read");
    }
}
