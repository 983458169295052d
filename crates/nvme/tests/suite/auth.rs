//! DH-HMAC-CHAP: both ends against each other, and each against an end that does not play by the
//! rules.

use nvme::auth::{
    Challenge, ControllerAuth, Credentials, DhGroup, Hash, HostAuth, Message, Names, Negotiate, Policy, RANDOM_BYTES,
    Random, Refusal, Response, Secret, Turn,
};
use nvme::host::HostError;
use nvme::{Completion, Nqn, Status};
use proptest::prelude::*;

fn names() -> Names {
    let subsystem = "nqn.2026-11.com.example:target".parse().expect("a name");
    Names { host: Nqn::of_uuid(&[1; 16]), subsystem }
}

fn secret(seed: u8) -> Secret {
    Secret::generate(Some(Hash::Sha256), &[seed; 32])
}

fn random(seed: u8) -> Random {
    Random::of(&[seed; RANDOM_BYTES])
}

/// The secrets that the controller knows: the host's, 1, and its own, 2.
fn policy(group: DhGroup) -> Policy {
    let names = names();
    let (host_key, controller_key) = (secret(1).key(&names.host), Some(secret(2).key(&names.subsystem)));
    Policy { names, host_key, controller_key, group }
}

fn controller(group: DhGroup) -> ControllerAuth {
    ControllerAuth::new(policy(group), random(3))
}

fn host(own: u8, controllers: Option<u8>) -> HostAuth {
    let credentials = Credentials { host: secret(own), controller: controllers.map(secret) };
    HostAuth::new(credentials, names(), 77, random(4))
}

/// Sends the controller a message, and does its work.
fn tell(controller: &mut ControllerAuth, message: &[u8]) {
    if let Some(work) = controller.received(message) {
        assert_eq!(controller.reply(), None, "before the work is done");
        controller.worked(work.run());
    }
}

/// Reads what the controller says.
fn ask(controller: &mut ControllerAuth) -> Vec<u8> {
    let bytes = controller.reply().expect("the controller has something to say");
    controller.was_read();
    bytes
}

fn refusal_of(controller: &mut ControllerAuth) -> Refusal {
    let said = Message::parse(&ask(controller));
    let Ok(Message::Failure1 { refusal, .. }) = said else { panic!("{said:?}") };
    assert_eq!(controller.outcome(), Some(Err(refusal)));
    refusal
}

/// Leads both to the end. `on_the_way` may change what travels.
fn meet(
    host: &mut HostAuth,
    controller: &mut ControllerAuth,
    mut on_the_way: impl FnMut(Message) -> Message,
) -> Result<(), HostError> {
    loop {
        match host.turn() {
            Turn::Done => return Ok(()),
            Turn::Work(work) => host.worked(work.run()),
            Turn::Send(submission) => {
                let mut data = Vec::new();
                if submission.reply_bytes == 0 {
                    let message = on_the_way(Message::parse(&submission.data).expect("hosts send messages"));
                    tell(controller, &message.encode());
                } else {
                    data = on_the_way(Message::parse(&ask(controller)).expect("controllers, too")).encode();
                }
                host.answer(&Completion::new(0, Status::SUCCESS, 0), &data)?;
            }
        }
    }
}

/// As [`meet`], with all messages as they are sent.
fn talk(host: &mut HostAuth, controller: &mut ControllerAuth) -> Result<(), HostError> {
    meet(host, controller, |message| message)
}

#[test]
fn who_has_the_secret_is_let_in_with_every_hash_and_group() {
    for hash in Hash::ALL {
        for group in DhGroup::ALL {
            for controllers in [None, Some(2)] {
                let (mut host, mut controller) = (host(1, controllers), controller(group));
                let mut chosen = None;
                let met = meet(&mut host, &mut controller, |message| match message {
                    Message::Negotiate(negotiate) => {
                        assert_eq!((negotiate.hashes.len(), negotiate.groups.len()), (3, 6));
                        Message::Negotiate(Negotiate { hashes: vec![hash], ..negotiate })
                    }
                    Message::Challenge(challenge) => {
                        chosen = Some((challenge.hash, challenge.group));
                        Message::Challenge(challenge)
                    }
                    other => other,
                });
                assert_eq!((met, controller.outcome()), (Ok(()), Some(Ok(()))), "{hash:?} {group}");
                assert_eq!(chosen, Some((hash, group)));
            }
        }
    }
}

#[test]
fn the_longest_hash_that_is_offered_is_taken() {
    let mut controller = controller(DhGroup::Null);
    let offer =
        Negotiate { transaction: 1, secure_channel: 0, hashes: Hash::ALL.to_vec(), groups: vec![DhGroup::Null] };
    tell(&mut controller, &Message::Negotiate(offer).encode());
    let Ok(Message::Challenge(Challenge { hash, .. })) = Message::parse(&ask(&mut controller)) else { panic!() };
    assert_eq!(hash, Hash::Sha512);
}

#[test]
fn a_host_with_the_wrong_secret_is_refused() {
    for group in [DhGroup::Null, DhGroup::Ffdhe2048] {
        let (mut host, mut controller) = (host(9, Some(2)), controller(group));
        assert_eq!(talk(&mut host, &mut controller), Err(HostError::NotAuthenticated(Refusal::Failed)));
        assert_eq!(controller.outcome(), Some(Err(Refusal::Failed)));
    }
}

#[test]
fn a_controller_with_the_wrong_secret_is_refused() {
    for group in [DhGroup::Null, DhGroup::Ffdhe2048] {
        let (mut host, mut controller) = (host(1, Some(9)), controller(group));
        assert_eq!(talk(&mut host, &mut controller), Err(HostError::Impostor(Refusal::Failed)));
        assert_eq!(controller.outcome(), Some(Err(Refusal::Failed)), "it was told so");
    }
}

#[test]
fn a_controller_that_leaves_its_proof_out_is_refused() {
    let (mut host, mut controller) = (host(1, Some(2)), controller(DhGroup::Null));
    let met = meet(&mut host, &mut controller, |message| match message {
        Message::Success1(mut success) => {
            success.answer = None;
            Message::Success1(success)
        }
        other => other,
    });
    assert_eq!(met, Err(HostError::Impostor(Refusal::Failed)));
}

#[test]
fn a_subsystem_without_a_secret_cannot_be_asked_to_prove_itself() {
    let mut controller = ControllerAuth::new(Policy { controller_key: None, ..policy(DhGroup::Null) }, random(3));
    let met = talk(&mut host(1, Some(2)), &mut controller);
    assert_eq!(met, Err(HostError::NotAuthenticated(Refusal::Failed)));
}

#[test]
fn a_secret_is_worth_nothing_under_another_name() {
    let other = Names { host: Nqn::of_uuid(&[2; 16]), ..names() };
    let credentials = Credentials { host: secret(1), controller: None };
    let mut host = HostAuth::new(credentials, other, 77, random(4));
    let met = talk(&mut host, &mut controller(DhGroup::Null));
    assert_eq!(met, Err(HostError::NotAuthenticated(Refusal::Failed)));
}

#[test]
fn what_a_controller_does_not_allow_is_refused() {
    let offer = || Negotiate {
        transaction: 7,
        secure_channel: 0,
        hashes: vec![Hash::Sha256],
        groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
    };
    let cases = [
        (Negotiate { secure_channel: 1, ..offer() }, Refusal::SecureChannel),
        (Negotiate { groups: vec![DhGroup::Null], ..offer() }, Refusal::Group),
    ];
    for (offer, expected) in cases {
        let mut controller = controller(DhGroup::Ffdhe2048);
        tell(&mut controller, &Message::Negotiate(offer).encode());
        assert_eq!(refusal_of(&mut controller), expected);
    }
    let mut strange = Message::Negotiate(offer()).encode();
    // An unknown hash, and an unknown protocol.
    for (at, expected) in [(12, Refusal::Hash), (8, Refusal::Protocol)] {
        strange[at] = 0x40;
        let mut controller = controller(DhGroup::Null);
        tell(&mut controller, &strange);
        assert_eq!(refusal_of(&mut controller), expected);
    }
}

/// A transaction that was listened to: its messages from the host.
fn recorded(group: DhGroup, seed: u8) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let mut controller = ControllerAuth::new(policy(group), random(seed));
    let met = meet(&mut host(1, Some(2)), &mut controller, |message| {
        if matches!(message, Message::Negotiate(_) | Message::Reply(_) | Message::Success2 { .. }) {
            messages.push(message.encode());
        }
        message
    });
    assert_eq!(met, Ok(()));
    messages
}

#[test]
fn a_reply_that_was_listened_to_opens_nothing_again() {
    for group in [DhGroup::Null, DhGroup::Ffdhe2048] {
        let [negotiate, reply, _] = recorded(group, 3).try_into().expect("three messages");
        // The same challenge would be answered rightly: it is what makes the difference.
        for (seed, expected) in [(3, None), (5, Some(Refusal::Failed))] {
            let mut controller = ControllerAuth::new(policy(group), random(seed));
            tell(&mut controller, &negotiate);
            ask(&mut controller);
            tell(&mut controller, &reply);
            match expected {
                Some(expected) => assert_eq!(refusal_of(&mut controller), expected),
                None => assert!(matches!(Message::parse(&ask(&mut controller)), Ok(Message::Success1(_)))),
            }
        }
    }
}

#[test]
fn a_host_that_asks_back_what_it_was_asked_gets_no_answer() {
    let mut controller = controller(DhGroup::Null);
    let mut asked = Vec::new();
    let met = meet(&mut host(1, Some(2)), &mut controller, |message| match message {
        Message::Challenge(challenge) => {
            asked = challenge.challenge.clone();
            Message::Challenge(challenge)
        }
        Message::Reply(reply) => Message::Reply(Response { challenge: Some(asked.clone()), ..reply }),
        other => other,
    });
    assert_eq!(met, Err(HostError::NotAuthenticated(Refusal::Failed)));
}

#[test]
fn values_of_the_group_that_give_the_secret_away_are_refused_by_both() {
    let one = || {
        let mut one = vec![0; 256];
        one[255] = 1;
        one
    };
    let met = meet(&mut host(1, None), &mut controller(DhGroup::Ffdhe2048), |message| match message {
        Message::Reply(reply) => Message::Reply(Response { public: one(), ..reply }),
        other => other,
    });
    assert_eq!(met, Err(HostError::NotAuthenticated(Refusal::Payload)));
    let met = meet(&mut host(1, None), &mut controller(DhGroup::Ffdhe2048), |message| match message {
        Message::Challenge(challenge) => Message::Challenge(Challenge { public: one(), ..challenge }),
        other => other,
    });
    assert_eq!(met, Err(HostError::Impostor(Refusal::Payload)));
}

#[test]
fn a_message_of_another_transaction_is_refused_by_both() {
    for victim in 1..=2 {
        let mut controller = controller(DhGroup::Null);
        let met = meet(&mut host(1, Some(2)), &mut controller, |message| match message {
            Message::Reply(reply) if victim == 1 => Message::Reply(Response { transaction: 78, ..reply }),
            Message::Success2 { .. } if victim == 2 => Message::Success2 { transaction: 78 },
            other => other,
        });
        assert_eq!(met.is_ok(), victim == 2, "{met:?}");
        assert!(controller.outcome() != Some(Ok(())));
        if victim == 2 {
            assert_eq!(refusal_of(&mut controller), Refusal::Payload);
        }
    }
    let met = meet(&mut host(1, None), &mut controller(DhGroup::Null), |message| match message {
        Message::Challenge(challenge) => Message::Challenge(Challenge { transaction: 78, ..challenge }),
        other => other,
    });
    assert_eq!(met, Err(HostError::Impostor(Refusal::Payload)));
}

#[test]
fn messages_out_of_order_are_refused_and_open_nothing() {
    let group = DhGroup::Null;
    let right = recorded(group, 3);
    for so_far in 0..3 {
        for wrong in (0..3).filter(|wrong| *wrong != so_far) {
            let mut controller = ControllerAuth::new(policy(group), random(3));
            for message in &right[..so_far] {
                tell(&mut controller, message);
                ask(&mut controller);
            }
            tell(&mut controller, &right[wrong]);
            assert_eq!(refusal_of(&mut controller), Refusal::Order, "{wrong} after {so_far}");
            // Nothing helps any more.
            for message in &right {
                tell(&mut controller, message);
            }
            assert_eq!(controller.outcome(), Some(Err(Refusal::Order)));
        }
    }
    // Nor may a host go on before it has read what it was told.
    let mut controller = ControllerAuth::new(policy(group), random(3));
    tell(&mut controller, &right[0]);
    tell(&mut controller, &right[1]);
    assert_eq!(refusal_of(&mut controller), Refusal::Order);
}

#[test]
fn a_host_that_gives_up_is_not_let_in() {
    let mut controller = controller(DhGroup::Null);
    tell(&mut controller, &recorded(DhGroup::Null, 3)[0]);
    tell(&mut controller, &Message::Failure2 { transaction: 77, refusal: Refusal::Hash }.encode());
    assert_eq!(controller.outcome(), Some(Err(Refusal::Hash)));
    assert_eq!(controller.reply(), None);
}

#[test]
fn a_controller_that_is_out_of_order_is_refused() {
    for wrong in [
        Message::Success2 { transaction: 77 },
        Message::Success1(nvme::auth::Success { transaction: 77, hash_bytes: 32, answer: None }),
    ] {
        let met = meet(&mut host(1, None), &mut controller(DhGroup::Null), |message| match message {
            Message::Challenge(_) => wrong.clone(),
            other => other,
        });
        assert_eq!(met, Err(HostError::Impostor(Refusal::Order)));
    }
}

#[test]
fn a_status_other_than_success_ends_it() {
    let mut host = host(1, None);
    assert!(matches!(host.turn(), Turn::Send(_)));
    let completion = Completion::new(0, Status::INVALID_FIELD, 0);
    let failed = HostError::Failed { command: "Authentication Send", status: Status::INVALID_FIELD };
    assert_eq!(host.answer(&completion, &[]), Err(failed));
}

#[test]
fn a_message_that_is_cut_short_is_none() {
    let mut all = recorded(DhGroup::Ffdhe2048, 3);
    let mut controller = controller(DhGroup::Ffdhe2048);
    tell(&mut controller, &all[0]);
    all.push(ask(&mut controller));
    tell(&mut controller, &all[1]);
    all.push(ask(&mut controller));
    all.push(Message::Failure1 { transaction: 1, refusal: Refusal::Failed }.encode());
    for message in all {
        assert!(Message::parse(&message).is_ok());
        for len in 0..message.len() {
            assert_eq!(Message::parse(&message[..len]), Err(Refusal::Payload), "{len} of {}", message.len());
        }
    }
}

/// Bytes that begin as some message does.
fn almost_a_message() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop::sample::select(vec![(0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (0, 0xF0), (0, 0xF1), (2, 2)]);
    let small = prop::collection::vec(
        prop_oneof![3 => 0u8..6, 1 => prop::sample::select(vec![32, 48, 64]), 1 => any::<u8>()],
        14,
    );
    (kinds, small, prop::collection::vec(any::<u8>(), 0..400)).prop_map(|((first, second), small, rest)| {
        let mut bytes = vec![first, second];
        bytes.extend(small);
        bytes.extend(rest);
        bytes
    })
}

proptest! {
    #[test]
    fn what_is_read_is_what_was_written(bytes in almost_a_message()) {
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(Message::parse(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn bytes_of_any_kind_open_nothing(scripts in prop::collection::vec(almost_a_message(), 1..6)) {
        let mut controller = controller(DhGroup::Null);
        for bytes in &scripts {
            tell(&mut controller, bytes);
            if controller.reply().is_some() {
                controller.was_read();
            }
        }
        prop_assert!(controller.outcome() != Some(Ok(())));
        let mut host = host(1, Some(2));
        for bytes in &scripts {
            match host.turn() {
                Turn::Work(work) => host.worked(work.run()),
                Turn::Done => prop_assert!(false, "the host takes anybody for its controller"),
                Turn::Send(_) => if host.answer(&Completion::new(0, Status::SUCCESS, 0), bytes).is_err() { break },
            }
        }
    }
}
