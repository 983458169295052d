//! The protocol without sockets: handshakes, requests and replies, byte by byte.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;
mod handshake;
mod stream;
mod transmission;
