//! The command against a daemon: the engine with its HTTP side on a Unix socket, over drives in
//! memory and in files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../daemon/tests/engine/bench.rs"]
#[allow(dead_code, reason = "the engine's tests use all of it")]
mod bench;
#[path = "../../../daemon/tests/engine/client.rs"]
#[allow(dead_code, reason = "the engine's tests use all of it")]
mod client;

mod answers;
mod devices;
mod documents;
mod help;
mod keys;
mod refusals;
mod tables;
mod terminal;
mod upgrade;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bench::{Bench, end};
use daemon::http::{HttpOptions, Server};
use tokio::sync::watch;

/// A daemon on a socket in a folder of its own. Both are removed with it.
///
/// In its command lines and output, `DIR` is that folder, `HOST` a loopback address of its own, and
/// `###` the end of the names of its memory drives: those are shared by the whole process. The mark
/// is as long as the text that it replaces, so that tables stay aligned.
struct Daemon {
    bench: Arc<Bench>,
    host: String,
    mark: String,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The output and exit status of a command.
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
        let bench = Arc::new(Bench::new());
        let options = HttpOptions {
            socket: bench.directory.join("purlind.sock"),
            http: None,
            http_tls_cert: None,
            http_tls_key: None,
            http_token_file: None,
        };
        let served = bench.clone();
        let (stop, stopped) = watch::channel(false);
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let engine = served.engine().await;
                engine.start_sampling();
                engine.start_maintenance();
                let server = Server::bind(&options).await.unwrap();
                ready.send(()).unwrap();
                server.run(engine.clone(), stopped).await;
                end(engine).await;
            });
        });
        is_ready.recv().unwrap();
        let host = bench.address().trim_end_matches(":4420").to_owned();
        Daemon { bench, host, mark: format!("_{number:02}"), stop, thread: Some(thread) }
    }

    /// A daemon with the group tank of six drives, the volume tank/db and its export tank-2.
    fn filled() -> Daemon {
        let daemon = Daemon::start();
        daemon.fill();
        daemon
    }

    fn fill(&self) {
        let drives: Vec<String> = (0..6).map(|drive| format!("mem:{drive}###:64MiB")).collect();
        for line in [
            &format!("group create tank --level raid6 --strip 64KiB --yes --drives {}", drives.join(",")),
            "volume create tank/db --size 64MiB",
            "export create tank/db --nbd unix:DIR/db.sock",
        ] {
            self.ok(line);
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.bench.directory.join(name)
    }

    /// A file of 64 MiB that begins as an ext4 file system does.
    fn foreign(&self, name: &str) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(self.file(name)).unwrap();
        file.set_len(64 << 20).unwrap();
        // Linux documentation, filesystems/ext4, "Super Block": magic, incompatible features
        // (extents), name.
        for (offset, bytes) in [(0x38, &[0x53, 0xEF][..]), (0x60, &[0x40]), (0x78, b"home")] {
            file.write_all_at(bytes, 1024 + offset).unwrap();
        }
    }

    /// An empty file of 64 MiB.
    fn empty_file(&self, name: &str) {
        std::fs::File::create(self.file(name)).unwrap().set_len(64 << 20).unwrap();
    }

    /// A program that reports another version of the daemon.
    fn program(&self, name: &str) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(self.file(name), "#!/bin/sh\necho purlind 9.8.7\n").unwrap();
        std::fs::set_permissions(self.file(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Replaces the placeholders of this test in a line.
    fn words(&self, line: &str) -> String {
        let folder = self.bench.directory.display().to_string();
        line.replace("DIR", &folder).replace("HOST", &self.host).replace("###", &self.mark)
    }

    /// Runs a command line; words are separated by spaces.
    fn run(&self, line: &str) -> Said {
        let mut said = purlin(&self.file("purlind.sock"), &self.words(line));
        let folder = self.bench.directory.display().to_string();
        for text in [&mut said.out, &mut said.err] {
            *text = text.replace(&folder, "DIR").replace(&self.host, "HOST").replace(&self.mark, "###");
        }
        said
    }

    /// Runs a command that must succeed without output on stderr. Returns its output.
    fn ok(&self, line: &str) -> String {
        let said = self.run(line);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{line}: {}", said.out);
        said.out
    }

    /// Runs a command that must fail with status 1 without output on stdout. Returns its error
    /// message.
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
    }
}

/// A text with its columns two spaces apart, for placeholders that are longer or shorter than the
/// text that they replace.
fn narrow(text: &str) -> String {
    let line =
        |line: &str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("  ");
    text.lines().map(|text| line(text) + "\n").collect()
}

/// A text with each random identity replaced by zeroes.
fn without_identities(text: &str) -> String {
    let mut shown = text.to_owned();
    let zero = "00000000-0000-0000-0000-000000000000";
    for at in 0..shown.len().saturating_sub(zero.len() - 1) {
        let is_identity = shown.as_bytes()[at..].iter().zip(zero.bytes()).all(|(byte, zero)| match zero {
            b'-' => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
        if is_identity {
            shown.replace_range(at..at + zero.len(), zero);
        }
    }
    shown
}

/// Runs `purlin` with nothing on stdin and no terminal.
///
/// The daemon is in this process. If another test starts a command meanwhile, its child holds all
/// descriptors, and with them the locks of drives that were just closed, until its exec. So a
/// command on a locked drive is retried. A refusal has changed nothing.
fn purlin(socket: &Path, line: &str) -> Said {
    for _ in 0..200 {
        let said = purlin_once(socket, line);
        if !said.err.contains("has locked the file") && !said.out.contains("has locked the file") {
            return said;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{line}: still locked");
}

fn purlin_once(socket: &Path, line: &str) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_purlin"))
        .args(line.split_whitespace())
        .env("PURLIN_SOCKET", socket)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // An answer on a pipe does not count: questions need a terminal.
    let _ = child.stdin.take().unwrap().write_all(b"y\ny\n");
    let output = child.wait_with_output().unwrap();
    Said {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
