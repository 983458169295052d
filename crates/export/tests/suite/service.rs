//! Promises of a server besides the protocol: bounds, errors, the end of connections, and that
//! clients do not disturb each other.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Raw, Served, eventually};
use drive::BlockError;
use export::{Kind, ServerConfig};
use nbd::client::{self, Reply};
use nbd::wire::{chunk, cmd, cmd_flag, opt, rep};

const MIB: u64 = 1 << 20;

#[test]
fn what_was_written_is_read_back_by_another_connection() {
    let (served, volume, export) = Served::disk(64 * MIB);
    let mut one = Raw::on(&served.socket(), "disk", false);
    let mut other = Raw::on(&served.socket(), "disk", true);
    for (index, len) in [1usize, 511, 4096, 16 << 10, 100_000, 1 << 20, 32 << 20].into_iter().enumerate() {
        let data: Vec<u8> = (0..len).map(|at| (at * 7 + index) as u8).collect();
        one.send(&client::write(index as u64, 3, &data, 0));
        assert_eq!(one.error(), 0);
        other.read(9, 3, len as u32);
        let Reply::Chunk { kind: chunk::OFFSET_DATA, done: true, payload, .. } = other.reply() else { panic!() };
        assert!(payload[8..] == data, "{len} bytes");
    }
    assert_eq!(volume.ram.flushes(), 0);
    let counters = export.counters();
    assert_eq!((counters.requests[Kind::Write as usize], counters.requests[Kind::Read as usize]), (7, 7));
    assert_eq!(counters.written_bytes, counters.read_bytes);
    assert_eq!(counters.latency_us.of(Kind::Write).iter().sum::<u64>(), 7);
    assert_eq!(export.connections().len(), 2, "both have been served");
}

#[test]
fn requests_are_served_at_the_same_time_and_answered_out_of_order() {
    let (served, volume, _) = Served::disk(MIB);
    let mut raw = Raw::on(&served.socket(), "disk", false);
    volume.hold();
    for cookie in 0..100 {
        raw.read(cookie, cookie * 4096, 4096);
    }
    eventually("all requests are in the volume", || volume.in_flight() == 100);
    // A CACHE request, which is ignored, and a refused read overtake them.
    raw.send(&client::request(0, cmd::CACHE, 1000, 0, 4096));
    assert!(matches!(raw.reply(), Reply::Simple { error: 0, cookie: 1000, .. }));
    raw.read(1001, MIB, 1);
    assert!(matches!(raw.reply(), Reply::Simple { error: 22, cookie: 1001, .. }));
    volume.release();
    let mut cookies: Vec<u64> = (0..100)
        .map(|_| match raw.reply() {
            Reply::Simple { error: 0, cookie, data } if data.len() == 4096 => cookie,
            other => panic!("{other:?}"),
        })
        .collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..100));
}

#[test]
fn errors_of_the_volume_become_errors_of_the_protocol() {
    let (served, volume, export) = Served::disk(MIB);
    for structured in [false, true] {
        let mut raw = Raw::on(&served.socket(), "disk", structured);
        let cases = [
            (BlockError::OutOfRange { offset: 0, len: 1, size: 0 }, 22, 28),
            (BlockError::ReadOnly { reason: "a test" }, 1, 1),
            (BlockError::Lost { lost: 2, survives: 1 }, 5, 5),
            (BlockError::NoSpace, 28, 28),
            (BlockError::NotFast, 95, 95),
            (BlockError::Stopped, 108, 108),
        ];
        for (error, on_read, on_write) in cases {
            volume.fail(Some(error));
            raw.read(1, 0, 512);
            assert_eq!(raw.error(), on_read);
            raw.send(&client::write(2, 0, b"x", 0));
            assert_eq!(raw.error(), on_write);
        }
        volume.fail(None);
        raw.read(3, 0, 1);
        assert_eq!(raw.error(), 0, "the connection goes on");
    }
    assert_eq!(export.counters().errors, 24);
}

#[test]
fn durability_and_zeroing_reach_the_volume_as_asked() {
    let (served, volume, _) = Served::disk(MIB);
    let mut raw = Raw::on(&served.socket(), "disk", false);
    let mut ask = |flags, command, len| {
        raw.send(&client::request(flags, command, 1, 0, len));
        raw.error()
    };
    assert_eq!(ask(0, cmd::FLUSH, 0), 0);
    assert_eq!(volume.ram.flushes(), 1);
    assert_eq!(ask(cmd_flag::FUA | cmd_flag::NO_HOLE, cmd::WRITE_ZEROES, 8192), 0);
    assert_eq!((volume.ram.durable_writes(), volume.ram.allocated_bytes()), (1, 8192));
    assert_eq!(ask(cmd_flag::FAST_ZERO | cmd_flag::NO_HOLE, cmd::WRITE_ZEROES, 4096), 95);
    assert_eq!(ask(cmd_flag::FUA, cmd::TRIM, 4096), 0);
    assert_eq!((volume.ram.flushes(), volume.ram.allocated_bytes()), (2, 4096), "a trim with FUA is flushed");
    assert_eq!(ask(cmd_flag::FAST_ZERO, cmd::WRITE_ZEROES, 8192), 0);
    assert_eq!(volume.ram.allocated_bytes(), 0);
    raw.send(&client::write(1, 0, b"abc", cmd_flag::FUA));
    assert_eq!((raw.error(), volume.ram.durable_writes()), (0, 2));
    for command in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES, cmd::CACHE] {
        raw.send(&client::request(0, command, 1, 0, 0));
        assert_eq!(raw.error(), 0, "0 bytes of command {command}");
    }
}

#[test]
fn holes_are_sent_as_holes_where_the_client_can_take_them() {
    let (served, _, _) = Served::disk(4 * MIB);
    let mut raw = Raw::on(&served.socket(), "disk", true);
    raw.send(&client::write(1, MIB, &[5; 4096], 0));
    assert_eq!(raw.error(), 0);
    raw.send(&client::read(2, 0, 2 * MIB as u32));
    let mut parts = Vec::new();
    loop {
        let Reply::Chunk { done, kind, payload, .. } = raw.reply() else { panic!() };
        let offset = u64::from_be_bytes(payload[..8].try_into().unwrap());
        parts.push((kind, offset, if kind == chunk::OFFSET_DATA { payload.len() - 8 } else { 0 }));
        if done {
            break;
        }
    }
    parts.sort_unstable_by_key(|part| part.1);
    let hole = |offset| (chunk::OFFSET_HOLE, offset, 0);
    assert_eq!(parts, [hole(0), (chunk::OFFSET_DATA, MIB, 4096), hole(MIB + 4096)]);

    raw.send(&client::request(cmd_flag::DF, cmd::READ, 3, 0, 2 * MIB as u32));
    let Reply::Chunk { done: true, kind, payload, .. } = raw.reply() else { panic!() };
    assert_eq!((kind, payload.len()), (chunk::OFFSET_DATA, 2 * MIB as usize + 8), "DF: one chunk");
}

#[test]
fn a_client_that_goes_leaves_its_requests_to_finish() {
    let (served, volume, export) = Served::disk(MIB);
    volume.hold();
    let mut going = Raw::on(&served.socket(), "disk", false);
    for cookie in 0..20 {
        going.send(&client::write(cookie, cookie * 4096, &[cookie as u8 + 1; 4096], 0));
    }
    eventually("all writes are in the volume", || volume.in_flight() == 20);
    // One more write whose data never comes.
    going.send(&client::request(0, cmd::WRITE, 99, 0, 1 << 19));
    going.send(&[1; 1000]);
    drop(going);

    let mut staying = Raw::on(&served.socket(), "disk", false);
    staying.read(1, 0, 4096);
    eventually("the read is in the volume", || volume.in_flight() == 21);
    assert_eq!(export.counters().in_flight, 21, "nothing was cancelled");
    volume.release();
    assert_eq!(staying.error(), 0);
    eventually("the connection is forgotten", || export.connections().len() == 1);
    for block in 0..20u64 {
        staying.read(2, block * 4096, 4096);
        let Reply::Simple { data, .. } = staying.reply() else { panic!() };
        assert!(data.iter().all(|&byte| byte == block as u8 + 1), "write {block} ran to its end");
    }
}

#[test]
fn a_client_that_reads_no_answers_is_not_read_from() {
    let (served, volume, export) = Served::disk(64 * MIB);
    let mut greedy = Raw::on(&served.socket(), "disk", false);
    // 200 answers of 4 MiB would be 800 MiB.
    for cookie in 0..200 {
        greedy.read(cookie, 0, 4 * MIB as u32);
    }
    let accepted = || export.counters().requests[Kind::Read as usize];
    eventually("it is served", || accepted() > 0);
    std::thread::sleep(Duration::from_millis(300));
    assert!(accepted() <= 40, "{} reads of 4 MiB were accepted", accepted());

    // Requests that hold no bytes are bounded by their number.
    volume.hold();
    let mut many = Raw::on(&served.socket(), "disk", false);
    let flushes: Vec<u8> = (0..5000).flat_map(client::flush).collect();
    let mut stream = many.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || stream.write_all(&flushes).unwrap());
    eventually("the bound is reached", || volume.in_flight() >= 1024);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(volume.in_flight(), 1024);
    volume.release();
    for _ in 0..5000 {
        assert_eq!(many.error(), 0);
    }
    sender.join().unwrap();
    // The first client gets all of its answers when it reads them.
    for _ in 0..200 {
        let Reply::Simple { error: 0, data, .. } = greedy.reply() else { panic!() };
        assert_eq!(data.len(), 4 * MIB as usize);
    }
}

#[test]
fn answers_that_the_socket_takes_piece_by_piece_arrive_whole() {
    let (served, _, _) = Served::disk(64 * MIB);
    let mut raw = Raw::on(&served.socket(), "disk", false);
    let content = |at: u64| (at >> 9) as u8 ^ (at >> 17) as u8;
    let data: Vec<u8> = (0..32 * MIB).map(content).collect();
    raw.send(&client::write(0, 0, &data, 0));
    assert_eq!(raw.error(), 0);
    // A few reads at a time, short and long. Some fill the socket's buffer in the middle: the
    // client does not read before all are sent.
    let mut at = 0;
    for round in 0..60_u64 {
        let lens: Vec<u64> =
            (0..1 + round % 8).map(|nth| [4096, 512, 100_000, 60_000][(round + nth) as usize % 4]).collect();
        for (nth, len) in lens.iter().enumerate() {
            raw.read(nth as u64, at + nth as u64 * 131_072, *len as u32);
        }
        std::thread::sleep(Duration::from_millis(2));
        let mut missing: Vec<u64> = (0..lens.len() as u64).collect();
        while !missing.is_empty() {
            let Reply::Simple { error: 0, cookie, data } = raw.reply() else { panic!() };
            missing.retain(|nth| *nth != cookie);
            let start = at + cookie * 131_072;
            assert!(data.len() as u64 == lens[cookie as usize], "read {cookie} of round {round}");
            assert!((start..).zip(&data).all(|(at, byte)| content(at) == *byte), "read {cookie} of round {round}");
        }
        at += 8 * 32_768;
    }
}

#[test]
fn a_stopped_export_answers_what_it_has_and_refuses_the_rest() {
    let (served, volume, export) = Served::disk(MIB);
    let (_, other) = served.add("other", MIB, false);
    let mut busy = Raw::on(&served.socket(), "disk", true);
    let mut idle = Raw::on(&served.socket(), "disk", false);
    let mut half = Raw::on(&served.socket(), "disk", false);
    let mut unconcerned = Raw::on(&served.socket(), "other", false);
    volume.hold();
    busy.send(&client::write(1, 0, b"in flight", 0));
    eventually("the write is in the volume", || volume.in_flight() == 1);
    half.send(&client::request(0, cmd::WRITE, 1, 0, 1 << 19));
    half.send(&[1; 100]);

    export.stop();
    assert!(idle.is_closed(), "an idle connection ends at once");
    assert!(half.is_closed(), "so does one that waits for data of its client");
    busy.read(2, 0, 1);
    assert_eq!(busy.error(), 108, "a new request is refused");
    let mut late = Raw::connect(&served.socket());
    late.send(&client::go("disk", &[]));
    assert_eq!(late.option_reply().kind, rep::ERR_SHUTDOWN);

    let (sender, receiver) = mpsc::channel();
    let waiting = export.clone();
    std::thread::spawn(move || {
        block_on(waiting.stopped());
        sender.send(()).unwrap();
    });
    assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err(), "a request is still in flight");
    volume.release();
    assert_eq!(busy.error(), 0, "what was in flight is answered");
    assert!(busy.is_closed());
    receiver.recv_timeout(PATIENCE).unwrap();
    assert!(export.connections().is_empty());
    assert_eq!(&*volume_bytes(&volume, 9), b"in flight");

    unconcerned.read(1, 0, 1);
    assert_eq!(unconcerned.error(), 0);
    assert_eq!(other.connections().len(), 1);
}

#[test]
fn a_client_that_takes_no_answers_holds_up_a_stop_for_ten_seconds_at_most() {
    let (served, _, export) = Served::disk(64 * MIB);
    let clients: Vec<Raw> = [1, 40, 200]
        .map(|reads| {
            let mut raw = Raw::on(&served.socket(), "disk", false);
            (0..reads).for_each(|cookie| raw.read(cookie, 0, MIB as u32));
            raw
        })
        .into();
    eventually("reads are served", || export.counters().requests[Kind::Read as usize] > 3);
    let begun = Instant::now();
    export.stop();
    block_on(export.stopped());
    let took = begun.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(13)).contains(&took), "{took:?}");
    drop(clients);
}

fn block_on(future: impl Future<Output = ()>) {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    while future.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending() {
        std::thread::park();
    }
}

fn volume_bytes(volume: &crate::common::Volume, len: usize) -> Vec<u8> {
    use drive::{Block, BufMut};
    let mut bytes = Vec::new();
    block_on(async { bytes = volume.ram.read(0, BufMut::zeroed(len)).await.unwrap().to_vec() });
    bytes
}

#[test]
fn one_connection_can_be_cut_while_it_hangs() {
    let (served, volume, export) = Served::disk(64 * MIB);
    let mut hanging = Raw::on(&served.socket(), "disk", false);
    for cookie in 0..50 {
        hanging.read(cookie, 0, 4 * MIB as u32);
    }
    let mut other = Raw::on(&served.socket(), "disk", false);
    // A client may begin a moment before it is listed.
    eventually("both connections are listed", || export.connections().len() == 2);
    let connections = export.connections();
    assert_eq!(connections[0].peer, "unix");
    assert!(export.cut(connections[0].id) && !export.cut(777));
    eventually("the connection is gone", || export.connections().len() == 1);
    other.send(&client::disconnect());
    assert!(other.is_closed());
    eventually("all are gone", || export.connections().is_empty());
    assert_eq!(volume.in_flight(), 0);
    assert!(export.counters().requests[Kind::Read as usize] >= 1, "ended connections are still counted");
}

#[test]
fn hostile_clients_disturb_nobody() {
    let (served, _, export) = Served::disk(16 * MIB);
    let path = served.socket();
    let go_on = Arc::new(AtomicBool::new(true));
    let honest = std::thread::spawn({
        let (path, go_on) = (path.clone(), go_on.clone());
        move || {
            let mut raw = Raw::on(&path, "disk", true);
            let mut rounds = 0u64;
            while go_on.load(Ordering::Relaxed) {
                let data = [rounds as u8; 20_000];
                raw.send(&client::write(rounds, rounds % 100 * 20_000, &data, 0));
                assert_eq!(raw.error(), 0);
                raw.read(rounds, rounds % 100 * 20_000, 20_000);
                let Reply::Chunk { payload, .. } = raw.reply() else { panic!() };
                assert!(payload[8..] == data);
                rounds += 1;
            }
            rounds
        }
    });

    let mut seed = 0x5eed_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..300u64 {
        let noise: Vec<u8> = (0..random() % 3000).map(|_| random() as u8).collect();
        let mut raw = Raw::connect(&path);
        // Sending may fail: the server closes as soon as it has seen enough.
        let _ = match round % 6 {
            0 => raw.stream.write_all(&noise),
            1 => raw.stream.write_all(&client::option((random() % 12) as u32, &noise)),
            2 => raw.stream.write_all(&[client::go("disk", &[]), noise].concat()),
            3 => {
                // Request headers with one flipped bit, again and again.
                let mut bytes = client::go("disk", &[]);
                for _ in 0..50 {
                    let mut request = client::write(random(), random() % (16 * MIB), &noise[..noise.len() / 50], 0);
                    let at = (random() % request.len().min(28) as u64) as usize;
                    request[at] ^= 1 << (random() % 8);
                    // Stay away from valid writes, which would change what the honest client wrote.
                    request[6..8].copy_from_slice(&((2 + random() % 9) as u16).to_be_bytes());
                    bytes.extend(request);
                }
                raw.stream.write_all(&bytes)
            }
            4 => raw.stream.write_all(&[client::option(opt::STARTTLS, &[]), noise].concat()),
            _ => {
                // A write whose announced data never comes.
                let write = client::request(0, cmd::WRITE, 1, 15 * MIB, 1 << 20);
                raw.stream.write_all(&[client::go("disk", &[]), write].concat())
            }
        };
        if round % 2 == 0 {
            let _ = raw.stream.shutdown(std::net::Shutdown::Write);
            while raw.try_reply().is_some() {}
        }
    }
    go_on.store(false, Ordering::Relaxed);
    let rounds = honest.join().unwrap();
    println!("{rounds} undisturbed rounds beside 300 hostile clients");
    assert!(rounds > 0);
    eventually("all hostile connections are gone", || export.connections().is_empty());
}

#[test]
fn connections_above_the_limit_are_closed_and_make_room_when_they_end() {
    let served = Served::start(ServerConfig { connections_max: 2, ..ServerConfig::default() }, false, 1);
    served.add("disk", MIB, false);
    let one = Raw::on(&served.socket(), "disk", false);
    let _two = Raw::on(&served.socket(), "disk", false);
    let mut third = std::os::unix::net::UnixStream::connect(served.socket()).unwrap();
    assert_eq!(std::io::Read::read(&mut third, &mut [0; 18]).unwrap(), 0, "closed without a word");
    drop(one);
    eventually("there is room again", || {
        let mut next = std::os::unix::net::UnixStream::connect(served.socket()).unwrap();
        std::io::Read::read(&mut next, &mut [0; 18]).is_ok_and(|len| len > 0)
    });
}

#[test]
fn connections_are_spread_over_shards_and_see_one_volume() {
    let served = Served::start(ServerConfig::default(), false, 2);
    let (_, export) = served.add("disk", MIB, false);
    let mut clients: Vec<Raw> = (0..4).map(|_| Raw::on(&served.socket(), "disk", false)).collect();
    for (index, raw) in clients.iter_mut().enumerate() {
        raw.send(&client::write(1, index as u64, &[index as u8 + 1], 0));
        assert_eq!(raw.error(), 0);
    }
    for raw in &mut clients {
        raw.read(2, 0, 4);
        let Reply::Simple { data, .. } = raw.reply() else { panic!() };
        assert_eq!(data, [1, 2, 3, 4]);
    }
    assert_eq!(export.connections().len(), 4);
    export.stop();
    assert!(clients.iter_mut().all(Raw::is_closed), "a stop reaches every shard");
    block_on(export.stopped());
}

#[test]
fn a_client_that_disconnects_is_answered_what_it_has_asked() {
    let (served, volume, export) = Served::disk(MIB);
    let mut raw = Raw::on(&served.socket(), "disk", true);
    volume.hold();
    raw.send(&client::write(1, 0, b"in flight", 0));
    eventually("the write is in the volume", || volume.in_flight() == 1);
    raw.send(&client::request(0, cmd::DISC, 2, 0, 0));
    // Time for the server to see it.
    std::thread::sleep(Duration::from_millis(50));
    volume.release();
    assert_eq!(raw.error(), 0);
    assert!(raw.is_closed());
    eventually("the connection has ended", || export.connections().is_empty());
}

#[test]
fn an_export_that_is_handed_over_answers_what_it_has_and_nothing_else() {
    let (served, volume, export) = Served::disk(MIB);
    let mut busy = Raw::on(&served.socket(), "disk", true);
    let mut idle = Raw::on(&served.socket(), "disk", false);
    volume.hold();
    busy.send(&client::write(1, 0, b"in flight", 0));
    eventually("the write is in the volume", || volume.in_flight() == 1);
    export.hand_over();
    assert!(idle.is_closed(), "an idle connection ends at once");
    // The next server of the export gets the request. A client would take "shutting down" for an
    // error.
    busy.send(&client::write(2, 0, b"too late!", 0));
    volume.release();
    assert_eq!(busy.error(), 0, "what was in flight is answered");
    assert!(busy.is_closed(), "and what came late is not");
    block_on(export.stopped());
    assert_eq!(&*volume_bytes(&volume, 9), b"in flight");
}

#[test]
fn a_read_only_export_changes_nothing() {
    let served = Served::start(ServerConfig::default(), false, 1);
    let (volume, _) = served.add("image", MIB, true);
    let mut raw = Raw::on(&served.socket(), "", false);
    raw.send(&client::write(1, 0, b"abc", 0));
    assert_eq!(raw.error(), 1);
    raw.send(&client::request(0, cmd::TRIM, 1, 0, 4096));
    assert_eq!(raw.error(), 1);
    assert_eq!(volume.ram.allocated_bytes(), 0);
}

#[test]
fn the_default_export_is_the_only_one() {
    let served = Served::start(ServerConfig::default(), false, 1);
    let kind = || {
        let mut raw = Raw::connect(&served.socket());
        raw.send(&client::info("", &[]));
        raw.option_reply().kind
    };
    assert_eq!(kind(), rep::ERR_UNKNOWN);
    served.add("one", MIB, false);
    assert_eq!(kind(), rep::INFO);
    served.add("two", MIB, false);
    assert_eq!(kind(), rep::ERR_UNKNOWN);
    served.exports.remove("one");
    assert_eq!(kind(), rep::INFO);
}
