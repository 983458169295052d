//! Fuzzing of all parsers.
//!
//! - [`Target`]: a plain function that takes any bytes and panics if a promise is broken. All
//!   targets are in [`TARGETS`].
//! - [`examine`]: runs one input and measures its memory.
//! - [`run`]: runs many inputs, and detects one that never ends.
//! - [`inputs`]: the inputs of the tests, which are always the same.
//! - [`corpus`]: the stored inputs.
//!
//! Runs that are guided by coverage are libFuzzer's: the program `fuzz` links it if it is built
//! with the feature `guided`. `docs/fuzzing.md` describes how to use it.
//!
//! Besides not panicking, each target has promises of its own. For example: data that was decoded
//! can be encoded and decoded again to the same; memory grows with the bytes that were sent, not
//! with the lengths that they announce; every loop ends.
#![deny(unsafe_code)]

pub mod corpus;
mod examine;
mod inputs;
#[allow(unsafe_code, reason = "a global allocator can only be written so")]
mod memory;
mod mutate;
mod rng;
mod run;
mod target;
mod targets;

pub use examine::{Finding, examine};
pub use inputs::{Plan, inputs};
pub use run::{Crash, INPUT_TIME_MAX, run};
pub use target::{Memory, Seed, Target};
pub use targets::{TARGETS, find};
