//! `purlind`: the storage daemon.
//!
//! - [`Engine`]: groups, volumes and exports on the shards of a runtime; the library side of the daemon.
//! - [`http`]: the API over it.
#![forbid(unsafe_code)]

mod engine;
pub mod http;

pub use engine::Engine;
