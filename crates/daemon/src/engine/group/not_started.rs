//! Groups that the daemon knows and could not start. They are shown with the reason, and their
//! names stay reserved. [`crate::engine::drives::hotplug`] and [`crate::engine::drives::reconnect`]
//! try them again. An operator can have them forgotten.

use std::sync::{PoisonError, RwLock};

use api::{ErrorCode, GroupNotStarted};

use crate::engine::Engine;
use crate::engine::memory::Remembered;
use crate::http::ControlError;

/// A group that could not be started.
#[derive(Debug, Clone)]
pub(crate) struct NotStarted {
    pub remembered: Remembered,
    /// The reason why the last attempt failed.
    pub reason: String,
    /// The drives that could not be opened in that attempt.
    pub missing_drives: Vec<String>,
}

impl NotStarted {
    fn view(&self) -> GroupNotStarted {
        let name = &self.remembered.name;
        let next_step = if self.missing_drives.is_empty() {
            format!(
                "see the daemon's log; `purlin rescue check` reads its drives; `purlin group forget {name}` gives it up"
            )
        } else {
            format!("connect the missing drives, and it starts by itself; or `purlin group forget {name}`")
        };
        GroupNotStarted {
            name: name.clone(),
            uuid: self.remembered.uuid.clone(),
            reason: self.reason.clone(),
            missing_drives: self.missing_drives.clone(),
            next_step,
        }
    }
}

/// All groups that could not be started.
#[derive(Debug, Default)]
pub(crate) struct AllNotStarted(RwLock<Vec<NotStarted>>);

impl AllNotStarted {
    /// A copy of the list.
    pub fn list(&self) -> Vec<NotStarted> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The group with this name.
    pub fn named(&self, name: &str) -> Option<NotStarted> {
        self.list().into_iter().find(|group| group.remembered.name == name)
    }

    /// The group with this UUID.
    pub fn of_uuid(&self, uuid: &str) -> Option<NotStarted> {
        self.list().into_iter().find(|group| group.remembered.uuid == uuid)
    }

    /// Stores a group that could not be started, for the first time or again.
    pub fn note(&self, group: NotStarted) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.remembered.uuid != group.remembered.uuid);
        all.push(group);
        all.sort_by(|one, other| one.remembered.name.cmp(&other.remembered.name));
    }

    /// Changes the record of a group, if it is listed.
    pub fn change(&self, uuid: &str, change: impl FnOnce(&mut Remembered)) -> Option<Remembered> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let group = all.iter_mut().find(|group| group.remembered.uuid == uuid)?;
        change(&mut group.remembered);
        Some(group.remembered.clone())
    }

    /// Removes a group that runs now, or is given up.
    pub fn forget(&self, uuid: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|group| group.remembered.uuid != uuid);
    }
}

impl Engine {
    pub(crate) fn query_not_started(&self) -> Vec<GroupNotStarted> {
        self.not_started.list().iter().map(NotStarted::view).collect()
    }

    /// The error for a request that names a group which is not started.
    pub(crate) fn not_started_error(&self, name: &str) -> Option<ControlError> {
        let GroupNotStarted { reason, next_step, .. } = self.not_started.named(name)?.view();
        let message = format!("the group {name:?} is not started: {reason}; {next_step}");
        Some(ControlError::new(ErrorCode::WrongState, message))
    }
}
