//! The exports that clients can choose.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drive::Block;
use nbd::{Listed, Refusal};

use crate::state::ExportState;

/// The exports as a connection's shard finds them. Blocks belong to the shard that asks, and need
/// not be `Send`.
pub trait Catalog: 'static {
    /// A handle to a volume on this shard.
    type Block: Block + 'static;

    /// The exports, in the order in which clients see them.
    fn list(&self) -> Vec<Listed>;

    /// Finds an export by name. The empty name means the only export, if there is exactly one.
    ///
    /// # Errors
    /// [`Refusal`], which the client is told.
    fn find(&self, name: &str) -> Result<(Self::Block, Arc<ExportState>), Refusal>;
}

/// A catalog in memory, for blocks that every shard may use.
pub struct Exports<B> {
    by_name: Arc<Mutex<ByName<B>>>,
}

type ByName<B> = BTreeMap<String, (B, Arc<ExportState>)>;

impl<B> Clone for Exports<B> {
    fn clone(&self) -> Self {
        Exports { by_name: self.by_name.clone() }
    }
}

impl<B> Default for Exports<B> {
    fn default() -> Self {
        Exports { by_name: Arc::default() }
    }
}

impl<B> Exports<B> {
    fn lock(&self) -> MutexGuard<'_, ByName<B>> {
        // Nothing panics while the lock is held.
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an export. Returns the one that had this name until now; its connections live on.
    pub fn add(&self, block: B, export: Arc<ExportState>) -> Option<Arc<ExportState>> {
        self.lock().insert(export.name().to_owned(), (block, export)).map(|(_, before)| before)
    }

    /// Removes an export, so that no new connection finds it.
    pub fn remove(&self, name: &str) -> Option<Arc<ExportState>> {
        self.lock().remove(name).map(|(_, export)| export)
    }

    /// All exports, by name.
    pub fn all(&self) -> Vec<Arc<ExportState>> {
        self.lock().values().map(|(_, export)| export.clone()).collect()
    }
}

impl<B: Block + Clone + 'static> Catalog for Exports<B> {
    type Block = B;

    fn list(&self) -> Vec<Listed> {
        let listed = |export: &ExportState| Listed {
            name: export.name().to_owned(),
            description: export.description().to_owned(),
        };
        self.lock().values().map(|(_, export)| listed(export)).collect()
    }

    fn find(&self, name: &str) -> Result<(B, Arc<ExportState>), Refusal> {
        let exports = self.lock();
        let found = match name {
            "" if exports.len() == 1 && !exports.contains_key("") => exports.values().next(),
            name => exports.get(name),
        };
        let (block, export) = found.ok_or(Refusal::Unknown)?;
        if export.stopping() {
            return Err(Refusal::ShuttingDown);
        }
        Ok((block.clone(), export.clone()))
    }
}
