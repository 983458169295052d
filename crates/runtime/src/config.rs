//! Starting and stopping shards.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;

use crate::arena;
use crate::remote::{Remote, ShardHandle};
use crate::shard::{Shard, ShardSetup, abort_on_panic};
use crate::system;

/// How to start a [`Runtime`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// One shard for each of these cores.
    pub cores: Vec<usize>,
    /// Each shard stays on its core. If false, the scheduler moves them like other threads. This is
    /// right for a single shard beside unknown work.
    pub pinned: bool,
    /// Bytes of the process's buffer arena, rounded up to 4 MiB. A piece of it is pinned, and so
    /// resident, once it has been used. The first runtime of a process decides the size; later ones
    /// share its arena.
    pub arena_bytes: usize,
    /// Operations in one submission. A turn of the loop with more operations submits several times.
    /// Rounded up to a power of two.
    pub ring_entries: u32,
    /// Files and sockets that a ring has registered. I/O on further ones is a little slower.
    pub fixed_files: u32,
    /// How long a shard polls for the completion of a drive operation before it sleeps. Zero never
    /// polls. Zero is right where clients share the cores (`docs/decisions/runtime-loop.md` has the
    /// measurement).
    pub drive_polling: Duration,
    /// Shards can send commands to NVMe namespaces past the block layer, for drives opened with
    /// [`OpenDrive::open_passthrough`](crate::OpenDrive::open_passthrough). Their rings then take
    /// twice the memory.
    pub passthrough: bool,
}

impl Default for Config {
    /// All cores that the process may use, and a 64 MiB arena.
    fn default() -> Self {
        Config {
            cores: system::allowed_cores(),
            pinned: true,
            arena_bytes: 64 << 20,
            ring_entries: 512,
            fixed_files: 1024,
            drive_polling: Duration::ZERO,
            passthrough: false,
        }
    }
}

/// Why the shards could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// [`Config::cores`] is empty.
    #[error("no cores were given to run on")]
    NoCores,
    /// The thread could not be started.
    #[error("cannot start the thread of core {core}: {source}")]
    Thread {
        /// The core.
        core: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// The core does not exist, or this process may not use it.
    #[error("cannot run on core {core}: {source}")]
    Pin {
        /// The core.
        core: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// The kernel refused a ring.
    #[error("the kernel refused an io_uring for core {core}: {source} ({hint})")]
    Ring {
        /// The core.
        core: usize,
        /// The error of the system.
        source: io::Error,
        /// The usual cause of this error.
        hint: &'static str,
    },
    /// The memory of the arena could not be mapped.
    #[error("cannot map a buffer arena of {bytes} bytes: {source}")]
    Arena {
        /// Wanted size.
        bytes: usize,
        /// The error of the system.
        source: io::Error,
    },
}

fn ring_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is switched off: see kernel.io_uring_disabled, or a seccomp filter"
        }
        Some(libc::ENOSYS) => "the kernel was built without io_uring",
        Some(libc::EINVAL) => "Linux 6.1 or later is needed: single issuer and deferred task work",
        Some(libc::ENOMEM) => "not enough memory, or RLIMIT_MEMLOCK is too low",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files",
        _ => "see io_uring_setup(2)",
    }
}

/// The running shards. Dropping the runtime stops them.
#[derive(Debug)]
pub struct Runtime {
    shards: Vec<ShardHandle>,
    passthrough: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Runtime {
    /// Starts a shard for each core and returns when all of them are running.
    ///
    /// # Errors
    /// [`StartError`]; the shards that were already started are stopped.
    pub fn start(config: Config) -> Result<Runtime, StartError> {
        if config.cores.is_empty() {
            return Err(StartError::NoCores);
        }
        abort_on_panic();
        let bytes = config.arena_bytes;
        let arena = arena::process_arena(bytes).map_err(|source| StartError::Arena { bytes, source })?;
        let mut runtime = Runtime { shards: Vec::new(), passthrough: config.passthrough, threads: Vec::new() };
        for (index, &core) in config.cores.iter().enumerate() {
            let remote = Remote::new(index, core).map_err(|source| StartError::Thread { core, source })?;
            let remote = Arc::new(remote);
            let setup = ShardSetup {
                pinned: config.pinned,
                ring_entries: config.ring_entries,
                fixed_files: config.fixed_files,
                arena,
                drive_polling: config.drive_polling,
                passthrough: config.passthrough,
            };
            let (started, wait) = mpsc::channel();
            let thread = std::thread::Builder::new()
                .name(format!("shard-{index}"))
                .spawn({
                    let remote = remote.clone();
                    move || shard_thread(remote, &setup, &started)
                })
                .map_err(|source| StartError::Thread { core, source })?;
            runtime.threads.push(thread);
            // A thread always answers: it does so before it runs anything that may panic.
            wait.recv().expect("the thread says how its start went")?;
            runtime.shards.push(ShardHandle::new(remote));
        }
        Ok(runtime)
    }

    /// All shards, by index.
    pub fn shards(&self) -> &[ShardHandle] {
        &self.shards
    }

    /// One shard.
    ///
    /// # Panics
    /// If there is no shard of this index.
    pub fn shard(&self, index: usize) -> &ShardHandle {
        &self.shards[index]
    }

    /// Whether its shards access drives by pass-through: [`Config::passthrough`].
    pub fn passthrough(&self) -> bool {
        self.passthrough
    }

    /// Ends the loops and waits for their threads. The owners of tasks must tell them to finish
    /// before: the remaining tasks are dropped where they wait. Operations in flight are canceled
    /// or waited for.
    pub fn stop(mut self) {
        self.stop_all();
    }

    fn stop_all(&mut self) {
        for shard in &self.shards {
            shard.stop();
        }
        for thread in self.threads.drain(..) {
            // A panicking task aborts the process, so a thread ends only by returning.
            let _ = thread.join();
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop_all();
    }
}

fn shard_thread(remote: Arc<Remote>, setup: &ShardSetup, started: &mpsc::Sender<Result<(), StartError>>) {
    let core = remote.core();
    let pinned = if setup.pinned { system::pin_to_core(core) } else { Ok(()) };
    let shard = pinned.map_err(|source| StartError::Pin { core, source }).and_then(|()| {
        Shard::new(remote, setup).map_err(|source| {
            let hint = ring_hint(&source);
            StartError::Ring { core, source, hint }
        })
    });
    match shard {
        Ok(shard) => {
            // The thread that starts the shard waits for it.
            let _ = started.send(Ok(()));
            shard.run();
        }
        Err(error) => {
            let _ = started.send(Err(error));
        }
    }
}
