//! Hosts that have to authenticate, on each queue, and those that cannot.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::nvme::{BLOCK, BOTH, Controller, MIB, Queue, Target, host, subsystem, wish};
use crate::common::{Volume, eventually};
use export::{ExportState, HostSecret, Hosts};
use nvme::auth::{
    self, Credentials, DhGroup, Hash, HostAuth, MESSAGE_BYTES_MAX, Message, Names, RANDOM_BYTES, Random, Refusal,
    Secret, Turn,
};
use nvme::fabrics_data::property;
use nvme::host::{Blocks, Connected, HostError, Setup, Submission, Wish, admin, connect_admin, connect_io, io};
use nvme::tcp::Digests;
use nvme::{Command, DISCOVERY_NQN, FABRICS, Status, admin as opcode};

fn secret(seed: u8) -> Secret {
    Secret::generate(Some(Hash::Sha384), &[seed; 48])
}

/// The host's secret 1, and the subsystem's, 2.
fn host_secret(group: DhGroup) -> HostSecret {
    HostSecret { host: secret(1), controller: Some(secret(2)), group }
}

/// Host 1 has to authenticate. Other hosts need not.
fn target(group: DhGroup) -> (Target, Arc<ExportState>) {
    let (target, _, state) = Target::disk(MIB);
    target.secrets.set(host(1).nqn.as_str(), Some(host_secret(group)));
    (target, state)
}

fn credentials(own: u8, controllers: Option<u8>) -> Credentials {
    Credentials { host: secret(own), controller: controllers.map(secret) }
}

fn machine(credentials: Credentials) -> HostAuth {
    static ROUND: AtomicU32 = AtomicU32::new(1);
    let round = ROUND.fetch_add(1, Ordering::Relaxed);
    let mut random = [7; RANDOM_BYTES];
    random[..4].copy_from_slice(&round.to_le_bytes());
    let names = Names { host: host(1).nqn, subsystem: subsystem() };
    HostAuth::new(credentials, names, round as u16, Random::of(&random))
}

fn authenticate(queue: &mut Queue, credentials: Credentials) -> Result<(), HostError> {
    let mut machine = machine(credentials);
    loop {
        match machine.turn() {
            Turn::Done => return Ok(()),
            Turn::Work(work) => machine.worked(work.run()),
            Turn::Send(submission) => {
                let answer = queue.submit(submission);
                machine.answer(&answer.completion, &answer.data)?;
            }
        }
    }
}

/// Connects an admin queue that has to authenticate.
fn connected(address: SocketAddr, digests: Digests) -> (Queue, Connected) {
    let mut queue = Queue::open(address, digests);
    let connected = Connected::of(&queue.submit(connect_admin(&wish(1))).completion).unwrap();
    assert!(connected.must_authenticate);
    (queue, connected)
}

/// An I/O queue that has to authenticate.
fn io_queue(address: SocketAddr, cntlid: u16, number: u16) -> Queue {
    let mut queue = Queue::open(address, Digests::default());
    let connect = connect_io(&host(1), &subsystem(), cntlid, number, 32);
    assert!(Connected::of(&queue.submit(connect).completion).unwrap().must_authenticate);
    queue
}

fn read(queue: &mut Queue) -> Status {
    queue.execute(io::read(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK), &[], BLOCK).status()
}

/// Sends the data of Authentication Send.
fn say(queue: &mut Queue, data: &[u8]) -> Status {
    let command = auth::send(data.len() as u32);
    queue.submit(Submission { command, data: data.to_vec(), reply_bytes: 0 }).status()
}

/// Authentication Receive of `len` bytes.
fn listen(queue: &mut Queue, len: u32) -> crate::common::nvme::Answer {
    queue.submit(Submission { command: auth::receive(len), data: Vec::new(), reply_bytes: len })
}

fn refusal(queue: &mut Queue) -> Refusal {
    let said = Message::parse(&listen(queue, MESSAGE_BYTES_MAX as u32).data());
    let Ok(Message::Failure1 { refusal, .. }) = said else { panic!("{said:?}") };
    assert!(queue.is_closed(), "who was refused is cut off");
    refusal
}

#[test]
fn a_host_with_the_secrets_works_on_each_of_its_queues_with_every_group() {
    for (round, group) in DhGroup::ALL.into_iter().enumerate() {
        let (target, _) = target(group);
        let (controllers, digests) = ([None, Some(2)][round % 2], [Digests::default(), BOTH][round % 2]);
        let (mut queue, admitted) = connected(target.address, digests);
        authenticate(&mut queue, credentials(1, controllers)).unwrap();
        let established = queue.lead(Setup::of_connected(wish(1), admitted)).unwrap();
        for number in 1..=2 {
            let mut queue = io_queue(target.address, established.cntlid, number);
            authenticate(&mut queue, credentials(1, controllers)).unwrap();
            assert_eq!(read(&mut queue), Status::SUCCESS, "{group}");
        }
    }
}

#[test]
fn a_host_with_the_wrong_secret_is_refused_and_cut_off() {
    let (target, state) = target(DhGroup::Ffdhe2048);
    let (mut queue, _) = connected(target.address, Digests::default());
    let refused = authenticate(&mut queue, credentials(3, None));
    assert_eq!(refused, Err(HostError::NotAuthenticated(Refusal::Failed)));
    assert!(queue.is_closed());
    // It is refused on an I/O queue as well, although its admin queue was let in.
    let (mut queue, admitted) = connected(target.address, Digests::default());
    authenticate(&mut queue, credentials(1, None)).unwrap();
    let established = queue.lead(Setup::of_connected(wish(1), admitted)).unwrap();
    let mut first = io_queue(target.address, established.cntlid, 1);
    assert_eq!(authenticate(&mut first, credentials(3, None)), refused);
    assert!(first.is_closed());
    assert!(state.connections().is_empty());
    assert!(queue.submit(admin::keep_alive()).status().is_success(), "others of the host go on");
}

#[test]
fn a_host_that_does_not_believe_the_target_leaves() {
    let (target, _) = target(DhGroup::Ffdhe2048);
    let (mut queue, _) = connected(target.address, Digests::default());
    assert_eq!(authenticate(&mut queue, credentials(1, Some(3))), Err(HostError::Impostor(Refusal::Failed)));
    assert!(queue.is_closed());
}

#[test]
fn nothing_else_is_served_before() {
    let (target, _) = target(DhGroup::Null);
    let (mut queue, admitted) = connected(target.address, Digests::default());
    let early = [
        admin::property_get(property::CAP, true),
        admin::property_set(property::CC, crate::common::nvme::ENABLED),
        admin::identify(1, 0),
        admin::keep_alive(),
        admin::event_request(),
        connect_admin(&wish(1)),
        Submission { command: Command::new(opcode::ABORT, 0, 0), data: Vec::new(), reply_bytes: 0 },
    ];
    for submission in early {
        assert_eq!(queue.submit(submission).status(), Status::AUTHENTICATION_REQUIRED);
    }
    authenticate(&mut queue, credentials(1, None)).unwrap();
    let established = queue.lead(Setup::of_connected(wish(1), admitted)).unwrap();
    let mut first = io_queue(target.address, established.cntlid, 1);
    assert_eq!(read(&mut first), Status::AUTHENTICATION_REQUIRED);
    let write = io::write(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK, true, false);
    assert_eq!(first.execute(write, &vec![1; BLOCK as usize], 0).status(), Status::AUTHENTICATION_REQUIRED);
    authenticate(&mut first, credentials(1, None)).unwrap();
    assert_eq!(read(&mut first), Status::SUCCESS);
    // The transaction is over then, and the queue cannot be connected again.
    let again = connect_io(&host(1), &subsystem(), established.cntlid, 1, 32);
    assert_eq!(first.submit(again).status(), Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(listen(&mut first, 64).status(), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn hosts_without_a_secret_and_discovery_go_on_as_before() {
    let (target, _) = target(DhGroup::Null);
    let mut controller = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    let mut queue = controller.queue(1);
    assert_eq!(read(&mut queue), Status::SUCCESS);
    assert_eq!(say(&mut controller.admin, &[0; 16]), Status::INVALID_OPCODE);
    assert_eq!(say(&mut queue, &[0; 16]), Status::INVALID_OPCODE);
    let discovery = Wish { subsystem: DISCOVERY_NQN.parse().unwrap(), queues: 0, ..wish(1) };
    assert!(Controller::with(target.address, discovery, Digests::default()).is_ok());
}

#[test]
fn who_knows_a_name_and_no_secret_takes_no_queue_from_its_host() {
    let (target, _) = target(DhGroup::Null);
    let (mut queue, admitted) = connected(target.address, Digests::default());
    authenticate(&mut queue, credentials(1, None)).unwrap();
    let cntlid = queue.lead(Setup::of_connected(wish(1), admitted)).unwrap().cntlid;
    let mut strangers: Vec<Queue> = (0..4).map(|_| io_queue(target.address, cntlid, 1)).collect();
    let mut own = io_queue(target.address, cntlid, 1);
    authenticate(&mut own, credentials(1, None)).unwrap();
    assert_eq!(read(&mut own), Status::SUCCESS);
    // A host that has the secret, but comes too late.
    let mut late = strangers.pop().unwrap();
    let _ = authenticate(&mut late, credentials(1, None));
    assert!(late.is_closed());
    assert_eq!(read(&mut own), Status::SUCCESS);
}

#[test]
fn a_new_secret_is_asked_for_the_next_time_and_a_live_host_may_authenticate_again() {
    let (target, _) = target(DhGroup::Ffdhe2048);
    let (mut queue, admitted) = connected(target.address, Digests::default());
    authenticate(&mut queue, credentials(1, None)).unwrap();
    let cntlid = queue.lead(Setup::of_connected(wish(1), admitted)).unwrap().cntlid;
    let mut first = io_queue(target.address, cntlid, 1);
    authenticate(&mut first, credentials(1, None)).unwrap();
    authenticate(&mut queue, credentials(1, Some(2))).unwrap();
    assert!(queue.submit(admin::identify(1, 0)).status().is_success(), "it goes on");

    let replaced = HostSecret { host: secret(5), ..host_secret(DhGroup::Ffdhe2048) };
    target.secrets.set(host(1).nqn.as_str(), Some(replaced));
    assert_eq!(read(&mut first), Status::SUCCESS, "what is connected stays");
    let mut second = io_queue(target.address, cntlid, 2);
    assert!(authenticate(&mut second, credentials(1, None)).is_err());
    let mut second = io_queue(target.address, cntlid, 2);
    authenticate(&mut second, credentials(5, None)).unwrap();
    authenticate(&mut queue, credentials(5, None)).unwrap();
    assert_eq!((read(&mut first), read(&mut second)), (Status::SUCCESS, Status::SUCCESS));
    // With the old secret the host fails, and its whole controller ends.
    assert!(authenticate(&mut queue, credentials(1, None)).is_err());
    assert!(queue.is_closed() && first.is_closed() && second.is_closed());
}

/// As Linux does when its secret is replaced: the admin queue first, then all I/O queues, each of
/// which has a transaction in progress.
#[test]
fn io_queues_authenticate_again_while_they_work() {
    let (target, volume, _) = Target::disk(MIB);
    target.secrets.set(host(1).nqn.as_str(), Some(host_secret(DhGroup::Ffdhe2048)));
    let (mut queue, admitted) = connected(target.address, Digests::default());
    authenticate(&mut queue, credentials(1, None)).unwrap();
    let cntlid = queue.lead(Setup::of_connected(wish(1), admitted)).unwrap().cntlid;
    let mut queues = [1, 2].map(|number| io_queue(target.address, cntlid, number));
    queues.iter_mut().for_each(|queue| authenticate(queue, credentials(1, None)).unwrap());

    let replaced = HostSecret { host: secret(5), ..host_secret(DhGroup::Ffdhe2048) };
    target.secrets.set(host(1).nqn.as_str(), Some(replaced));
    authenticate(&mut queue, credentials(5, Some(2))).unwrap();
    // A command that is in flight meanwhile is answered as usual.
    volume.hold();
    let cids = queues.each_mut().map(|queue| {
        queue.send(io::write(Blocks { nsid: 1, first: 0, count: 1 }, BLOCK, true, false), &vec![1; BLOCK as usize], 0)
    });
    eventually("both write", || volume.in_flight() == 2);
    queues.iter_mut().for_each(|queue| authenticate(queue, credentials(5, Some(2))).unwrap());
    volume.release();
    for (queue, cid) in queues.iter_mut().zip(cids) {
        assert_eq!(queue.wait(cid).status(), Status::SUCCESS);
        // A second time works like the first.
        authenticate(queue, credentials(5, None)).unwrap();
        assert_eq!(read(queue), Status::SUCCESS);
    }
    // A host that fails loses the queue on which it failed.
    let [first, second] = &mut queues;
    assert_eq!(authenticate(first, credentials(1, None)), Err(HostError::NotAuthenticated(Refusal::Failed)));
    assert!(first.is_closed());
    assert_eq!(read(second), Status::SUCCESS);
    assert!(queue.submit(admin::keep_alive()).status().is_success());
}

/// The messages that a host sends in a transaction, up to Reply.
fn first_messages(queue: &mut Queue) -> [Vec<u8>; 2] {
    let mut machine = machine(credentials(1, Some(2)));
    let mut sent = Vec::new();
    loop {
        match machine.turn() {
            Turn::Work(work) => machine.worked(work.run()),
            Turn::Send(submission) if submission.reply_bytes == 0 => {
                sent.push(submission.data.clone());
                if let Ok(both) = sent.clone().try_into() {
                    return both;
                }
                let answer = queue.submit(submission);
                machine.answer(&answer.completion, &[]).unwrap();
            }
            Turn::Send(submission) => {
                let answer = queue.submit(submission);
                machine.answer(&answer.completion, &answer.data).unwrap();
            }
            Turn::Done => unreachable!("Reply comes before"),
        }
    }
}

#[test]
fn messages_that_are_cut_short_too_long_or_out_of_order_end_their_queue_alone() {
    let (target, state) = target(DhGroup::Ffdhe2048);
    let honest = Controller::with(target.address, wish(2), Digests::default()).unwrap();
    let mut undisturbed = honest.queue(1);
    let negotiate = {
        let (mut queue, _) = connected(target.address, Digests::default());
        first_messages(&mut queue)[0].clone()
    };
    for len in (1..negotiate.len()).step_by(7) {
        let (mut queue, _) = connected(target.address, Digests::default());
        assert_eq!(say(&mut queue, &negotiate[..len]), Status::SUCCESS);
        assert_eq!(refusal(&mut queue), Refusal::Payload, "{len} bytes of Negotiate");
    }
    for len in [1, 15, 16, 100, 300] {
        let (mut queue, _) = connected(target.address, Digests::default());
        let reply = first_messages(&mut queue)[1].clone();
        assert_eq!(say(&mut queue, &reply[..len]), Status::SUCCESS);
        assert_eq!(refusal(&mut queue), Refusal::Payload, "{len} bytes of Reply");
    }
    // Bytes behind a message are ignored, up to the limit of an admin command.
    let (mut queue, _) = connected(target.address, Digests::default());
    let mut long = negotiate.clone();
    long.resize(8 << 10, 0xAA);
    assert_eq!(say(&mut queue, &long), Status::SUCCESS);
    assert!(matches!(Message::parse(&listen(&mut queue, 4096).data()), Ok(Message::Challenge(_))));
    // The negotiation is sent twice.
    assert_eq!(say(&mut queue, &negotiate), Status::SUCCESS);
    assert_eq!(refusal(&mut queue), Refusal::Order);
    // A Reply out of order, and a receive without any message.
    let (mut queue, _) = connected(target.address, Digests::default());
    assert_eq!(say(&mut queue, &Message::Success2 { transaction: 0 }.encode()), Status::SUCCESS);
    assert_eq!(refusal(&mut queue), Refusal::Order);
    let (mut queue, _) = connected(target.address, Digests::default());
    assert_eq!(listen(&mut queue, 4096).status(), Status::COMMAND_SEQUENCE_ERROR);
    // The space is too small for the challenge, which can still be read.
    assert_eq!(say(&mut queue, &negotiate), Status::SUCCESS);
    assert_eq!(listen(&mut queue, 64).status(), Status::INVALID_FIELD);
    assert!(matches!(Message::parse(&listen(&mut queue, 4096).data()), Ok(Message::Challenge(_))));
    // Another security protocol, and a wrong length.
    for (dword, value) in [(10, 0xEA01_0100), (11, 17)] {
        let mut command = auth::send(16);
        command.set_cdw(dword, value);
        let wrong = Submission { command, data: vec![0; 16], reply_bytes: 0 };
        assert_eq!(queue.submit(wrong).status(), Status::INVALID_FIELD);
    }
    // A host that gives up gets no more answers.
    let gives_up = Message::Failure2 { transaction: 1, refusal: Refusal::Failed };
    let (mut queue, _) = connected(target.address, Digests::default());
    assert_eq!(say(&mut queue, &gives_up.encode()), Status::SUCCESS);
    let _ = queue.stream.shutdown(std::net::Shutdown::Write);
    assert!(queue.is_closed());

    assert_eq!(read(&mut undisturbed), Status::SUCCESS);
    drop((queue, undisturbed, honest));
    eventually("nothing is left", || state.connections().is_empty());
}

#[test]
fn a_command_of_an_unproven_queue_that_brings_data_is_refused_before_they_are_asked_for() {
    let (target, _) = target(DhGroup::Null);
    let (mut queue, _) = connected(target.address, Digests::default());
    let mut command = Command::new(FABRICS, 0, nvme::fabrics::AUTHENTICATION_SEND.into());
    command.dptr = nvme::Sgl::transport(1 << 20);
    command.set_cdw(10, 0xE901_0100);
    command.set_cdw(11, 1 << 20);
    assert_eq!(queue.execute(command, &[], 0).status(), Status::INVALID_FIELD);
}

/// One shard serves an honest host beside twenty that make it compute in the largest group. If the
/// shard itself computed, the honest host would have a turn only between two exponentiations.
#[test]
fn exponentiations_do_not_hold_up_other_queues() {
    const COUNT: usize = 20;
    let (target, _) = target(DhGroup::Ffdhe8192);
    let target_address = target.address;
    let volume = Volume::new(MIB);
    target.offer(2, volume, Hosts::Any, false);
    let honest = Controller::with(target_address, wish(2), Digests::default()).unwrap();
    let mut queue = honest.queue(1);
    let negotiate = {
        let (mut queue, _) = connected(target_address, Digests::default());
        first_messages(&mut queue)[0].clone()
    };
    let mut busy: Vec<Queue> = (0..COUNT).map(|_| connected(target_address, Digests::default()).0).collect();
    let cids = busy.iter_mut().map(|queue| queue.send(auth::send(negotiate.len() as u32), &negotiate, 0));
    let cids: Vec<u16> = cids.collect();
    // Each is answered when its exponentiation is done.
    let computed =
        std::thread::spawn(move || busy.iter_mut().zip(cids).all(|(queue, cid)| queue.wait(cid).status().is_success()));
    let mut rounds = 0;
    while !computed.is_finished() {
        assert_eq!(read(&mut queue), Status::SUCCESS);
        rounds += 1;
    }
    assert!(computed.join().unwrap());
    println!("{rounds} rounds beside {COUNT} exponentiations");
    assert!(rounds > 3 * COUNT, "{rounds} rounds");
}

/// The limit is 30 s (`HANDSHAKE_MAX`), which is why this test takes as long.
#[test]
fn a_host_that_does_not_go_on_is_cut_off_and_leaves_nothing() {
    let (target, state) = target(DhGroup::Null);
    let negotiate = {
        let (mut queue, _) = connected(target.address, Digests::default());
        first_messages(&mut queue)[0].clone()
    };
    let (mut silent, _) = connected(target.address, Digests::default());
    let (mut slow, admitted) = connected(target.address, Digests::default());
    assert_eq!(say(&mut slow, &negotiate), Status::SUCCESS);
    let (mut prompt, _) = connected(target.address, Digests::default());
    authenticate(&mut prompt, credentials(1, None)).unwrap();
    let began = Instant::now();
    for queue in [&mut silent, &mut slow] {
        queue.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(queue.is_closed());
    }
    assert!(began.elapsed() > Duration::from_secs(20), "it had time");
    assert!(prompt.submit(admin::property_get(property::VS, false)).status().is_success());
    // Its controller is gone as well: another queue cannot join it.
    let mut late = Queue::open(target.address, Digests::default());
    let connect = connect_io(&host(1), &subsystem(), admitted.cntlid, 1, 32);
    let refused = Connected::of(&late.submit(connect).completion);
    assert_eq!(refused.err(), Some(HostError::Parameter { parameter: "the controller's number" }));
    assert!(state.connections().is_empty());
}
