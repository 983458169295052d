//! The engine on a runtime with real drives: memory and files. A test's name is the promise it checks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bench;
mod client;
mod imports;
#[path = "../../../md/tests/support/mod.rs"]
mod md_support;
mod scrub;
mod settings;
