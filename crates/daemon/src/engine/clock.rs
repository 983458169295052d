//! The time of day in seconds since 1970, for times that are compared across restarts.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// A clock that tells the time of day. A handle: clones share the clock.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl WallClock {
    /// The system's clock.
    pub fn system() -> WallClock {
        WallClock::new(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// A clock that returns the result of `now`, in seconds since 1970.
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> WallClock {
        WallClock(Arc::new(now))
    }

    /// Seconds since 1970.
    pub fn unix_s(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WallClock").field(&self.unix_s()).finish()
    }
}
