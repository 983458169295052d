//! TLS 1.3 (RFC 8446) with external pre-shared keys and without certificates, sans-I/O: ciphertext
//! in and out, plaintext out and in.
//!
//! - [`Key`]: an identity and its secret.
//! - [`Session`]: the TLS session of one connection, for a client that offers keys or a server that
//!   finds the requested key.
//!
//! Both ends also agree on a fresh key for each connection with (EC)DHE (psk_dhe_ke). An attacker
//! who learns a pre-shared key later cannot read recorded traffic. There are no session tickets, no
//! early data, and no renegotiation. A peer with another version of TLS, or without a key, is
//! refused. s2n-tls does the work; docs/decisions/nvme-tls.md gives the reasons. It supports only
//! Linux, and so does this crate.

mod hello;
mod session;
mod wire;

pub use session::{Find, Hash, Key, Opened, Session, TlsError};
