//! Sockets on the ring, tested against the standard library's.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::{TempPath, pattern, start};
use drive::{Buf, Env, Segments};
use runtime::{Closer, Incoming, Listener, Peer, Runtime, ShardEnv, Stream};

const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// Sends received bytes back, until the other end has finished.
async fn echo(stream: Stream) {
    let env = ShardEnv::current();
    let (mut reader, mut writer) = stream.split();
    loop {
        let (count, mut buf) = reader.recv(env.alloc(64 << 10), 0).await;
        match count {
            Ok(0) => break,
            Ok(count) => {
                buf.truncate(count);
                // Sends three parts, to be gathered again.
                let buf = buf.freeze();
                let (third, two_thirds) = (count / 3, count / 3 * 2);
                let parts = [buf.slice(0..third), buf.slice(third..two_thirds), buf.slice(two_thirds..count)];
                if writer.send_all(Segments::from_iter(parts)).await.is_err() {
                    break;
                }
            }
            Err(_) => break,
        }
    }
}

/// An echo server on the first shard that hands its connections to all shards.
fn echo_server(runtime: &Runtime) -> SocketAddr {
    let shards = runtime.shards().to_vec();
    let call = runtime.shard(0).call(move || async move {
        let env = ShardEnv::current();
        let listener = Listener::bind_tcp(&env, LOOPBACK.into()).expect("a free port");
        let address = listener.local_addr().expect("a TCP listener");
        env.spawn(async move {
            let mut next = 0;
            while let Ok(incoming) = listener.accept().await {
                let shard = &shards[next % shards.len()];
                next += 1;
                let _ = shard.spawn(|| async { echo(Stream::new(&ShardEnv::current(), incoming)).await });
            }
        });
        address
    });
    call.wait().expect("the shard runs")
}

#[test]
fn many_connections_get_their_own_bytes_back() {
    let runtime = start(2);
    let address = echo_server(&runtime);
    let clients: Vec<_> = (0..100)
        .map(|seed| {
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).expect("the server listens");
                for round in 0..10u64 {
                    let data = pattern(seed * 100 + round, 1 + (seed * 7919 + round * 104_729) as usize % 50_000);
                    stream.write_all(&data).expect("send");
                    let mut back = vec![0; data.len()];
                    stream.read_exact(&mut back).expect("receive");
                    assert!(back[..] == data[..], "connection {seed}, round {round}");
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("no client failed"));
    runtime.stop();
}

#[test]
fn one_connection_receives_while_it_sends() {
    const TOTAL: usize = 16 << 20;
    let runtime = start(1);
    let address = echo_server(&runtime);
    let mut sender = TcpStream::connect(address).expect("the server listens");
    let mut receiver = sender.try_clone().expect("a second handle");
    // Far more than both socket buffers hold: an end that only sent or only received would block.
    let sending = std::thread::spawn(move || {
        sender.write_all(&pattern(1, TOTAL)).expect("send");
        sender.shutdown(std::net::Shutdown::Write).expect("finish sending");
    });
    let mut back = Vec::new();
    receiver.read_to_end(&mut back).expect("receive");
    sending.join().expect("everything was sent");
    assert!(back[..] == pattern(1, TOTAL)[..]);
    runtime.stop();
}

/// A connected pair: a stream on the shard that runs `test`, and an ordinary socket.
fn with_pair<F, T>(
    runtime: &Runtime,
    test: impl FnOnce(ShardEnv, Stream) -> F + Send + 'static,
) -> (UnixStream, runtime::Call<T>)
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let incoming = Incoming::try_from(ours).expect("a socket");
    let call = runtime.shard(0).call(|| {
        let env = ShardEnv::current();
        let stream = Stream::new(&env, incoming);
        test(env, stream)
    });
    (theirs, call)
}

#[test]
fn recv_exact_waits_for_all_of_its_range_and_touches_nothing_else() {
    let runtime = start(1);
    let (mut theirs, call) = with_pair(&runtime, |env, mut stream| async move {
        let mut buf = env.alloc(20);
        buf.fill(0xaa);
        let (result, buf) = stream.reader.recv_exact(buf, 5..15).await;
        result.expect("ten bytes came");
        assert_eq!(&buf[..], b"\xaa\xaa\xaa\xaa\xaa0123456789\xaa\xaa\xaa\xaa\xaa");
        let (result, buf) = stream.reader.recv_exact(buf, 0..20).await;
        (result.expect_err("the end came before").kind(), buf[..3].to_vec())
    });
    for byte in b"0123456789abc" {
        theirs.write_all(&[*byte]).expect("send");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(theirs);
    assert_eq!(call.wait(), Ok((ErrorKind::UnexpectedEof, b"abc".to_vec())));
    runtime.stop();
}

#[test]
fn thousands_of_segments_are_sent_in_order() {
    let runtime = start(1);
    let data = pattern(9, 3 << 20);
    let expected = data.to_vec();
    let (mut theirs, call) = with_pair(&runtime, |_, mut stream| async move {
        let buf = data.freeze();
        let parts: Vec<Buf> = (0..buf.len()).step_by(700).map(|at| buf.slice(at..(at + 700).min(buf.len()))).collect();
        assert!(parts.len() > 4 * 1024);
        stream.writer.send_all(Segments::from_vec(parts)).await.expect("send");
        stream.writer.send_all(Segments::new()).await.expect("nothing to send");
        stream.writer.shutdown();
    });
    let mut back = Vec::new();
    theirs.read_to_end(&mut back).expect("receive");
    call.wait().expect("the shard runs");
    assert!(back == expected);
    runtime.stop();
}

#[test]
fn a_closed_stream_interrupts_its_receiver_and_its_sender() {
    let runtime = start(1);
    let (mut theirs, call) = with_pair(&runtime, |env, stream| async move {
        let closer = stream.closer();
        let (mut reader, mut writer) = stream.split();
        let (received, wait_received) = drive::oneshot();
        let (sent, wait_sent) = drive::oneshot();
        let buf = env.alloc(4096);
        env.spawn(async move { received.send(reader.recv(buf, 0).await.0.expect_err("nothing came").kind()) });
        // More than the socket buffers hold, and the other end does not read.
        env.spawn(async move {
            let data = Segments::from_iter([Buf::zeroes(1 << 20), Buf::from(vec![1; 16 << 20])]);
            sent.send(writer.send_all(data).await.expect_err("nobody reads").kind());
        });
        env.sleep(Duration::from_millis(20)).await;
        closer.close();
        closer.close();
        (wait_received.await.expect("an answer"), wait_sent.await.expect("an answer"))
    });
    assert_eq!(call.wait(), Ok((ErrorKind::ConnectionAborted, ErrorKind::ConnectionAborted)));
    let mut rest = Vec::new();
    theirs.read_to_end(&mut rest).expect("the other end sees the end");
    runtime.stop();
}

#[test]
fn a_closed_listener_interrupts_accept_and_stays_closed() {
    let runtime = start(1);
    let call = runtime.shard(0).call(|| async {
        let env = ShardEnv::current();
        let listener = Listener::bind_tcp(&env, LOOPBACK.into()).expect("a free port");
        let closer: Closer = listener.closer();
        let (done, wait) = drive::oneshot();
        env.spawn(async move {
            let first = listener.accept().await.expect_err("nobody came").kind();
            let second = listener.accept().await.expect_err("it is closed").kind();
            done.send((first, second));
        });
        env.sleep(Duration::from_millis(10)).await;
        closer.close();
        let kinds = wait.await.expect("an answer");
        // The listener is gone by now.
        closer.close();
        kinds
    });
    assert_eq!(call.wait(), Ok((ErrorKind::ConnectionAborted, ErrorKind::ConnectionAborted)));
    runtime.stop();
}

#[test]
fn a_connection_that_meets_a_dropped_accept_is_ended_and_the_next_one_served() {
    let runtime = start(1);
    let (tell, address) = std::sync::mpsc::channel();
    let call = runtime.shard(0).call(move || async move {
        let env = ShardEnv::current();
        let listener = Listener::bind_tcp(&env, LOOPBACK.into()).expect("a free port");
        for _ in 0..100 {
            let mut accept = Box::pin(listener.accept());
            std::future::poll_fn(|context| {
                assert!(accept.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            env.sleep(Duration::from_micros(20)).await;
        }
        tell.send(listener.local_addr().expect("a TCP listener")).expect("the test listens");
        let incoming = listener.accept().await.expect("a connection");
        let Peer::Tcp(peer) = incoming.peer else { panic!("a TCP connection") };
        (Stream::new(&env, incoming).writer.send_all(Segments::from_iter([Buf::from(vec![42])])).await.is_ok(), peer)
    });
    let mut client = TcpStream::connect(address.recv().expect("the address")).expect("the server listens");
    let mut byte = [0];
    client.read_exact(&mut byte).expect("the byte");
    assert_eq!(byte, [42]);
    assert_eq!(call.wait(), Ok((true, client.local_addr().expect("connected"))));
    runtime.stop();
}

#[test]
fn what_came_since_a_receive_that_took_all_is_found_at_once_and_so_is_the_end() {
    let runtime = start(1);
    let (mut theirs, call) = with_pair(&runtime, |env, mut stream| async move {
        let mut heard = Vec::new();
        // The first receive takes all bytes. Before each of the others, something has arrived
        // already, or nothing has.
        for pause_ms in [0, 20, 0, 20, 20] {
            env.sleep(Duration::from_millis(pause_ms)).await;
            let (count, buf) = stream.reader.recv(env.alloc(100), 0).await;
            heard.extend_from_slice(&buf[..count.expect("a connection")]);
            stream.writer.send_all(Segments::from_iter([Buf::from(vec![0])])).await.ok();
        }
        heard
    });
    let mut answer = [0];
    for word in [b"one", b"two", b"six", b"ten"] {
        theirs.write_all(word).expect("connected");
        theirs.read_exact(&mut answer).expect("an answer");
    }
    theirs.shutdown(std::net::Shutdown::Write).expect("connected");
    assert_eq!(call.wait().expect("the shard runs"), b"onetwosixten");
    runtime.stop();
}

/// Echoes each byte to a client that may send the next one at once, until the client has gone or
/// the stream is closed. Returns how that was reported.
async fn answer_promptly(env: ShardEnv, mut stream: Stream) -> std::io::Result<()> {
    stream.reader.expect_promptly();
    loop {
        let (count, buf) = stream.reader.recv(env.alloc(100), 0).await;
        match count? {
            0 => return Ok(()),
            count => {
                assert_eq!(stream.writer.at_once().send(&[buf[..count].into()]), count, "an empty socket takes it");
            }
        }
    }
}

#[test]
fn a_client_that_asks_again_at_once_is_heard_without_the_ring() {
    const ROUNDS: u64 = 200;
    let runtime = start(1);
    let (mut theirs, call) = with_pair(&runtime, answer_promptly);
    let begin = Instant::now();
    // With the ring each round is an operation. The client may be too late for some of them if
    // other programs need the cores.
    loop {
        let before = runtime.shard(0).stats().submitted;
        for round in 0..ROUNDS {
            theirs.write_all(&[round as u8]).expect("connected");
            let mut answer = [0];
            theirs.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer, [round as u8]);
        }
        let submitted = runtime.shard(0).stats().submitted - before;
        if submitted < ROUNDS / 4 {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{submitted} operations for {ROUNDS} requests");
    }
    drop(theirs);
    call.wait().expect("the shard runs").expect("the client has gone");
    runtime.stop();
}

/// Polls a receive once. It finds no data.
async fn begin(recv: &mut Pin<Box<impl Future>>) {
    std::future::poll_fn(|context| {
        assert!(recv.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[test]
fn a_receive_that_the_kernel_does_not_have_yet_is_interrupted_like_any() {
    let runtime = start(1);
    let (mut theirs, call) = with_pair(&runtime, |env, mut stream| async move {
        stream.reader.expect_promptly();
        let closer = stream.closer();
        // The receive took all data, so the next one waits.
        stream.reader.recv(env.alloc(100), 0).await.0.expect("a byte");
        let mut recv = Box::pin(stream.reader.recv(env.alloc(100), 0));
        begin(&mut recv).await;
        closer.close();
        recv.await.0.expect_err("it is closed").kind()
    });
    theirs.write_all(&[1]).expect("connected");
    assert_eq!(call.wait(), Ok(ErrorKind::ConnectionAborted));
    runtime.stop();
}

#[test]
fn a_dropped_stream_ends_the_connection() {
    for is_prompt in [false, true] {
        let runtime = start(1);
        let (mut theirs, call) = with_pair(&runtime, move |env, mut stream| async move {
            if is_prompt {
                stream.reader.expect_promptly();
            }
            stream.reader.recv(env.alloc(100), 0).await.0.expect("a byte");
            let mut recv = Box::pin(stream.reader.recv(env.alloc(100), 0));
            begin(&mut recv).await;
            if !is_prompt {
                env.sleep(Duration::from_millis(5)).await;
            }
        });
        theirs.write_all(&[1]).expect("connected");
        call.wait().expect("the shard runs");
        theirs.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        assert_eq!(theirs.read_to_end(&mut Vec::new()).expect("no timeout"), 0);
        runtime.stop();
    }
}

#[test]
fn a_unix_socket_has_the_permissions_asked_for_and_replaces_only_a_dead_one() {
    let runtime = start(1);
    let path = TempPath::new("/tmp");
    let there = path.0.clone();
    let call = runtime.shard(0).call(move || async move {
        let env = ShardEnv::current();
        let listener = Listener::bind_unix(&env, &there, 0o666).expect("a free path");
        assert_eq!(there.metadata().expect("it exists").permissions().mode() & 0o777, 0o666);
        let error = Listener::bind_unix(&env, &there, 0o600).map(drop).expect_err("somebody listens");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        drop(listener);
        assert!(!there.exists(), "removed with its listener");
        // A killed process leaves a socket file without a listener.
        drop(std::os::unix::net::UnixListener::bind(&there).expect("free again"));
        assert!(there.exists());
        let listener = Listener::bind_unix(&env, &there, 0o600).expect("nobody listens");
        assert_eq!(there.metadata().expect("it exists").permissions().mode() & 0o777, 0o600);
        let client = std::thread::spawn({
            let there = there.clone();
            move || UnixStream::connect(there)
        });
        let incoming = listener.accept().await.expect("a connection");
        assert_eq!(incoming.peer, Peer::Unix);
        drop(client.join().expect("no panic").expect("connected"));
        drop(listener);
        std::fs::write(&there, "not a socket").expect("a file");
        let error = Listener::bind_unix(&env, &there, 0o600).map(drop).expect_err("a file is there");
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(there.exists(), "and it stays");
    });
    call.wait().expect("the shard runs");
    runtime.stop();
}

#[test]
fn a_shard_connects_to_others_and_is_told_when_nobody_is_there() {
    let runtime = start(1);
    for ip in ["127.0.0.1", "::1"] {
        let Ok(listener) = std::net::TcpListener::bind((ip, 0)) else { continue };
        let at = listener.local_addr().expect("it listens");
        let served = std::thread::spawn(move || {
            let (mut stream, peer) = listener.accept().expect("somebody comes");
            let mut said = [0; 4];
            stream.read_exact(&mut said).expect("it says something");
            stream.write_all(&said).expect("it listens");
            peer
        });
        let (sender, receiver) = std::sync::mpsc::channel();
        let run = move || async move {
            let env = ShardEnv::current();
            let mut stream = Stream::connect(&env, at).await.expect("somebody listens");
            stream.writer.send_all(Segments::from_iter([Buf::from(b"ping".to_vec())])).await.expect("it is taken");
            let (received, buf) = stream.reader.recv_exact(env.alloc(4), 0..4).await;
            received.expect("it comes back");
            assert_eq!((&buf[..], stream.peer), (&b"ping"[..], Peer::Tcp(at)));
            sender.send(stream.local).expect("the test waits");
        };
        runtime.shard(0).spawn(run).expect("the shard runs");
        let local = receiver.recv_timeout(Duration::from_secs(30)).expect("it connects");
        assert_eq!(local, Some(served.join().expect("it was served")));
    }
    let closed = std::net::TcpListener::bind(SocketAddr::from(LOOPBACK)).expect("a port is free");
    let at = closed.local_addr().expect("it listens");
    drop(closed);
    let (sender, receiver) = std::sync::mpsc::channel();
    let run = move || async move {
        let refused = Stream::connect(&ShardEnv::current(), at).await.map(drop);
        sender.send(refused.map_err(|error| error.kind())).expect("the test waits");
    };
    runtime.shard(0).spawn(run).expect("the shard runs");
    assert_eq!(receiver.recv_timeout(Duration::from_secs(30)), Ok(Err(ErrorKind::ConnectionRefused)));
    runtime.stop();
}
