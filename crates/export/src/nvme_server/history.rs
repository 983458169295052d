//! The history of a subsystem, shared by all its addresses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nvme::target::{Happened, Happening, History, Past};

/// The part of a subsystem's history that outlives a loss of power.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedHistory {
    /// The events.
    pub history: History,
    /// Number of times that the power was turned on.
    pub power_cycles: u64,
    /// Total time with power on, in seconds.
    pub power_on_s: u64,
}

/// The history of a subsystem, at all its addresses. A handle, for any thread.
#[derive(Debug, Clone)]
pub struct SubsystemHistory(Arc<HistoryState>);

#[derive(Debug)]
struct HistoryState {
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
    /// Events were noted since the last [`SubsystemHistory::take_unsaved`].
    unsaved: bool,
}

/// A subsystem without a history.
impl Default for SubsystemHistory {
    fn default() -> Self {
        SubsystemHistory::power_on(SavedHistory::default(), "")
    }
}

impl SubsystemHistory {
    /// The subsystem is served from now on, by a program of this version. Its history continues
    /// after `saved`.
    pub fn power_on(saved: SavedHistory, firmware: &str) -> SubsystemHistory {
        let SavedHistory { history, power_cycles, power_on_s } = saved;
        let history = SubsystemHistory(Arc::new(HistoryState {
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

    /// Notes an event that happens now.
    pub fn note(&self, what: Happening) {
        let happened = Happened { unix_ms: unix_ms(), firmware: self.0.firmware.clone(), what };
        let mut noted = self.lock();
        noted.unsaved |= noted.history.note(happened);
    }

    /// A controller was reset by its host, which is connected to this port.
    pub(super) fn controller_reset(&self, cntlid: u16, port: u16) {
        let power_cycles = u32::try_from(self.0.power_cycles).unwrap_or(u32::MAX);
        let power_on_ms = u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.note(Happening::ControllerReset { cntlid, port, power_cycles, power_on_ms });
    }

    /// The history to save now.
    pub fn saved(&self) -> SavedHistory {
        let (history, power_cycles) = (self.lock().history.clone(), self.0.power_cycles);
        SavedHistory { history, power_cycles, power_on_s: self.power_on_s() }
    }

    /// Whether events were noted since the last call.
    pub fn take_unsaved(&self) -> bool {
        std::mem::take(&mut self.lock().unsaved)
    }

    fn power_on_s(&self) -> u64 {
        self.0.power_on_before.saturating_add(self.0.began.elapsed()).as_secs()
    }

    /// The history for a host that is connected to this port.
    pub(super) fn past(&self, port: u16) -> Past {
        let SavedHistory { history, power_cycles, power_on_s } = self.saved();
        Past { history, power_cycles, power_on_s, unix_ms: unix_ms(), port }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
