//! The state of a group, which its shards share, and the vocabulary of it.

pub(crate) mod cause;
pub(crate) mod dirty;
pub(crate) mod errors;
pub(crate) mod event;
pub(crate) mod findings;
pub(crate) mod job;
pub(crate) mod leader;
pub(crate) mod lost;
pub(crate) mod map;
pub(crate) mod message;
pub(crate) mod owners;
pub(crate) mod settings;
pub(crate) mod share;
pub(crate) mod shared;
pub(crate) mod slot;
pub(crate) mod slow;
pub(crate) mod version;
pub(crate) mod warm;
