//! The environment that a process is started with: sockets by name (sd_listen_fds(3)), and the
//! message of the previous process.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;

use runtime::ListenOn;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The number of passed descriptors, which start at 3.
pub(super) const LISTEN_FDS: &str = "LISTEN_FDS";
/// The process that they are for.
pub(super) const LISTEN_PID: &str = "LISTEN_PID";
/// Their names, separated by colons.
pub(super) const LISTEN_FDNAMES: &str = "LISTEN_FDNAMES";
/// An [`Arrival`] as JSON.
pub(super) const UPGRADE: &str = "PURLIN_UPGRADE";

/// A larger number of descriptors is refused: it is a common limit of open files.
const COUNT_MAX: usize = 1024;

/// The longest name of a descriptor (`FDNAME=` of sd_notify(3)).
const NAME_CHARS_MAX: usize = 255;

/// The reason why the environment is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum InheritError {
    /// The number of descriptors is unknown.
    #[error("LISTEN_FDS={0:?} is not a number of sockets")]
    Count(String),
    /// There are descriptors, but their names do not match their number.
    #[error("LISTEN_FDNAMES has {names} names for {count} sockets")]
    Names {
        /// The number of descriptors.
        count: usize,
        /// The number of names.
        names: usize,
    },
}

/// The names of the descriptors 3, 4, ... that were passed to the process `pid`, from the values of
/// environment variables. Empty if they are for another process, which did not clear its
/// environment.
pub(super) fn names(
    pid: u32,
    listen_pid: Option<&str>,
    listen_fds: Option<&str>,
    listen_fdnames: Option<&str>,
) -> Result<Vec<String>, InheritError> {
    let (Some(for_pid), Some(count)) = (listen_pid, listen_fds) else { return Ok(Vec::new()) };
    if for_pid.parse() != Ok(pid) {
        return Ok(Vec::new());
    }
    // `parse` would accept a sign, such as +1.
    let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    let number = Some(count).filter(|_| digits).and_then(|count| count.parse().ok());
    let Some(number) = number.filter(|&number| number <= COUNT_MAX) else {
        return Err(InheritError::Count(count.to_owned()));
    };
    let names: Vec<String> = match listen_fdnames {
        // The name that sd_listen_fds_with_names(3) uses.
        None => vec!["unknown".to_owned(); number],
        // An empty text can mean one socket without a name, or no socket.
        Some("") if number == 0 => Vec::new(),
        Some(names) => names.split(':').map(str::to_owned).collect(),
    };
    if names.len() != number {
        return Err(InheritError::Names { count: number, names: names.len() });
    }
    Ok(names)
}

/// The message of the previous process about an upgrade. Later versions may add fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrival {
    /// The process ID, which stays the same.
    pub pid: u32,
    /// When the daemon stopped accepting connections, in microseconds of `CLOCK_MONOTONIC`.
    pub since_us: u64,
    /// The version of the previous process.
    pub from_version: String,
    /// The program that was to be executed.
    pub program: String,
    /// Set if it could not be executed: the previous program was executed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failed>,
}

/// The reason why the process is not the program that was to replace it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failed {
    /// The reason as a sentence.
    pub message: String,
    /// That program's version.
    pub to_version: Option<String>,
}

impl Arrival {
    /// Parses the environment variable; `None` if it is missing, malformed, or for another process.
    pub fn parse(pid: u32, text: Option<&str>) -> Option<Arrival> {
        let arrival: Arrival = match serde_json::from_str(text?) {
            Ok(arrival) => arrival,
            Err(error) => {
                tracing::warn!(%error, "{UPGRADE} makes no sense, and is ignored");
                return None;
            }
        };
        Some(arrival).filter(|arrival| arrival.pid == pid)
    }
}

/// The descriptor name of a socket, `None` if it cannot have one. It consists of the socket's own
/// name and, for a Unix socket, the identity of its file. A later file with the same path gets
/// another name.
pub(super) fn descriptor_name(socket: &str, on: &ListenOn) -> Option<String> {
    let mut name = encoded(socket);
    if let ListenOn::Unix { path, .. } = on {
        // The modification time distinguishes a new file that reuses the inode of a removed one.
        let file = fs::symlink_metadata(path).ok()?;
        let modified_ns = i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec());
        write!(name, "@{:x}-{:x}-{modified_ns:x}", file.dev(), file.ino()).expect("a string takes everything");
    }
    Some(name).filter(|name| name.len() <= NAME_CHARS_MAX)
}

/// Encodes a name for descriptors: in ASCII, without colons, and without the sign that
/// [`descriptor_name`] adds.
pub(super) fn encoded(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' | b'[' | b']' => {
                text.push(char::from(byte));
            }
            _ => write!(text, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn parsed(fds: &str, fdnames: Option<&str>) -> Result<Vec<String>, String> {
        names(7, Some("7"), Some(fds), fdnames).map_err(|error| error.to_string())
    }

    #[test]
    fn sockets_are_known_by_their_names() {
        assert_eq!(parsed("2", Some("api:nbd-[%3A%3A1]%3A9")).unwrap(), ["api", "nbd-[%3A%3A1]%3A9"]);
        assert_eq!(parsed("1", None).unwrap(), ["unknown"]);
        assert_eq!(parsed("1", Some("")).unwrap(), [""]);
        assert_eq!(parsed("0", Some("")).unwrap(), [""; 0]);
    }

    #[test]
    fn what_is_meant_for_another_process_is_left_alone() {
        for pid in ["8", "", "x", "-7", " 7", "99999999999"] {
            assert_eq!(names(7, Some(pid), Some("2"), Some("a:b")), Ok(Vec::new()), "{pid:?}");
        }
        assert_eq!(names(7, None, Some("2"), Some("a:b")), Ok(Vec::new()));
        assert_eq!(names(7, Some("7"), None, Some("a:b")), Ok(Vec::new()));
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_one_sentence() {
        for count in ["", "x", "-1", "+1", " 1", "1 ", "1.5", "1025", "99999999999999999999"] {
            let refused = parsed(count, Some("a")).unwrap_err();
            assert_eq!(refused, format!("LISTEN_FDS={count:?} is not a number of sockets"));
        }
        for (count, fdnames, names) in [("2", "a", 1), ("1", "a:b", 2), ("0", "a", 1), ("2", "", 1), ("1", ":", 2)] {
            let refused = parsed(count, Some(fdnames)).unwrap_err();
            assert_eq!(refused, format!("LISTEN_FDNAMES has {names} names for {count} sockets"));
        }
    }

    #[test]
    fn an_arrival_is_believed_only_where_it_is_for_this_process() {
        let (from_version, program) = ("0.1.0".to_owned(), "/usr/bin/purlind".to_owned());
        let arrival = Arrival { pid: 7, since_us: 12, from_version, program, failed: None };
        let text = serde_json::to_string(&arrival).unwrap();
        assert_eq!(Arrival::parse(7, Some(&text)), Some(arrival.clone()));
        let failed = Failed { message: "it is gone".to_owned(), to_version: Some("0.2.0".to_owned()) };
        let back = Arrival { failed: Some(failed), ..arrival.clone() };
        assert_eq!(Arrival::parse(7, Some(&serde_json::to_string(&back).unwrap())), Some(back));
        assert_eq!(Arrival::parse(8, Some(&text)), None);
        let more = text.replacen('{', "{\"more\":[1],", 1);
        assert_eq!(Arrival::parse(7, Some(&more)), Some(arrival));
        for text in [None, Some(""), Some("{}"), Some("7"), Some("{\"pid\":7,\"since_us\":-1}")] {
            assert_eq!(Arrival::parse(7, text), None, "{text:?}");
        }
    }

    #[test]
    fn names_are_ascii_without_colons_and_say_which_file_a_socket_has() {
        assert_eq!(encoded("nbd-unix:/run/a b@é"), "nbd-unix%3A/run/a%20b%40%C3%A9");
        let tcp = ListenOn::Tcp("127.0.0.1:9".parse().unwrap());
        assert_eq!(descriptor_name("nbd-127.0.0.1:9", &tcp).unwrap(), "nbd-127.0.0.1%3A9");
        assert_eq!(descriptor_name(&":".repeat(86), &tcp), None, "too long");

        let path = std::env::temp_dir().join(format!("purlin-names-{}.sock", std::process::id()));
        let on = ListenOn::Unix { path: path.clone(), mode: 0o600 };
        assert_eq!(descriptor_name("api", &on), None, "there is no file");
        let first = UnixListener::bind(&path).unwrap();
        let before = descriptor_name("api", &on).unwrap();
        assert!(before.starts_with("api@"), "{before}");
        assert_eq!(descriptor_name("api", &on).unwrap(), before);
        fs::remove_file(&path).unwrap();
        // A file system may reuse the inode, but not with the same time.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let second = UnixListener::bind(&path).unwrap();
        assert_ne!(descriptor_name("api", &on).unwrap(), before);
        drop((first, second));
        fs::remove_file(&path).unwrap();
    }
}
