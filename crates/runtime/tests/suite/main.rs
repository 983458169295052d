//! Shards, drives and sockets on the real kernel.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;
mod drives;
mod handover;
mod shards;
mod sockets;
