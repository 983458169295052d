//! The program that is to replace the daemon: its path, and whether it may do so.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use api::ErrorCode;

use super::inherit::{LISTEN_FDNAMES, LISTEN_FDS, LISTEN_PID, UPGRADE};
use super::manager::NOTIFY_SOCKET;
use crate::http::{Answer, ControlError};

/// A program that has not printed its version within this time is not the right one. Printing it
/// takes milliseconds, but longer on a busy machine.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// How often to check whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The longest answer that is read. A version takes a line.
const ANSWER_BYTES_MAX: usize = 256;

/// The file that this process runs, even if its path leads to another file by now, or it was
/// deleted.
const OWN_FILE: &str = "/proc/self/exe";

/// The path by which this process was started. `/proc/self/exe` does not tell it: that resolves
/// links, and sticks to a file that was replaced.
pub(super) fn own_path() -> PathBuf {
    let resolved = std::env::current_exe().unwrap_or_else(|_| PathBuf::from(OWN_FILE));
    let same = |path: &PathBuf| match (fs::metadata(path), fs::metadata(OWN_FILE)) {
        (Ok(there), Ok(here)) => (there.dev(), there.ino()) == (here.dev(), here.ino()),
        _ => false,
    };
    called_path().filter(same).unwrap_or(resolved)
}

/// The path of the name that this process was given.
fn called_path() -> Option<PathBuf> {
    std::env::args_os().next().and_then(|name| path_of(&name, std::env::var_os("PATH").as_deref()))
}

/// A command that executes this program again, which was started from `path`.
pub(super) fn again(path: &Path) -> Command {
    let mut command = Command::new(OWN_FILE);
    command.arg0(path);
    command
}

/// Like [`own_path`], in a process that [`again`] made: its path may lead to another program. Also
/// restores the process name, because the kernel has taken the last part of [`OWN_FILE`] for it.
pub(super) fn own_path_again() -> PathBuf {
    let path = called_path().unwrap_or_else(own_path);
    if let Some(name) = path.file_name()
        && let Err(error) = fs::write("/proc/self/comm", name.as_encoded_bytes())
    {
        tracing::warn!(%error, "the process has another name in lists of processes");
    }
    path
}

/// The path of a program that was called by `name`, found like a shell does.
fn path_of(name: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if Path::new(name).components().count() > 1 {
        return std::path::absolute(name).ok();
    }
    let found = std::env::split_paths(path?).map(|folder| folder.join(name)).find(|path| path.is_file())?;
    std::path::absolute(found).ok()
}

/// Checks that a program can replace the daemon: its file, and its answer to `--version`. Returns
/// its version. Blocks.
pub(super) fn check(program: &Path) -> Answer<String> {
    let refuse =
        |code, why: String| Err(ControlError::new(code, format!("cannot upgrade to {}: {why}", program.display())));
    let file = match fs::metadata(program) {
        Ok(file) => file,
        Err(error) => return refuse(ErrorCode::Invalid, error.to_string()),
    };
    let mode = file.permissions().mode();
    if !file.is_file() {
        return refuse(ErrorCode::Invalid, "it is not a file".to_owned());
    }
    if mode & 0o111 == 0 {
        return refuse(ErrorCode::Invalid, "it is not executable".to_owned());
    }
    // The program gets all rights of the daemon. The owner of `/proc/self` is the user of this
    // process.
    let own = match fs::metadata("/proc/self") {
        Ok(own) => own,
        Err(error) => return refuse(ErrorCode::Io, format!("cannot tell who runs this: {error}")),
    };
    if ![0, own.uid()].contains(&file.uid()) {
        return refuse(ErrorCode::Invalid, format!("it belongs to the user {}", file.uid()));
    }
    if mode & 0o002 != 0 || (mode & 0o020 != 0 && ![0, own.gid()].contains(&file.gid())) {
        return refuse(ErrorCode::Invalid, format!("others can change it (mode {:o})", mode & 0o7777));
    }
    match version_output(program) {
        Ok(answer) => match version(&answer) {
            Some(version) => Ok(version.to_owned()),
            None => refuse(
                ErrorCode::Invalid,
                format!(
                    "it is not purlind, and answers --version with {:?}",
                    answer.lines().next().unwrap_or_default()
                ),
            ),
        },
        Err(why) => refuse(ErrorCode::Invalid, why),
    }
}

/// The version in the output of `--version`: `purlind 1.2.3`, or with its commit `purlind 1.2.3
/// (297b581, 2026-11-28)`.
fn version(answer: &str) -> Option<&str> {
    let answer = answer.strip_suffix('\n').unwrap_or(answer).strip_prefix("purlind ")?;
    let (version, commit) = answer.split_once(' ').unwrap_or((answer, "()"));
    let commit = commit.strip_prefix('(')?.strip_suffix(')')?;
    if commit.contains(char::is_control) {
        return None;
    }
    let known = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
    (version.starts_with(|c: char| c.is_ascii_digit()) && version.chars().all(known)).then_some(version)
}

/// The output of a program for `--version`.
fn version_output(program: &Path) -> Result<String, String> {
    let broken = |error: io::Error| format!("its answer cannot be read: {error}");
    let (mut ours, theirs) = UnixStream::pair().map_err(broken)?;
    ours.set_nonblocking(true).map_err(broken)?;
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(OwnedFd::from(theirs)).stderr(Stdio::null());
    // The program only prints its version, so it must not get anything that was passed to this
    // process.
    for name in [LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES, UPGRADE, NOTIFY_SOCKET] {
        command.env_remove(name);
    }
    let mut child = command.spawn().map_err(|error| format!("it cannot be executed: {error}"))?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < ANSWERS_WITHIN => std::thread::sleep(LOOK_EVERY),
            other => {
                // It may have ended just now.
                let _ = child.kill();
                let _ = child.wait();
                return Err(match other {
                    Err(error) => format!("it cannot be waited for: {error}"),
                    _ => format!("it does not answer --version within {} s", ANSWERS_WITHIN.as_secs()),
                });
            }
        }
    };
    if !status.success() {
        return Err(format!("it does not answer --version: {status}"));
    }
    // Its output waits in the socket. Do not read to the end: a child of the program may hold the
    // other end open.
    let mut answer = [0; ANSWER_BYTES_MAX];
    let len = match ours.read(&mut answer) {
        Ok(len) => len,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(broken(error)),
    };
    Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_purlind_answers_as_purlind() {
        assert_eq!(version("purlind 0.1.0\n"), Some("0.1.0"));
        assert_eq!(version("purlind 1.20.3-rc.1+g0123abc"), Some("1.20.3-rc.1+g0123abc"));
        assert_eq!(version("purlind 0.1.0 (297b581, 2026-11-28)\n"), Some("0.1.0"));
        assert_eq!(version(concat!("purlind ", env!("PURLIN_VERSION"), "\n")), Some(env!("CARGO_PKG_VERSION")));
        for answer in [
            "",
            "purlind",
            "purlind \n",
            "purlin 0.1.0",
            "purlind 0.1.0\nmore",
            "purlind 0.1.0 (297b581\nmore)",
            "purlind 0.1.0 (297b581",
            "purlind x",
            "purlind 1 2",
            "GNU bash 5.2",
        ] {
            assert_eq!(version(answer), None, "{answer:?}");
        }
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        let path = |name: &str, path: Option<&str>| path_of(OsStr::new(name), path.map(OsStr::new));
        assert_eq!(path("/usr/bin/../bin/env", None), Some(PathBuf::from("/usr/bin/../bin/env")));
        assert_eq!(path("./env", None), Some(std::env::current_dir().unwrap().join("env")));
        assert_eq!(path("env", Some("/nowhere:/usr/bin:/bin")), Some(PathBuf::from("/usr/bin/env")));
        assert_eq!(path("env", Some("/nowhere")), None);
        assert_eq!(path("env", None), None);
        assert_eq!(path("", Some("/usr/bin")), None);
    }

    #[test]
    fn a_program_that_cannot_be_one_is_refused_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("purlin-program-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let script = |name: &str, mode: u32, text: &str| {
            let path = folder.join(name);
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let refused = |path: &Path| {
            let error = check(path).unwrap_err().message;
            error.strip_prefix(&format!("cannot upgrade to {}: ", path.display())).expect("it is named").to_owned()
        };
        assert_eq!(check(&script("good", 0o755, "echo purlind 9.8.7")).unwrap(), "9.8.7");
        // Its child holds its output open, and writes nothing.
        assert_eq!(
            check(&script("parent", 0o755, "sleep 60 & echo $! >\"$0.child\"; echo purlind 9.8.7")).unwrap(),
            "9.8.7"
        );
        assert_eq!(refused(&folder.join("none")), "No such file or directory (os error 2)");
        assert_eq!(refused(&folder), "it is not a file");
        assert_eq!(refused(&script("plain", 0o644, "echo purlind 9.8.7")), "it is not executable");
        assert_eq!(refused(&script("open", 0o757, "echo purlind 9.8.7")), "others can change it (mode 757)");
        assert_eq!(
            refused(&script("other", 0o755, "echo bash 5.2")),
            "it is not purlind, and answers --version with \"bash 5.2\""
        );
        assert_eq!(refused(&script("silent", 0o755, "")), "it is not purlind, and answers --version with \"\"");
        assert_eq!(
            refused(&script("failing", 0o755, "echo purlind 1.0; exit 3")),
            "it does not answer --version: exit status: 3"
        );
        let child = fs::read_to_string(folder.join("parent.child")).unwrap();
        Command::new("kill").arg(child.trim()).status().unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
