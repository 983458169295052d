//! What all shards of a group see: geometry, code, map, and the state of the members.
//!
//! Everything that changes is an atomic with one writer: the map's bits have the owner of the unit,
//! the rest has the leader (shard 0). Readers act on what they saw and are corrected by the owner's
//! lock where it matters.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use format::{CrashSafety, Layout, MemberState, Superblock, Uuid};

use crate::errors::{ErrorCounters, Failed, MemberErrors};
use crate::geometry::{Geometry, MemberIndex, UnitIndex};
use crate::latency::Latencies;
use crate::lost::LostRanges;
use crate::map::AllocationMap;
use crate::missed::Missed;
use crate::questions::Questions;
use crate::settings::SharedSettings;
use crate::verify::Checksums;

/// A drive as the shards of a group know it: the index of its handle, the same on every shard,
/// never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriveId(pub u16);

/// What is in a member's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The drive. Meaningless while the member is missing.
    pub drive: DriveId,
    /// Its state.
    pub state: MemberState,
}

/// Bits of the unit's number in [`Shared::rebuilt`]; the rest is the drive's. 2^48 units of 4 KiB
/// are an exbibyte.
const REBUILT_UNIT_BITS: u32 = 48;

/// What a group has done since it was assembled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads by users.
    pub reads: u64,
    /// Writes by users.
    pub writes: u64,
    /// Strips that were computed from others to serve a read.
    pub reconstructed: u64,
    /// Unreadable strips that were written back.
    pub healed: u64,
    /// Reads that a member did not answer in time, so that the others were asked as well.
    pub hedged: u64,
    /// Of those, how many the others answered first.
    pub hedges_won: u64,
    /// Reads that went to the others at once, since the member is slow.
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
    /// The shard's log has records that want a seal.
    pub unsealed: AtomicBool,
    /// Records of the shard's log below this one are settled.
    pub settled: AtomicU64,
    /// The most of `settled` when a flush of all members began, on any shard, that has succeeded.
    pub flushed: AtomicU64,
}

/// A number that one shard counts and all may read: no locked instruction on the way of every
/// request.
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
    /// Where everything lies.
    pub geometry: Geometry,
    /// Which zones were written.
    pub map: AllocationMap,
    /// What a crash may cost.
    pub crash_safety: CrashSafety,
    pub(crate) layout: Layout,
    /// What the members' blocks should be, if the group keeps that.
    pub(crate) checksums: Option<Checksums>,
    /// Of the log's frames that are written now.
    pub(crate) log_generation: AtomicU64,
    /// Blocks that were lost in crashes.
    pub lost: LostRanges,
    /// What a power cut could add to them.
    pub(crate) questions: Questions,
    pub(crate) code: gf::Code,
    pub(crate) settings: SharedSettings,
    /// What members that left do not have.
    pub(crate) missed: Missed,
    /// Members that are about to be called faulty, a bit each: completed writes are being made
    /// durable without them.
    doubted: AtomicU64,
    /// A rebuild is ending: no record may begin before the superblocks say so.
    held: AtomicBool,
    slots: Box<[AtomicU32]>,
    errors: Box<[ErrorCounters]>,
    damaged: Box<[AtomicU64]>,
    rebuilt: AtomicU64,
    /// See [`Shared::replacement`].
    pub(crate) replacement: AtomicU32,
    clean: AtomicBool,
    /// The superblocks show what this assembly found, and that it writes.
    announced: AtomicBool,
    /// Some member may hold a superblock that is newer than what the group does.
    astray: AtomicBool,
    /// Copies and syndromes may be behind, until the resync after a crash has been everywhere.
    resync_due: AtomicBool,
    stopped: AtomicBool,
    /// Writes of all shards that came to no end: their stripes are in no order that the log does
    /// not know.
    pub(crate) unended: AtomicU64,
    /// Somebody flushes in the background, so that there is room in the logs of all shards.
    pub(crate) retiring: AtomicBool,
    next_drive: AtomicU32,
    /// By shard. Made when the first shard takes the group, since the assembly does not know how
    /// many there are.
    counters: OnceLock<Arc<[Counters]>>,
    pub(crate) latencies: Latencies,
    /// By member, and at last for a replacement: the drive that is given up there, and one; or 0.
    pub(crate) given_up: Box<[AtomicU32]>,
    /// By member, and at last for a replacement: when a shard last saw that its drive had answered
    /// anything.
    pub(crate) answered: Box<[AtomicU64]>,
}

impl Shared {
    /// The state that a superblock describes, with these drives in its slots.
    pub(crate) fn new(superblock: &Superblock, geometry: Geometry, slots: &[Slot], drives: u16) -> Self {
        let code = gf::Code::new(geometry.data, geometry.syndromes).expect("the shape was checked");
        Shared {
            array: superblock.array,
            crash_safety: superblock.crash_safety,
            layout: superblock.layout,
            checksums: Checksums::new(&superblock.layout, slots.len()),
            log_generation: AtomicU64::new(superblock.log_generation + 1),
            lost: LostRanges::default(),
            questions: Questions::default(),
            doubted: AtomicU64::new(0),
            held: AtomicBool::new(false),
            map: AllocationMap::new(geometry.zone_count()),
            code,
            settings: SharedSettings::default(),
            missed: Missed::new(&geometry),
            slots: slots.iter().map(|slot| AtomicU32::new(slot.pack())).collect(),
            errors: slots.iter().map(|_| ErrorCounters::default()).collect(),
            damaged: slots.iter().map(|_| AtomicU64::new(0)).collect(),
            rebuilt: AtomicU64::new(0),
            replacement: AtomicU32::new(0),
            clean: AtomicBool::new(superblock.clean),
            announced: AtomicBool::new(false),
            astray: AtomicBool::new(false),
            resync_due: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            unended: AtomicU64::new(0),
            retiring: AtomicBool::new(false),
            next_drive: AtomicU32::new(u32::from(drives)),
            counters: OnceLock::new(),
            latencies: Latencies::default(),
            given_up: (0..=slots.len()).map(|_| AtomicU32::new(0)).collect(),
            answered: (0..=slots.len()).map(|_| AtomicU64::new(0)).collect(),
            geometry,
        }
    }

    /// The group has a log.
    pub(crate) fn has_log(&self) -> bool {
        self.crash_safety != CrashSafety::Off
    }

    /// The counters of all shards, each to be written by its shard only.
    pub(crate) fn counters(&self, shards: usize) -> Arc<[Counters]> {
        self.counters.get_or_init(|| (0..shards).map(|_| Counters::default()).collect()).clone()
    }

    /// A shard's log has records that want a seal.
    pub(crate) fn is_unsealed(&self, shard: usize) -> bool {
        let counters = self.counters.get().and_then(|shards| shards.get(shard));
        counters.is_some_and(|counters| counters.unsealed.load(Ordering::SeqCst))
    }

    /// What all shards have done together.
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

    /// Writes by users since the group was assembled, by the shard they came to.
    pub fn writes_by_shard(&self) -> Vec<u64> {
        self.counters.get().into_iter().flat_map(|shards| &**shards).map(|shard| shard.writes.get()).collect()
    }

    /// What is in a member's place now.
    #[inline]
    pub fn slot(&self, member: MemberIndex) -> Slot {
        Slot::unpack(self.slots[usize::from(member.0)].load(Ordering::Acquire))
    }

    /// All places, in order.
    pub fn slots(&self) -> impl Iterator<Item = (MemberIndex, Slot)> + '_ {
        (0..self.slots.len() as u16).map(|index| (MemberIndex(index), self.slot(MemberIndex(index))))
    }

    pub(crate) fn set_slot(&self, member: MemberIndex, slot: Slot) {
        self.slots[usize::from(member.0)].store(slot.pack(), Ordering::Release);
    }

    /// Members of the unit's set that hold nothing or not everything.
    pub fn lost_in_set(&self, set: u64) -> usize {
        let strips = self.geometry.strips();
        let first = set as usize * strips;
        let in_sync = |index: usize| self.slot(MemberIndex(index as u16)).state == MemberState::InSync;
        (first..first + strips).filter(|&index| !in_sync(index)).count()
    }

    /// Units below this one are whole on a drive that is being filled.
    #[inline]
    pub fn rebuilt(&self, drive: DriveId) -> UnitIndex {
        let mark = self.rebuilt.load(Ordering::Acquire);
        let same = mark >> REBUILT_UNIT_BITS == u64::from(drive.0);
        UnitIndex(if same { mark & ((1 << REBUILT_UNIT_BITS) - 1) } else { 0 })
    }

    pub(crate) fn set_rebuilt(&self, drive: DriveId, unit: UnitIndex) {
        assert!(unit.0 < 1 << REBUILT_UNIT_BITS, "{unit:?}");
        self.rebuilt.store(u64::from(drive.0) << REBUILT_UNIT_BITS | unit.0, Ordering::Release);
    }

    /// Failed operations of a member since the group was assembled.
    pub fn errors(&self, member: MemberIndex) -> MemberErrors {
        self.errors[usize::from(member.0)].load()
    }

    pub(crate) fn count_error(&self, member: MemberIndex, failed: Failed) {
        self.errors[usize::from(member.0)].count(failed);
    }

    /// Reads of a member since the group was assembled that gave other bytes than were written
    /// there.
    pub fn damaged(&self, member: MemberIndex) -> u64 {
        self.damaged[usize::from(member.0)].load(Ordering::Relaxed)
    }

    pub(crate) fn count_damaged(&self, member: MemberIndex) {
        self.damaged[usize::from(member.0)].fetch_add(1, Ordering::Relaxed);
    }

    /// The superblocks say that nothing was written since the last orderly stop.
    pub fn is_clean(&self) -> bool {
        self.clean.load(Ordering::Acquire)
    }

    pub(crate) fn set_clean(&self, clean: bool) {
        self.clean.store(clean, Ordering::Release);
    }

    /// The superblocks say which members this assembly found and that it writes: nothing is written
    /// before.
    #[inline]
    pub(crate) fn is_announced(&self) -> bool {
        self.announced.load(Ordering::Acquire)
    }

    pub(crate) fn set_announced(&self, announced: bool) {
        self.announced.store(announced, Ordering::Release);
    }

    /// Some member may hold a superblock that is newer than what the group does, and would be
    /// believed after a crash.
    pub(crate) fn is_astray(&self) -> bool {
        self.astray.load(Ordering::Acquire)
    }

    /// Says whether it was so before.
    pub(crate) fn set_astray(&self, astray: bool) -> bool {
        self.astray.swap(astray, Ordering::AcqRel)
    }

    /// The strips of a stripe may contradict each other, since a crash interrupted their writing
    /// and the resync has not been everywhere.
    #[inline]
    pub(crate) fn is_resync_due(&self) -> bool {
        self.resync_due.load(Ordering::Acquire)
    }

    pub(crate) fn set_resync_due(&self, due: bool) {
        self.resync_due.store(due, Ordering::Release);
    }

    /// The member is about to be called faulty.
    pub(crate) fn is_doubted(&self, member: MemberIndex) -> bool {
        // In one order with the flush that follows the doubt: whoever does not see it was done
        // before that flush.
        self.doubted.load(Ordering::SeqCst) >> member.0 & 1 == 1
    }

    /// Some member is.
    pub(crate) fn is_any_doubted(&self) -> bool {
        self.doubted.load(Ordering::SeqCst) != 0
    }

    /// Some member of a set is.
    pub(crate) fn is_any_doubted_in(&self, set: u64) -> bool {
        let strips = self.geometry.strips() as u64;
        let members = u64::MAX >> (u64::BITS as u64 - strips) << (set * strips);
        self.doubted.load(Ordering::SeqCst) & members != 0
    }

    /// Members in sync that nobody is about to call faulty.
    pub(crate) fn staying(&self) -> impl Iterator<Item = (MemberIndex, Slot)> {
        self.slots().filter(|(member, slot)| slot.state == MemberState::InSync && !self.is_doubted(*member))
    }

    /// No record of the log may begin now.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    pub(crate) fn hold(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
    }

    pub(crate) fn doubt(&self, member: MemberIndex) {
        self.doubted.fetch_or(1 << member.0, Ordering::SeqCst);
    }

    pub(crate) fn end_doubt(&self) {
        self.doubted.store(0, Ordering::SeqCst);
    }

    /// The group takes no more requests.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// A new drive's index. Its handle is to be installed on every shard before the leader hears of
    /// it.
    pub fn new_drive(&self) -> DriveId {
        DriveId(self.next_drive.fetch_add(1, Ordering::Relaxed) as u16)
    }
}

impl Slot {
    fn pack(self) -> u32 {
        u32::from(self.drive.0) << 8 | self.state as u32
    }

    fn unpack(bits: u32) -> Self {
        let state = match bits & 0xFF {
            1 => MemberState::InSync,
            2 => MemberState::Rebuilding,
            3 => MemberState::Missing,
            _ => MemberState::Faulty,
        };
        Slot { drive: DriveId((bits >> 8) as u16), state }
    }
}
