//! Changes of a group's settings while it runs.

use std::sync::atomic::Ordering;

use drive::{Env, Nanos};

use crate::array::Array;
use crate::state::settings::Settings;

impl<E: Env> Array<E> {
    /// Changes the group's settings on all shards. May be called on any shard.
    pub fn configure(&self, settings: Settings) {
        self.0.shared.settings.set(settings);
    }

    /// Sets how long a drive operation may take before the drive counts as failed. Default: 30 s.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn set_time_limit(&self, limit: Nanos) {
        assert!(limit > 0, "no drive answers in no time");
        self.0.shared.settings.time_limit.store(limit, Ordering::Relaxed);
    }

    /// Switches hedging of slow reads, so that a test of it can fail.
    #[doc(hidden)]
    pub fn set_hedging(&self, on: bool) {
        self.0.shared.settings.unhedged.store(!on, Ordering::Relaxed);
    }

    /// Switches avoidance of slow drives, so that a test of it can fail.
    #[doc(hidden)]
    pub fn set_avoidance(&self, on: bool) {
        self.0.shared.settings.unavoided.store(!on, Ordering::Relaxed);
    }

    /// The current settings.
    pub fn settings(&self) -> Settings {
        self.0.shared.settings.get()
    }
}
