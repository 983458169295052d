//! A drive group in simulation, on one or several shards.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};

use crate::{Counts, GroupDrive, Rng, Sim, SimDrive, SimEnv, Ways};
use ::drive::{Drive, Env, join_all};
use array::{
    Array, AssembleError, Assembly, DriveId, Event, Fault, MemberIndex, Message, NewGroup, Peers, Refusal, ShardPlace,
    assemble, create, load,
};
use format::{BLOCK, CrashSafety, Level, MemberState, Shape, ShapeBuilder, Superblock, Uuid, superblock_offsets};
use initiator::Namespace;

/// Bytes of a KiB.
pub const KIB: u64 = 1024;
/// Bytes of a MiB.
pub const MIB: u64 = 1024 * KIB;

/// The seeds of a test that draws at random: `usual` of them, unless environment variables say
/// otherwise.
pub fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("PURLIN_SIM_SEED") {
        return seed..seed + 1;
    }
    0..number("PURLIN_SIM_SEEDS").unwrap_or(usual)
}

/// Asserts that no drive is refused as an older copy of a member. No test opens a group with such a
/// copy: it would be a member that a crash has left behind.
fn check_no_copy(assembly: &Assembly) {
    let is_copy = |(_, why): &(usize, Refusal)| matches!(why, Refusal::OlderCopy { .. });
    assert!(!assembly.refused.iter().any(is_copy), "{:?}", assembly.refused);
}

/// The shards of a group, through which they find each other.
type Shards = RefCell<Vec<Array<SimEnv>>>;

/// Delivers each message by a task of its own: the executor draws the order. The shards hold this,
/// so it does not hold them: otherwise the memory of a group would never be freed.
struct SimPeers {
    env: SimEnv,
    arrays: Weak<Shards>,
}

impl Peers for SimPeers {
    fn send(&self, to: usize, message: Message) {
        let arrays = self.arrays.clone();
        self.env.spawn(async move {
            // Without shards the group is gone, and no task waits for the message.
            if let Some(arrays) = arrays.upgrade() {
                let array = arrays.borrow()[to].clone();
                array.deliver(message);
            }
        });
    }
}

/// A group and everything around it.
pub struct Group {
    /// The world the group runs in.
    pub env: SimEnv,
    /// Handles of the drives; the place is the drive's [`DriveId`].
    pub drives: Vec<SimDrive>,
    /// The group as each shard sees it. Shard 0 leads.
    pub shards: Vec<Array<SimEnv>>,
    /// Events that the leader's listener got, in order.
    pub events: Rc<RefCell<Vec<Event>>>,
    /// The paths to drives of other machines.
    pub ways: Rc<Ways>,
    /// Drives that were left out at the assembly, by their place in `drives`, and why.
    pub left_out: Vec<(usize, Refusal)>,
    /// Drives of other machines, on each shard, by their place in `drives`.
    pub(super) attached: BTreeMap<usize, Vec<Namespace<SimEnv>>>,
    /// Drives that were unreachable at the last attempt.
    pub(super) disconnected: Vec<SimDrive>,
    /// Places in `drives` whose drive was released.
    pub(crate) released: Vec<usize>,
    /// Keeps the shards alive for their peers.
    _arrays: Rc<Shards>,
}

/// A shape that is known to be valid, with the defaults of its level; `strip` in bytes.
///
/// # Panics
/// If the shape is not allowed.
pub fn shape(level: Level, members: u16, strip: u64) -> Shape {
    valid(Shape::of(level, members), strip)
}

/// As [`shape`], with numbers that the level does not decide.
///
/// # Panics
/// If the shape is not allowed.
pub fn valid(shape: ShapeBuilder, strip: u64) -> Shape {
    shape.strip_bytes(strip as u32).build().expect("a valid shape")
}

/// Every level, on few drives. Where copies and parity strips can be chosen: as few and as many as
/// allowed.
pub fn every_level(strip: u64) -> Vec<Shape> {
    vec![
        shape(Level::Raid0, 3, strip),
        shape(Level::Raid1, 2, strip),
        shape(Level::Raid1, 3, strip),
        shape(Level::Raid1, 4, strip),
        shape(Level::Raid10, 4, strip),
        valid(Shape::of(Level::Raid10, 6).copies(3), strip),
        valid(Shape::of(Level::Raid10, 8).copies(4), strip),
        shape(Level::Raid5, 3, strip),
        shape(Level::Raid5, 5, strip),
        shape(Level::Raid6, 4, strip),
        shape(Level::Raid6, 6, strip),
        shape(Level::Raid7, 6, strip),
        valid(Shape::of(Level::Nm, 8).parity(4), strip),
        valid(Shape::of(Level::Nm, 10).parity(8), strip),
        shape(Level::Raid50, 6, strip),
        shape(Level::Raid60, 8, strip),
    ]
}

/// An identity drawn at random.
pub fn uuid(rng: &mut Rng) -> Uuid {
    let mut bytes = [0; 16];
    rng.fill(&mut bytes);
    Uuid::from_random(bytes)
}

/// Fresh drives of `bytes` each, with sectors of `sector` bytes.
pub fn new_drives(sim: &Sim, count: usize, bytes: u64, sector: u32) -> Vec<SimDrive> {
    (0..count).map(|index| SimDrive::new(&sim.env(), &format!("d{index}"), bytes, sector)).collect()
}

/// Drives in the machine, as members of a group.
pub fn in_machine(drives: &[SimDrive]) -> Vec<GroupDrive> {
    drives.iter().cloned().map(GroupDrive::from).collect()
}

/// The protection of a group against crashes and damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// The loss that a power cut may cause.
    pub safety: CrashSafety,
    /// Blocks have checksums, if there is a log.
    pub checksums: bool,
}

impl Protection {
    /// The default of users.
    pub const DEFAULT: Protection = Protection { safety: CrashSafety::On, checksums: true };

    /// Checksums are kept: they need a log.
    pub fn has_checksums(self) -> bool {
        self.checksums && self.safety != CrashSafety::Off
    }

    /// Without checksums.
    pub fn plain(safety: CrashSafety) -> Protection {
        Protection { safety, checksums: false }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "crash safety {}", self.safety.name())?;
        if self.has_checksums() { write!(formatter, ", checksums") } else { Ok(()) }
    }
}

impl Group {
    /// A new group of `shape`, with spares after the members, on `shards` shards.
    pub fn create(sim: &Sim, shape: Shape, drives: Vec<SimDrive>, shards: usize) -> Group {
        Group::create_with(sim, shape, Protection::DEFAULT, drives, shards)
    }

    /// As [`Group::create`], with this protection.
    pub fn create_with(
        sim: &Sim,
        shape: Shape,
        Protection { safety, checksums }: Protection,
        drives: Vec<SimDrive>,
        shards: usize,
    ) -> Group {
        let mut rng = sim.rng();
        let new = NewGroup {
            array: uuid(&mut rng),
            crash_safety: safety,
            checksums,
            name: "tank".into(),
            shape,
            drives: drives.iter().map(|_| uuid(&mut rng)).collect(),
            created_unix_s: 1,
        };
        sim.block_on(create::<SimEnv>(&new, &in_machine(&drives))).expect("the drives are fine");
        Group::open(sim, drives, shards)
    }

    /// As [`Group::create_with`], with some of the drives on targets: they move there once the
    /// group is made.
    pub fn create_over(
        sim: &Sim,
        shape: Shape,
        protection: Protection,
        drives: Vec<SimDrive>,
        ways: Rc<Ways>,
        shards: usize,
    ) -> Group {
        let group = Group::create_with(sim, shape, protection, drives, shards);
        let drives = sim.block_on(group.stop());
        sim.kill_tasks();
        sim.block_on(Group::open_over(sim.env(), drives, ways, shards))
    }

    /// Assembles the group that is on `drives`.
    pub fn open(sim: &Sim, drives: Vec<SimDrive>, shards: usize) -> Group {
        sim.block_on(Group::open_async(sim.env(), drives, shards))
    }

    /// As [`Group::open`], for callers that may be interrupted.
    ///
    /// # Panics
    /// If the group cannot be assembled.
    pub async fn open_async(env: SimEnv, drives: Vec<SimDrive>, shards: usize) -> Group {
        Group::open_over(env, drives, Rc::default(), shards).await
    }

    /// As [`Group::open_async`], with drives of other machines among `drives`. Unreachable ones are
    /// left out.
    ///
    /// # Panics
    /// If the group cannot be assembled.
    pub async fn open_over(env: SimEnv, drives: Vec<SimDrive>, ways: Rc<Ways>, shards: usize) -> Group {
        Group::try_open_over(env, drives, ways, shards).await.expect("the group can be assembled")
    }

    /// As [`Group::open_async`], with drives that may fail meanwhile.
    ///
    /// # Errors
    /// [`AssembleError`]; then no task of the group is left.
    pub async fn try_open(env: SimEnv, drives: Vec<SimDrive>, shards: usize) -> Result<Group, AssembleError> {
        Group::try_open_over(env, drives, Rc::default(), shards).await
    }

    /// As [`Group::open_over`], with drives that may fail meanwhile.
    ///
    /// # Errors
    /// As [`Group::try_open`].
    pub async fn try_open_over(
        env: SimEnv,
        drives: Vec<SimDrive>,
        ways: Rc<Ways>,
        shards: usize,
    ) -> Result<Group, AssembleError> {
        ways.quiet(&env).await;
        let (mut there, mut disconnected, mut attached) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut by_shard: Vec<Vec<GroupDrive>> = (0..shards).map(|_| Vec::new()).collect();
        for drive in drives {
            let handles = if ways.target(&drive).is_none() {
                vec![GroupDrive::from(drive.clone()); shards]
            } else {
                ways.mark(true);
                let mut known = ways.look(&env, &drive).await;
                if known.is_err() {
                    // Connections may have been reset meanwhile: starting a group tries again.
                    known = ways.look(&env, &drive).await;
                }
                let Ok(known) = known else {
                    disconnected.push(drive);
                    continue;
                };
                let namespaces: Vec<_> = (0..shards).map(|_| Namespace::attach(&env, &known)).collect();
                attached.insert(there.len(), namespaces.clone());
                namespaces.into_iter().map(GroupDrive::Remote).collect()
            };
            by_shard.iter_mut().zip(handles).for_each(|(all, handle)| all.push(handle));
            there.push(drive);
        }
        let assembly = assemble(&env, &by_shard[0]).await?;
        check_no_copy(&assembly);
        let events = Rc::new(RefCell::new(Vec::new()));
        let heard = events.clone();
        let listener = Box::new(move |event| heard.borrow_mut().push(event));
        let warm = env.warm(assembly.superblock.array.as_bytes(), array::warm_words(&assembly.superblock));
        let loaded = load(&env, &assembly, &by_shard[0], Some(warm), listener).await?;
        let left_out = [assembly.refused, loaded.left_out.clone()].concat();
        let arrays = Rc::new(RefCell::new(Vec::new()));
        let peers = Rc::new(SimPeers { env: env.clone(), arrays: Rc::downgrade(&arrays) });
        for (shard, drives) in by_shard.into_iter().enumerate() {
            let array = match shard {
                0 => loaded.lead(env.clone(), drives, shards, peers.clone()),
                _ => {
                    let place = ShardPlace { shard, shards };
                    Array::follow(env.clone(), loaded.shared.clone(), drives, place, peers.clone())
                }
            };
            arrays.borrow_mut().push(array);
        }
        let shards: Vec<Array<SimEnv>> = arrays.borrow().clone();
        if let Err(error) = shards[0].start(loaded.needs_resync).await {
            abandon(&shards).await;
            return Err(AssembleError::Block(error));
        }
        Ok(Group {
            env,
            drives: there,
            shards,
            events,
            ways,
            left_out,
            attached,
            disconnected,
            released: Vec::new(),
            _arrays: arrays,
        })
    }

    /// Shard 0.
    pub fn leader(&self) -> &Array<SimEnv> {
        &self.shards[0]
    }

    /// User bytes of the group.
    pub fn size(&self) -> u64 {
        self.leader().size_bytes()
    }

    /// The operations of all drives since the last call.
    pub fn take_counts(&self) -> Counts {
        self.drives.iter().map(|drive| drive.take_counts()).sum()
    }

    /// Waits until no rebuild or scrub is under way.
    pub async fn jobs_end(&self) {
        while self.leader().status().jobs.iter().any(|job| job.ended.is_none()) {
            self.env.sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Stops the group in order and gives its drives.
    ///
    /// # Panics
    /// If the group cannot be made durable.
    pub async fn stop(self) -> Vec<SimDrive> {
        for shard in self.shards.iter().rev() {
            shard.stop().await.expect("the group can be made durable");
        }
        join_all(self.attached.values().flatten().map(Namespace::close)).await;
        self.ways.mark(false);
        self.into_drives()
    }

    /// Drops a group that was started and whose drives are gone.
    pub async fn abandon(self) {
        abandon(&self.shards).await;
    }

    /// All drives that it had or tried to reach.
    fn into_drives(self) -> Vec<SimDrive> {
        let Group { drives, disconnected, released, .. } = self;
        let there =
            drives.into_iter().enumerate().filter(|(place, _)| !released.contains(place)).map(|(_, drive)| drive);
        there.chain(disconnected).collect()
    }

    /// Cuts the power of the machine and assembles the surviving drives.
    pub fn power_cut(self, sim: &Sim) -> Group {
        let (shards, ways) = (self.shards.len(), self.ways.clone());
        let drives = self.cut(sim);
        sim.block_on(Group::open_over(sim.env(), drives, ways, shards))
    }

    /// Cuts the power of the machine, not of targets.
    pub fn cut(self, sim: &Sim) -> Vec<SimDrive> {
        sim.power_cut();
        self.into_drives().iter().map(SimDrive::reopen).collect()
    }

    /// Kills the process of the group. The drives complete their operations.
    pub fn kill(self, sim: &Sim) -> Vec<SimDrive> {
        sim.kill();
        self.into_drives()
    }

    /// The state of a member.
    pub fn state(&self, member: usize) -> MemberState {
        self.leader().shared().slot(MemberIndex(member as u16)).state
    }

    /// The drive in a member's slot.
    pub fn member(&self, member: usize) -> &SimDrive {
        &self.drives[usize::from(self.leader().shared().slot(MemberIndex(member as u16)).drive.0)]
    }

    /// No member is lost or being filled.
    pub fn all_in_sync(&self) -> bool {
        self.leader().shared().slots().all(|(_, slot)| slot.state == MemberState::InSync)
    }

    /// Installs a drive on every shard.
    pub fn install(&mut self, drive: SimDrive) -> DriveId {
        let id = self.leader().shared().new_drive();
        assert_eq!(usize::from(id.0), self.drives.len(), "a drive's index is its place in the list");
        for shard in &self.shards {
            shard.install(id, GroupDrive::from(drive.clone()));
        }
        self.drives.push(drive);
        id
    }

    /// Compares everything and gives the number of differences. Everything can be compared. An
    /// unreadable block that was repaired is not counted.
    pub async fn differences(&self) -> u64 {
        self.jobs_end().await;
        assert!(self.leader().start_scrub(array::ScrubMode::Report), "no scrub is under way");
        self.jobs_end().await;
        let jobs = self.leader().status().jobs;
        let job = jobs.last().expect("a scrub was started");
        assert_eq!((job.unchecked, &job.state), (0, &array::JobState::Done), "everything can be compared");
        let healed = job.findings.iter().filter(|finding| finding.fault == Fault::Unreadable && finding.repaired);
        job.found - healed.count() as u64
    }
}

async fn abandon(shards: &[Array<SimEnv>]) {
    for shard in shards.iter().rev() {
        shard.abandon().await;
    }
}

/// Examines a set of drives.
///
/// # Errors
/// [`AssembleError`].
pub fn look(sim: &Sim, drives: &[SimDrive]) -> Result<Assembly, AssembleError> {
    sim.block_on(assemble(&sim.env(), &in_machine(drives)))
}

/// The superblock at the head of a drive.
pub fn superblock(drive: &SimDrive) -> Superblock {
    let [head, _] = superblock_offsets(drive.info().size_bytes).expect("the drive is a member");
    Superblock::decode(&drive.read_raw(head, BLOCK as u64)).expect("the drive is a member")
}

/// Runs two futures at the same time.
pub async fn both(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let futures: [std::pin::Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(one), Box::pin(other)];
    join_all(futures).await;
}

/// Every set of up to `most` of `count` elements.
pub fn subsets(count: usize, most: usize) -> Vec<Vec<usize>> {
    (0u64..1 << count)
        .filter(|set| set.count_ones() as usize <= most)
        .map(|set| (0..count).filter(|index| set & 1 << index != 0).collect())
        .collect()
}

/// Every set of members with at most `most` in each set of the group. With the number of members
/// that the level survives, these are all losses that it survives.
pub fn lost_sets(shape: &Shape, most: usize) -> Vec<Vec<usize>> {
    let per_set = shape.members_per_set();
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    for set in 0..usize::from(shape.sets) {
        let of_set = subsets(per_set, most);
        let with = |lost: &Vec<usize>| {
            let also = of_set.iter().map(|more| more.iter().map(|local| set * per_set + local));
            also.map(|more| lost.iter().copied().chain(more).collect()).collect::<Vec<Vec<usize>>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}
