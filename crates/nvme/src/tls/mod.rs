//! Keys of TLS: TCP Transport 1.0, clause 3.6.1, with identities of version 1 as revision 1.1 has
//! them.
//!
//! - [`TlsKey`] is what an operator gives to both ends.
//! - [`TlsPsk`] is what a host and a subsystem make of it for a handshake; [`TlsKey::psks`].
//! - [`TlsIdentity`] is how a handshake names it, and says for whom it is.
//!
//! TLS itself is somebody else's: nothing here shakes hands or encrypts. Keys are wiped when they
//! are dropped, compared in constant time, and never part of what `Debug` prints.

mod derive;
mod identity;
mod key;

pub use identity::TlsIdentity;
pub use key::{TlsKey, TlsKeyError, TlsPsk};
