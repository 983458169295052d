//! Listening sockets from one owner to the next, and descriptors across an exec.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;

use crate::common::{TempPath, start};
use drive::Env;
use runtime::{Bound, ListenOn, Listener, ShardEnv, inherited, monotonic_us, replace_process};

fn unix(path: &TempPath) -> ListenOn {
    ListenOn::Unix { path: path.0.clone(), mode: 0o600 }
}

fn refusal(fd: impl Into<OwnedFd>, on: &ListenOn) -> String {
    Bound::given(fd.into(), on.clone()).expect_err("it is not what was asked for").to_string()
}

#[test]
fn clients_wait_at_a_socket_that_was_let_go_until_somebody_takes_it() {
    let runtime = start(1);
    let path = TempPath::new("/tmp");
    for on in [unix(&path), ListenOn::Tcp(([127, 0, 0, 1], 0).into())] {
        let bound = Bound::new(on).expect("a free address");
        let (on, second) = (bound.on().clone(), bound.as_fd().try_clone_to_owned().expect("a descriptor"));
        let ended = runtime.shard(0).call(move || async move {
            let env = ShardEnv::current();
            let listener = Listener::new(&env, bound);
            let closer = listener.closer();
            env.spawn({
                let env = env.clone();
                async move {
                    env.sleep(std::time::Duration::from_millis(5)).await;
                    closer.release();
                }
            });
            listener.accept().await.expect_err("nobody has come").kind()
        });
        assert_eq!(ended.wait(), Ok(ErrorKind::ConnectionAborted));

        let mut client: Box<dyn Read> = match &on {
            ListenOn::Tcp(address) => Box::new(TcpStream::connect(address).expect("it listens on")),
            ListenOn::Unix { path, .. } => Box::new(UnixStream::connect(path).expect("it listens on")),
        };
        let bound = Bound::given(second, on).expect("it is the same");
        let accepted = runtime.shard(0).call(move || async move {
            let listener = Listener::new(&ShardEnv::current(), bound);
            listener.accept().await.map(drop).expect("a client waits");
        });
        accepted.wait().expect("the shard runs");
        assert_eq!(client.read(&mut [0]).expect("it was accepted, and closed"), 0);
        assert!(!path.0.exists(), "the last owner removes the file");
    }
    runtime.stop();
}

#[test]
fn a_given_socket_is_taken_only_if_it_is_what_was_asked_for() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let there: SocketAddr = tcp.local_addr().expect("an address");
    let copy = || tcp.try_clone().expect("a descriptor");
    let on = ListenOn::Tcp(there);
    assert_eq!(refusal(copy(), &ListenOn::Tcp(([127, 0, 0, 1], there.port() ^ 1).into())), "it has another address");
    assert_eq!(refusal(copy(), &ListenOn::Tcp(([0, 0, 0, 0], there.port()).into())), "it has another address");
    assert_eq!(refusal(UdpSocket::bind("127.0.0.1:0").expect("a free port"), &on), "it is no stream socket");
    let client = TcpStream::connect(there).expect("it listens");
    let on_client = ListenOn::Tcp(client.local_addr().expect("an address"));
    Bound::given(client.into(), on_client).expect_err("it is connected");
    Bound::given(File::open("/dev/null").expect("it is there").into(), on.clone()).expect_err("it is no socket");
    let any_port = ListenOn::Tcp(([127, 0, 0, 1], 0).into());
    assert_eq!(Bound::given(copy().into(), any_port).expect("any port will do").on(), &on);
    assert_eq!(Bound::given(copy().into(), on.clone()).expect("it is the same").on(), &on);

    let (path, other) = (TempPath::new("/tmp"), TempPath::new("/tmp"));
    let listener = UnixListener::bind(&path.0).expect("a free path");
    let copy = || listener.try_clone().expect("a descriptor");
    Bound::given(copy().into(), on).expect_err("it is of another family");
    assert_eq!(refusal(copy(), &unix(&other)), "it has another address");
    assert_eq!(refusal(UnixDatagram::bind(&other.0).expect("a free path"), &unix(&other)), "it is no stream socket");
    fs::set_permissions(&path.0, fs::Permissions::from_mode(0o777)).expect("its owner may");
    Bound::given(copy().into(), unix(&path)).expect("it is the same");
    assert_eq!(path.0.metadata().expect("it is there").permissions().mode() & 0o7777, 0o600);
    fs::remove_file(&path.0).expect("it is there");
    let gone = Bound::given(copy().into(), unix(&path)).expect_err("nobody can come");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    fs::write(&path.0, "").expect("a free path");
    assert_eq!(refusal(copy(), &unix(&path)), "its file is gone");
}

#[test]
fn a_program_that_cannot_be_executed_changes_no_descriptor() {
    let path = TempPath::new("/tmp");
    let mut files: Vec<File> = (0..20u8)
        .map(|index| {
            let mut file =
                File::options().read(true).write(true).create(true).truncate(false).open(&path.0).expect("a file");
            file.seek(SeekFrom::Start(u64::from(index))).expect("a place");
            file
        })
        .collect();
    let descriptors: Vec<_> = files.iter().rev().map(AsFd::as_fd).collect();
    let error = replace_process(Command::new("/nowhere/program"), &descriptors);
    assert_eq!(error.kind(), ErrorKind::NotFound);
    for (index, file) in files.iter_mut().enumerate() {
        assert_eq!(file.stream_position().expect("it is open"), index as u64, "descriptor {}", file.as_raw_fd());
        // Only descriptors that survive an exec count as inherited. The passed ones did so for a
        // moment, in the descriptor table of another thread.
        let last = usize::try_from(file.as_raw_fd()).expect("a descriptor") - 3;
        assert!(inherited(last + 1)[last].is_none(), "descriptor {}", file.as_raw_fd());
    }
}

#[test]
fn descriptors_arrive_in_the_order_in_which_they_were_named() {
    let paths = [(); 3].map(|()| TempPath::new("/tmp"));
    let files: Vec<File> = paths
        .iter()
        .enumerate()
        .map(|(index, path)| {
            let mut file = File::create_new(&path.0).expect("a free path");
            write!(file, "{index}").expect("it takes a byte");
            File::open(&path.0).expect("it is there")
        })
        .collect();
    // The process that is replaced is a child that only does this: it runs this test once more.
    if std::env::var_os("PURLIN_TEST_REPLACE").is_some() {
        let descriptors: Vec<_> = files.iter().rev().map(AsFd::as_fd).collect();
        let mut program = Command::new("sh");
        program.args([
            "-c",
            "head -c 1 <&3; head -c 1 <&4; head -c 1 <&5; echo \" $$\"; for path; do rm \"$path\"; done",
            "sh",
        ]);
        program.args(paths.iter().map(|path| &path.0));
        panic!("not replaced: {}", replace_process(program, &descriptors));
    }
    let mut child = Command::new(std::env::current_exe().expect("it runs"));
    child.args(["--exact", "handover::descriptors_arrive_in_the_order_in_which_they_were_named", "--nocapture"]);
    let child = child.env("PURLIN_TEST_REPLACE", "yes").stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&format!("210 {pid}\n")), "{said}");
}

#[test]
fn the_time_since_the_start_of_the_machine_goes_on() {
    let before_us = monotonic_us();
    assert!(monotonic_us() >= before_us && before_us > 0);
}
