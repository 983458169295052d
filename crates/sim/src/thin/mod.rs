//! Checks of thin volumes: programs on a model of a group, with a crash at each of their steps, and
//! random runs over the real array.
//!
//! - [`Model`]: the content that reads may give.
//! - [`ModelGroup`]: a group that promises no more than it has to.
//! - [`check`]: runs a [`Program`] once for each of its events, stops there, and recovers from
//!   every state that may be left, at times with another crash in the recovery.
//! - [`every`]: all programs of a few steps, all of their crashes, and all states that these may
//!   leave.
//! - [`random`]: a random run over the real array, with the faults that must be survived.
//! - [`pool::Pool`]: a store over a simulated group, and requests to its volumes.

mod backing;
mod check;
mod every;
mod model;
pub mod pool;
mod random;
mod space;

pub use backing::{Image, ModelGroup, Remains, StopAt};
pub use check::{Counts, Program, Step, any_compression, check, run};
pub use every::{EveryCounts, every};
pub use model::{BLOCK, Model, Versions, content};
pub use random::{Faults, random};

use space::check_sums;
