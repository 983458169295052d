//! A deterministic world for the engine: virtual time, tasks, and drives that crash, lie and die on
//! command.
//!
//! Four nouns:
//!
//! - [`Sim`]: the world. It owns the tasks and the clock; one seed replays a run exactly.
//! - [`SimEnv`]: the world as the engine sees it, a [`drive::Env`].
//! - [`SimDrive`]: a [`drive::Drive`] with a volatile cache, a latency and faults.
//! - [`Rng`]: the only source of randomness.
//!
//! ```
//! use drive::{Drive, Env, Segments};
//! use sim::{Sim, SimDrive};
//!
//! let sim = Sim::new(7);
//! let env = sim.env();
//! let drive = SimDrive::new(&env, "d0", 1 << 20, 512);
//! sim.block_on(async {
//!     let data = drive::BufMut::copy_of(&[7; 4096]).freeze();
//!     drive.write(0, Segments::from_iter([data]), false).await.unwrap();
//!     drive.flush().await.unwrap();
//! });
//! sim.power_cut();
//! let drive = drive.reopen();
//! let read = sim.block_on(drive.read(0, env.alloc(4096))).unwrap();
//! assert!(read.iter().all(|&byte| byte == 7), "a flushed write survives");
//! ```
//!
//! The world is no model of the speed of drives. Latencies only exist to bring operations into
//! every order.
//!
//! Invariants:
//! 1. The whole run follows from the seed and the calls: no wall clock, no address, no hash order.
//! 2. Time stands still while a task is runnable or a task waits for the end of the turn.
//! 3. An operation that was started runs to its end even if its future is dropped, until the drive
//!    fails or loses power.

#![forbid(unsafe_code)]

pub mod campaign;
mod clock;
mod drive;
pub mod engine;
mod env;
pub mod exhaustive;
mod net;
pub mod program;
mod remote;
mod rng;
mod target;
mod task;
pub mod thin;
mod trace;
mod world;

pub use crate::drive::{Broken, DriveOptions, Image, Latency, Outage, PageRc, SimDrive};
pub use crate::net::{SimConnection, SimNetwork, SimReader, SimWriter, Way};
pub use crate::remote::{GroupDrive, Patience, Ways};
pub use crate::rng::Rng;
pub use crate::target::Target;
pub use crate::trace::{Counts, OpKind, Phase, TapeEvent, TapeStep, TraceEntry};
pub use crate::world::{Sim, SimEnv};

#[cfg(test)]
mod tests;
