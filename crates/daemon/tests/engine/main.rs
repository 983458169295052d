//! The engine on a runtime with real drives: memory and files. A test's name is the promise it
//! checks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod absent;
mod access;
mod bench;
mod client;
mod connect;
mod convert;
mod convert_nvme;
mod history;
mod host_figures;
mod hosts;
mod imports;
mod limits;
mod lookups;
#[path = "../../../md/tests/suite/support/mod.rs"]
mod md_support;
mod names;
mod nvme_host;
mod owners;
mod presence;
#[path = "../../../initiator/tests/suite/common/proxy.rs"]
#[allow(dead_code, reason = "the initiator's tests use all of it")]
mod proxy;
mod remote_drives;
mod remote_tls;
mod replace;
mod reservations;
mod retry;
mod scrub;
mod settings;
mod smart;
mod stop;
mod target;
mod thin;
