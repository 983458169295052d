//! What a process is started with: sockets by name (sd_listen_fds(3)), and what the process before
//! has to say.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;

use runtime::ListenOn;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Number of descriptors that are passed, from descriptor 3 on.
pub(super) const LISTEN_FDS: &str = "LISTEN_FDS";
/// The process that they are for.
pub(super) const LISTEN_PID: &str = "LISTEN_PID";
/// Their names, separated by colons.
pub(super) const LISTEN_FDNAMES: &str = "LISTEN_FDNAMES";
/// An [`Arrival`] as JSON.
pub(super) const UPGRADE: &str = "PURLIN_UPGRADE";

/// More descriptors than this are not believed: it is a common limit of open files.
const COUNT_MAX: usize = 1024;

/// Longest name of a descriptor (`FDNAME=` of sd_notify(3)).
const NAME_CHARS_MAX: usize = 255;

/// Why the environment makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum InheritError {
    /// Nothing is known of the descriptors.
    #[error("LISTEN_FDS={0:?} is not a number of sockets")]
    Count(String),
    /// There are descriptors, and which is which cannot be told.
    #[error("LISTEN_FDNAMES has {names} names for {count} sockets")]
    Names {
        /// Descriptors.
        count: usize,
        /// Names.
        names: usize,
    },
}

/// The names of the descriptors 3, 4, ... that were passed to the process `pid`, by values of the
/// environment. None where they are for another process: whoever got them did not clean up.
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
    // A sign is no digit: parse alone would take +1.
    let digits = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    let number = Some(count).filter(|_| digits).and_then(|count| count.parse().ok());
    let Some(number) = number.filter(|&number| number <= COUNT_MAX) else {
        return Err(InheritError::Count(count.to_owned()));
    };
    let names: Vec<String> = match listen_fdnames {
        // What sd_listen_fds_with_names(3) calls them.
        None => vec!["unknown".to_owned(); number],
        // One socket without a name is what an empty text says, and no socket as well.
        Some("") if number == 0 => Vec::new(),
        Some(names) => names.split(':').map(str::to_owned).collect(),
    };
    if names.len() != number {
        return Err(InheritError::Names { count: number, names: names.len() });
    }
    Ok(names)
}

/// What the process before says of an upgrade. Later versions may say more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrival {
    /// The process: it stays the same.
    pub pid: u32,
    /// When the daemon stopped taking connections, in microseconds of `CLOCK_MONOTONIC`.
    pub since_us: u64,
    /// Its version.
    pub from_version: String,
    /// The program that was to be executed.
    pub program: String,
    /// It could not be: the program before was executed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failed>,
}

/// Why a process is not the program that was to take its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failed {
    /// A sentence.
    pub message: String,
    /// That program's version.
    pub to_version: Option<String>,
}

impl Arrival {
    /// Reads what the environment says; `None` where that is nothing, or was said to another
    /// process.
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

/// The name that the descriptor of a socket gets, `None` where none can be given: the socket's own
/// name, and for a Unix socket which file it was bound to. A file of this path that was made since
/// is not that one, though the path is the same.
pub(super) fn descriptor_name(socket: &str, on: &ListenOn) -> Option<String> {
    let mut name = encoded(socket);
    if let ListenOn::Unix { path, .. } = on {
        // The modification time sets apart a file that got the inode of one that was removed.
        let file = fs::symlink_metadata(path).ok()?;
        let modified_ns = i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec());
        write!(name, "@{:x}-{:x}-{modified_ns:x}", file.dev(), file.ino()).expect("a string takes everything");
    }
    Some(name).filter(|name| name.len() <= NAME_CHARS_MAX)
}

/// A name as descriptors may have it: in ASCII, without colons, and without the sign that
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
        // A file system may give the same inode again, but not at the same time.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let second = UnixListener::bind(&path).unwrap();
        assert_ne!(descriptor_name("api", &on).unwrap(), before);
        drop((first, second));
        fs::remove_file(&path).unwrap();
    }
}
