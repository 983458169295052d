//! The command against a daemon's real HTTP side on a Unix socket, over a control without drives.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../daemon/tests/support/mod.rs"]
mod support;

mod documents;
mod refusals;
mod tables;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use daemon::http::{HttpOptions, Server};
use support::MemoryControl;
use tokio::sync::watch;

/// A server on a socket in a folder of its own; both go with it.
struct Daemon {
    folder: PathBuf,
    control: Arc<MemoryControl>,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What a command said and how it ended.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Daemon {
    fn start() -> Daemon {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("purlin-cli-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let options = HttpOptions {
            socket: folder.join("purlind.sock"),
            http: None,
            http_tls_cert: None,
            http_tls_key: None,
            http_token_file: None,
        };
        let control = Arc::new(MemoryControl::default());
        let served = control.clone();
        let (stop, stopped) = watch::channel(false);
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = Server::bind(&options).await.unwrap();
                ready.send(()).unwrap();
                server.run(served, stopped).await;
            });
        });
        is_ready.recv().unwrap();
        Daemon { folder, control, stop, thread: Some(thread) }
    }

    /// A daemon with the group tank, the volume tank/db and its export 2.
    fn filled() -> Daemon {
        let daemon = Daemon::start();
        for line in [
            "group create tank --level raid6 --drives /drives/0,/drives/1,/drives/2,/drives/3,/drives/4,/drives/5 --yes",
            "volume create tank/db --size 1GiB",
            "export create tank/db --nbd unix:/run/db.sock",
        ] {
            daemon.ok(line);
        }
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("purlind.sock")
    }

    /// Runs a command line; words are separated by spaces.
    fn run(&self, line: &str) -> Said {
        purlin(&self.socket(), line)
    }

    /// Runs a command that must succeed and say nothing on stderr; gives its output.
    fn ok(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {}", said.out);
        said.out
    }

    /// Runs a command that must fail with status 1 and say nothing on stdout; gives its sentence.
    fn fails(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{line}: {}", said.err);
        said.err
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs `purlin` with nothing on stdin and no terminal.
fn purlin(socket: &Path, line: &str) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_purlin"))
        .args(line.split_whitespace())
        .env("PURLIN_SOCKET", socket)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // An answer on a pipe is no answer: questions are for terminals.
    let _ = child.stdin.take().unwrap().write_all(b"y\ny\n");
    let output = child.wait_with_output().unwrap();
    Said {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
