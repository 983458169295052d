//! Recovery after a crash, before the group serves: replay of the log, majority votes, checksums.

pub(crate) mod put_right;
pub(crate) mod recompute_sums;
pub(crate) mod replay;
pub(crate) mod replay_log;
pub(crate) mod row;
pub(crate) mod vote;
