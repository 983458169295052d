//! Fuzzing of everything that parses.
//!
//! - [`Target`]: a plain function that takes any bytes and panics if a promise is broken; all of
//!   them are in [`TARGETS`].
//! - [`fuzz`]: the loop over mutated inputs, deterministic in its seed, guided by coverage where
//!   the build is instrumented.
//! - [`examine`]: one input, with its memory measured.
//! - [`corpus`]: the inputs that are kept.
//!
//! It needs nothing but the pinned tool chain: no nightly compiler, no libFuzzer. `docs/fuzzing.md`
//! says how to run it.
//!
//! What a target promises beyond not panicking, each in its own words: what was decoded can be
//! encoded and decoded again to the same; memory follows the bytes that were sent, not the lengths
//! they announce; every loop ends.
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
