//! The host's side above the transport: how a controller is made to work, and what it says.
//!
//! - [`Setup`] connects an admin queue, enables the controller and learns what it is; [`Shutdown`]
//!   is the other end.
//! - [`Survey`] learns of the namespaces, [`DiscoveryLog`] of other subsystems.
//! - [`admin`] and [`io`] build commands; [`AsyncEvent`] is what an event request brings.
//!
//! [`Setup`], [`Survey`], [`DiscoveryLog`] and [`Shutdown`] are each a [`Dialogue`]. None of them
//! does I/O, knows time or gives commands identifiers: that is the caller's.

mod access;
pub mod admin;
mod discovery;
mod event;
pub mod io;
mod namespace;
mod setup;
mod shutdown;

pub use access::{AccessStates, access_log, access_log_bytes};
pub use discovery::{DISCOVERY_ENTRIES_MAX, DiscoveryLog, Found};
pub use event::AsyncEvent;
pub use io::Blocks;
pub use namespace::{NamespaceInfo, Survey, Surveyed};
pub use setup::{Connected, ControllerInfo, Established, Setup, Wish, connect_admin, connect_io, connected};
pub use shutdown::Shutdown;

use thiserror::Error;

use crate::auth::Refusal;
use crate::tcp::Transfer;
use crate::{Command, Completion, Status};

/// A command that is to be sent; its identifier is still to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The command.
    pub command: Command,
    /// Data for the controller, to be sent in the capsule.
    pub data: Vec<u8>,
    /// Bytes of data that come from the controller.
    pub reply_bytes: u32,
}

impl Submission {
    /// What the transport has to expect.
    pub fn transfer(&self) -> Transfer {
        if self.reply_bytes > 0 { Transfer::ToHost(self.reply_bytes) } else { Transfer::None }
    }
}

/// One command after the other, each because of the answer to the one before.
pub trait Dialogue {
    /// What is known at the end.
    type Outcome;

    /// What to do next. To be called again after [`Dialogue::answer`], and after the time of
    /// [`Next::Wait`].
    fn next(&mut self) -> Next<Self::Outcome>;

    /// Takes the answer to the command that [`Dialogue::next`] gave, with its data.
    ///
    /// # Errors
    /// [`HostError`]: it has ended, in vain.
    fn answer(&mut self, completion: &Completion, data: &[u8]) -> Result<(), HostError>;
}

/// What a [`Dialogue`] wants next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<T> {
    /// Send this, and give the answer to [`Dialogue::answer`].
    Send(Submission),
    /// Wait for so many milliseconds, and call [`Dialogue::next`] again.
    Wait(u32),
    /// It is done.
    Done(T),
}

/// Why a controller cannot be used, or not so.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostError {
    /// A command failed.
    #[error("{command} failed: {status}")]
    Failed {
        /// Its name in the specification.
        command: &'static str,
        /// The status.
        status: Status,
    },
    /// Connect was refused for a parameter.
    #[error("Connect was refused: the controller does not take {parameter}")]
    Parameter {
        /// What was wrong, as far as it is known.
        parameter: &'static str,
    },
    /// The controller wants authentication first, and this host has no secret for it.
    #[error("the controller wants this host to authenticate, and no secret was given")]
    Authentication,
    /// The controller wants a secure channel in addition.
    #[error("the controller wants a secure channel (TLS), which is not there yet")]
    SecureChannel,
    /// The controller does not authenticate, and was to prove who it is.
    #[error("the controller does not ask for authentication, so that it cannot prove who it is")]
    NoAuthentication,
    /// The controller refused this host.
    #[error("the controller refused to authenticate this host: {0}")]
    NotAuthenticated(Refusal),
    /// The controller was refused.
    #[error("the controller did not prove who it is: {0}")]
    Impostor(Refusal),
    /// The controller said of itself that it cannot work: CSTS.CFS.
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    Fatal,
    /// The controller did not become ready, or did not shut down, in the time that it has.
    #[error("{what} within {ms} ms")]
    Timeout {
        /// What did not happen.
        what: &'static str,
        /// How long it was waited for.
        ms: u32,
    },
    /// An answer is shorter than what was asked for.
    #[error("{command} brought {len} bytes")]
    Short {
        /// The command's name in the specification.
        command: &'static str,
        /// Bytes that came.
        len: usize,
    },
    /// Something is not as the specification wants it.
    #[error("{0}")]
    Malformed(&'static str),
    /// Something is right, and not of use here.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The discovery log changed as often as it was read.
    #[error("the discovery log changes faster than it can be read")]
    Restless,
    /// More namespaces, or entries of the discovery log, than anybody has.
    #[error("the controller speaks of {0} namespaces or entries")]
    TooMany(u64),
}

/// A success, or the error.
fn succeeded(command: &'static str, completion: &Completion) -> Result<(), HostError> {
    let status = completion.status();
    if status.is_success() { Ok(()) } else { Err(HostError::Failed { command, status }) }
}
