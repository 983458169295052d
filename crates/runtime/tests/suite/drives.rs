//! Drives on the real kernel: every operation, and the data that it leaves.

use std::time::{Duration, Instant};

use crate::common::{Random, directories, file_drive, memory_drive, pattern, start, start_with};
use drive::{Buf, BufMut, Drive, DriveError, Env, Segments};
use runtime::{DriveSpec, OpenDrive, OpenError, Runtime, ShardEnv};

const SIZE: u64 = 16 << 20;

fn segments(parts: &[&[u8]]) -> Segments {
    parts.iter().map(|part| BufMut::copy_of(part).freeze()).collect()
}

/// All kinds of drives that this machine can create, and the objects that keep them.
fn every_kind() -> Vec<(Box<dyn std::any::Any>, OpenDrive)> {
    let mut drives: Vec<(Box<dyn std::any::Any>, OpenDrive)> = vec![(Box::new(()), memory_drive(SIZE))];
    for directory in directories() {
        let (path, open) = file_drive(directory, SIZE);
        drives.push((Box::new(path), open));
    }
    for sector_bytes in [512, 4096] {
        match loop_device::LoopDevice::new(SIZE, sector_bytes) {
            Ok(device) => {
                let open = OpenDrive::open(&DriveSpec::Path(device.path.clone())).expect("a fresh loop device opens");
                assert_eq!(open.info().sector_bytes, sector_bytes);
                drives.push((Box::new(device), open));
            }
            Err(reason) => println!("no loop device with sectors of {sector_bytes} bytes here: {reason}"),
        }
    }
    drives
}

/// Block devices over files in memory, made with `losetup`.
mod loop_device {
    use std::path::PathBuf;
    use std::process::Command;

    use crate::common::TempPath;

    pub struct LoopDevice {
        pub path: PathBuf,
        _file: TempPath,
    }

    impl LoopDevice {
        pub fn new(size_bytes: u64, sector_bytes: u32) -> Result<LoopDevice, String> {
            let file = TempPath::new("/dev/shm");
            runtime::create_file(&file.0, size_bytes).map_err(|error| error.to_string())?;
            let output = Command::new("losetup")
                .args(["--find", "--show", "--direct-io=on", "--sector-size", &sector_bytes.to_string()])
                .arg(&file.0)
                .output()
                .map_err(|error| format!("losetup: {error}"))?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).trim().to_string());
            }
            let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
            Ok(LoopDevice { path, _file: file })
        }
    }

    impl Drop for LoopDevice {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
        }
    }
}

/// Runs the same test on every kind of drive, on rings of both forms.
fn on_every_kind<F>(test: impl Fn(ShardEnv, runtime::Drive) -> F + Send + Copy + 'static)
where
    F: Future<Output = ()> + 'static,
{
    for passthrough in [false, true] {
        let runtime = start_with(1, passthrough);
        for (keep, open) in every_kind() {
            println!("{} ({:?}, direct: {})", open.info().name, open.kind(), open.is_direct());
            on(&runtime, &open, test);
            drop(open);
            drop(keep);
        }
        runtime.stop();
    }
}

/// Opens a drive that was just closed. If another test starts a process, its child holds all
/// descriptors, and with them the lock, until its exec.
fn open_again(spec: &DriveSpec) -> OpenDrive {
    for _ in 0..200 {
        match OpenDrive::open_passthrough(spec) {
            Err(OpenError::InUse { .. }) => std::thread::sleep(Duration::from_millis(10)),
            opened => return opened.expect("it is no error"),
        }
    }
    panic!("still in use");
}

#[test]
fn a_drive_that_is_no_nvme_namespace_is_reached_as_ever_and_says_why() {
    let runtime = start_with(1, true);
    for directory in directories() {
        let (path, open) = file_drive(directory, SIZE);
        assert_eq!((open.passthrough(), open.no_passthrough()), (None, None), "nobody asked for it");
        drop(open);
        let open = open_again(&DriveSpec::Path(path.0.clone()));
        assert_eq!((open.passthrough(), open.no_passthrough()), (None, Some("it is no NVMe namespace")));
        on(&runtime, &open, |env, drive| async move {
            let data = pattern(1, 4096);
            drive.write(0, segments(&[&data]), true).await.expect("write");
            assert!(read(&env, &drive, 0, 4096).await[..] == data[..]);
        });
        assert_eq!(open.stats().commands, 0);
    }
    runtime.stop();
}

fn on<F, T>(runtime: &Runtime, open: &OpenDrive, test: impl Fn(ShardEnv, runtime::Drive) -> F + Send + 'static) -> T
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let open = open.clone();
    let call = runtime.shard(0).call(move || {
        let env = ShardEnv::current();
        let drive = env.attach(&open);
        test(env, drive)
    });
    call.wait().expect("the shard runs")
}

async fn read(env: &ShardEnv, drive: &runtime::Drive, offset: u64, len: usize) -> BufMut {
    drive.read(offset, env.alloc(len)).await.expect("a read inside of a healthy drive")
}

#[test]
fn what_was_written_is_read_back() {
    on_every_kind(|env, drive| async move {
        for (seed, (offset, len)) in
            [(0, 4096), (4096, 8192), (SIZE - 4096, 4096), (1 << 20, 3 << 20), (8 << 20, 64 << 10)]
                .into_iter()
                .enumerate()
        {
            let data = pattern(seed as u64, len);
            drive.write(offset, segments(&[&data]), seed % 2 == 1).await.expect("a write inside of the drive");
            assert!(read(&env, &drive, offset, len).await[..] == data[..], "{len} bytes at {offset}");
        }
        drive.flush().await.expect("flush");
    });
}

#[test]
fn arena_memory_and_heap_memory_carry_the_same_bytes() {
    on_every_kind(|env, drive| async move {
        let data = pattern(7, 128 << 10);
        let mut arena = env.alloc(data.len());
        arena.copy_from_slice(&data);
        drive.write(0, Segments::from_iter([arena.freeze()]), false).await.expect("write");
        let heap = drive.read(0, BufMut::zeroed(data.len())).await.expect("read");
        let arena = drive.read(0, env.alloc(data.len())).await.expect("read");
        assert!(heap[..] == data[..] && arena[..] == data[..]);
    });
}

#[test]
fn segments_of_any_cut_are_written_in_order() {
    on_every_kind(|env, drive| async move {
        let mut random = Random(99);
        for round in 0..20 {
            let data = pattern(round, 64 << 10);
            let whole = BufMut::copy_of(&data).freeze();
            let mut parts = Segments::new();
            let mut at = 0;
            while at < data.len() {
                let len = (1 + random.below(9000) as usize).min(data.len() - at);
                // Some parts stay adjacent in memory, others are copies elsewhere, at odd
                // addresses.
                let part = match random.below(3) {
                    0 => whole.slice(at..at + len),
                    1 => BufMut::copy_of(&data[at..at + len]).freeze(),
                    _ => BufMut::copy_of(&[&[0u8; 24], &data[at..at + len]].concat()).freeze().slice(24..24 + len),
                };
                parts.push(part);
                at += len;
            }
            drive.write(round * 4096, parts, round % 2 == 0).await.expect("write");
            assert!(read(&env, &drive, round * 4096, data.len()).await[..] == data[..], "round {round}");
        }
    });
}

#[test]
fn a_write_of_more_segments_than_the_kernel_takes_arrives_whole() {
    on_every_kind(|env, drive| async move {
        let data = pattern(3, 5000 * 512 / 4096 * 4096);
        // Every other block comes from a copy, so that adjacent parts cannot be merged.
        let (one, other) = (BufMut::copy_of(&data).freeze(), BufMut::copy_of(&data).freeze());
        let parts: Segments = (0..data.len() / 512)
            .map(|i| if i % 2 == 0 { &one } else { &other }.slice(i * 512..(i + 1) * 512))
            .collect();
        assert!(parts.len() > 2 * 1024);
        drive.write(4096, parts, false).await.expect("write");
        assert!(read(&env, &drive, 4096, data.len()).await[..] == data[..]);
    });
}

#[test]
fn a_buffer_at_an_odd_address_is_filled() {
    on_every_kind(|env, drive| async move {
        let data = pattern(5, 8192);
        drive.write(0, segments(&[&data]), false).await.expect("write");
        for skip in [1, 24, 512, 1000] {
            let mut buf = env.alloc(3 * 4096);
            let rest = buf.split_off(skip);
            let mut rest = rest;
            rest.truncate(8192);
            let rest = drive.read(0, rest).await.expect("read");
            assert!(rest[..] == data[..], "{skip} bytes into a page");
        }
    });
}

#[test]
fn zeroed_ranges_read_as_zeroes_and_their_neighbours_stay() {
    on_every_kind(|env, drive| async move {
        let data = pattern(11, 4 << 20);
        drive.write(0, segments(&[&data]), false).await.expect("write");
        for (offset, len) in [(4096, 4096), (64 << 10, 64 << 10), (1 << 20, 2 << 20)] {
            drive.write_zeroes(offset as u64, len as u64).await.expect("write zeroes");
            let all = read(&env, &drive, 0, data.len()).await;
            assert!(all[offset..offset + len].iter().all(|&byte| byte == 0), "{len} zeroes at {offset}");
            assert!(all[offset - 4096..offset] == data[offset - 4096..offset]);
            assert!(all[offset + len..offset + len + 4096] == data[offset + len..offset + len + 4096]);
        }
    });
}

#[test]
fn discards_touch_nothing_outside_of_their_range() {
    on_every_kind(|env, drive| async move {
        assert!(drive.info().discards, "all kinds here can");
        let data = pattern(12, 4 << 20);
        drive.write(0, segments(&[&data]), false).await.expect("write");
        drive.discard(1 << 20, 2 << 20).await.expect("discard");
        drive.discard(4096, 4096).await.expect("discard");
        drive.discard(0, 0).await.expect("nothing to discard");
        let all = read(&env, &drive, 0, data.len()).await;
        assert!(all[..4096] == data[..4096]);
        assert!(all[8192..1 << 20] == data[8192..1 << 20]);
        assert!(all[3 << 20..] == data[3 << 20..]);
        drive.write(1 << 20, segments(&[&data]), true).await.expect("discarded space can be written again");
        assert!(read(&env, &drive, 1 << 20, data.len()).await[..] == data[..]);
    });
}

#[test]
fn a_discarded_file_gives_its_space_back() {
    use std::os::unix::fs::MetadataExt;
    let runtime = start(1);
    for directory in directories() {
        let (path, open) = file_drive(directory, SIZE);
        let allocated = move || path.0.metadata().expect("the file exists").blocks() * 512;
        on(&runtime, &open, |_, drive| async move {
            drive.write(0, segments(&[&pattern(1, 8 << 20)]), true).await.expect("write");
        });
        let before = allocated();
        on(&runtime, &open, |_, drive| async move { drive.discard(0, 8 << 20).await.expect("discard") });
        assert!(before >= 8 << 20 && allocated() < 1 << 20, "{directory}: {before} bytes, then {}", allocated());
    }
    runtime.stop();
}

#[test]
fn ranges_that_are_misaligned_or_outside_are_refused() {
    on_every_kind(|env, drive| async move {
        let sector = drive.info().sector_bytes;
        let misaligned = |offset, len| DriveError::Misaligned { offset, len, sector };
        let half = u64::from(sector / 2);
        assert_eq!(drive.read(half, env.alloc(4096)).await.err(), Some(misaligned(half, 4096)));
        assert_eq!(drive.read(0, env.alloc(100)).await.err(), Some(misaligned(0, 100)));
        assert_eq!(drive.write(1, segments(&[&[0; 4096]]), false).await, Err(misaligned(1, 4096)));
        assert_eq!(drive.discard(0, half).await, Err(misaligned(0, half)));
        assert_eq!(drive.write_zeroes(half, 4096).await, Err(misaligned(half, 4096)));
        let outside = |offset, len| DriveError::OutOfRange { offset, len, size: SIZE };
        assert_eq!(drive.read(SIZE, env.alloc(4096)).await.err(), Some(outside(SIZE, 4096)));
        assert_eq!(drive.write(SIZE - 4096, segments(&[&[0; 8192]]), false).await, Err(outside(SIZE - 4096, 8192)));
        let far = u64::MAX - 4095;
        assert_eq!(drive.write_zeroes(far, 8192).await, Err(outside(far, 8192)));
    });
}

#[test]
fn many_operations_at_once_all_come_back_with_their_own_bytes() {
    on_every_kind(|env, drive| async move {
        const BLOCKS: u64 = 2000;
        let writes = (0..BLOCKS).map(|block| {
            let drive = drive.clone();
            let mut buf = env.alloc(4096);
            buf.copy_from_slice(&pattern(block, 4096));
            async move { drive.write(block * 4096, Segments::from_iter([buf.freeze()]), false).await }
        });
        for result in drive::join_all(writes).await {
            result.expect("write");
        }
        let reads = (0..BLOCKS).map(|block| {
            let drive = drive.clone();
            let buf = env.alloc(4096);
            async move { drive.read(block * 4096, buf).await }
        });
        for (block, result) in drive::join_all(reads).await.into_iter().enumerate() {
            assert!(result.expect("read")[..] == pattern(block as u64, 4096)[..], "block {block}");
        }
    });
}

/// Operations whose futures are dropped at any point leave their buffers to the kernel until it is
/// done. If a buffer went back to the pool too early, one of the fresh buffers here would be the
/// same memory. Then a late read would change it while its new owner uses it, and a late write
/// would write its content to the drive.
#[test]
fn dropped_futures_leave_their_buffers_to_the_kernel() {
    const POISON: u8 = 0x55;
    on_every_kind(|env, drive| async move {
        let len = 64 << 10;
        drive.write(0, segments(&[&vec![0xee; len], &vec![0xee; 8 * len]]), false).await.expect("write");
        for round in 0..300 {
            let mut held = Vec::new();
            for i in 0..8 {
                let mut read = Box::pin(drive.read(0, env.alloc(len)));
                let mut data = env.alloc(len);
                data.fill(0xdd);
                let at = (1 + i) * len as u64;
                let mut write = Box::pin(drive.write(at, Segments::from_iter([data.freeze()]), false));
                // One poll starts them. Every other round lets them reach the kernel.
                let _ = futures_poll_once(read.as_mut()).await;
                let _ = futures_poll_once(write.as_mut()).await;
                if round % 2 == 0 && i == 7 {
                    env.turn_end().await;
                    env.sleep(std::time::Duration::from_micros(round)).await;
                }
                drop((read, write));
                for _ in 0..2 {
                    let mut buf = env.alloc(len);
                    buf.fill(POISON);
                    held.push(buf);
                }
            }
            env.sleep(std::time::Duration::from_micros(50)).await;
            assert!(held.iter().all(|buf| buf.iter().all(|&byte| byte == POISON)), "round {round}");
            let on_drive = read(&env, &drive, 0, 9 * len).await;
            assert!(on_drive.iter().all(|&byte| byte == 0xee || byte == 0xdd), "round {round}");
        }
        drive.flush().await.expect("flush");
    });
}

async fn futures_poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn a_pulled_drive_is_gone_on_every_path_until_it_is_put_back() {
    on_every_kind(|env, drive| async move {
        let open = drive.open_drive().clone();
        open.fail_after(3);
        for _ in 0..3 {
            read(&env, &drive, 0, 4096).await;
        }
        for _ in 0..2 {
            assert_eq!(drive.read(0, env.alloc(4096)).await.err(), Some(DriveError::Gone));
            assert_eq!(drive.write(0, segments(&[&[0; 4096]]), true).await, Err(DriveError::Gone));
            assert_eq!(drive.flush().await, Err(DriveError::Gone));
            assert_eq!(drive.discard(0, 4096).await, Err(DriveError::Gone));
            assert_eq!(drive.write_zeroes(0, 4096).await, Err(DriveError::Gone));
        }
        assert!(open.is_failed());
        assert_eq!(open.stats().errors, 10);
        open.set_failed(false);
        read(&env, &drive, 0, 4096).await;
    });
}

#[test]
fn operations_in_flight_when_the_drive_is_pulled_are_gone() {
    let runtime = start(1);
    let (_path, open) = file_drive("/var/tmp", SIZE);
    on(&runtime, &open, |env, drive| async move {
        let mut reading = Box::pin(drive.read(0, env.alloc(4096)));
        assert!(futures_poll_once(reading.as_mut()).await.is_none(), "not yet submitted");
        drive.open_drive().set_failed(true);
        assert_eq!(reading.await.err(), Some(DriveError::Gone));
    });
    runtime.stop();
}

#[test]
fn counters_say_what_was_done() {
    on_every_kind(|env, drive| async move {
        let before = drive.open_drive().stats();
        for block in 0..64 {
            drive.write(block * 4096, segments(&[&[1; 4096]]), false).await.expect("write");
            read(&env, &drive, block * 4096, 8192).await;
        }
        drive.flush().await.expect("flush");
        drive.discard(0, 8192).await.expect("discard");
        drive.write_zeroes(0, 8192).await.expect("write zeroes");
        let after = drive.open_drive().stats();
        assert_eq!((after.reads - before.reads, after.read_bytes - before.read_bytes), (64, 64 * 8192));
        assert_eq!((after.writes - before.writes, after.write_bytes - before.write_bytes), (64, 64 * 4096));
        assert_eq!((after.flushes, after.discards, after.zeroes, after.errors), (1, 1, 1, 0));
        let measured: u64 = after.read_latency.iter().sum();
        assert!((4..=64).contains(&measured), "{measured} of 64 reads were measured");
    });
}

/// Opens a drive that is not in use. A process that another test is starting holds all our
/// descriptors, and with them their locks, until it executes its program.
fn once_free(open: impl Fn() -> Result<OpenDrive, OpenError>) -> OpenDrive {
    let began = Instant::now();
    loop {
        match open() {
            Ok(open) => return open,
            Err(OpenError::InUse { .. }) if began.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("it is free: {error}"),
        }
    }
}

#[test]
fn a_drive_is_opened_by_one_at_a_time() {
    for (keep, open) in every_kind() {
        let spec = if open.kind() == runtime::DriveKind::Memory {
            format!("{}:{SIZE}", open.info().name).parse().expect("a memory drive's name")
        } else {
            DriveSpec::Path(open.info().name.clone().into())
        };
        let error = OpenDrive::open(&spec).expect_err("it is open");
        assert!(matches!(&error, OpenError::InUse { .. }), "{error}");
        assert!(error.to_string().contains(&open.info().name), "{error}");
        drop(open);
        drop(once_free(|| OpenDrive::open(&spec)));
        drop(keep);
    }
}

#[test]
fn a_drive_that_is_opened_for_reading_is_read_and_not_changed_and_nobody_else_has_it() {
    let runtime = start(1);
    for (keep, open) in every_kind().into_iter().skip(1) {
        let spec = DriveSpec::Path(open.info().name.clone().into());
        assert!(matches!(OpenDrive::open_read_only(&spec), Err(OpenError::InUse { .. })), "it is open");
        drop(open);
        let open = once_free(|| OpenDrive::open_read_only(&spec));
        assert!(matches!(OpenDrive::open(&spec), Err(OpenError::InUse { .. })), "it is open");
        assert!(!open.info().discards);
        on(&runtime, &open, |env, drive| async move {
            assert!(read(&env, &drive, 4096, 8192).await.iter().all(|&byte| byte == 0));
            let refused = Err(DriveError::ReadOnly);
            assert_eq!(drive.write(4096, segments(&[&[1; 4096]]), false).await, refused);
            assert_eq!(drive.write_zeroes(4096, 4096).await, refused);
            assert_eq!(drive.discard(4096, 4096).await, refused);
        });
        drop(open);
        drop(keep);
    }
    runtime.stop();
}

#[test]
fn another_process_cannot_open_a_drive_that_is_open() {
    let (path, open) = file_drive("/dev/shm", SIZE);
    let held = |path: &std::path::Path| {
        let mut command = std::process::Command::new("flock");
        command.args(["--nonblock", "--conflict-exit-code", "9"]).arg(path).arg("true");
        command.status().expect("util-linux has flock").code()
    };
    assert_eq!(held(&path.0), Some(9));
    drop(open);
    // A process that another test starts at this moment holds the lock until it runs its program.
    let began = Instant::now();
    while held(&path.0) != Some(0) {
        assert!(began.elapsed() < Duration::from_secs(10), "the lock was not released");
    }
}

#[test]
fn what_cannot_be_a_drive_is_refused_with_its_name() {
    let open = |path: &str| OpenDrive::open(&DriveSpec::Path(path.into())).expect_err("no drive").to_string();
    assert_eq!(open("/nonexistent/drive"), "/nonexistent/drive does not exist");
    assert_eq!(open("/dev"), "/dev is neither a block device nor a regular file");
    assert_eq!(open("/dev/null"), "/dev/null is neither a block device nor a regular file");
    let path = crate::common::TempPath::new("/dev/shm");
    runtime::create_file(&path.0, 100).expect("a small file");
    assert!(open(path.0.to_str().expect("a plain path")).contains("has 100 bytes, less than one sector"));
    let exists = runtime::create_file(&path.0, 4096).expect_err("it exists");
    assert_eq!(exists.kind(), std::io::ErrorKind::AlreadyExists);
}

#[test]
fn memory_keeps_its_content_while_the_process_lives_and_until_it_is_forgotten() {
    let runtime = start(2);
    let spec: DriveSpec = format!("mem:kept-{}:1MiB", crate::common::unique()).parse().expect("a name and a size");
    let open = OpenDrive::open(&spec).expect("memory is there");
    let name = open.info().name.strip_prefix("mem:").expect("the name of a memory drive").to_string();
    on(&runtime, &open, |_, drive| async move {
        drive.write(8192, segments(&[&[7; 4096]]), true).await.expect("write");
    });
    assert!(!runtime::forget_memory(&name), "it is open");
    drop(open);
    let other = DriveSpec::Memory { name: name.clone(), size_bytes: 4096 };
    assert!(matches!(OpenDrive::open(&other), Err(OpenError::OtherSize { is_bytes: 1_048_576, .. })));
    let open = OpenDrive::open(&spec).expect("still there");
    let again = open.clone();
    let call = runtime.shard(1).call(move || async move {
        let env = ShardEnv::current();
        let buf = env.attach(&again).read(8192, env.alloc(4096)).await.expect("read");
        buf.iter().all(|&byte| byte == 7)
    });
    assert_eq!(call.wait(), Ok(true), "another shard reads it");
    drop(open);
    // The shard may hold its clone for one more moment.
    let forgotten = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        runtime::forget_memory(&name)
    });
    assert!(forgotten);
    let open = OpenDrive::open(&spec).expect("made anew");
    let zero = on(&runtime, &open, |env, drive| async move { read(&env, &drive, 8192, 4096).await[..] == [0; 4096] });
    assert!(zero);
    runtime.stop();
}

/// Buf::zeroes shares one block of zeroes among all writes: it must be usable as a source like any
/// other.
#[test]
fn shared_zeroes_can_be_written() {
    on_every_kind(|env, drive| async move {
        drive.write(0, segments(&[&[9; 8192]]), false).await.expect("write");
        drive.write(0, Segments::from_iter([Buf::zeroes(4096)]), false).await.expect("write");
        let both = read(&env, &drive, 0, 8192).await;
        assert!(both[..4096] == [0; 4096] && both[4096..] == [9; 4096]);
    });
}

#[test]
fn memory_is_read_and_written_at_once_but_no_task_keeps_the_others_from_their_turn() {
    on_every_kind(|env, drive| async move {
        let data = pattern(5, 8192);
        drive.write(4096, segments(&[&data]), false).await.expect("write");
        let mut buf = vec![0; 8192];
        if drive.open_drive().kind() != runtime::DriveKind::Memory {
            assert_eq!(drive.read_now(4096, &mut buf), None, "whatever has to be waited for");
            assert!(buf.iter().all(|&byte| byte == 0));
            assert_eq!(drive.write_now(4096, &Buf::zeroes(8192)), None, "likewise");
            assert_eq!(drive.view_now(4096, 8192, |_| panic!("it is not in memory")), None::<()>);
            assert!(read(&env, &drive, 4096, 8192).await[..] == data[..]);
            return;
        }
        // With a new poll, so that its full number of operations is left.
        env.sleep(Duration::from_millis(1)).await;
        let done = (0..).take_while(|_| drive.read_now(4096, &mut buf) == Some(Ok(()))).count();
        assert_eq!(done, runtime::READY_OPS_PER_POLL as usize);
        assert!(buf[..] == data[..]);
        let new = pattern(6, 8192).freeze();
        assert_eq!(drive.write_now(4096, &new), None, "writes are operations, too");
        assert!(read(&env, &drive, 4096, 8192).await[..] == data[..], "a read that waits has its turn");
        env.sleep(Duration::from_millis(1)).await;
        let done = (0..).take_while(|_| drive.write_now(4096, &new) == Some(Ok(()))).count();
        assert_eq!(done, runtime::READY_OPS_PER_POLL as usize);
        assert!(read(&env, &drive, 4096, 8192).await[..] == new[..], "and is what was written");
        env.sleep(Duration::from_millis(1)).await;
        let view = |buf: &mut [u8]| drive.view_now(4096, 8192, |view| view.copy_to(buf));
        let done = (0..).take_while(|_| view(&mut buf).is_some()).count();
        assert_eq!(done, runtime::READY_OPS_PER_POLL as usize, "looks are operations, too");
        assert!(buf[..] == new[..]);
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!(drive.view_now(SIZE, 8192, |_| panic!("there is nothing")), None::<()>);
        let refused = drive.read_now(SIZE, &mut buf);
        assert!(matches!(refused, Some(Err(DriveError::OutOfRange { .. }))), "{refused:?}");
        let refused = drive.write_now(SIZE, &new);
        assert!(matches!(refused, Some(Err(DriveError::OutOfRange { .. }))), "{refused:?}");
        env.sleep(Duration::from_millis(1)).await;
        let seen = drive.view_now(4096, 8192, |_| drive.open_drive().set_failed(true));
        assert_eq!(seen, Some(()), "what was seen is not looked for again, though the drive was pulled meanwhile");
        assert_eq!(drive.view_now(4096, 8192, |_| panic!("the drive is gone")), None::<()>);
    });
}
