//! Outages: the path to drives fails for a while. Causes are an adapter that is reset, a path that
//! fails over, or a cable that comes off.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ::drive::{DriveError, Env, Sender, oneshot};

use super::{DriveState, SimDrive};
use crate::rng::Rng;
use crate::world::SimEnv;

/// How operations end while the path to a drive fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// They are taken and not answered. They continue when the outage ends.
    Silent,
    /// They end with an error. Of the sectors that they would have changed, none, a part, or all
    /// are changed.
    Errors,
    /// Likewise, and the drive is absent: handles from before the outage become useless, like
    /// device files of a drive that was pulled. Its cache stays.
    Pulled,
    /// As pulled, and the drive has no power: its cache is lost.
    Power,
}

impl Broken {
    /// The drive cannot even be opened.
    pub fn is_disconnected(self) -> bool {
        matches!(self, Broken::Pulled | Broken::Power)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Armed,
    Begun,
    Ended,
}

/// An outage as its drives see it.
pub(crate) struct Way {
    broken: Broken,
    stage: Cell<Stage>,
    has_begun: Cell<bool>,
    /// Operations that the drives still get before it begins.
    left: Cell<u64>,
    begins: RefCell<Option<Sender<()>>>,
}

impl Way {
    /// One of the drives gets an operation.
    pub(crate) fn count(&self) {
        if self.stage.get() != Stage::Armed {
            return;
        }
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => {
                self.stage.set(Stage::Begun);
                self.has_begun.set(true);
                self.begins.take().into_iter().for_each(|begins| begins.send(()));
            }
        }
    }

    /// How the path fails now.
    pub(crate) fn broken(&self) -> Option<Broken> {
        (self.stage.get() == Stage::Begun).then_some(self.broken)
    }
}

impl Broken {
    /// The error that operations end with.
    pub(crate) fn error(self) -> Option<DriveError> {
        match self {
            Broken::Silent => None,
            Broken::Errors => Some(DriveError::Os { operation: "simulated", errno: 5 }),
            Broken::Pulled | Broken::Power => Some(DriveError::Gone),
        }
    }
}

/// An outage of the paths to some drives, all at the same time. It ends by itself, even if the
/// machine crashes meanwhile.
#[derive(Clone)]
pub struct Outage {
    way: Rc<Way>,
    drives: Rc<RefCell<Vec<Rc<DriveState>>>>,
}

impl Outage {
    /// The outage begins at the operation after `after` more that the drives get, and lasts for
    /// `lasts` from then on. `begun` is called when it begins.
    pub fn arm(
        env: &SimEnv,
        drives: &[SimDrive],
        broken: Broken,
        after: u64,
        lasts: Duration,
        mut rng: Rng,
        begun: impl FnOnce() + 'static,
    ) -> Outage {
        let (sender, receiver) = oneshot();
        let way = Way {
            broken,
            stage: Cell::new(Stage::Armed),
            has_begun: Cell::new(false),
            left: Cell::new(after),
            begins: RefCell::new(Some(sender)),
        };
        let outage = Outage { way: Rc::new(way), drives: Rc::default() };
        drives.iter().for_each(|drive| outage.spread(drive));
        let (env, ends) = (env.between_machines(), outage.clone());
        env.clone().spawn(async move {
            if receiver.await.is_err() {
                return; // It was called off.
            }
            begun();
            match broken {
                Broken::Silent | Broken::Errors => {}
                Broken::Pulled => ends.drives.borrow().iter().for_each(|drive| drive.pull()),
                Broken::Power => ends.drives.borrow().iter().for_each(|drive| drive.power_cut(&mut rng)),
            }
            env.sleep(lasts).await;
            ends.end();
        });
        outage
    }

    /// Adds this drive to the outage.
    pub fn spread(&self, drive: &SimDrive) {
        if self.is_over() || self.is_of(drive) {
            return;
        }
        self.drives.borrow_mut().push(drive.state.clone());
        drive.state.inner.borrow_mut().faults.outages.push(self.way.clone());
        if self.is_under_way() && self.way.broken.is_disconnected() {
            drive.state.pull();
        }
    }

    /// Whether it affects this drive.
    pub fn is_of(&self, drive: &SimDrive) -> bool {
        self.drives.borrow().iter().any(|state| state.index == drive.index())
    }

    /// The outage is under way.
    pub fn is_under_way(&self) -> bool {
        self.way.stage.get() == Stage::Begun
    }

    /// The outage is under way, or was.
    pub fn has_begun(&self) -> bool {
        self.way.has_begun.get()
    }

    /// The outage has ended, or was called off.
    pub fn is_over(&self) -> bool {
        self.way.stage.get() == Stage::Ended
    }

    /// Cancels the outage, if it has not begun.
    pub fn call_off(&self) {
        if self.way.stage.get() == Stage::Armed {
            self.end();
        }
    }

    fn end(&self) {
        self.way.stage.set(Stage::Ended);
        self.way.begins.take();
        for drive in &*self.drives.borrow() {
            drive.inner.borrow_mut().faults.outages.retain(|way| !Rc::ptr_eq(way, &self.way));
            drive.release_held();
        }
    }
}
