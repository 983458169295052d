//! Settings that an operator may change while a group runs. They are not stored on the members: the
//! daemon sets them again after each assembly.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use drive::Nanos;

/// Behavior of a group beyond its on-disk format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// Background work keeps the 99th percentile of clients' latency below this.
    pub client_p99: Option<Nanos>,
    /// A member that stays far slower than the others is replaced by a spare.
    pub retire_slow: bool,
}

/// The settings as the shards see them.
#[derive(Debug, Default)]
pub(crate) struct SharedSettings {
    /// 0: none.
    client_p99: AtomicU64,
    retire_slow: AtomicBool,
    /// 0: [`TIME_LIMIT`].
    pub(crate) time_limit: AtomicU64,
    pub(crate) unhedged: AtomicBool,
    pub(crate) unavoided: AtomicBool,
}

/// Time limit of a drive operation. Long enough for a drive that retries internally, or for a path
/// failover. Linux uses the same limit for NVMe.
pub(crate) const TIME_LIMIT: Nanos = 30_000_000_000;

impl SharedSettings {
    pub fn get(&self) -> Settings {
        let client_p99 = self.client_p99.load(Ordering::Relaxed);
        Settings {
            client_p99: (client_p99 > 0).then_some(client_p99),
            retire_slow: self.retire_slow.load(Ordering::Relaxed),
        }
    }

    /// Time limit of a drive operation.
    pub fn time_limit(&self) -> Nanos {
        match self.time_limit.load(Ordering::Relaxed) {
            0 => TIME_LIMIT,
            limit => limit,
        }
    }

    /// Whether slow reads are hedged.
    pub fn hedging(&self) -> bool {
        !self.unhedged.load(Ordering::Relaxed)
    }

    /// Whether reads avoid slow drives.
    pub fn avoiding(&self) -> bool {
        !self.unavoided.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, settings: Settings) {
        self.client_p99.store(settings.client_p99.unwrap_or(0), Ordering::Relaxed);
        self.retire_slow.store(settings.retire_slow, Ordering::Relaxed);
    }
}
