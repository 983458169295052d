//! TLS keys: TCP Transport 1.0, clause 3.6.1, with identities of version 1 as in revision 1.1.
//!
//! - [`TlsKey`]: the key that an operator configures at both ends.
//! - [`TlsPsk`]: the secret of a handshake that a host and a subsystem derive from it;
//!   [`TlsKey::psks`].
//! - [`TlsIdentity`]: how a handshake names the key, with its host and subsystem.
//!
//! A TLS library does handshakes and encryption, not this module. Keys are wiped when they are
//! dropped, compared in constant time, and never part of the output of `Debug`.

mod derive;
mod identity;
mod key;

pub use identity::TlsIdentity;
pub use key::{TlsKey, TlsKeyError, TlsPsk};
