//! Shared by the tests: an engine on shards, with a clock that the test sets and drives that it can
//! damage.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::*;
use daemon::http::{ControlError, GroupControl};
use daemon::{Engine, WallClock};
use runtime::{Config, Runtime};

/// The time at which the groups of the tests are made, in seconds since 1970.
pub const START: u64 = 1_700_000_000;

pub const DAY: u64 = 86_400;

/// The time limit for an event that is sure to come, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A directory with an engine's state and its drives, as files. It outlives engines.
pub struct Bench {
    pub directory: PathBuf,
    runtime: Runtime,
    now: Arc<AtomicU64>,
}

impl Bench {
    pub fn new() -> Bench {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("purlin-engine-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let config = Config { arena_bytes: 16 << 20, ..Config::default() };
        let cores = config.cores.iter().copied().cycle().take(2).collect();
        let runtime = Runtime::start(Config { cores, ..config }).unwrap();
        Bench { directory, runtime, now: Arc::new(AtomicU64::new(START)) }
    }

    /// An engine with the state that the engine before it left.
    pub async fn engine(&self) -> Arc<Engine> {
        let now = self.now.clone();
        let clock = WallClock::new(move || now.load(Ordering::Relaxed));
        let engine = Engine::with_clock(&self.runtime, &self.directory.join("state"), clock).await.unwrap();
        engine.start_remembered().await.unwrap();
        engine
    }

    pub fn set_time(&self, unix_s: u64) {
        self.now.store(unix_s, Ordering::Relaxed);
    }

    pub fn drive(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// An address for an export. It is a loopback address of its own, since a port that is free now
    /// may belong to a client a moment later.
    pub fn address(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        format!("127.{}.{}.{number}:4420", 1 + process % 250, process / 250 % 250)
    }

    /// A request for a group over new files.
    pub fn request(&self, name: &str, level: Level, members: usize) -> GroupCreate {
        let drives: Vec<String> = (0..members).map(|index| self.drive(&format!("{name}-{index}"))).collect();
        let request = serde_json::json!({
            "name": name, "level": level, "drives": drives, "create_files_bytes": 64 << 20, "strip_bytes": 16 << 10,
        });
        serde_json::from_value(request).unwrap()
    }

    pub async fn create(&self, engine: &Engine, request: GroupCreate) -> Group {
        self.try_create(engine, request).await.unwrap()
    }

    pub async fn try_create(&self, engine: &Engine, request: GroupCreate) -> Result<Group, ControlError> {
        request.validate().unwrap();
        let shape = shape_of(&request);
        Ok(engine.group_create(request, shape).await?.object.unwrap())
    }

    /// Changes 4 KiB of a drive without the engine's knowledge.
    pub fn rot(&self, drive: &str, offset: u64) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(self.drive(drive)).unwrap();
        file.write_all_at(&[0xA5; 4096], offset).unwrap();
    }
}

/// The shape that a request for a group asks for.
pub fn shape_of(request: &GroupCreate) -> format::Shape {
    let level = request.level.to_string().parse::<format::Level>().unwrap();
    let members = request.drives.len() as u16;
    format::Shape::of(level, members).strip_bytes(request.strip_bytes.unwrap() as u32).build().unwrap()
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Stops an engine in order, and releases its state directory.
pub async fn end(engine: Arc<Engine>) {
    engine.stop().await;
    // A task that looks for drives holds the engine until its look is done.
    let left = Arc::downgrade(&engine);
    drop(engine);
    let began = Instant::now();
    while left.strong_count() > 0 {
        assert!(began.elapsed() < PATIENCE, "somebody still has it");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs the maintenance of groups until `there` is true.
pub async fn until(engine: &Engine, group: &str, there: impl Fn(&Group) -> bool) -> Group {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        engine.look_after_groups().await;
        let seen = engine.group(group).await.unwrap();
        if there(&seen) {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not come to that: {:#?}", engine.group(group).await.unwrap());
}

pub async fn scrub(engine: &Engine, group: &str, action: ScrubAction, repair: bool) -> Result<Scrub, ControlError> {
    engine.scrub(group, ScrubRequest { action, repair }).await
}

pub async fn set(engine: &Engine, group: &str, update: GroupUpdate) -> Changed<Group> {
    update.validate().unwrap();
    engine.group_update(group, update).await.unwrap()
}

/// The last scrub job.
pub fn scrub_job(group: &Group) -> Option<&Job> {
    group.jobs.iter().rfind(|job| job.kind == JobKind::Scrub)
}
