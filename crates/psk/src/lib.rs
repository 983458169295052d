//! TLS 1.3 (RFC 8446) with external pre-shared keys and no certificates, sans-I/O: ciphertext in
//! and out, plaintext out and in.
//!
//! - [`Key`]: an identity and its secret.
//! - [`Session`]: one connection's TLS, of a client that offers keys or a server that finds the one
//!   that is asked for.
//!
//! Both ends agree on a fresh key for each connection with (EC)DHE as well (psk_dhe_ke): who learns
//! a pre-shared key later cannot read what was recorded. There are no session tickets, no early
//! data, and no renegotiation; a peer that has another version of TLS, or no key, is refused.
//! s2n-tls does the work; why it: docs/decisions/nvme-tls.md. It is for Linux: so is this crate.

mod hello;
mod session;
mod wire;

pub use session::{Find, Hash, Key, Opened, Session, TlsError};
