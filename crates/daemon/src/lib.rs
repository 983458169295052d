//! `purlind`: the storage daemon.
#![forbid(unsafe_code)]

pub mod http;
