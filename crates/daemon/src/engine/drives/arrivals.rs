//! Drives that came while no daemon ran.
//!
//! A drive that was present before, and still is, is not new: a drive that failed must not be taken
//! back at each start. So the daemon remembers which drives were present. A new drive that no group
//! has is not remembered: the next start looks at it and offers it again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::Engine;
use crate::engine::drives::identity;
use crate::engine::drives::identity::Present;

/// The drives that are not new: their identities, by device. `None` until the daemon has looked for
/// drives that came while none ran: before that, the list of the previous daemon must not be
/// overwritten.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<Option<BTreeMap<(u32, u32), String>>>);

impl Known {
    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<(u32, u32), String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Looks for drives that came since a daemon with this state directory last ran. Must be called
    /// after its groups were started.
    ///
    /// # Errors
    /// If the list of known drives cannot be read.
    pub fn place_arrivals(self: &Arc<Self>) -> std::io::Result<()> {
        let remembered = self.memory.load_drives()?;
        let (mut stayed, mut came) = (BTreeMap::new(), Vec::new());
        for present in identity::present() {
            let identity = present.identity();
            // Without a remembered list, this is the first look: no drive is new.
            if remembered.as_ref().is_none_or(|known| known.contains(&identity)) {
                stayed.insert(present.device, identity);
            } else {
                came.push(present);
            }
        }
        self.known.lock().replace(stayed);
        self.know_drives_of_groups();
        self.remember_drives();
        for present in came {
            tracing::info!(drive = present.path, "came while no daemon ran");
            let engine = self.clone();
            tokio::spawn(async move { engine.drive_added(&present).await });
        }
        Ok(())
    }

    /// Marks drives as known: groups have them.
    pub(crate) fn are_known_now(&self, drives: impl IntoIterator<Item = Present>) {
        let drives = drives.into_iter().map(|present| (present.device, present.identity())).collect::<Vec<_>>();
        let mut is_new = false;
        if let Some(known) = &mut *self.known.lock() {
            for (device, identity) in drives {
                is_new |= known.insert(device, identity.clone()) != Some(identity);
            }
        }
        if is_new {
            self.remember_drives();
        }
    }

    /// Marks a drive as unknown: it left, or no group has it. It is new if the next start finds it.
    pub(crate) fn is_unknown_now(&self, device: (u32, u32)) {
        let was_known = self.known.lock().as_mut().and_then(|known| known.remove(&device)).is_some();
        if was_known {
            self.remember_drives();
        }
    }

    /// Marks drives as known that groups were given since. A drive that fails in a group is not
    /// new.
    pub(crate) fn know_drives_of_groups(&self) {
        let groups = self.all();
        let has = |present: &Present| groups.iter().any(|group| group.has_device(present.device));
        self.are_known_now(identity::present().into_iter().filter(has));
    }

    fn remember_drives(&self) {
        let known = self.known.lock();
        let drives = known.iter().flat_map(BTreeMap::values).cloned().collect();
        if let Err(error) = self.memory.save_drives(drives) {
            tracing::error!(%error, "the state directory cannot be written: the next start does not know which drives are new");
        }
    }
}
