//! The same host on a shard's ring.

use std::sync::mpsc;
use std::time::Duration;

use crate::common::proxy::Proxy;
use crate::common::{BOTH, MIB, PATIENCE, Random, Target, address, options, pattern, segments};
use drive::{Drive, Env};
use initiator::{ConnectError, Namespace, Options, Selection};
use runtime::{Config, Runtime, ShardEnv};

/// Runs a test on a shard, and returns its result.
fn on_a_shard<T: Send + 'static, F: Future<Output = T> + 'static>(
    test: impl FnOnce(ShardEnv) -> F + Send + 'static,
) -> T {
    let runtime = Runtime::start(Config { cores: vec![Config::default().cores[0]], ..Config::default() }).unwrap();
    let (sender, receiver) = mpsc::channel();
    let run = move || async move {
        sender.send(test(ShardEnv::current()).await).unwrap();
    };
    runtime.shard(0).spawn(run).unwrap();
    let said = receiver.recv_timeout(PATIENCE).unwrap();
    runtime.stop();
    said
}

#[test]
fn a_drive_of_a_shard_keeps_what_was_written_while_connections_are_cut() {
    let (target, _volume, _) = Target::disk(4 * MIB);
    let proxy = Proxy::to(target.address);
    let at = proxy.address;
    let (cut, cuts) = mpsc::channel();
    let cutting = std::thread::spawn(move || cuts.iter().for_each(|()| proxy.cut()));
    let connects = on_a_shard(move |env| async move {
        let options = Options { queues: 2, digests: BOTH, ..options() };
        let disk = Namespace::connect(&env, &[address(at)], Selection::Only, options).await.unwrap();
        let (mut model, mut random) = (vec![0; 4 << 20], Random(11));
        for step in 0..300_usize {
            let len = 4096 * (1 + random.below([1, 4, 60, 400][step % 4])) as usize;
            let offset = random.below((model.len() - len) as u64 / 4096 + 1) as usize * 4096;
            let connects = disk.paths()[0].connects;
            let is_cut = step % 30 == 7;
            if is_cut {
                cut.send(()).unwrap();
            }
            if random.below(2) == 0 {
                let data = pattern(len, step);
                Drive::write(&disk, offset as u64, segments(&data), false).await.unwrap();
                model[offset..offset + len].copy_from_slice(&data);
            } else {
                let read = Drive::read(&disk, offset as u64, env.alloc(len)).await.unwrap();
                assert!(read[..] == model[offset..offset + len], "step {step}");
            }
            // It connects again, even if it was cut late.
            while is_cut && disk.paths()[0].connects == connects {
                env.sleep(Duration::from_millis(1)).await;
            }
        }
        Drive::flush(&disk).await.unwrap();
        let connects = disk.paths()[0].connects;
        disk.close().await;
        connects
    });
    cutting.join().unwrap();
    assert!(connects > 10, "{connects}");
}

#[test]
fn a_target_that_is_not_there_is_refused_and_names_are_not_resolved() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for at in [address(closed), "localhost:4420".parse().unwrap()] {
        let error = on_a_shard(move |env| async move {
            let connected = Namespace::connect(&env, &[at], Selection::Only, options()).await;
            match connected {
                Err(ConnectError::Unreachable { source, .. }) => source.kind(),
                other => panic!("{:?}", other.map(drop)),
            }
        });
        assert!(matches!(error, std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::InvalidInput), "{error}");
    }
}
