//! Hosts over real sockets, through a proxy that breaks connections. One program, so that shared
//! code is compiled once.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod authentication;
mod back_off;
mod common;
mod connect;
mod damage;
mod io;
mod late;
mod paths;
mod reconnect;
mod shard;
mod tls;
