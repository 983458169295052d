//! A hostile NVMe/TCP host can end only its own connection, and leaves nothing behind.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::common::honest::Honest;
use crate::common::nvme::{BLOCK, BOTH, Controller, MIB, Queue, Target, pattern, wish, within};
use crate::common::{PATIENCE, eventually};
use export::ExportState;
use nvme::host::{Blocks, admin, io};
use nvme::tcp::pdu::{FLAG_LAST, initialize, terminate};
use nvme::tcp::{Digests, Kind, Transfer};
use nvme::{Command, Sgl, Status, nvm};

/// Fatal Error Status: TCP Transport 1.0, figure 22.
mod fes {
    pub const INVALID_HEADER_FIELD: u16 = 1;
    pub const SEQUENCE: u16 = 2;
    pub const HEADER_DIGEST: u16 = 3;
    pub const OUT_OF_RANGE: u16 = 4;
    pub const LIMIT: u16 = 5;
    pub const UNSUPPORTED: u16 = 6;
}

/// Blocks that hostile hosts write to.
fn blocks(count: u32) -> Blocks {
    Blocks { nsid: 1, first: 4000, count }
}

fn write(count: u32, in_capsule: bool) -> Command {
    io::write(blocks(count), count * BLOCK, in_capsule, false)
}

/// Hosts that have gone leave nothing behind.
fn nothing_is_left(state: &ExportState) {
    eventually("all queues have let go", || state.connections().is_empty());
    assert_eq!(state.counters().in_flight, 0);
    state.stop();
    assert!(within(PATIENCE, state.stopped()).is_some());
}

/// Sends bytes to a new connection, which has to end. Returns FES, if the controller sent a
/// termination request.
fn ended_by(mut queue: Queue, bytes: &[u8]) -> Option<u16> {
    // The write may fail: the controller closes as soon as it has seen enough.
    let _ = queue.stream.write_all(bytes);
    assert!(queue.is_closed());
    queue.terminated
}

/// Cases that each end one I/O queue of a controller with an error.
struct Cases {
    controller: Controller,
    digests: Digests,
    round: u16,
}

impl Cases {
    fn new(target: SocketAddr, digests: Digests) -> Cases {
        Cases { controller: Controller::with(target, wish(1), digests).unwrap(), digests, round: 0 }
    }

    /// A new queue that sends these bytes is told of the error, and ends.
    fn case(&mut self, what: &str, expected: u16, bytes: &dyn Fn(&mut Queue) -> Vec<u8>) {
        self.round += 1;
        let number = self.round % 2 + 1;
        let mut queue = None;
        eventually("the queue of the last case is forgotten", || {
            queue = self.controller.try_queue(number, 32).ok();
            queue.is_some()
        });
        let mut queue = queue.unwrap();
        let bytes = bytes(&mut queue);
        assert_eq!(ended_by(queue, &bytes), Some(expected), "{what}, {:?}", self.digests);
    }

    /// PDUs of commands, and PDUs that a host may not send then.
    fn wrong_headers(&mut self) {
        let digests = self.digests;
        let read = io::read(blocks(1), BLOCK);
        // A PDU with one changed byte in its header, and a corrected digest.
        let changed = |queue: &Queue, at: usize, to: u8| {
            let mut bytes = queue.capsule(read, &[]);
            bytes[at] = to;
            if digests.header {
                let sum = gf::crc32c(&bytes[..72]);
                bytes[72..76].copy_from_slice(&sum.to_le_bytes());
            }
            bytes
        };
        let whole = if digests.header { 76 } else { 72 };
        let invalid = fes::INVALID_HEADER_FIELD;
        self.case("an unknown type", invalid, &|queue| changed(queue, 0, 0x0A));
        self.case("a PDU of controllers", fes::SEQUENCE, &|queue| changed(queue, 0, Kind::CapsuleResp as u8));
        self.case("a second ICReq", fes::SEQUENCE, &|_| initialize(Kind::IcReq, 0, digests, 0).to_vec());
        self.case("digests that were not agreed on", invalid, &|queue| changed(queue, 1, u8::from(!digests.header)));
        self.case("a header that is too short", invalid, &|queue| changed(queue, 2, 71));
        self.case("a PDU that is shorter than its header", invalid, &|queue| changed(queue, 4, whole - 1));
        self.case("data that begin in the header", invalid, &|queue| changed(queue, 5, 1));
        self.case("a capsule above its limit", fes::LIMIT, &|queue| {
            let writer = queue.machine.writer().unwrap();
            writer.command(write(33, true), 33 * BLOCK as usize).to_vec()
        });
        self.case("data that were not requested", fes::OUT_OF_RANGE, &|queue| {
            let writer = queue.machine.writer().unwrap();
            writer.data_to_controller(1, 0, 0, BLOCK, true).to_vec()
        });
        if digests.header {
            self.case("a wrong header digest", fes::HEADER_DIGEST, &|queue| {
                let mut bytes = queue.capsule(read, &[]);
                bytes[40] ^= 1;
                bytes
            });
        }
    }

    /// Answers to an R2T that are not the data that it requests.
    fn wrong_answers(&mut self) {
        type Wrong = fn(u16, u16) -> (u16, u16, u32, u32, bool);
        let wrong: [(&str, u16, Wrong); 7] = [
            ("another tag", fes::OUT_OF_RANGE, |cid, tag| (cid, tag + 1, 0, BLOCK, false)),
            ("a tag that is none", fes::OUT_OF_RANGE, |cid, _| (cid, 0xFFFF, 0, BLOCK, false)),
            ("another command", fes::OUT_OF_RANGE, |cid, tag| (cid + 1, tag, 0, BLOCK, false)),
            ("from behind the start", fes::OUT_OF_RANGE, |cid, tag| (cid, tag, 4, BLOCK, false)),
            ("more than was asked for", fes::OUT_OF_RANGE, |cid, tag| (cid, tag, 0, 3 * BLOCK, true)),
            ("the end too early", fes::OUT_OF_RANGE, |cid, tag| (cid, tag, 0, BLOCK, true)),
            ("more than a PDU may have", fes::LIMIT, |cid, tag| (cid, tag, 0, MIB as u32 + 4, true)),
        ];
        for (what, status, answer) in wrong {
            self.case(what, status, &|queue| {
                queue.withholds = true;
                let data = vec![1; 2 * BLOCK as usize];
                queue.send(write(2, false), &data, 0);
                let request = queue.wait_for_request();
                let (cid, tag, offset, len, last) = answer(request.cid, request.tag);
                queue.machine.writer().unwrap().data_to_controller(cid, tag, offset, len, last).to_vec()
            });
        }
    }

    /// Requested data whose header has a wrong byte.
    fn wrong_headers_of_data(&mut self) {
        let digests = self.digests;
        // The requested data, with one changed byte in its header, and a corrected digest or not.
        let answered = |queue: &mut Queue, at: usize, to: fn(u8) -> u8, is_digest_right: bool| {
            queue.withholds = true;
            queue.send(write(2, false), &vec![1; 2 * BLOCK as usize], 0);
            let request = queue.wait_for_request();
            let writer = queue.machine.writer().unwrap();
            let mut head = writer.data_to_controller(request.cid, request.tag, 0, 2 * BLOCK, true).to_vec();
            assert!(head[1] & FLAG_LAST != 0);
            head[at] = to(head[at]);
            if digests.header && is_digest_right {
                let sum = gf::crc32c(&head[..24]);
                head[24..28].copy_from_slice(&sum.to_le_bytes());
            }
            head
        };
        self.case("a PDU whose data are not as long as it says", fes::OUT_OF_RANGE, &|queue| {
            // The byte is DATAL.
            answered(queue, 17, |len| len - 1, true)
        });
        for to in [|_| 0, |len| len - 1, |len| len + 1, |_| 72, |_| 255] as [fn(u8) -> u8; 5] {
            self.case("data with a header of another length", fes::INVALID_HEADER_FIELD, &|queue| {
                answered(queue, 2, to, true)
            });
        }
        if digests.header {
            // CCCID, the tag, the offset, the length, a reserved field, and the digest.
            for at in [8, 10, 12, 16, 23, 24] {
                self.case("data with a wrong header digest", fes::HEADER_DIGEST, &|queue| {
                    answered(queue, at, |byte| byte ^ 1, false)
                });
            }
        }
    }
}

#[test]
fn what_breaks_the_transport_is_answered_with_its_error_and_ends_one_connection() {
    let (target, _, state) = Target::disk(16 * MIB);
    let honest = Honest::begin(target.address);
    for digests in [Digests::default(), BOTH] {
        let mut cases = Cases::new(target.address, digests);
        cases.wrong_headers();
        cases.wrong_answers();
        cases.wrong_headers_of_data();
    }
    honest.end();
    nothing_is_left(&state);
}

#[test]
fn a_connection_that_begins_wrongly_is_told_so() {
    let (target, _, state) = Target::disk(MIB);
    let begin = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(target.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    let good = initialize(Kind::IcReq, 0, BOTH, 0).to_vec();
    let with = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    for (bytes, status) in [
        (with(0, Kind::CapsuleCmd as u8), fes::SEQUENCE),
        (with(0, 0x77), fes::INVALID_HEADER_FIELD),
        (with(2, 127), fes::INVALID_HEADER_FIELD),
        // PLEN: less than its header, its header without the common part, more than its header, and
        // a huge value.
        (with(4, 0), fes::INVALID_HEADER_FIELD),
        (with(4, 120), fes::INVALID_HEADER_FIELD),
        (with(4, 127), fes::INVALID_HEADER_FIELD),
        (with(4, 129), fes::INVALID_HEADER_FIELD),
        (with(7, 0xFF), fes::INVALID_HEADER_FIELD),
        (with(8, 1), fes::UNSUPPORTED),
        (with(10, 32), fes::UNSUPPORTED),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), fes::INVALID_HEADER_FIELD),
    ] {
        let answer = begin(&bytes);
        assert!(answer.len() >= 24 && answer[0] == Kind::C2hTermReq as u8, "{bytes:x?} -> {answer:x?}");
        assert_eq!(u16::from_le_bytes([answer[8], answer[9]]), status, "{bytes:x?}");
    }
    assert!(begin(&terminate(Kind::H2cTermReq, 1, 0, &[])).is_empty(), "who says goodbye is not answered");
    nothing_is_left(&state);
}

#[test]
fn a_request_to_end_that_is_wrong_ends_one_connection() {
    let (target, _, state) = Target::disk(16 * MIB);
    let honest = Honest::begin(target.address);
    let good = terminate(Kind::H2cTermReq, 1, 0, &[7; 16]);
    let with = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    let a_lot = |len: u32| {
        let mut bytes = good.clone();
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes
    };
    let too_long = [&a_lot(24 + 4096)[..], &[7; 4096]].concat();
    // The expected error, if the PDU can be seen to be wrong. A request that announces too much
    // data still counts, and the controller does not wait for the data.
    let cases: Vec<(&str, Vec<u8>, Option<u16>)> = vec![
        ("a good one", good.clone(), None),
        ("more data than it may have", too_long, None),
        ("more data than there will ever be", a_lot(u32::MAX), None),
        ("a PDU of no bytes", a_lot(0), Some(fes::INVALID_HEADER_FIELD)),
        ("a PDU that is shorter than its header", a_lot(23), Some(fes::INVALID_HEADER_FIELD)),
        ("a header of no bytes", with(2, 0), Some(fes::INVALID_HEADER_FIELD)),
        ("a header that is too short", with(2, 23), Some(fes::INVALID_HEADER_FIELD)),
        ("a header that is too long", with(2, 128), Some(fes::INVALID_HEADER_FIELD)),
        ("a header digest, which it never has", with(1, 1), Some(fes::INVALID_HEADER_FIELD)),
    ];
    let cut = [1, 7, 8, 9, 23].map(|len| ("one that is cut short", good[..len].to_vec(), None));
    for digests in [Digests::default(), BOTH] {
        let controller = Controller::with(target.address, wish(1), digests).unwrap();
        for (what, bytes, expected) in cases.iter().chain(&cut) {
            // Instead of an ICReq, and on a connected queue.
            let mut stream = TcpStream::connect(target.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.write_all(bytes);
            if bytes.len() < 24 {
                stream.shutdown(Shutdown::Write).unwrap();
            }
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let told = (answer.len() >= 24).then(|| u16::from_le_bytes([answer[8], answer[9]]));
            assert_eq!(told, *expected, "{what}: {answer:x?}");

            let mut queue = None;
            eventually("the queue of the last case is forgotten", || {
                queue = controller.try_queue(1, 32).ok();
                queue.is_some()
            });
            let mut queue = queue.unwrap();
            let _ = queue.stream.write_all(bytes);
            if bytes.len() < 24 {
                queue.stream.shutdown(Shutdown::Write).unwrap();
            }
            assert!(queue.is_closed());
            assert_eq!(queue.terminated, *expected, "{what}, {digests:?}");
        }
    }
    honest.end();
    nothing_is_left(&state);
}

#[test]
fn pdus_that_are_cut_short_anywhere_leave_nothing_behind() {
    let (target, volume, state) = Target::disk(16 * MIB);
    let honest = Honest::begin(target.address);
    let initial = initialize(Kind::IcReq, 0, BOTH, 0).to_vec();
    for len in (0..initial.len()).step_by(5) {
        let mut stream = TcpStream::connect(target.address).unwrap();
        stream.write_all(&initial[..len]).unwrap();
    }
    let controller = Controller::with(target.address, wish(1), BOTH).unwrap();
    let mut queue = None;
    let mut connected = |number: usize| {
        eventually("the queue of this number is forgotten", || {
            queue = controller.try_queue((number % 2 + 1) as u16, 32).ok();
            queue.is_some()
        });
        queue.take().unwrap()
    };
    let data = pattern(32 * BLOCK as usize, 1);
    // The cut is in the header, its digest, data in the capsule, data that is received directly
    // into its buffer, and the digest of the data.
    for (round, len) in
        [1, 7, 8, 40, 71, 72, 75, 76, 77, 5000, 100_000, 131_147, 131_148, 131_151].into_iter().enumerate()
    {
        let mut queue = connected(round);
        let capsule = queue.capsule(write(32, true), &data);
        assert_eq!(capsule.len(), 76 + 131_072 + 4);
        queue.stream.write_all(&capsule[..len]).unwrap();
        if round % 2 == 0 {
            // The host ends only its direction of the connection.
            queue.stream.shutdown(Shutdown::Write).unwrap();
            assert!(queue.is_closed());
        }
    }
    // Requested data, cut at the same places.
    for (round, len) in [0, 1, 8, 23, 27, 28, 29, 5000, 100_000, 131_099, 131_103].into_iter().enumerate() {
        let mut queue = connected(round);
        queue.withholds = true;
        for _ in 0..3 {
            queue.send(write(32, false), &data, 0);
        }
        let request = queue.wait_for_request();
        let head = queue.machine.pieces(&request).next().unwrap().head;
        let bytes = [&head[..], &data, &gf::crc32c(&data).to_le_bytes()].concat();
        assert_eq!(bytes.len(), 28 + 131_072 + 4);
        queue.stream.write_all(&bytes[..len]).unwrap();
        if round % 2 == 0 {
            queue.stream.shutdown(Shutdown::Write).unwrap();
            assert!(queue.is_closed());
        }
    }
    drop(controller);
    honest.end();
    nothing_is_left(&state);
    assert_eq!(volume.in_flight(), 0);
    let counters = state.counters();
    assert_eq!(counters.errors, 0, "what did not come as a whole was not executed");
}

#[test]
fn damaged_data_fail_their_command_and_the_connection_goes_on() {
    let (target, volume, state) = Target::disk(16 * MIB);
    let controller = Controller::with(target.address, wish(1), BOTH).unwrap();
    let mut queue = controller.queue(1);
    queue.withholds = true;
    for count in [1, 32] {
        let data = pattern((count * BLOCK) as usize, 3);
        let cid = queue.machine.begin(Transfer::None).unwrap();
        let mut capsule = queue.capsule(Command { cid: cid.into(), ..write(count, true) }, &data);
        let last = capsule.len() - 5;
        capsule[last] ^= 0x80;
        queue.stream.write_all(&capsule).unwrap();
        assert_eq!(queue.wait(cid).status(), Status::TRANSIENT_TRANSPORT_ERROR, "{count} blocks in a capsule");

        let cid = queue.send(write(count, false), &data, 0);
        let request = queue.wait_for_request();
        let head = queue.machine.pieces(&request).next().unwrap().head;
        let bytes = [&head[..], &data, &(!gf::crc32c(&data)).to_le_bytes()].concat();
        queue.stream.write_all(&bytes).unwrap();
        assert_eq!(queue.wait(cid).status(), Status::TRANSIENT_TRANSPORT_ERROR, "{count} blocks that were asked for");
    }
    assert_eq!(volume.ram.allocated_bytes(), 0, "nothing of them was written");
    queue.withholds = false;
    let data = pattern(BLOCK as usize, 4);
    assert!(queue.execute(write(1, false), &data, 0).status().is_success(), "a command that is repeated succeeds");
    assert!(queue.execute(io::read(blocks(1), BLOCK), &[], BLOCK).data() == data);
    drop((queue, controller));
    nothing_is_left(&state);
}

#[test]
fn commands_that_make_no_sense_fail_and_the_queue_goes_on() {
    let (target, volume, state) = Target::disk(16 * MIB);
    // Before Connect no other command is executed, neither one nor many.
    let mut queue = Queue::open(target.address, Digests::default());
    for _ in 0..100 {
        for submission in [admin::identify(1, 0), admin::property_get(0, true), admin::keep_alive()] {
            // Without space for data, so that no data has to come.
            let command = Command { dptr: Sgl::transport(0), ..submission.command };
            assert_eq!(queue.execute(command, &[], 0).status(), Status::COMMAND_SEQUENCE_ERROR);
        }
        assert_eq!(queue.execute(io::flush(1), &[], 0).status(), Status::COMMAND_SEQUENCE_ERROR);
    }

    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    let data = vec![1; BLOCK as usize];
    let with_sgl = |dptr| Command { dptr, ..write(1, true) };
    let far = Sgl { address: 4.into(), ..Sgl::in_capsule(BLOCK) };
    let keyed = Sgl { identifier: 0x40, ..Sgl::transport(BLOCK) };
    let cases: [(&str, Command, &[u8], Status); 7] = [
        ("less data than it says", write(2, true), &data, Status::DATA_SGL_LENGTH_INVALID),
        ("data that are described otherwise", with_sgl(Sgl::in_capsule(512)), &data, Status::DATA_SGL_LENGTH_INVALID),
        ("data that begin later", with_sgl(far), &data, Status::DATA_SGL_LENGTH_INVALID),
        ("no data", write(1, true), &[], Status::DATA_SGL_LENGTH_INVALID),
        ("a descriptor of another transport", with_sgl(keyed), &[], Status::SGL_TYPE_INVALID),
        ("an unknown opcode with data", Command { opcode: 0x81, ..write(1, true) }, &data, Status::INVALID_OPCODE),
        ("a fused command", Command { flags: 0x41, ..io::flush(1) }, &[], Status::INVALID_FIELD),
    ];
    for (what, command, data, expected) in cases {
        let cid = queue.machine.begin(Transfer::None).unwrap();
        let capsule = queue.capsule(Command { cid: cid.into(), ..command }, data);
        queue.stream.write_all(&capsule).unwrap();
        assert_eq!(queue.wait(cid).status(), expected, "{what}");
    }
    // A block count that uses all bits of its field. The data of a refused command is not
    // requested.
    let huge = Blocks { nsid: 1, first: 0, count: 4096 };
    let refused = queue.execute(io::write(huge, 16 << 20, false, false), &data, 0);
    assert_eq!((refused.status(), queue.requests), (Status::INVALID_FIELD, 0));
    let mut behind = Command::new(nvm::WRITE_ZEROES, 0, 1);
    behind.set_slba(u64::MAX);
    assert_eq!(queue.execute(behind, &[], 0).status(), Status::LBA_OUT_OF_RANGE);
    assert_eq!(volume.ram.allocated_bytes(), 0);
    assert!(queue.execute(write(1, true), &data, 0).status().is_success());
    drop((queue, controller));
    nothing_is_left(&state);
}

#[test]
fn more_commands_than_entries_end_the_queue() {
    let (target, volume, state) = Target::disk(16 * MIB);
    let controller = Controller::connect(target.address);
    let mut queue = controller.try_queue(1, 4).unwrap();
    volume.hold();
    let mut bytes = Vec::new();
    for _ in 0..5 {
        let cid = queue.machine.begin(Transfer::None).unwrap();
        bytes.extend(queue.capsule(Command { cid: cid.into(), ..io::flush(1) }, &[]));
    }
    queue.stream.write_all(&bytes).unwrap();
    eventually("as many as there are entries are in the volume", || volume.in_flight() == 4);
    volume.release();
    assert!(queue.is_closed());
    assert_eq!(queue.terminated, Some(fes::SEQUENCE));
    drop(controller);
    nothing_is_left(&state);
    assert_eq!(volume.ram.flushes(), 4);
}

#[test]
fn a_host_that_goes_leaves_its_commands_to_finish() {
    let (target, volume, state) = Target::disk(16 * MIB);
    let controller = Controller::connect(target.address);
    let mut queue = controller.queue(1);
    queue.withholds = true;
    volume.hold();
    let data = vec![7; 4 * BLOCK as usize];
    for at in 0..10 {
        let place = Blocks { nsid: 1, first: 2000 + at * 4, count: 4 };
        queue.send(io::write(place, 4 * BLOCK, true, false), &data, 0);
    }
    eventually("all writes are in the volume", || volume.in_flight() == 10);
    // More writes whose requested data never comes, and half of a write in its capsule.
    for _ in 0..20 {
        queue.send(write(64, false), &vec![1; 64 * BLOCK as usize], 0);
    }
    queue.wait_for_request();
    let capsule = queue.capsule(write(4, true), &data);
    queue.stream.write_all(&capsule[..9000]).unwrap();
    drop(queue);
    drop(controller);
    state.stop();
    assert_eq!(state.counters().in_flight, 10, "nothing was cancelled");
    volume.release();
    assert!(within(PATIENCE, state.stopped()).is_some());
    assert_eq!((state.counters().in_flight, volume.in_flight()), (0, 0));
    assert_eq!(volume.ram.allocated_bytes(), 40 * u64::from(BLOCK));
}

#[test]
fn noise_disturbs_nobody() {
    let (target, _, state) = Target::disk(16 * MIB);
    let honest = Honest::begin(target.address);
    let mut seed = 0x5eed_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let initial = initialize(Kind::IcReq, 0, Digests::default(), 0).to_vec();
    for round in 0..150_u32 {
        let noise: Vec<u8> = (0..random() % 3000).map(|_| random() as u8).collect();
        let mut stream = TcpStream::connect(target.address).unwrap();
        let bytes = match round % 3 {
            0 => noise,
            1 => [initial.clone(), noise].concat(),
            _ => {
                // Command capsules with one changed byte in their header, on a queue that is not
                // connected.
                let mut bytes = initial.clone();
                for _ in 0..20 {
                    let queue = nvme::tcp::Writer::default();
                    let mut capsule = queue.command(write(1, false), 0).to_vec();
                    let at = (random() % 72) as usize;
                    capsule[at] ^= 1 << (random() % 8);
                    bytes.extend(capsule);
                }
                bytes
            }
        };
        let _ = stream.write_all(&bytes);
        if round % 2 == 0 {
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    honest.end();
    nothing_is_left(&state);
}
