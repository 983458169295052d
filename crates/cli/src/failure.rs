//! Why a command failed.

use std::io;
use std::path::PathBuf;

use api::{ErrorCode, Invalid};
use thiserror::Error;

/// One sentence for stderr.
#[derive(Debug, Error)]
pub enum Failure {
    /// The daemon refused.
    #[error("{message}")]
    Refused {
        /// The error code.
        code: ErrorCode,
        /// The daemon's message.
        message: String,
    },
    /// Nothing answers on the socket.
    #[error(
        "cannot reach purlind at {}: {}; is it running? start it with: purlind --state DIR",
        socket.display(),
        plain(source)
    )]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The socket belongs to another user.
    #[error("cannot reach purlind at {}: permission denied; run this as the user who runs purlind", socket.display())]
    Forbidden {
        /// The socket.
        socket: PathBuf,
    },
    /// There is no daemon on this system.
    #[error("purlind runs on Linux, and this command asks it here; on this system there is `purlin nvme`")]
    Elsewhere,
    /// The answer does not come from a daemon, or the daemon went away in the middle.
    #[error("purlind at {} gave no usable answer: {what}", socket.display())]
    Garbled {
        /// The socket.
        socket: PathBuf,
        /// The problem with the answer.
        what: String,
    },
    /// A file or the terminal failed.
    #[error("{what}: {}", plain(source))]
    Local {
        /// The operation that failed.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// A question was necessary, but there is no terminal.
    #[error("{what}, and there is no terminal to ask on: say --yes to do it without asking")]
    Unasked {
        /// The action that needs consent.
        what: String,
    },
    /// The user answered no.
    #[error("nothing was changed")]
    Declined,
    /// The operation that the command waited for failed.
    #[error("{0}")]
    Ended(String),
    /// Something is unhealthy.
    #[error("{message}")]
    Unwell {
        /// The unhealthy objects.
        message: String,
        /// The exit code.
        code: u8,
    },
    /// A rescue failed.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Rescue(#[from] rescue::RescueError),
    /// The rescue could not read all of its input.
    #[cfg(target_os = "linux")]
    #[error("{0}")]
    Incomplete(String),
    /// Invalid arguments, found after parsing.
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    /// 2 for invalid arguments and for a failed rescue, 3 and 4 for unhealthy objects, 1 for
    /// everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Unwell { code, .. } => *code,
            #[cfg(target_os = "linux")]
            Failure::Rescue(_) | Failure::Incomplete(_) => 2,
            _ => 1,
        }
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Failure {
        Failure::Usage(invalid.0)
    }
}

/// The system's message without its number: `No such file or directory (os error 2)` says it twice.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
