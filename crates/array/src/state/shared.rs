//! State that all shards of a group share: geometry, code, map, and the state of the members.
//!
//! All mutable state is atomic with one writer. For the map's bits that is the owner of the stripe
//! group, for the rest it is the leader (shard 0). Readers act on the values they saw, and the
//! owner's lock corrects them where it matters.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use format::{CrashSafety, Layout, MemberState, Region, Superblock, Uuid};

use crate::checksums::sums::Checksums;
use crate::drives::latency::Latencies;
use crate::geometry::{Geometry, MemberIndex, StripeGroup};
use crate::log::indeterminate::Indeterminates;
use crate::state::dirty::DirtyRegions;
use crate::state::errors::{ErrorCounters, Failed, MemberErrors};
use crate::state::lost::LostRanges;
use crate::state::map::AllocationMap;
use crate::state::settings::SharedSettings;
use crate::state::slot::{DriveId, Slot};

/// Bits of the number of a stripe group in [`Shared::rebuilt`]. The other bits are the drive's
/// number. 2^48 stripe groups of 4 KiB are an exbibyte.
const REBUILT_STRIPE_GROUP_BITS: u32 = 48;

/// Statistics of a group since it was assembled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads by clients.
    pub reads: u64,
    /// Writes by clients.
    pub writes: u64,
    /// Strips that were computed from others to serve a read.
    pub reconstructed: u64,
    /// Unreadable strips that were written back.
    pub healed: u64,
    /// Reads that a member did not answer in time, so that the other members were read as well.
    pub hedged: u64,
    /// Number of those that the other members answered first.
    pub hedges_won: u64,
    /// Reads that went to the other members at once, because the member is slow.
    pub avoided: u64,
}

/// One shard's share of [`Counts`].
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Counters {
    pub reads: Counter,
    pub writes: Counter,
    pub reconstructed: Counter,
    pub healed: Counter,
    pub hedged: Counter,
    pub hedges_won: Counter,
    pub avoided: Counter,
    /// The shard's log has records that need a checkpoint record.
    pub uncovered: AtomicBool,
    /// Records of the shard's log below this one are completed.
    pub completed: AtomicU64,
    /// The highest value of `completed` at the start of a successful flush of all members by any
    /// shard.
    pub flushed: AtomicU64,
}

/// A number that one shard counts and all may read. It needs no locked instruction in the path of
/// every request.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn count(&self) {
        self.add(1);
    }

    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The state of a group that its shards share.
#[derive(Debug)]
pub struct Shared {
    /// The array's identity.
    pub array: Uuid,
    /// Where the data lies on the members.
    pub geometry: Geometry,
    /// Allocation chunks that were written.
    pub map: AllocationMap,
    /// Data that a crash may cost.
    pub crash_safety: CrashSafety,
    pub(crate) layout: Layout,
    /// Checksums of the members' blocks, if the group keeps them.
    pub(crate) checksums: Option<Checksums>,
    /// Generation of the log's frames that are written now.
    pub(crate) log_generation: AtomicU64,
    /// The second half of the log's rings belongs to the intent log.
    intent_log: AtomicBool,
    /// Appends to the intent log wait: a drive is about to be called in sync.
    intents_wait: AtomicBool,
    /// Blocks that were lost in crashes.
    pub lost: LostRanges,
    /// Number of ranges that a power cut could add to `lost`.
    pub(crate) indeterminate: Indeterminates,
    pub(crate) code: gf::Code,
    pub(crate) settings: SharedSettings,
    /// Dirty regions of members that left.
    pub(crate) dirty: DirtyRegions,
    /// Suspect members, one bit each: they are about to be declared faulty, and completed writes
    /// are being made durable without them.
    suspects: AtomicU64,
    /// A rebuild is ending: no record may begin before the superblocks say so.
    held: AtomicBool,
    slots: Box<[AtomicU32]>,
    errors: Box<[ErrorCounters]>,
    damaged: Box<[AtomicU64]>,
    rebuilt: AtomicU64,
    /// See [`Shared::replacement`].
    pub(crate) replacement: AtomicU32,
    clean: AtomicBool,
    /// The superblocks show the members that this assembly found, and that it writes.
    marked_dirty: AtomicBool,
    /// Some member may hold a superblock that is newer than the group's state.
    superblock_mismatch: AtomicBool,
    /// Copies and parity may be stale until the resync after a crash has covered everything.
    resync_due: AtomicBool,
    stopped: AtomicBool,
    /// Number of incomplete writes of all shards. Their stripes are inconsistent in ways that the
    /// log may not know.
    pub(crate) incomplete: AtomicU64,
    /// A shard flushes in the background to make room in the logs of all shards.
    pub(crate) retiring: AtomicBool,
    next_drive: AtomicU32,
    /// By shard. Created when the first shard takes the group, because the assembly does not know
    /// the number of shards.
    counters: OnceLock<Arc<[Counters]>>,
    pub(crate) latencies: Latencies,
    /// By member, and last for a replacement: the drive that is given up there plus one, or 0.
    pub(crate) given_up: Box<[AtomicU32]>,
    /// By member, and last for a replacement: when a shard last saw an answer of its drive.
    pub(crate) answered: Box<[AtomicU64]>,
}

impl Shared {
    /// The state that a superblock describes, with these drives in its slots.
    pub(crate) fn new(superblock: &Superblock, geometry: Geometry, slots: &[Slot], drives: u16) -> Self {
        let code = gf::Code::new(geometry.data, geometry.parity_count).expect("the shape was checked");
        Shared {
            array: superblock.array,
            crash_safety: superblock.crash_safety,
            layout: superblock.layout,
            checksums: Checksums::new(&superblock.layout, slots.len()),
            log_generation: AtomicU64::new(superblock.log_generation + 1),
            intent_log: AtomicBool::new(superblock.has_intent_log()),
            intents_wait: AtomicBool::new(false),
            lost: LostRanges::default(),
            indeterminate: Indeterminates::default(),
            suspects: AtomicU64::new(0),
            held: AtomicBool::new(false),
            map: AllocationMap::new(geometry.chunk_count()),
            code,
            settings: SharedSettings::default(),
            dirty: DirtyRegions::new(&geometry),
            slots: slots.iter().map(|slot| AtomicU32::new(slot.pack())).collect(),
            errors: slots.iter().map(|_| ErrorCounters::default()).collect(),
            damaged: slots.iter().map(|_| AtomicU64::new(0)).collect(),
            rebuilt: AtomicU64::new(0),
            replacement: AtomicU32::new(0),
            clean: AtomicBool::new(superblock.clean),
            marked_dirty: AtomicBool::new(false),
            superblock_mismatch: AtomicBool::new(false),
            resync_due: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            incomplete: AtomicU64::new(0),
            retiring: AtomicBool::new(false),
            next_drive: AtomicU32::new(u32::from(drives)),
            counters: OnceLock::new(),
            latencies: Latencies::default(),
            given_up: (0..=slots.len()).map(|_| AtomicU32::new(0)).collect(),
            answered: (0..=slots.len()).map(|_| AtomicU64::new(0)).collect(),
            geometry,
        }
    }

    /// Whether the group has a log.
    pub(crate) fn has_log(&self) -> bool {
        self.crash_safety != CrashSafety::Off
    }

    /// The part of a member's log region that has the rings of the write-hole log.
    pub(crate) fn log_rings(&self) -> Region {
        format::log::rings(&self.layout, self.has_intent_log())
    }

    /// Whether the group has an intent log.
    pub fn has_intent_log(&self) -> bool {
        self.intent_log.load(Ordering::SeqCst)
    }

    /// The superblocks say that the group has an intent log.
    pub(crate) fn add_intent_log(&self) {
        self.intent_log.store(true, Ordering::SeqCst);
    }

    /// The part of a member's log region that has the rings of the intent log, if there is one.
    pub(crate) fn intent_region(&self) -> Option<Region> {
        self.has_intent_log().then(|| format::intent_log::intent_region(&self.layout))
    }

    /// Whether appends to the intent log have to wait.
    pub(crate) fn intents_wait(&self) -> bool {
        self.intents_wait.load(Ordering::SeqCst)
    }

    pub(crate) fn let_intents_wait(&self, wait: bool) {
        self.intents_wait.store(wait, Ordering::SeqCst);
    }

    /// The counters of all shards. Each is written by its shard only.
    pub(crate) fn counters(&self, shards: usize) -> Arc<[Counters]> {
        self.counters.get_or_init(|| (0..shards).map(|_| Counters::default()).collect()).clone()
    }

    /// Whether a shard's log has records that need a checkpoint record.
    pub(crate) fn is_uncovered(&self, shard: usize) -> bool {
        let counters = self.counters.get().and_then(|shards| shards.get(shard));
        counters.is_some_and(|counters| counters.uncovered.load(Ordering::SeqCst))
    }

    /// The statistics of all shards together.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for counters in self.counters.get().into_iter().flat_map(|shards| &**shards) {
            sum.reads += counters.reads.get();
            sum.writes += counters.writes.get();
            sum.reconstructed += counters.reconstructed.get();
            sum.healed += counters.healed.get();
            sum.hedged += counters.hedged.get();
            sum.hedges_won += counters.hedges_won.get();
            sum.avoided += counters.avoided.get();
        }
        sum
    }

    /// Writes by clients since the group was assembled, by the shard where they arrived.
    pub fn writes_by_shard(&self) -> Vec<u64> {
        self.counters.get().into_iter().flat_map(|shards| &**shards).map(|shard| shard.writes.get()).collect()
    }

    /// The current drive and state of a member.
    #[inline]
    pub fn slot(&self, member: MemberIndex) -> Slot {
        Slot::unpack(self.slots[usize::from(member.0)].load(Ordering::Acquire))
    }

    /// All slots, in order.
    pub fn slots(&self) -> impl Iterator<Item = (MemberIndex, Slot)> + '_ {
        (0..self.slots.len() as u16).map(|index| (MemberIndex(index), self.slot(MemberIndex(index))))
    }

    pub(crate) fn set_slot(&self, member: MemberIndex, slot: Slot) {
        self.slots[usize::from(member.0)].store(slot.pack(), Ordering::Release);
    }

    /// Number of members of a set that have lost some or all of their data.
    pub fn lost_in_set(&self, set: u64) -> usize {
        let strips = self.geometry.strips();
        let first = set as usize * strips;
        let in_sync = |index: usize| self.slot(MemberIndex(index as u16)).state == MemberState::InSync;
        (first..first + strips).filter(|&index| !in_sync(index)).count()
    }

    /// Stripe groups below this one are whole on a drive that is being filled.
    #[inline]
    pub fn rebuilt(&self, drive: DriveId) -> StripeGroup {
        let mark = self.rebuilt.load(Ordering::Acquire);
        let same = mark >> REBUILT_STRIPE_GROUP_BITS == u64::from(drive.0);
        StripeGroup(if same { mark & ((1 << REBUILT_STRIPE_GROUP_BITS) - 1) } else { 0 })
    }

    pub(crate) fn set_rebuilt(&self, drive: DriveId, stripe_group: StripeGroup) {
        assert!(stripe_group.0 < 1 << REBUILT_STRIPE_GROUP_BITS, "{stripe_group:?}");
        self.rebuilt.store(u64::from(drive.0) << REBUILT_STRIPE_GROUP_BITS | stripe_group.0, Ordering::Release);
    }

    /// Failed operations of a member since the group was assembled.
    pub fn errors(&self, member: MemberIndex) -> MemberErrors {
        self.errors[usize::from(member.0)].load()
    }

    pub(crate) fn count_error(&self, member: MemberIndex, failed: Failed) {
        self.errors[usize::from(member.0)].count(failed);
    }

    /// Reads of a member since the group was assembled that returned other bytes than were written
    /// there.
    pub fn damaged(&self, member: MemberIndex) -> u64 {
        self.damaged[usize::from(member.0)].load(Ordering::Relaxed)
    }

    pub(crate) fn count_damaged(&self, member: MemberIndex) {
        self.damaged[usize::from(member.0)].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the superblocks say that nothing was written since the last orderly stop.
    pub fn is_clean(&self) -> bool {
        self.clean.load(Ordering::Acquire)
    }

    pub(crate) fn set_clean(&self, clean: bool) {
        self.clean.store(clean, Ordering::Release);
    }

    /// Whether the superblocks show the members that this assembly found, and that it writes.
    /// Nothing is written before that.
    #[inline]
    pub(crate) fn is_marked_dirty(&self) -> bool {
        self.marked_dirty.load(Ordering::Acquire)
    }

    pub(crate) fn set_marked_dirty(&self, marked_dirty: bool) {
        self.marked_dirty.store(marked_dirty, Ordering::Release);
    }

    /// Whether some member may hold a superblock that is newer than the group's state. After a
    /// crash that superblock would be trusted.
    pub(crate) fn has_superblock_mismatch(&self) -> bool {
        self.superblock_mismatch.load(Ordering::Acquire)
    }

    /// Returns the previous value.
    pub(crate) fn set_superblock_mismatch(&self, superblock_mismatch: bool) -> bool {
        self.superblock_mismatch.swap(superblock_mismatch, Ordering::AcqRel)
    }

    /// Whether the strips of a stripe may contradict each other, because a crash interrupted their
    /// writes and the resync has not covered everything.
    #[inline]
    pub(crate) fn is_resync_due(&self) -> bool {
        self.resync_due.load(Ordering::Acquire)
    }

    pub(crate) fn set_resync_due(&self, due: bool) {
        self.resync_due.store(due, Ordering::Release);
    }

    /// Whether the member is suspect: about to be declared faulty.
    pub(crate) fn is_suspect(&self, member: MemberIndex) -> bool {
        // Sequentially consistent with the flush that follows the change to suspect: a task that
        // does not see it was done before that flush.
        self.suspects.load(Ordering::SeqCst) >> member.0 & 1 == 1
    }

    /// Whether any member is suspect.
    pub(crate) fn is_any_suspect(&self) -> bool {
        self.suspects.load(Ordering::SeqCst) != 0
    }

    /// Whether any member of a set is suspect.
    pub(crate) fn is_any_suspect_in(&self, set: u64) -> bool {
        let strips = self.geometry.strips() as u64;
        let members = u64::MAX >> (u64::BITS as u64 - strips) << (set * strips);
        self.suspects.load(Ordering::SeqCst) & members != 0
    }

    /// Members in sync that are not suspect.
    pub(crate) fn staying(&self) -> impl Iterator<Item = (MemberIndex, Slot)> {
        self.slots().filter(|(member, slot)| slot.state == MemberState::InSync && !self.is_suspect(*member))
    }

    /// Whether records of the log must not begin now.
    pub(crate) fn is_quiesced(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    pub(crate) fn quiesce(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
    }

    pub(crate) fn mark_suspect(&self, member: MemberIndex) {
        self.suspects.fetch_or(1 << member.0, Ordering::SeqCst);
    }

    pub(crate) fn clear_suspects(&self) {
        self.suspects.store(0, Ordering::SeqCst);
    }

    /// Whether the group takes no more requests.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Number for a new drive. Its handle must be installed on every shard before the leader uses
    /// it.
    pub fn new_drive(&self) -> DriveId {
        DriveId(self.next_drive.fetch_add(1, Ordering::Relaxed) as u16)
    }
}
