//! Reads, writes and flushes: from a request of a user to operations of drives.

pub(crate) mod component;
pub(crate) mod compute;
pub(crate) mod flush;
pub(crate) mod hedge;
pub(crate) mod incomplete;
pub(crate) mod member;
pub(crate) mod overlay;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod report;
pub(crate) mod stripe_group;
pub(crate) mod trim;
pub(crate) mod types;
pub(crate) mod user;
pub(crate) mod write;
pub(crate) mod write_retry;
pub(crate) mod zero;
