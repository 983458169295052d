//! Containers and a semaphore that several parts of the engine use.

pub(crate) mod marks;
pub(crate) mod semaphore;
pub(crate) mod stripe_group_map;
