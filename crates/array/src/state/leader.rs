//! The state that only shard 0 has.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;

use drive::BlockError;
use format::{Catalogue, Layout, Rebuild, Superblock, Uuid};

use crate::geometry::{MemberIndex, StripeGroup};
use crate::state::event::Event;
use crate::state::job::Job;
use crate::state::slot::{DriveId, Slot};
use crate::state::slow::SlowDrives;
use crate::state::version::Version;
use crate::util::semaphore::FairSemaphore;

/// The leader's part of a group.
pub(crate) struct Leader {
    /// The superblock as it was last written. The fields of the single drive stay as they were
    /// loaded.
    pub superblock: RefCell<Superblock>,
    pub layout: Layout,
    /// Identities of the drives.
    pub identities: RefCell<BTreeMap<DriveId, Uuid>>,
    /// Drives that wait to replace a member.
    pub spares: RefCell<Vec<DriveId>>,
    /// Spares that were not there when the group was assembled. They stay listed.
    pub(crate) absent_spares: Vec<Uuid>,
    pub catalogue: RefCell<Catalogue>,
    pub jobs: RefCell<Vec<Rc<Job>>>,
    pub next_job: Cell<u64>,
    /// Receives the events of the group.
    pub listener: Box<dyn Fn(Event)>,
    /// One change of the superblocks at a time.
    pub state_lock: FairSemaphore,
    /// One change of the stripe groups' owners at a time.
    pub owners_lock: FairSemaphore,
    /// One rebuild at a time.
    pub rebuild_lock: FairSemaphore,
    pub(crate) catalogue_version: Cell<Version>,
    pub(crate) catalogue_lock: FairSemaphore,
    pub lost_version: Cell<Version>,
    pub lost_lock: FairSemaphore,
    /// Set if the group was not stopped cleanly. The recovery is done, but the superblocks do not
    /// say so yet. These members failed during it.
    pub failed_in_recovery: Option<Vec<MemberIndex>>,
    /// The wait for members that were missing at the start is over: spares take their slots.
    pub missing_waited_for: Cell<bool>,
    pub map_lock: FairSemaphore,
    pub(crate) map_versions: RefCell<Vec<Version>>,
    /// The run writes superblocks of higher epochs than this one.
    pub first_epoch: u64,
    /// The epoch of the last superblock that each drive took.
    pub held: RefCell<BTreeMap<DriveId, u64>>,
    /// Drives that left, by slot. `None` if their content is not known.
    pub disconnected: RefCell<BTreeMap<u16, Option<DisconnectedMember>>>,
    /// Drives that were slow lately.
    pub slow: RefCell<SlowDrives>,
    /// Stripe groups below this one have been copied to the replacement
    /// ([`crate::membership::replacement`]).
    pub copied: Cell<StripeGroup>,
    /// Runs before a drive is called in sync, see [`crate::Array::before_in_sync`].
    pub before_in_sync: RefCell<Option<BeforeInSync>>,
}

/// Reclaims all frames of the intent log, see [`crate::Array::before_in_sync`].
pub type BeforeInSync = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), BlockError>>>>>;

impl Leader {
    pub fn new(
        superblock: Superblock,
        identities: BTreeMap<DriveId, Uuid>,
        spares: Vec<DriveId>,
        catalogue: (u64, Catalogue),
        map_sequences: Vec<u64>,
        (failed_in_recovery, lost_sequence): (Option<Vec<MemberIndex>>, u64),
        listener: Box<dyn Fn(Event)>,
    ) -> Self {
        // A member whose superblock was slightly older when the group was assembled counts as
        // unknown when it comes back.
        let held = identities.keys().map(|&drive| (drive, superblock.epoch)).collect();
        let present: Vec<Uuid> = spares.iter().filter_map(|spare| identities.get(spare).copied()).collect();
        Leader {
            layout: superblock.layout,
            first_epoch: superblock.epoch,
            absent_spares: superblock.spares.iter().copied().filter(|spare| !present.contains(spare)).collect(),
            superblock: RefCell::new(superblock),
            identities: RefCell::new(identities),
            spares: RefCell::new(spares),
            catalogue: RefCell::new(catalogue.1),
            jobs: RefCell::default(),
            next_job: Cell::new(1),
            listener,
            state_lock: FairSemaphore::default(),
            owners_lock: FairSemaphore::default(),
            rebuild_lock: FairSemaphore::default(),
            catalogue_version: Cell::new(Version::found(catalogue.0)),
            catalogue_lock: FairSemaphore::default(),
            lost_version: Cell::new(Version::found(lost_sequence)),
            lost_lock: FairSemaphore::default(),
            failed_in_recovery,
            missing_waited_for: Cell::new(false),
            map_lock: FairSemaphore::default(),
            map_versions: RefCell::new(map_sequences.into_iter().map(Version::found).collect()),
            held: RefCell::new(held),
            disconnected: RefCell::default(),
            slow: RefCell::default(),
            copied: Cell::new(StripeGroup(0)),
            before_in_sync: RefCell::default(),
        }
    }
}

/// A drive that left its slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DisconnectedMember {
    /// Its identity.
    pub uuid: Uuid,
    /// The epoch of its superblock.
    pub epoch: u64,
}

/// A change of the group's state, as the superblocks will show it.
#[derive(Clone)]
pub(crate) struct GroupState {
    pub slots: Vec<Slot>,
    pub spares: Vec<DriveId>,
    pub clean: bool,
    pub rebuild: Option<Rebuild>,
    /// Events to report once the superblocks show the change: members that left.
    pub events: Vec<Event>,
}

/// Older catalogues that stay on the members next to a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// The previous one in the other slot, and the end of a longer one in this slot.
    Older,
    /// None in this slot.
    Nothing,
}
