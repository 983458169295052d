//! Memory that outlives the process.

use std::fmt::Debug;
use std::sync::atomic::AtomicU64;

/// Memory that keeps its content when a killed process is restarted, and that ends with the kernel.
/// So its content is as new as the data that the kernel and the caches of the drives were given,
/// and never newer than data that they lost.
pub trait WarmState: Debug + Send + Sync {
    /// The memory. New memory is all zeroes.
    fn words(&self) -> &[AtomicU64];
}
