//! Drives as the engine uses them: tracked, measured, bounded.

pub(crate) mod bounded;
pub(crate) mod fail_slow;
pub(crate) mod handle;
pub(crate) mod in_flight;
pub(crate) mod latency;
pub(crate) mod outstanding;
pub(crate) mod retry;
pub(crate) mod slow_detector;
pub(crate) mod superblock;
pub(crate) mod watchdog;
pub(crate) mod window;
