//! Work in the background: rebuilds, copies, scrubs, and how much of it there may be.

pub(crate) mod audit;
pub(crate) mod governor;
pub(crate) mod job;
pub(crate) mod rebuild;
pub(crate) mod scrub;
pub(crate) mod scrub_job;
