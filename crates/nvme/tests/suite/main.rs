//! NVMe/TCP without sockets: controllers and hosts, byte by byte. One program, so that what they
//! share is compiled once.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod access;
mod auth;
mod common;
mod connect;
mod controller;
mod events;
mod host;
mod host_stream;
mod identify;
mod io;
mod logs;
mod pdu;
mod persistent_events;
mod reservations;
mod session;
mod stream;
mod tls;
mod violations;
