//! The store's state, and what all of its operations use.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use drive::{BlockError, BufMut, Env, Receiver, Sender};
use format::thin::StoredRange;
use format::thin::batch::StoreKey;
use format::thin::node::{NodeId, decode_inner_node, decode_map_leaf};
use format::thin::segment::SegmentUse;
use format::{BLOCK, Uuid};

use super::admit::VolumeSettings;
use super::backing::Backing;
use super::collect::STREAMS;
use super::compress::Compressor;
use super::due::Due;
use super::frames::{Frame, Frames};
use super::grid::Grid;
use super::leaf::{LiveChanges, MapLeaf};
use super::pace::Pace;
use super::pending::Pending;
use super::pool::Growth;
use super::runs::RunQueue;
use super::segments::{OpenSegment, SegmentTable};
use super::signal::Signal;
use super::trees::{Child, Lookup, NodeContent, Trees};
use super::write::Arrived;

/// The store's limits. The simulator makes them small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Most writes that a recovery has to apply: a checkpoint comes at the latest after so many.
    pub changes_max: u64,
    /// Most bytes of nodes that a checkpoint writes.
    pub checkpoint_bytes_max: u64,
    /// Most leaves in memory.
    pub cached_leaves_max: usize,
    /// Most bytes of writes in memory that are not in the map.
    pub pending_bytes_max: u64,
    /// Most bytes of a run.
    pub run_bytes_max: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            changes_max: 262_144,
            checkpoint_bytes_max: 128 << 20,
            cached_leaves_max: 32_768,
            pending_bytes_max: 32 << 20,
            run_bytes_max: 1 << 20,
        }
    }
}

/// The store's own metadata is damaged.
pub(super) const DAMAGED: BlockError = BlockError::Lost { lost: 1, survives: 0 };

/// A thin store on its shard. The thin volumes of a group are in one or several.
pub struct ThinStore<B: Backing> {
    pub(super) backing: B,
    pub(super) array: Uuid,
    pub(super) key: StoreKey,
    pub(super) grid: Grid,
    pub(super) tuning: Tuning,
    /// The segment with the anchors.
    pub(super) anchors: u64,
    pub(super) trees: RefCell<Trees>,
    pub(super) pending: RefCell<Pending>,
    pub(super) segments: RefCell<SegmentTable>,
    pub(super) frames: Frames,
    pub(super) queue: RefCell<RunQueue>,
    pub(super) compressor: RefCell<Compressor>,
    /// Bytes with content of the volumes for which other threads want to know them.
    pub(super) written: RefCell<BTreeMap<u32, Arc<AtomicU64>>>,
    /// How volumes use the store.
    pub(super) settings: RefCell<BTreeMap<u32, VolumeSettings>>,
    /// Volumes whose size is being changed: their writes do not wait for space.
    pub(super) ended_waits: RefCell<BTreeSet<u32>>,
    /// Writes of all volumes do not wait.
    pub(super) are_waits_ended: Cell<bool>,
    pub(super) arrived: RefCell<Arrived>,
    /// Frames of parts that are in the map: needed until the next flush, once for each part.
    pub(super) landed: RefCell<Vec<Rc<Frame>>>,
    /// A write was acknowledged that is in a run and not in the log, after the last flush.
    pub(super) unlogged: Cell<bool>,
    pub(super) next_sequence: Cell<u64>,
    /// The number of the next write at the last look whether the store is idle.
    pub(super) seen_sequence: Cell<u64>,
    /// The newest durable checkpoint.
    pub(super) generation: Cell<u64>,
    /// Writes that it covers.
    pub(super) covered: Cell<u64>,
    /// The number of the next write at the newest checkpoint.
    pub(super) changes_since: Cell<u64>,
    pub(super) intent_generation: Cell<u64>,
    /// The segments that are being filled by the collector, by its streams, and the one that is
    /// being filled in the order of volumes.
    pub(super) collecting_segments: Cell<[Option<OpenSegment>; STREAMS + 1]>,
    /// Content that is to be stored anew.
    pub(super) due: RefCell<Due>,
    /// The segment that is being filled with nodes.
    pub(super) node_segment: Cell<Option<OpenSegment>>,
    /// Where the nodes of the store's own trees are.
    pub(super) own_nodes: RefCell<BTreeMap<NodeId, StoredRange>>,
    /// Nodes that are being loaded, and who waits for them.
    pub(super) loading: RefCell<BTreeMap<NodeId, Vec<Sender<()>>>>,
    /// Reads that may use segments which the next checkpoint frees.
    pub(super) readers: RefCell<Rc<Readers>>,
    /// Resolves when those have ended, once later reads have another token.
    pub(super) readers_ended: RefCell<Receiver<()>>,
    /// Blocks that are read to be changed in part.
    pub(super) partial: RefCell<Vec<Weak<super::write::PartialBlock>>>,
    /// Something has changed that a task may wait for.
    pub(super) progress: Signal,
    /// Background work is due.
    pub(super) work: Signal,
    /// A write waits until pending parts are in the map.
    pub(super) waits_for_landing: Cell<bool>,
    /// A write waits for free segments.
    pub(super) waits_for_segments: Cell<bool>,
    pub(super) growth: Growth,
    pub(super) pace: Pace,
    /// How often the collector could gain nothing for writes that wait.
    pub(super) collected_in_vain: Cell<u64>,
    /// Garbage when the collector last gained nothing without being waited for.
    pub(super) garbage_in_vain: Cell<Option<u64>>,
    /// The first error that made the store useless.
    pub(super) failed: RefCell<Option<BlockError>>,
    pub(super) counts: RefCell<ThinCounts>,
    /// Checkpoints run one after the other.
    pub(super) checkpointing: Cell<bool>,
    pub(super) is_stopping: Cell<bool>,
    /// Tasks that work in the background now.
    pub(super) background_work: Cell<u32>,
    /// The store is being opened.
    pub(super) is_recovering: Cell<bool>,
}

/// Dropped with the last read of a time.
pub(super) struct Readers(#[expect(dead_code, reason = "it is dropped")] Sender<()>);

impl Readers {
    pub fn new(ended: Sender<()>) -> Readers {
        Readers(ended)
    }
}

/// Counts since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThinCounts {
    /// Bytes of runs with fragments of users.
    pub data_run_bytes: u64,
    /// Bytes of runs of the collector.
    pub collected_run_bytes: u64,
    /// Bytes of runs with nodes.
    pub node_run_bytes: u64,
    /// Frames appended to the intent log.
    pub frames: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Segments that were collected.
    pub collected_segments: u64,
    /// Segments that checkpoints freed.
    pub freed_segments: u64,
    /// Bytes that were packed again, as they were stored before.
    pub repacked_from_bytes: u64,
    /// As they are stored since.
    pub repacked_to_bytes: u64,
    /// Bytes that were brought into the order of their volume.
    pub reordered_bytes: u64,
    /// How long the collector has rested for clients, in nanoseconds.
    pub rested_ns: u64,
}

impl AddAssign for ThinCounts {
    fn add_assign(&mut self, other: ThinCounts) {
        self.data_run_bytes += other.data_run_bytes;
        self.collected_run_bytes += other.collected_run_bytes;
        self.node_run_bytes += other.node_run_bytes;
        self.frames += other.frames;
        self.checkpoints += other.checkpoints;
        self.collected_segments += other.collected_segments;
        self.freed_segments += other.freed_segments;
        self.repacked_from_bytes += other.repacked_from_bytes;
        self.repacked_to_bytes += other.repacked_to_bytes;
        self.reordered_bytes += other.reordered_bytes;
        self.rested_ns += other.rested_ns;
    }
}

/// A node is being loaded. When that ends, even early, others that wait for it look again.
struct Loading<'a> {
    all: &'a RefCell<BTreeMap<NodeId, Vec<Sender<()>>>>,
    id: NodeId,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let waiting = self.all.borrow_mut().remove(&self.id);
        drop(waiting);
    }
}

impl<B: Backing> ThinStore<B> {
    pub(super) fn env(&self) -> &B::Env {
        self.backing.env()
    }

    /// Counts since the store was opened.
    pub fn counts(&self) -> ThinCounts {
        *self.counts.borrow()
    }

    /// Mapped blocks of a volume, and their live bytes. Pending writes do not count yet.
    pub fn mapped(&self, line: u32) -> (u64, u64) {
        let trees = self.trees.borrow();
        let root = trees.lines.get(&line).and_then(|line| line.root);
        root.map_or((0, 0), |root| (root.blocks, root.live_bytes))
    }

    /// Bytes of a volume with content, and the bytes that they take. The first number counts all
    /// accepted writes and discards. The second counts discards at once, and the content of a write
    /// once it is compressed and in the map.
    pub fn used(&self, line: u32) -> (u64, u64) {
        let freed = self.pending.borrow().growth_of(line).bytes.min(0);
        (self.written_bytes(line), self.mapped(line).1.saturating_add_signed(freed))
    }

    /// Bytes of a volume with content, also if it was just accepted.
    pub(super) fn written_bytes(&self, line: u32) -> u64 {
        let growth = self.pending.borrow().growth_of(line);
        self.mapped(line).0.saturating_add_signed(growth.blocks) * BLOCK as u64
    }

    /// The bytes of a volume with content, for other threads.
    pub fn written_counter(&self, line: u32) -> Arc<AtomicU64> {
        let counter = self.written.borrow_mut().entry(line).or_default().clone();
        self.note_written(line);
        counter
    }

    pub(super) fn note_written(&self, line: u32) {
        if let Some(counter) = self.written.borrow().get(&line) {
            counter.store(self.written_bytes(line), Relaxed);
        }
    }

    /// The error that every request gets, if there is one.
    pub(super) fn check_usable(&self) -> Result<(), BlockError> {
        match &*self.failed.borrow() {
            Some(error) => Err(error.clone()),
            None if self.is_stopping.get() => Err(BlockError::Stopped),
            None if self.segments.borrow().is_damaged => Err(DAMAGED),
            None => Ok(()),
        }
    }

    /// Makes the store useless: what it has accepted cannot be kept any more.
    pub(super) fn fail(&self, error: &BlockError) {
        self.failed.borrow_mut().get_or_insert_with(|| error.clone());
        self.progress.raise();
        self.work.raise();
    }

    pub(super) fn take_sequence(&self) -> u64 {
        let sequence = self.next_sequence.get();
        self.next_sequence.set(sequence + 1);
        sequence
    }

    /// Has a leaf in memory. False if nothing of it is mapped.
    pub(super) async fn load_leaf(&self, line: u32, leaf: u64) -> Result<bool, BlockError> {
        loop {
            let lookup = self.trees.borrow_mut().lookup(line, leaf);
            match lookup {
                Lookup::Ready => return Ok(true),
                Lookup::Unmapped => return Ok(false),
                Lookup::Load(id, stored) => self.load_node(id, stored).await?,
            }
        }
    }

    /// Has a leaf in memory, also if nothing of it is mapped so far.
    pub(super) async fn load_or_create_leaf(&self, line: u32, leaf: u64) -> Result<(), BlockError> {
        if !self.load_leaf(line, leaf).await? {
            self.trees.borrow_mut().create(line, leaf);
        }
        Ok(())
    }

    /// Reads a node, once for all that wait for it.
    pub(super) async fn load_node(&self, id: NodeId, stored: StoredRange) -> Result<(), BlockError> {
        let waits = {
            let mut loading = self.loading.borrow_mut();
            match loading.get_mut(&id) {
                Some(waiting) => {
                    let (sender, receiver) = drive::oneshot();
                    waiting.push(sender);
                    Some(receiver)
                }
                None => {
                    loading.insert(id, Vec::new());
                    None
                }
            }
        };
        if let Some(waits) = waits {
            // The sender never sends; it is dropped when the node is there, or could not be read.
            let _ = waits.await;
            return Ok(());
        }
        let _loading = Loading { all: &self.loading, id };
        let readers = self.readers.borrow().clone();
        let result = self.read_node(id, stored).await;
        drop(readers);
        result.map(|content| {
            self.trees.borrow_mut().loaded(id, content, self.generation.get());
            self.evict();
        })
    }

    async fn read_node(&self, id: NodeId, stored: StoredRange) -> Result<NodeContent, BlockError> {
        let bytes = self.read_stored(stored).await?;
        let content = if id.level == 0 {
            decode_map_leaf(&bytes, id).map(|entries| NodeContent::Leaf(Rc::new(MapLeaf::new(entries))))
        } else {
            let children = decode_inner_node(&bytes, id);
            children.map(|list| {
                NodeContent::Inner(list.into_iter().map(|(slot, record)| (slot, Child::of(record))).collect())
            })
        };
        let content = content.map_err(|_| DAMAGED)?;
        let segments = self.segments.borrow();
        let is_possible = match &content {
            NodeContent::Leaf(leaf) => {
                leaf.entries().iter().all(|entry| segments.holds(entry.stored, SegmentUse::Data))
            }
            NodeContent::Inner(children) => {
                let mut stored = children.values().filter_map(|child| child.stored);
                stored.all(|stored| segments.holds(stored, SegmentUse::Nodes))
            }
        };
        if is_possible { Ok(content) } else { Err(DAMAGED) }
    }

    /// The bytes of a stored range. Whole blocks are read.
    pub(super) async fn read_stored(&self, stored: StoredRange) -> Result<BufMut, BlockError> {
        let start = stored.address / BLOCK as u64 * BLOCK as u64;
        let end = (stored.address + u64::from(stored.bytes)).next_multiple_of(BLOCK as u64);
        let mut bytes = self.backing.read(start, self.env().alloc((end - start) as usize)).await?;
        let mut bytes = bytes.split_off((stored.address - start) as usize);
        bytes.truncate(stored.bytes as usize);
        Ok(bytes)
    }

    pub(super) fn evict(&self) {
        self.trees.borrow_mut().evict(self.tuning.cached_leaves_max, self.generation.get());
    }

    /// Changes a leaf in memory, and the live bytes of segments.
    pub(super) fn change_leaf(&self, line: u32, leaf: u64, change: impl FnOnce(&mut MapLeaf) -> LiveChanges) {
        let changes = self.trees.borrow_mut().change(line, leaf, change);
        let mut segments = self.segments.borrow_mut();
        changes.into_iter().for_each(|(address, change)| segments.change_live(address, change));
    }
}
