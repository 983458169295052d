//! The host's side above the transport: how it sets up a controller and reads its answers.
//!
//! - [`Setup`] connects an admin queue, enables the controller and identifies it. [`Shutdown`] is
//!   the counterpart.
//! - [`Survey`] finds the namespaces, [`DiscoveryLog`] other subsystems.
//! - [`admin`] and [`io`] build commands. [`AsyncEvent`] is the answer to an event request.
//!
//! [`Setup`], [`Survey`], [`DiscoveryLog`] and [`Shutdown`] are each a [`Dialogue`]. None of them
//! does I/O, has a clock or assigns command identifiers: the caller does.

mod access;
pub mod admin;
mod discovery;
mod event;
pub mod io;
mod namespace;
mod setup;
mod shutdown;

pub use access::{AccessStates, access_log, access_log_bytes};
pub use discovery::{DISCOVERY_ENTRIES_MAX, DiscoveredSubsystem, DiscoveryLog};
pub use event::AsyncEvent;
pub use io::Blocks;
pub use namespace::{NamespaceInfo, Survey, Surveyed};
pub use setup::{Connected, ControllerInfo, Established, Setup, Wish, connect_admin, connect_io, connected};
pub use shutdown::Shutdown;

use thiserror::Error;

use crate::auth::Refusal;
use crate::tcp::Transfer;
use crate::{Command, Completion, Status};

/// A command to be sent. The caller sets its identifier.
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
    /// The data transfer that the transport has to expect.
    pub fn transfer(&self) -> Transfer {
        if self.reply_bytes > 0 { Transfer::ToHost(self.reply_bytes) } else { Transfer::None }
    }
}

/// A sequence of commands. Each depends on the answer to the one before.
pub trait Dialogue {
    /// The result.
    type Outcome;

    /// The next step. The caller calls it again after [`Dialogue::answer`], and after the time of
    /// [`Next::Wait`].
    fn next(&mut self) -> Next<Self::Outcome>;

    /// Takes the answer to the command of [`Dialogue::next`], with its data.
    ///
    /// # Errors
    /// [`HostError`]: the dialogue has failed.
    fn answer(&mut self, completion: &Completion, data: &[u8]) -> Result<(), HostError>;
}

/// The next step of a [`Dialogue`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<T> {
    /// Send this, and pass the answer to [`Dialogue::answer`].
    Send(Submission),
    /// Wait for this many milliseconds, then call [`Dialogue::next`] again.
    Wait(u32),
    /// The dialogue is complete.
    Done(T),
}

/// Why a controller cannot be used, or not with these settings.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HostError {
    /// A command failed.
    #[error("{command} failed: {status}")]
    Failed {
        /// The command's name in the specification.
        command: &'static str,
        /// The status.
        status: Status,
    },
    /// Connect was refused for a parameter.
    #[error("Connect was refused: the controller does not take {parameter}")]
    Parameter {
        /// The wrong parameter, as far as it is known.
        parameter: &'static str,
    },
    /// The controller requires authentication, and this host has no secret for it.
    #[error("the controller wants this host to authenticate, and no secret was given")]
    Authentication,
    /// The controller also requires a secure channel.
    #[error("the controller wants a secure channel (TLS), which is not there yet")]
    SecureChannel,
    /// The controller does not authenticate, but this host requires it to.
    #[error("the controller does not ask for authentication, so that it cannot prove who it is")]
    NoAuthentication,
    /// The controller refused this host.
    #[error("the controller refused to authenticate this host: {0}")]
    NotAuthenticated(Refusal),
    /// This host refused the controller.
    #[error("the controller did not prove who it is: {0}")]
    Impostor(Refusal),
    /// The controller reports a fatal error: CSTS.CFS.
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    Fatal,
    /// The controller did not become ready, or did not shut down, in time.
    #[error("{what} within {ms} ms")]
    Timeout {
        /// The event that did not happen.
        what: &'static str,
        /// The time that the host waited.
        ms: u32,
    },
    /// An answer is shorter than requested.
    #[error("{command} brought {len} bytes")]
    Short {
        /// The command's name in the specification.
        command: &'static str,
        /// Bytes received.
        len: usize,
    },
    /// An answer violates the specification.
    #[error("{0}")]
    Malformed(&'static str),
    /// An answer is valid, but not supported by this host.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The discovery log changed each time that it was read.
    #[error("the discovery log changes faster than it can be read")]
    Restless,
    /// More namespaces, or entries of the discovery log, than the host accepts.
    #[error("the controller speaks of {0} namespaces or entries")]
    TooMany(u64),
}

/// Checks that a command succeeded.
fn succeeded(command: &'static str, completion: &Completion) -> Result<(), HostError> {
    let status = completion.status();
    if status.is_success() { Ok(()) } else { Err(HostError::Failed { command, status }) }
}
