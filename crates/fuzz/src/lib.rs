//! Fuzzing of all parsers.
//!
//! - [`Target`]: a plain function that takes any bytes and panics if a promise is broken. All
//!   targets are in [`TARGETS`].
//! - [`fuzz`]: the loop over mutated inputs. It is determined by its seed, and guided by coverage
//!   if the build is instrumented.
//! - [`examine`]: runs one input and measures its memory.
//! - [`corpus`]: the stored inputs.
//!
//! It only needs the pinned toolchain: no nightly compiler, no libFuzzer. `docs/fuzzing.md`
//! describes how to run it.
//!
//! Besides not panicking, each target has promises of its own. For example: data that was decoded
//! can be encoded and decoded again to the same; memory grows with the bytes that were sent, not
//! with the lengths that they announce; every loop ends.
#![deny(unsafe_code)]

pub mod corpus;
#[allow(unsafe_code, reason = "call-backs of the compiler's instrumentation, and the counters it lays out")]
pub mod coverage;
mod engine;
mod examine;
#[allow(unsafe_code, reason = "a global allocator can only be written so")]
mod memory;
mod minimise;
mod mutate;
mod rng;
mod target;
mod targets;
mod watch;

pub use engine::{Crash, Plan, Report, fuzz};
pub use examine::{Finding, examine};
pub use memory::measure;
pub use minimise::minimise;
pub use mutate::{Mutator, neighbours};
pub use rng::Rng;
pub use target::{Memory, Seed, Target};
pub use targets::{TARGETS, find};
pub use watch::Watch;
