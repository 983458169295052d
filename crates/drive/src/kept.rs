//! Memory that outlives the process.

use std::fmt::Debug;
use std::sync::atomic::AtomicU64;

/// Memory that is there again, as it was, when a killed process is started anew, and that ends with
/// the kernel. So what is in it is as new as what the kernel and the drives' caches were given, and
/// never newer than what they lost.
pub trait Kept: Debug + Send + Sync {
    /// The memory. New memory is all zeroes.
    fn words(&self) -> &[AtomicU64];
}
