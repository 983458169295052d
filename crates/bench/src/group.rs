//! A group over memory drives, on the shard that makes it.

use std::rc::Rc;
use std::time::Duration;

use array::{Array, NewGroup, NoPeers, assemble, create, load};
use drive::{Buf, BufMut, Env};
use format::{CrashSafety, Level, Shape, Uuid};
use runtime::{Drive, DriveSpec, OpenDrive, ShardEnv, forget_memory};

/// The strip size of the targets.
const STRIP_BYTES: u32 = 64 << 10;

/// Size of a write that fills whole stripes of any group here.
const FILL_BYTES: u64 = 4 << 20;

/// A group's protection against crashes and damage.
#[derive(Debug, Clone, Copy)]
pub struct Protection {
    /// Whether the log closes the write hole.
    pub crash_safety: CrashSafety,
    /// Whether blocks have checksums.
    pub checksums: bool,
}

impl Protection {
    /// No log, no checksums.
    pub const NONE: Protection = Protection { crash_safety: CrashSafety::Off, checksums: false };
    /// The log alone.
    pub const LOG: Protection = Protection { crash_safety: CrashSafety::On, checksums: false };
    /// As new groups have it.
    pub const LOG_AND_CHECKSUMS: Protection = Protection { crash_safety: CrashSafety::On, checksums: true };
}

/// A group, its drives, and their counters.
pub struct Group {
    /// The group.
    pub array: Array<ShardEnv>,
    /// Its drives.
    pub drives: Vec<Drive>,
    open: Vec<OpenDrive>,
    names: Vec<String>,
}

impl Group {
    /// A new group over `members` memory drives with `bytes` in total.
    ///
    /// # Errors
    /// A sentence.
    pub async fn make(
        name: &str,
        level: Level,
        members: u16,
        bytes: u64,
        protection: Protection,
    ) -> Result<Group, String> {
        let env = ShardEnv::current();
        let size_bytes = ((bytes / u64::from(members)) >> 20) << 20;
        let names: Vec<String> = (0..members).map(|index| format!("{name}-{index}")).collect();
        let (mut drives, mut open) = (Vec::new(), Vec::new());
        for name in &names {
            let spec = DriveSpec::Memory { name: name.clone(), size_bytes };
            let drive = OpenDrive::open(&spec).map_err(|error| error.to_string())?;
            drives.push(env.attach(&drive));
            open.push(drive);
        }
        let uuid = |number: u8| Uuid::from_random([number; 16]);
        let shape = Shape::of(level, members).strip_bytes(STRIP_BYTES).build().map_err(|error| error.to_string())?;
        let new = NewGroup {
            array: uuid(255),
            name: "bench".into(),
            shape,
            crash_safety: protection.crash_safety,
            checksums: protection.checksums,
            drives: (0..members as u8).map(|index| uuid(index + 1)).collect(),
            created_unix_s: 0,
        };
        create::<ShardEnv>(&new, &drives).await.map_err(|error| error.to_string())?;
        let assembly = assemble(&env, &drives).await.map_err(|error| error.to_string())?;
        let loaded = load(&env, &assembly, &drives, None, Box::new(|_| ())).await.map_err(|error| error.to_string())?;
        let array = loaded.lead(env, drives.clone(), 1, Rc::new(NoPeers));
        array.start(loaded.needs_resync).await.map_err(|error| error.to_string())?;
        Ok(Group { array, drives, open, names })
    }

    /// Writes everything once, so that everything is allocated, and every address has memory.
    ///
    /// # Panics
    /// If memory fails.
    pub async fn fill(&self) {
        let mut data = BufMut::zeroed(FILL_BYTES as usize);
        data.fill(0x5a);
        let data = data.freeze();
        let size = self.array.size_bytes();
        let mut at = 0;
        while at < size {
            let len = FILL_BYTES.min(size - at);
            let data: Buf = data.slice(0..len as usize);
            self.array.write(at, data, false).await.expect("memory does not fail");
            at += len;
        }
    }

    /// Discards everything, and waits until the discards have reached the drives.
    ///
    /// # Panics
    /// If memory fails.
    pub async fn empty(&self) {
        self.array.discard(0, self.array.size_bytes()).await.expect("memory does not fail");
        self.array.flush().await.expect("memory does not fail");
        ShardEnv::current().sleep(Duration::from_millis(300)).await;
    }

    /// Reads and writes that all drives have got so far.
    pub fn drive_counts(&self) -> (u64, u64) {
        let stats = self.open.iter().map(OpenDrive::stats);
        stats.fold((0, 0), |(reads, writes), stats| (reads + stats.reads, writes + stats.writes))
    }

    /// Stops the group and frees its memory.
    ///
    /// # Errors
    /// A sentence.
    pub async fn close(self) -> Result<(), String> {
        let Group { array, drives, open, names } = self;
        array.stop().await.map_err(|error| error.to_string())?;
        drop((array, drives, open));
        // Tasks that ended in this turn hold their handles until the turn is over.
        ShardEnv::current().sleep(Duration::from_millis(10)).await;
        match names.iter().find(|name| !forget_memory(name)) {
            None => Ok(()),
            Some(name) => Err(format!("the memory drive {name} is still in use")),
        }
    }
}
