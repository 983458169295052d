//! The command on a terminal: a pseudo-terminal of the kernel, and an emulator that returns the
//! text that a user would see.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::Daemon;

const ROWS: u16 = 24;
const COLUMNS: u16 = 160;

/// The time limit for any output to appear.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command that runs on a terminal of its own, which is its controlling one.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Terminal {
    fn run(daemon: &Daemon, line: &str) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        tcsetwinsize(&ours, Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let child = Command::new("setsid")
            // A caller that runs this in the background may ignore Ctrl-C, which is inherited.
            .args(["--ctty", "env", "--default-signal=INT", env!("CARGO_BIN_EXE_purlin")])
            .args(daemon.words(line).split_whitespace())
            .env("PURLIN_SOCKET", daemon.file("purlind.sock"))
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .current_dir("/")
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let keyboard = File::from(OwnedFd::try_clone(&ours).unwrap());
        let (mut picture, drawn) = (File::from(ours), screen.clone());
        // The thread ends when no process has the terminal's other end open any more.
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = picture.read(&mut bytes) {
                drawn.lock().unwrap().process(&bytes[..read]);
            }
        });
        Terminal { child, keyboard, screen, reader: Some(reader) }
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The text on the screen.
    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen shows the expected text.
    fn shows(&self, what: &str) -> String {
        self.shows_that(what, |text| text.contains(what))
    }

    fn shows_that(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let text = self.text();
            if is_so(&text) {
                return text;
            }
            assert!(begin.elapsed() < PATIENCE, "{what} is not to be seen:\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for the command's end. Returns its exit status, if no signal ended it, and the text on
    /// the screen then.
    fn ends(&mut self) -> (Option<i32>, String) {
        let begin = Instant::now();
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        };
        self.reader.take().unwrap().join().unwrap();
        (code, self.text())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A failed test leaves no running command.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_question_has_one_answer_that_destroys() {
    let daemon = Daemon::filled();
    daemon.ok("volume create tank/a --size 1MiB");
    let question = "this destroys volume tank/a and all that is on it; go on? [y/N] ";
    for answer in ["\r", "n\r", "yes please\r", "tank/a\r", "\x04"] {
        let mut terminal = Terminal::run(&daemon, "volume delete tank/a");
        terminal.shows(question.trim_end());
        terminal.types(answer);
        let (code, text) = terminal.ends();
        assert_eq!(code, Some(1), "{answer:?}: {text}");
        assert!(text.contains("purlin: nothing was changed"), "{answer:?}: {text}");
        assert!(daemon.ok("volume list").contains("tank/a"));
    }
    let mut terminal = Terminal::run(&daemon, "volume delete tank/a");
    terminal.shows(question.trim_end());
    terminal.types("Yes\r");
    let (code, text) = terminal.ends();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text, format!("{question}Yes\ndeleted volume tank/a"));
    assert!(!daemon.ok("volume list").contains("tank/a"));
}

#[test]
fn a_group_goes_for_its_name_only() {
    let daemon = Daemon::filled();
    daemon.ok("export delete tank-2");
    let line = "group delete tank";
    for (answer, code, rest) in [
        ("y\r", 1, "purlin: nothing was changed"),
        ("Tank\r", 1, "purlin: nothing was changed"),
        ("tank\r", 0, "deleted group tank"),
    ] {
        let mut terminal = Terminal::run(&daemon, line);
        let question = "this destroys group tank and every volume in it; type tank to go on:";
        terminal.shows(question);
        assert!(daemon.ok("group list").contains("tank"));
        terminal.types(answer);
        let (ended, text) = terminal.ends();
        assert_eq!(ended, Some(code), "{text}");
        assert!(text.ends_with(&format!("{question} {}\n{rest}", answer.trim_end())), "{text}");
        // Each destroyed object has a line of its own.
        assert!(text.contains("  destroy the volume \"tank/db\" of "), "{text}");
        assert_eq!(text.matches("  erase the group \"tank\" from ").count(), 6, "{text}");
    }
    assert!(!daemon.ok("group list").contains("raid6"));
}

#[test]
fn ctrl_c_at_a_question_changes_nothing() {
    let daemon = Daemon::filled();
    daemon.ok("volume create tank/a --size 1MiB");
    let mut terminal = Terminal::run(&daemon, "volume delete tank/a");
    terminal.shows("go on? [y/N]");
    terminal.types("\x03");
    let (code, text) = terminal.ends();
    assert_eq!(code, None, "{text}");
    assert!(daemon.ok("volume list").contains("tank/a"));
}

#[test]
fn what_would_be_refused_is_refused_before_it_is_asked() {
    let daemon = Daemon::filled();
    let (code, text) = Terminal::run(&daemon, "volume delete tank/db").ends();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("purlin: ") && !text.contains("go on?"), "{text}");
}

#[test]
fn the_status_screen_follows_what_happens_and_gives_the_terminal_back() {
    let daemon = Daemon::filled();
    let mut terminal = Terminal::run(&daemon, "status");
    let text = terminal.shows("tank-2");
    assert!(text.starts_with("purlind "), "{text}");
    assert!(terminal.screen.lock().unwrap().screen().alternate_screen());
    assert!(terminal.screen.lock().unwrap().screen().hide_cursor());

    daemon.ok("drive fail tank 1 --yes");
    terminal.shows("degraded");
    daemon.ok("volume create tank/later --size 1MiB");
    let made = daemon.ok("export create tank/later --nbd unix:DIR/later.sock");
    let export = made.split_whitespace().find(|word| word.starts_with("tank-")).unwrap();
    terminal.shows("tank/later");
    daemon.ok(&format!("export delete {export}"));
    terminal.shows_that("the end of tank/later", |text| !text.contains("tank/later"));

    terminal.types("\x03");
    assert_eq!(terminal.ends(), (Some(0), String::new()));
    let screen = terminal.screen.lock().unwrap();
    assert!(!screen.screen().alternate_screen() && !screen.screen().hide_cursor());
}

#[test]
fn q_ends_the_status_screen_and_gives_the_keyboard_back() {
    let daemon = Daemon::filled();
    for key in ["q", "Q"] {
        let mut terminal = Terminal::run(&daemon, "status");
        terminal.shows("tank-2");
        terminal.types("x");
        std::thread::sleep(Duration::from_millis(50));
        assert!(terminal.child.try_wait().unwrap().is_none(), "another key ends nothing");
        terminal.types(key);
        assert_eq!(terminal.ends(), (Some(0), String::new()));
        let modes = rustix::termios::tcgetattr(&terminal.keyboard).unwrap().local_modes;
        assert!(modes.contains(rustix::termios::LocalModes::ECHO | rustix::termios::LocalModes::ICANON));
    }
}

#[test]
fn more_than_fits_on_the_screen_is_counted() {
    let daemon = Daemon::filled();
    for number in 0..30 {
        daemon.ok(&format!("export create tank/db --nbd unix:DIR/{number}.sock --read-only"));
    }
    let mut terminal = Terminal::run(&daemon, "status");
    let text = terminal.shows("more lines; see purlin status --once");
    let hidden = text.lines().last().unwrap();
    let hidden: usize = hidden.split(' ').nth(1).unwrap().parse().unwrap();
    let shown = text.lines().count() - 1;
    assert!(text.lines().count() < usize::from(ROWS), "{text}");
    assert_eq!(shown + hidden, daemon.ok("status --once").lines().count(), "{text}");
    terminal.types("\x03");
    assert_eq!(terminal.ends().0, Some(0));
}

#[test]
fn the_status_screen_waits_for_a_daemon_that_went_away() {
    let daemon = Daemon::filled();
    let mut terminal = Terminal::run(&daemon, "status");
    terminal.shows("tank-2");
    let socket = daemon.file("purlind.sock");
    let aside = daemon.file("aside.sock");
    std::fs::rename(&socket, &aside).unwrap();
    terminal.shows("trying again every second");
    std::fs::rename(&aside, &socket).unwrap();
    terminal.shows("tank-2");
    terminal.types("\x03");
    assert_eq!(terminal.ends().0, Some(0));
}

#[test]
fn a_rebuild_that_is_waited_for_has_one_line_however_often_it_is_looked_at() {
    let daemon = Daemon::filled();
    daemon.ok("drive fail tank 1 --yes");
    let (code, text) = Terminal::run(&daemon, "drive replace tank 1 --with mem:new###:64MiB --yes --wait").ends();
    assert_eq!(code, Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let [job, done] = lines[..] else { panic!("{} lines: {text}", lines.len()) };
    assert!(job.starts_with("rebuild of slot 1  done in "), "{job}");
    assert!(done.starts_with("rebuilt slot 1 of tank onto ") && done.ends_with("; the group is optimal"), "{done}");
}

#[test]
fn who_waits_for_a_daemon_that_starts_is_told() {
    let daemon = Daemon::filled();
    let (socket, aside) = (daemon.file("purlind.sock"), daemon.file("aside.sock"));
    std::fs::rename(&socket, &aside).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut terminal = Terminal::run(&daemon, "group list");
    let told = "purlin: the daemon has not answered yet: it may be starting, or busy with this";
    assert_eq!(terminal.shows("has not answered yet").trim_end(), told);
    // Now the daemon accepts the connection.
    let (mut from, mut to) = (listener.accept().unwrap().0, UnixStream::connect(&aside).unwrap());
    let (mut answers, mut asker) = (to.try_clone().unwrap(), from.try_clone().unwrap());
    let asks = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut answers, &mut asker).unwrap();
    let (code, text) = terminal.ends();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with(told) && text.contains("tank"), "{text}");
    let _ = asks.join();
    drop(listener);
    std::fs::rename(&aside, &socket).unwrap();
    // A command that is answered in time prints no such message.
    assert!(!Terminal::run(&daemon, "group list").ends().1.contains("answered"));
}
