//! The clock that every shard of the process shares.

use std::sync::OnceLock;
use std::time::Instant;

use ::drive::Nanos;

/// Nanoseconds since the first call in this process: monotonic, the same zero on every shard.
#[inline]
pub(crate) fn now() -> Nanos {
    static ZERO: OnceLock<Instant> = OnceLock::new();
    // 2^64 ns are 584 years.
    ZERO.get_or_init(Instant::now).elapsed().as_nanos() as Nanos
}
