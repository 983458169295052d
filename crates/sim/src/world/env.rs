//! A handle of the world for the tasks of one machine.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ::drive::WarmState;

use super::{Owner, WarmWords, World};

/// The world as the engine sees it.
#[derive(Clone)]
pub struct SimEnv {
    pub(crate) world: Rc<World>,
    /// The machine that its tasks run on.
    pub(crate) owner: Owner,
}

impl SimEnv {
    /// The same, for tasks that outlive every machine.
    pub(crate) fn between_machines(&self) -> SimEnv {
        SimEnv { owner: Owner::NETWORK, ..self.clone() }
    }

    /// Memory of `words` words that outlives a kill, by this name.
    pub fn warm(&self, name: &[u8; 16], words: usize) -> Arc<dyn WarmState> {
        let mut warm = self.world.warm.borrow_mut();
        let new = || Arc::new(WarmWords((0..words).map(|_| AtomicU64::new(0)).collect()));
        warm.entry(*name).or_insert_with(new).clone()
    }
}
