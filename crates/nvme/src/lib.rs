//! NVMe, NVMe over fabrics and NVMe/TCP, sans-I/O: bytes in, bytes and actions out.
//!
//! Written from the NVM Express Base Specification 2.0, the NVM Command Set Specification 1.0 and
//! the TCP Transport Specification 1.0 (<https://nvmexpress.org/specifications/>); fields and
//! clauses are named as there. It opens no socket, holds no payload and has no clock.
//!
//! - [`Command`], [`Completion`], [`identify`], [`fabrics_data`]: the structures.
//! - [`Access`]: how a controller reaches a namespace.
//! - [`tcp`]: PDUs, and how a byte stream is split into them.
//! - [`target`]: the controller's side: answers to commands.
//! - [`host`]: the host's side: how it sets up a controller and sends commands.
//! - [`auth`]: in-band authentication of both ends.
//! - [`tls`]: keys of encrypted connections.

#![forbid(unsafe_code)]

mod access;
pub mod auth;
mod command;
mod completion;
pub mod fabrics_data;
pub mod host;
pub mod identify;
mod nqn;
pub mod target;
pub mod tcp;
pub mod tls;

pub use access::Access;
pub use command::{Command, DataPlace, Direction, FABRICS, Fuse, Sgl, admin, fabrics, nvm};
pub use completion::{Completion, Status};
pub use nqn::{DISCOVERY_NQN, DISCOVERY_SERVICE_TYPE, NQN_BYTES_MAX, NQN_FIELD_BYTES, Nqn, NqnError};
