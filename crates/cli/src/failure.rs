//! Why a command did not do what it was told.

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
        /// Its code.
        code: ErrorCode,
        /// Its sentence.
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
        /// Why.
        source: io::Error,
    },
    /// The socket is another user's.
    #[error("cannot reach purlind at {}: permission denied; run this as the user who runs purlind", socket.display())]
    Forbidden {
        /// The socket.
        socket: PathBuf,
    },
    /// There is no daemon on this system.
    #[error("purlind runs on Linux, and this command asks it here; on this system there is `purlin nvme`")]
    Elsewhere,
    /// Something else answers on the socket, or the daemon went away in the middle.
    #[error("purlind at {} gave no usable answer: {what}", socket.display())]
    Garbled {
        /// The socket.
        socket: PathBuf,
        /// What was wrong with it.
        what: String,
    },
    /// A file or the terminal failed.
    #[error("{what}: {}", plain(source))]
    Local {
        /// What failed.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// A question had to be asked and could not be.
    #[error("{what}, and there is no terminal to ask on: say --yes to do it without asking")]
    Unasked {
        /// What would be done.
        what: String,
    },
    /// The question was answered with no.
    #[error("nothing was changed")]
    Declined,
    /// What was waited for ended badly.
    #[error("{0}")]
    Ended(String),
    /// Something is not well.
    #[error("{message}")]
    Unwell {
        /// The objects that are not well.
        message: String,
        /// How the command ends.
        code: u8,
    },
    /// The rescue could not do it.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Rescue(#[from] rescue::RescueError),
    /// Not all of what the rescue was given could be looked at.
    #[cfg(target_os = "linux")]
    #[error("{0}")]
    Incomplete(String),
    /// Arguments that make no sense, found after parsing.
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    /// 2 for arguments that make no sense and for what a rescue could not do, 3 and 4 for what is
    /// not well, 1 for all else.
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

/// The system's words without its number: `No such file or directory (os error 2)` says it twice.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
