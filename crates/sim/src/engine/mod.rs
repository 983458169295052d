//! The real engine on simulated drives, and models of what may be read from it. The engine's tests,
//! the runner of random programs and the exhaustive checker share them.
//!
//! - [`Group`]: a drive group with everything around it, on one or several shards.
//! - [`Model`]: every byte, for runs without a power cut.
//! - [`history::History`]: for every block which contents may be read, power cuts included.

mod exact;
mod group;
pub mod history;
mod reach;

pub use self::exact::*;
pub use self::group::*;
