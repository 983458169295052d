//! Shared by the tests: one way to start shards, temporary files, patterns.
#![allow(dead_code, reason = "every test binary uses a part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use drive::BufMut;
use runtime::{Config, DriveSpec, OpenDrive, Runtime};

/// Shards on the cores of this machine, taken in turn where there are fewer.
pub fn start(shards: usize) -> Runtime {
    start_with(shards, false)
}

/// As [`start`], with rings that take NVMe commands.
pub fn start_with(shards: usize, passthrough: bool) -> Runtime {
    let config = Config { arena_bytes: 16 << 20, passthrough, ..Config::default() };
    let cores = config.cores.iter().copied().cycle().take(shards).collect();
    Runtime::start(Config { cores, ..config }).expect("this machine has io_uring")
}

/// A number that is unique in this process.
pub fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A path in a directory. Its file or folder is removed when it is dropped.
pub struct TempPath(pub PathBuf);

impl TempPath {
    pub fn new(directory: &str) -> TempPath {
        TempPath(Path::new(directory).join(format!("purlin-runtime-{}-{}", std::process::id(), unique())))
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The file systems to test on: one on a disk, and tmpfs.
pub fn directories() -> Vec<&'static str> {
    ["/var/tmp", "/dev/shm"].into_iter().filter(|directory| Path::new(directory).is_dir()).collect()
}

pub fn file_drive(directory: &str, size_bytes: u64) -> (TempPath, OpenDrive) {
    let path = TempPath::new(directory);
    runtime::create_file(&path.0, size_bytes).expect("the directory takes a file");
    let open = OpenDrive::open(&DriveSpec::Path(path.0.clone())).expect("a fresh file opens");
    (path, open)
}

pub fn memory_drive(size_bytes: u64) -> OpenDrive {
    let name = format!("test-{}", unique());
    OpenDrive::open(&DriveSpec::Memory { name, size_bytes }).expect("memory is there")
}

/// Bytes that depend on a seed and on their place.
pub fn pattern(seed: u64, len: usize) -> BufMut {
    let mut buf = BufMut::zeroed(len);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in buf.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    buf
}

/// A small generator for tests that want many different cases.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
