//! A subsystem's history, as all its addresses have it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nvme::target::{Happened, Happening, History, Past};

/// What of a subsystem's past outlives a loss of power.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedHistory {
    /// What happened.
    pub history: History,
    /// How often the power was turned on.
    pub power_cycles: u64,
    /// How long it was on, all in all, in seconds.
    pub power_on_s: u64,
}

/// What has happened to a subsystem, at all its addresses. A handle, for any thread.
#[derive(Debug, Clone)]
pub struct SubsystemHistory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// FR.
    firmware: String,
    began: Instant,
    power_on_before: Duration,
    power_cycles: u64,
    noted: Mutex<Noted>,
}

#[derive(Debug)]
struct Noted {
    history: History,
    /// Something was noted that [`SubsystemHistory::take_unsaved`] has not told of.
    unsaved: bool,
}

/// A subsystem without a past.
impl Default for SubsystemHistory {
    fn default() -> Self {
        SubsystemHistory::power_on(SavedHistory::default(), "")
    }
}

impl SubsystemHistory {
    /// The subsystem is served from now on, by a program of this version, after what was saved.
    pub fn power_on(saved: SavedHistory, firmware: &str) -> SubsystemHistory {
        let SavedHistory { history, power_cycles, power_on_s } = saved;
        let history = SubsystemHistory(Arc::new(Inner {
            firmware: firmware.to_owned(),
            began: Instant::now(),
            power_on_before: Duration::from_secs(power_on_s),
            power_cycles: power_cycles.saturating_add(1),
            noted: Mutex::new(Noted { history, unsaved: true }),
        }));
        history.note(Happening::PowerOn);
        history
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        // Nothing panics while the lock is held.
        self.0.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes something that happens now.
    pub fn note(&self, what: Happening) {
        let happened = Happened { unix_ms: unix_ms(), firmware: self.0.firmware.clone(), what };
        let mut noted = self.lock();
        noted.unsaved |= noted.history.note(happened);
    }

    /// A controller was reset by its host, who has come by this port.
    pub(super) fn controller_reset(&self, cntlid: u16, port: u16) {
        let power_cycles = u32::try_from(self.0.power_cycles).unwrap_or(u32::MAX);
        let power_on_ms = u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.note(Happening::ControllerReset { cntlid, port, power_cycles, power_on_ms });
    }

    /// What is to be saved now.
    pub fn saved(&self) -> SavedHistory {
        let (history, power_cycles) = (self.lock().history.clone(), self.0.power_cycles);
        SavedHistory { history, power_cycles, power_on_s: self.power_on_s() }
    }

    /// Whether something was noted since the last call.
    pub fn take_unsaved(&self) -> bool {
        std::mem::take(&mut self.lock().unsaved)
    }

    fn power_on_s(&self) -> u64 {
        self.0.power_on_before.saturating_add(self.0.began.elapsed()).as_secs()
    }

    /// For a host that has come by this port.
    pub(super) fn past(&self, port: u16) -> Past {
        let SavedHistory { history, power_cycles, power_on_s } = self.saved();
        Past { history, power_cycles, power_on_s, unix_ms: unix_ms(), port }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
