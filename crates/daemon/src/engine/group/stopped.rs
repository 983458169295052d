//! Groups that an operator stopped. The state directory records where their drives were, as a hint,
//! so that `purlin group start` needs only the name. A daemon that starts leaves these groups
//! stopped.

use std::sync::{PoisonError, RwLock};

use crate::engine::memory::{Memory, Remembered};

/// All stopped groups.
#[derive(Debug, Default)]
pub(crate) struct Stopped(RwLock<Vec<Remembered>>);

impl Stopped {
    /// The groups that a daemon with this state directory stopped.
    pub fn load(memory: &Memory) -> std::io::Result<Stopped> {
        Ok(Stopped(RwLock::new(memory.load_stopped()?)))
    }

    /// A copy of the list.
    pub fn list(&self) -> Vec<Remembered> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The group with this name that was stopped last.
    pub fn named(&self, name: &str) -> Option<Remembered> {
        self.list().into_iter().rfind(|group| group.name == name)
    }

    /// Adds a group that was stopped.
    pub fn note(&self, group: Remembered, memory: &Memory) {
        self.change(memory, |all| {
            all.retain(|known| known.uuid != group.uuid);
            all.push(group);
        });
    }

    /// Removes a group that runs now, or was deleted.
    pub fn forget(&self, uuid: &str, memory: &Memory) {
        self.change(memory, |all| all.retain(|group| group.uuid != uuid));
    }

    fn change(&self, memory: &Memory, change: impl FnOnce(&mut Vec<Remembered>)) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let before = all.clone();
        change(&mut all);
        if *all == before {
            return;
        }
        // Memory drives are gone with the process.
        let mut kept = all.clone();
        kept.iter_mut().for_each(|group| group.drives.retain(|place| !place.is_memory()));
        kept.retain(|group| !group.drives.is_empty());
        if let Err(error) = memory.save_stopped(kept) {
            tracing::error!(%error, "the state directory cannot be written: stopped groups have to be assembled by hand");
        }
    }
}
