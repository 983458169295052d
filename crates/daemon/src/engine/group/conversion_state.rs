//! State of a group's conversions between two looks.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use drive::BlockError;
use runtime::ShardHandle;
use tokio::sync::Notify;

/// The conversions of a group.
pub(crate) struct Conversions {
    /// Notified when one of them has to be saved or ended.
    pub attention: Arc<Notify>,
    /// By the identity of the volume.
    noted: Mutex<BTreeMap<u64, Noted>>,
    /// A task looks at them.
    pub is_attended: AtomicBool,
}

/// The state of a conversion at the last look.
#[derive(Clone)]
pub(crate) struct Noted {
    /// The shard that converts.
    pub serving: ShardHandle,
    pub saved: Instant,
    pub saved_bytes: u64,
    pub trouble: Option<BlockError>,
}

impl Conversions {
    pub fn new(attention: Arc<Notify>) -> Conversions {
        Conversions { attention, noted: Mutex::default(), is_attended: AtomicBool::default() }
    }

    pub fn noted(&self) -> MutexGuard<'_, BTreeMap<u64, Noted>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn volumes(&self) -> Vec<u64> {
        self.noted().keys().copied().collect()
    }
}
