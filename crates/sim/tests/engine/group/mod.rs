//! A drive group in simulation, on one or several shards, beside a model that knows every byte.

use std::cell::RefCell;
use std::rc::Rc;

use array::{Array, DriveId, Event, MemberIndex, Message, NewGroup, Peers, Place, assemble, create, load};
use drive::{BlockError, Buf, BufMut, Drive, Env, WriteZeroes, join_all};
use format::{BLOCK, Level, MemberState, Shape, Superblock, Uuid, superblock_offsets};
use sim::{Counts, Rng, Sim, SimDrive, SimEnv};

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;

/// The seeds of a test that draws at random: `usual` of them, unless the environment says otherwise.
pub fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    if let Some(seed) = number("PURLIN_SIM_SEED") {
        return seed..seed + 1;
    }
    0..number("PURLIN_SIM_SEEDS").unwrap_or(usual)
}

/// Delivers each message by a task of its own: the executor draws the order.
struct SimPeers {
    env: SimEnv,
    arrays: Rc<RefCell<Vec<Array<SimEnv>>>>,
}

impl Peers for SimPeers {
    fn send(&self, to: usize, message: Message) {
        let arrays = self.arrays.clone();
        self.env.spawn(async move {
            let array = arrays.borrow()[to].clone();
            array.deliver(message);
        });
    }
}

/// A group and everything around it.
pub struct Group {
    pub env: SimEnv,
    pub drives: Vec<SimDrive>,
    pub shards: Vec<Array<SimEnv>>,
    pub events: Rc<RefCell<Vec<Event>>>,
}

pub fn shape(
    level: Level,
    members: u16,
    parity: Option<u8>,
    copies: Option<u8>,
    sets: Option<u16>,
    strip: u64,
) -> Shape {
    Shape::new(level, members, parity, copies, sets, strip as u32).expect("a valid shape")
}

/// Every level, on few drives.
pub fn every_level(strip: u64) -> Vec<Shape> {
    vec![
        shape(Level::Raid0, 3, None, None, None, strip),
        shape(Level::Raid1, 2, None, None, None, strip),
        shape(Level::Raid1, 4, None, None, None, strip),
        shape(Level::Raid10, 4, None, None, None, strip),
        shape(Level::Raid10, 6, None, Some(3), None, strip),
        shape(Level::Raid5, 3, None, None, None, strip),
        shape(Level::Raid5, 5, None, None, None, strip),
        shape(Level::Raid6, 4, None, None, None, strip),
        shape(Level::Raid6, 6, None, None, None, strip),
        shape(Level::Raid7, 6, None, None, None, strip),
        shape(Level::Nm, 8, Some(4), None, None, strip),
        shape(Level::Raid50, 6, None, None, Some(2), strip),
        shape(Level::Raid60, 8, None, None, Some(2), strip),
    ]
}

pub fn uuid(rng: &mut Rng) -> Uuid {
    let mut bytes = [0; 16];
    rng.fill(&mut bytes);
    Uuid::from_random(bytes)
}

pub fn new_drives(sim: &Sim, count: usize, bytes: u64, sector: u32) -> Vec<SimDrive> {
    (0..count).map(|index| SimDrive::new(&sim.env(), &format!("d{index}"), bytes, sector)).collect()
}

impl Group {
    /// A new group of `shape`, with spares after the members, on `shards` shards.
    pub fn create(sim: &Sim, shape: Shape, drives: Vec<SimDrive>, shards: usize) -> Group {
        let mut rng = sim.rng();
        let new = NewGroup {
            array: uuid(&mut rng),
            name: "tank".into(),
            shape,
            drives: drives.iter().map(|_| uuid(&mut rng)).collect(),
            created_unix_s: 1,
        };
        sim.block_on(create::<SimEnv>(&new, &drives)).expect("the drives are fine");
        Group::open(sim, drives, shards)
    }

    /// Assembles the group that is on `drives`.
    pub fn open(sim: &Sim, drives: Vec<SimDrive>, shards: usize) -> Group {
        sim.block_on(Group::open_async(sim.env(), drives, shards))
    }

    pub async fn open_async(env: SimEnv, drives: Vec<SimDrive>, shards: usize) -> Group {
        let assembly = assemble(&drives).await.expect("enough members");
        let events = Rc::new(RefCell::new(Vec::new()));
        let heard = events.clone();
        let listener = Box::new(move |event| heard.borrow_mut().push(event));
        let loaded = load(&env, &assembly, &drives, listener).await.expect("readable members");
        let arrays = Rc::new(RefCell::new(Vec::new()));
        let peers = Rc::new(SimPeers { env: env.clone(), arrays: arrays.clone() });
        let leader = loaded.lead(env.clone(), drives.clone(), shards, peers.clone());
        arrays.borrow_mut().push(leader);
        for shard in 1..shards {
            let place = Place { shard, shards };
            let array = Array::follow(env.clone(), loaded.shared.clone(), drives.clone(), place, peers.clone());
            arrays.borrow_mut().push(array);
        }
        let shards: Vec<Array<SimEnv>> = arrays.borrow().clone();
        shards[0].start(loaded.needs_resync);
        Group { env, drives, shards, events }
    }

    pub fn leader(&self) -> &Array<SimEnv> {
        &self.shards[0]
    }

    pub fn size(&self) -> u64 {
        self.leader().size_bytes()
    }

    /// What all drives were asked since the last call.
    pub fn take_counts(&self) -> Counts {
        let mut sum = Counts::default();
        for drive in &self.drives {
            let counts = drive.take_counts();
            sum.reads += counts.reads;
            sum.writes += counts.writes;
            sum.flushes += counts.flushes;
            sum.read_bytes += counts.read_bytes;
            sum.write_bytes += counts.write_bytes;
            sum.zeroes += counts.zeroes;
            sum.discards += counts.discards;
        }
        sum
    }

    /// Waits until no rebuild or scrub is under way.
    pub async fn jobs_end(&self) {
        while self.leader().status().jobs.iter().any(|job| job.ended.is_none()) {
            self.env.sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub async fn stop(self) -> Vec<SimDrive> {
        for shard in self.shards.iter().rev() {
            shard.stop().await.expect("the group can be made durable");
        }
        self.drives
    }

    /// Cuts the power of everything and assembles what is left.
    pub fn power_cut(self, sim: &Sim) -> Group {
        let shards = self.shards.len();
        let drives = self.cut(sim);
        Group::open(sim, drives, shards)
    }

    /// Cuts the power of everything.
    pub fn cut(self, sim: &Sim) -> Vec<SimDrive> {
        sim.power_cut();
        self.drives.iter().map(SimDrive::reopen).collect()
    }

    pub fn state(&self, member: usize) -> MemberState {
        self.leader().shared().slot(MemberIndex(member as u16)).state
    }

    /// The drive in a member's place.
    pub fn member(&self, member: usize) -> &SimDrive {
        &self.drives[usize::from(self.leader().shared().slot(MemberIndex(member as u16)).drive.0)]
    }

    pub fn all_in_sync(&self) -> bool {
        self.leader().shared().slots().all(|(_, slot)| slot.state == MemberState::InSync)
    }

    /// Makes a drive known to every shard.
    pub fn install(&mut self, drive: SimDrive) -> DriveId {
        let id = self.leader().shared().new_drive();
        assert_eq!(usize::from(id.0), self.drives.len(), "a drive's index is its place in the list");
        for shard in &self.shards {
            shard.install(id, drive.clone());
        }
        self.drives.push(drive);
        id
    }

    /// Compares everything and gives the number of differences. Everything can be compared.
    pub async fn differences(&self) -> u64 {
        self.jobs_end().await;
        assert!(self.leader().start_scrub(array::ScrubMode::Report), "no scrub is under way");
        self.jobs_end().await;
        let jobs = self.leader().status().jobs;
        let job = jobs.last().expect("a scrub was started");
        assert_eq!((job.unchecked, &job.failure), (0, &None), "everything can be compared");
        job.found
    }
}

/// The superblock at the head of a drive.
pub fn superblock(drive: &SimDrive) -> Superblock {
    let [head, _] = superblock_offsets(drive.info().size_bytes);
    Superblock::decode(&drive.read_raw(head, BLOCK as u64)).expect("the drive is a member")
}

/// Reads everything with each of some sets of members left out, `most` of them, drawn at random. The group was stopped
/// in order; nothing on the drives changes.
pub fn verify_without_members(sim: &Sim, drives: &[SimDrive], shape: Shape, model: &Model, rng: &mut Rng, most: usize) {
    let mut sets = subsets(usize::from(shape.members).min(12), shape.survives());
    sets.retain(|set| set.len() == shape.survives());
    rng.shuffle(&mut sets);
    for lost in sets.into_iter().take(most) {
        let left: Vec<SimDrive> =
            (0..drives.len()).filter(|index| !lost.contains(index)).map(|index| drives[index].clone()).collect();
        let group = Group::open(sim, left, 1);
        sim.block_on(verify(&group, model, rng));
        sim.block_on(group.stop());
    }
}

/// What the group should hold.
pub struct Model {
    pub bytes: Vec<u8>,
}

impl Model {
    pub fn new(size: u64) -> Model {
        Model { bytes: vec![0; size as usize] }
    }
}

/// A range of mixed size and alignment: bytes, sectors, blocks, strips, stripes and units.
pub fn any_range(rng: &mut Rng, size: u64, stripe: u64, unit: u64) -> (u64, u64) {
    let grain = *rng.pick(&[1, 512, 512, 4096, 4096, 4096, stripe, unit]);
    if grain == unit {
        return (rng.below(size / unit) * unit, unit);
    }
    let longest = *rng.pick(&[grain, 4 * grain, stripe, 3 * stripe]);
    let start = rng.below(size) / grain * grain;
    let len = (1 + rng.below(longest.div_ceil(grain))) * grain;
    (start, len.min(size - start))
}

/// Runs `rounds` rounds of up to `width` requests at the same time, on disjoint ranges, and checks every answer.
pub async fn work(group: &Group, model: &mut Model, rng: &mut Rng, rounds: usize, width: usize) {
    let size = group.size();
    let geometry = &group.leader().shared().geometry;
    let (stripe, unit) = (geometry.stripe_data(), geometry.stripe_data() * geometry.rows() * geometry.sets);
    for _ in 0..rounds {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for _ in 0..width {
            let (start, len) = any_range(rng, size, stripe, unit);
            if ranges.iter().all(|&(other, other_len)| start + len <= other || other + other_len <= start) {
                ranges.push((start, len));
            }
        }
        let requests = ranges.into_iter().map(|(start, len)| {
            let array = rng.pick(&group.shards).clone();
            let kind = rng.below(20);
            let expected = model.bytes[start as usize..(start + len) as usize].to_vec();
            let mut new = vec![0; len as usize];
            if kind < 10 {
                rng.fill(&mut new);
            }
            if kind < 14 {
                model.bytes[start as usize..(start + len) as usize].copy_from_slice(&new);
            }
            async move { request(&array, kind, start, len, expected, new).await }
        });
        let requests: Vec<_> = requests.collect();
        for result in join_all(requests).await {
            result.expect("no more members are lost than the level survives");
        }
    }
}

async fn request(
    array: &Array<SimEnv>,
    kind: u64,
    start: u64,
    len: u64,
    expected: Vec<u8>,
    new: Vec<u8>,
) -> Result<(), BlockError> {
    match kind {
        0..10 => array.write(start, Buf::from(new), kind == 0).await,
        10..12 => array.discard(start, len).await,
        12..14 => {
            let how = WriteZeroes { keep_allocated: kind == 12, ..WriteZeroes::default() };
            array.write_zeroes(start, len, how).await
        }
        14 => array.flush().await,
        _ => {
            let read = array.read(start, BufMut::zeroed(len as usize)).await?;
            same(&read, &expected, start);
            Ok(())
        }
    }
}

/// Reads everything, on a shard of the seed's choice, and compares.
pub async fn verify(group: &Group, model: &Model, rng: &mut Rng) {
    let size = group.size();
    let mut at = 0;
    while at < size {
        let len = (64 * KIB).min(size - at);
        let array = rng.pick(&group.shards);
        let read = array.read(at, BufMut::zeroed(len as usize)).await.expect("everything can be read");
        same(&read, &model.bytes[at as usize..(at + len) as usize], at);
        at += len;
    }
}

pub fn same(read: &[u8], expected: &[u8], start: u64) {
    if let Some(at) = (0..expected.len()).find(|&at| read[at] != expected[at]) {
        let wrong = (0..expected.len()).filter(|&at| read[at] != expected[at]).count();
        panic!(
            "byte {} is {:#x} instead of {:#x}; {wrong} of {} bytes of the read at {start} are wrong",
            start + at as u64,
            read[at],
            expected[at],
            expected.len()
        );
    }
}

/// Runs two things at the same time.
pub async fn both(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let futures: [std::pin::Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(one), Box::pin(other)];
    join_all(futures).await;
}

/// Every set of up to `most` of `count` things.
pub fn subsets(count: usize, most: usize) -> Vec<Vec<usize>> {
    (0u64..1 << count)
        .filter(|set| set.count_ones() as usize <= most)
        .map(|set| (0..count).filter(|index| set & 1 << index != 0).collect())
        .collect()
}
