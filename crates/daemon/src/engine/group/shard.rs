//! The objects of the daemon on one shard.
//!
//! Each shard has an `Array` of every group and a handle of every volume. Each thin store is on one
//! shard. Objects cannot leave their thread, so other threads refer to them by number.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use array::{Array, DriveId, Message, Peers};
use drive::{BlockError, Env, Order};
use export::{Catalog, ExportState, Listed, Refusal};
use format::VolumeRecord;
use runtime::{Closer, Drive, Mailbox, MailboxSender, OpenDrive, ShardEnv};
use volume::thin::{ArrayBacking, ThinStore};

use crate::engine::group::content::{Content, ContentPlace, GroupVolume};
use crate::engine::group::served::Served;
use crate::engine::group::thin_volume::ThinVolume;
use crate::engine::imports::connected::Connected;
use crate::engine::shares::raw::Raw;

/// Identifies a group or import within this process. Never reused.
pub(crate) type GroupKey = u64;

/// A thin store on its shard.
pub(crate) type LocalStore = Rc<ThinStore<ArrayBacking<ShardEnv>>>;

/// A message between the shards of a group.
pub(crate) type GroupMessage = (GroupKey, Message);

#[derive(Default)]
struct Objects {
    groups: BTreeMap<GroupKey, Array<ShardEnv>>,
    volumes: BTreeMap<(GroupKey, u64), Served>,
    /// Thin stores of this shard, by their identity in their group.
    stores: BTreeMap<(GroupKey, u16), LocalStore>,
    imports: BTreeMap<GroupKey, Served>,
    shared: BTreeMap<u32, Raw>,
    /// By address; a host name may have several listeners.
    listeners: BTreeMap<String, Vec<Closer>>,
}

thread_local! {
    static OBJECTS: RefCell<Objects> = RefCell::default();
}

/// Delivers the messages for this shard to its groups, until all senders are gone.
pub(crate) fn start_delivery(env: &ShardEnv, mut mailbox: Mailbox<GroupMessage>) {
    env.spawn(async move {
        let mut batch = Vec::new();
        while mailbox.recv_batch(&mut batch).await {
            for (key, message) in batch.drain(..) {
                // Messages for a group that was stopped meanwhile are dropped.
                if let Some(array) = group(key) {
                    array.deliver(message);
                }
            }
        }
    });
}

/// Sends messages from one shard of a group to the others.
pub(crate) struct ShardPeers {
    pub key: GroupKey,
    pub senders: Vec<MailboxSender<GroupMessage>>,
}

impl Peers for ShardPeers {
    fn send(&self, to: usize, message: Message) {
        // The receiver is gone only while the process ends.
        let _ = self.senders[to].send((self.key, message));
    }
}

pub(crate) fn add_group(key: GroupKey, array: Array<ShardEnv>) {
    OBJECTS.with_borrow_mut(|objects| objects.groups.insert(key, array));
}

pub(crate) fn group(key: GroupKey) -> Option<Array<ShardEnv>> {
    OBJECTS.with_borrow(|objects| objects.groups.get(&key).cloned())
}

/// Removes a group and its volumes. Requests in flight keep the objects that they need.
pub(crate) fn remove_group(key: GroupKey) {
    let gone = OBJECTS.with_borrow_mut(|objects| {
        let volumes: Vec<_> = objects.volumes.extract_if(.., |(group, _), _| *group == key).collect();
        let stores: Vec<_> = objects.stores.extract_if(.., |(group, _), _| *group == key).collect();
        (objects.groups.remove(&key), stores, volumes)
    });
    // Dropped outside the borrow: dropping the last handle of a drive closes it.
    drop(gone);
}

pub(crate) fn install_drive(key: GroupKey, id: DriveId, drive: &OpenDrive) {
    if let Some(array) = group(key) {
        array.install(id, ShardEnv::current().attach(drive));
    }
}

pub(crate) fn uninstall_drive(key: GroupKey, id: DriveId) {
    if let Some(array) = group(key) {
        array.uninstall(id);
    }
}

pub(crate) fn add_store(key: GroupKey, id: u16, store: LocalStore) {
    OBJECTS.with_borrow_mut(|objects| objects.stores.insert((key, id), store));
}

pub(crate) fn remove_store(key: GroupKey, id: u16) {
    let gone = OBJECTS.with_borrow_mut(|objects| objects.stores.remove(&(key, id)));
    drop(gone);
}

/// A thin store of a group, if it is on this shard and could be opened.
pub(crate) fn store(key: GroupKey, id: u16) -> Option<LocalStore> {
    OBJECTS.with_borrow(|objects| objects.stores.get(&(key, id)).cloned())
}

/// The thin stores of a group on this shard.
pub(crate) fn stores(key: GroupKey) -> Vec<(u16, LocalStore)> {
    OBJECTS.with_borrow(|objects| {
        objects.stores.range((key, 0)..=(key, u16::MAX)).map(|((_, id), store)| (*id, store.clone())).collect()
    })
}

/// A volume of a group on this shard. `None` also if another shard serves it.
pub(crate) fn local_content(key: GroupKey, id: u64) -> Option<Content> {
    let content = group_volume(key, id)?.content();
    (!matches!(content, Content::Thin(ThinVolume::There(_)))).then_some(content)
}

/// A volume of a group on this shard, whichever shard serves it.
pub(crate) fn group_volume(key: GroupKey, id: u64) -> Option<GroupVolume> {
    match OBJECTS.with_borrow(|objects| objects.volumes.get(&(key, id)).cloned()) {
        Some(Served::Volume(volume)) => Some(volume),
        _ => None,
    }
}

/// Adds a volume, or changes its size, extents and kind. When this returns, no request uses the old
/// extents any more. The store of a thin volume is on `place.serving`.
///
/// # Errors
/// [`BlockError`] if a thin volume may have content behind its end.
pub(crate) async fn set_volume(key: GroupKey, record: VolumeRecord, place: ContentPlace) -> Result<(), BlockError> {
    match group_volume(key, record.id) {
        Some(volume) => volume.change(key, &record, place).await,
        None => {
            let Some(content) = Content::new(key, &record, place) else { return Ok(()) };
            let volume = Served::Volume(GroupVolume::new(content));
            OBJECTS.with_borrow_mut(|objects| objects.volumes.insert((key, record.id), volume));
            Ok(())
        }
    }
}

/// Removes a volume. When this returns, no request uses its extents any more.
pub(crate) async fn remove_volume(key: GroupKey, id: u64) {
    let gone = OBJECTS.with_borrow_mut(|objects| objects.volumes.remove(&(key, id)));
    if let Some(Served::Volume(volume)) = gone {
        volume.content().close().await;
    }
}

/// A volume of a group or import on the calling shard.
pub(crate) fn served(key: GroupKey, id: u64) -> Option<Served> {
    OBJECTS.with_borrow(|objects| {
        let volume = objects.volumes.get(&(key, id)).cloned();
        volume.or_else(|| objects.imports.get(&key).cloned())
    })
}

/// `import`: an array or a namespace.
pub(crate) fn add_import(key: GroupKey, import: Served) {
    OBJECTS.with_borrow_mut(|objects| objects.imports.insert(key, import));
}

/// An imported namespace on the calling shard.
pub(crate) fn namespace(key: GroupKey) -> Option<Connected> {
    match OBJECTS.with_borrow(|objects| objects.imports.get(&key).cloned()) {
        Some(Served::Namespace(namespace)) => Some(namespace),
        _ => None,
    }
}

pub(crate) fn remove_import(key: GroupKey) {
    let gone = OBJECTS.with_borrow_mut(|objects| objects.imports.remove(&key));
    // Dropped outside the borrow, like the drives of a group.
    drop(gone);
}

/// Disconnects an imported namespace: unanswered requests fail.
pub(crate) fn disconnect(key: GroupKey) {
    if let Some(connected) = namespace(key) {
        ShardEnv::current().spawn(async move { connected.close().await });
    }
}

/// `order` orders changes across all shards.
pub(crate) fn add_shared_drive(nsid: u32, drive: Drive, order: Arc<Order>) {
    let before = OBJECTS.with_borrow_mut(|objects| objects.shared.insert(nsid, Raw { drive, order }));
    drop(before);
}

pub(crate) fn remove_shared_drive(nsid: u32) {
    let gone = OBJECTS.with_borrow_mut(|objects| objects.shared.remove(&nsid));
    // Dropped outside the borrow, like the drives of a group.
    drop(gone);
}

/// A shared drive on the calling shard.
pub(crate) fn shared_drive(nsid: u32) -> Option<Served> {
    OBJECTS.with_borrow(|objects| objects.shared.get(&nsid).cloned()).map(Served::Drive)
}

pub(crate) fn add_listener(address: String, closer: Closer) {
    OBJECTS.with_borrow_mut(|objects| objects.listeners.entry(address).or_default().push(closer));
}

pub(crate) fn close_listener(address: &str) {
    let closers = OBJECTS.with_borrow_mut(|objects| objects.listeners.remove(address));
    closers.into_iter().flatten().for_each(|closer| closer.close());
}

/// Stops accepting here. The socket keeps listening for another process.
pub(crate) fn release_listener(address: &str) {
    let closers = OBJECTS.with_borrow_mut(|objects| objects.listeners.remove(address));
    closers.into_iter().flatten().for_each(|closer| closer.release());
}

/// The exports at one address, by name.
#[derive(Clone, Default)]
pub(crate) struct Offers(Arc<Mutex<BTreeMap<String, Offer>>>);

#[derive(Clone)]
pub(crate) struct Offer {
    pub key: GroupKey,
    pub volume: u64,
    pub state: Arc<ExportState>,
}

impl Offers {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<String, Offer>) -> T) -> T {
        // No code panics while it holds the lock.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn add(&self, name: &str, offer: Offer) {
        self.with(|offers| offers.insert(name.to_owned(), offer));
    }

    pub fn remove(&self, name: &str) {
        self.with(|offers| offers.remove(name));
    }

    pub fn is_empty(&self) -> bool {
        self.with(|offers| offers.is_empty())
    }

    /// Ends all exports so that another process can serve them.
    pub fn hand_over(&self) {
        self.with(|offers| offers.values().for_each(|offer| offer.state.hand_over()));
    }
}

impl Catalog for Offers {
    type Block = Served;

    fn list(&self) -> Vec<Listed> {
        let listed = |(name, offer): (&String, &Offer)| Listed {
            name: name.clone(),
            description: offer.state.description().to_owned(),
        };
        self.with(|offers| offers.iter().map(listed).collect())
    }

    fn find(&self, name: &str) -> Result<(Served, Arc<ExportState>), Refusal> {
        let offer = self.with(|offers| match name {
            "" if offers.len() == 1 => offers.values().next().cloned(),
            name => offers.get(name).cloned(),
        });
        let offer = offer.ok_or(Refusal::Unknown)?;
        if offer.state.stopping() {
            return Err(Refusal::ShuttingDown);
        }
        Ok((served(offer.key, offer.volume).ok_or(Refusal::ShuttingDown)?, offer.state))
    }
}
