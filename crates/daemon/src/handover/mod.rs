//! Replaces the daemon while clients keep connecting: its listening sockets pass from one process
//! to the next.
//!
//! ```text
//!              upgrade                              restart by a service manager
//!   old: stops groups, keeps sockets         old: stores sockets when they are bound (FDSTORE=1)
//!        executes the program, same pid           stops groups, ends
//!   new: takes sockets by name (LISTEN_FDS)  new: takes sockets by name (LISTEN_FDS)
//!        starts groups, serves                    starts groups, serves
//! ```
//!
//! Invariants:
//! 1. A listening socket is held here under a name, from its bind until clients are no longer
//!    wanted there. So it keeps listening while its listener is gone, and clients that connect
//!    wait.
//! 2. A passed socket is used only if its name, type, address and, for a Unix socket, its file
//!    match the request. Otherwise it is shut down, because clients that wait there would wait for
//!    ever.
//! 3. Nothing is stopped for a program that cannot take over, as far as that can be checked. If its
//!    execution fails in the end, this program is executed again.

mod inherit;
mod manager;
mod program;

use std::collections::BTreeMap;
use std::env;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{Changed, ErrorCode, Upgrade, UpgradeRequest, UpgradeState};
use runtime::{Bound, DefaultSignals, ListenOn, inherited, monotonic_us, replace_process};
use tokio::sync::Notify;

use crate::http::{Answer, ControlError};
use crate::log_writer::flush_log;
use inherit::{Arrival, Failed, InheritError, LISTEN_FDNAMES, LISTEN_FDS, LISTEN_PID, UPGRADE};
use manager::{Manager, NOTIFY_SOCKET};

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The state that this process received from the previous one and passes to the next.
pub struct Handover {
    sockets: Mutex<Sockets>,
    upgrade: Mutex<Upgrade>,
    /// When the upgrade stopped accepting connections, in microseconds of `CLOCK_MONOTONIC`.
    since_us: Mutex<Option<u64>>,
    /// Notified when an upgrade is requested.
    requested: Notify,
    manager: Option<Manager>,
    /// The path from which this program was started.
    program: PathBuf,
}

#[derive(Default)]
struct Sockets {
    /// Passed and not taken yet, with the names of their descriptors.
    given: Vec<(String, OwnedFd)>,
    /// In use, by their own names, with the names of their descriptors.
    held: BTreeMap<String, (Option<String>, OwnedFd)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds a lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handover {
    /// The state of a process that was passed nothing, and has no service manager.
    pub fn alone() -> Handover {
        Handover {
            sockets: Mutex::default(),
            upgrade: Mutex::default(),
            since_us: Mutex::default(),
            requested: Notify::new(),
            manager: None,
            program: program::own_path(),
        }
    }

    /// The state that was passed to this process in its environment.
    pub fn inherited() -> Handover {
        let variable = |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let pid = std::process::id();
        let [for_pid, count, names] = [LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES].map(variable);
        let given = match inherit::names(pid, for_pid.as_deref(), count.as_deref(), names.as_deref()) {
            Ok(names) => {
                let descriptors = inherited(names.len());
                names.into_iter().zip(descriptors).filter_map(|(name, fd)| Some((name, fd?))).collect()
            }
            Err(error) => {
                tracing::warn!(%error, "the sockets that were passed are not used");
                if let InheritError::Names { count, .. } = error {
                    drop(inherited(count));
                }
                Vec::new()
            }
        };
        let manager = env::var_os(NOTIFY_SOCKET).and_then(|address| {
            let connected = Manager::connect(&address);
            connected.inspect_err(|error| tracing::warn!(?address, %error, "the service manager is not told")).ok()
        });
        let arrival = Arrival::parse(pid, variable(UPGRADE).as_deref());
        let failed = arrival.as_ref().and_then(|arrival| arrival.failed.as_ref());
        let upgrade = arrival.as_ref().map(|arrival| Upgrade {
            state: UpgradeState::Running,
            program: Some(arrival.program.clone()),
            from_version: Some(arrival.from_version.clone()),
            to_version: failed.map_or(Some(VERSION.to_owned()), |failed| failed.to_version.clone()),
            pause_us: None,
            message: failed.map(|failed| failed.message.clone()),
        });
        Handover {
            sockets: Mutex::new(Sockets { given, held: BTreeMap::new() }),
            upgrade: Mutex::new(upgrade.unwrap_or_default()),
            since_us: Mutex::new(arrival.as_ref().map(|arrival| arrival.since_us)),
            manager,
            program: if failed.is_some() { program::own_path_again() } else { program::own_path() },
            ..Handover::alone()
        }
    }

    /// The socket of this name, if it was passed and matches the request.
    pub fn take(&self, socket: &str, on: &ListenOn) -> Option<Bound> {
        let name = inherit::descriptor_name(socket, on)?;
        loop {
            let fd = {
                let mut sockets = lock(&self.sockets);
                let index = sockets.given.iter().position(|(given, _)| *given == name)?;
                sockets.given.remove(index).1
            };
            let taken = fd.try_clone().map(|second| (Bound::given(fd, on.clone()), second));
            match taken {
                Ok((Ok(bound), second)) => {
                    lock(&self.sockets).held.insert(socket.to_owned(), (Some(name), second));
                    return Some(bound);
                }
                Ok((Err(error), second)) => {
                    tracing::warn!(name, %error, "a socket that was passed is not what its name says, and is closed");
                    shut(second);
                }
                Err(error) => tracing::warn!(name, %error, "a socket that was passed cannot be kept, and is closed"),
            }
            self.unstore(&name);
        }
    }

    /// Holds a bound socket under a name, for the next process.
    pub fn hold(&self, socket: &str, bound: &Bound) {
        let second = match bound.as_fd().try_clone_to_owned() {
            Ok(second) => second,
            Err(error) => {
                tracing::warn!(socket, %error, "a socket cannot be kept: an upgrade or restart binds it anew");
                return;
            }
        };
        let name = inherit::descriptor_name(socket, bound.on());
        match (&self.manager, &name) {
            (Some(manager), Some(name)) => manager.store(name, second.as_fd()),
            (_, None) => tracing::warn!(socket, "a socket has no usable name: an upgrade or restart binds it anew"),
            (None, Some(_)) => {}
        }
        lock(&self.sockets).held.insert(socket.to_owned(), (name, second));
    }

    /// Stops holding a socket: clients are no longer wanted there.
    pub fn forget(&self, socket: &str) {
        let held = lock(&self.sockets).held.remove(socket);
        if let (Some(manager), Some((Some(name), _))) = (&self.manager, held) {
            manager.remove(&name);
        }
    }

    /// Closes passed sockets that are not used. Called after all listeners were started.
    pub fn drop_unused(&self) {
        let unused = std::mem::take(&mut lock(&self.sockets).given);
        for (name, fd) in unused {
            tracing::info!(name, "a socket that was passed is not used, and closed");
            self.unstore(&name);
            // A socket with the same name as a held one may be the same socket.
            let is_used = lock(&self.sockets).held.values().any(|(held, _)| held.as_ref() == Some(&name));
            if !is_used {
                shut(fd);
            }
        }
    }

    /// Has the service manager close its sockets of a name, except one that is in use.
    fn unstore(&self, name: &str) {
        let Some(manager) = &self.manager else { return };
        manager.remove(name);
        for (_, fd) in lock(&self.sockets).held.values().filter(|(held, _)| held.as_deref() == Some(name)) {
            manager.store(name, fd.as_fd());
        }
    }

    /// Whether sockets outlive the current service: they keep listening, and their files stay.
    pub fn keeps(&self) -> bool {
        self.manager.is_some() || self.is_upgrade()
    }

    /// Whether the service ends because another program replaces this one.
    pub fn is_upgrade(&self) -> bool {
        lock(&self.upgrade).state == UpgradeState::Running
    }

    /// The state of the upgrade.
    pub fn upgrade(&self) -> Upgrade {
        lock(&self.upgrade).clone()
    }

    /// Plans the replacement of the daemon by a program, after checking it.
    ///
    /// # Errors
    /// If the program cannot take over, or an upgrade is in progress.
    pub async fn plan(&self, request: UpgradeRequest) -> Answer<Changed<Upgrade>> {
        let program = request.program.map_or_else(|| self.program.clone(), PathBuf::from);
        let checked = program.clone();
        let checking = tokio::task::spawn_blocking(move || program::check(&checked));
        let version = checking
            .await
            .map_err(|error| ControlError::new(ErrorCode::Internal, format!("the check broke down: {error}")))??;
        let Some(shown) = program.to_str().map(str::to_owned) else {
            let why = format!("cannot upgrade to {}: its path is not text", program.display());
            return Err(ControlError::new(ErrorCode::Invalid, why));
        };
        let steps = vec![
            "end all connections and stop all groups, in order".to_owned(),
            format!("execute {shown}, purlind {version}, in the place of purlind {VERSION}; its sockets listen on"),
        ];
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        let mut upgrade = lock(&self.upgrade);
        if upgrade.state == UpgradeState::Running {
            return Err(ControlError::new(ErrorCode::WrongState, "an upgrade is under way"));
        }
        *upgrade = Upgrade {
            state: UpgradeState::Running,
            program: Some(shown),
            from_version: Some(VERSION.to_owned()),
            to_version: Some(version),
            pause_us: None,
            message: None,
        };
        self.requested.notify_one();
        Ok(Changed::done(steps, upgrade.clone()))
    }

    /// Waits until an upgrade is requested.
    pub async fn requested(&self) {
        self.requested.notified().await;
    }

    /// Starts the pause of an upgrade: from now on no client is served.
    pub fn begin(&self) {
        let now_us = monotonic_us();
        *lock(&self.since_us) = Some(now_us);
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// Executes the planned program in place of this process, or this program again if that fails.
    /// Returns only if both fail: then the sockets can be taken again. Must be called after
    /// everything has stopped.
    pub fn replace(&self, signals: DefaultSignals) {
        let upgrade = self.upgrade();
        let program = upgrade.program.unwrap_or_default();
        let held = std::mem::take(&mut lock(&self.sockets).held);
        let given: Vec<(String, OwnedFd)> = held.into_values().filter_map(|(name, fd)| Some((name?, fd))).collect();
        let error = self.execute(Command::new(&program), &program, None, &given);
        tracing::error!(program, %error, "cannot be executed: purlind {VERSION} is executed again");
        let message = format!("{program} cannot be executed: {error}");
        let failed = Failed { message: message.clone(), to_version: upgrade.to_version };
        let error = self.execute(program::again(&self.program), &program, Some(failed), &given);
        drop(signals);
        tracing::error!(%error, "purlind {VERSION} cannot be executed either: everything is started again in this process");
        lock(&self.sockets).given = given;
        lock(&self.upgrade).message = Some(message);
    }

    /// Executes a program with sockets and with the message about the upgrade to `program`. Returns
    /// only if that fails, with the reason.
    fn execute(
        &self,
        mut command: Command,
        program: &str,
        failed: Option<Failed>,
        sockets: &[(String, OwnedFd)],
    ) -> io::Error {
        let pid = std::process::id();
        let since_us = lock(&self.since_us).unwrap_or_else(monotonic_us);
        let (from_version, program) = (VERSION.to_owned(), program.to_owned());
        let arrival = Arrival { pid, since_us, from_version, program, failed };
        let names: Vec<&str> = sockets.iter().map(|(name, _)| name.as_str()).collect();
        let descriptors: Vec<_> = sockets.iter().map(|(_, fd)| fd.as_fd()).collect();
        command
            .args(env::args_os().skip(1))
            .env(LISTEN_PID, pid.to_string())
            .env(LISTEN_FDS, descriptors.len().to_string())
            .env(LISTEN_FDNAMES, names.join(":"))
            .env(UPGRADE, serde_json::to_string(&arrival).expect("it has string keys only"));
        flush_log();
        replace_process(command, &descriptors)
    }

    /// Reports that everything is served. This ends an upgrade.
    pub fn ready(&self) {
        if let Some(since_us) = lock(&self.since_us).take() {
            let pause_us = monotonic_us().saturating_sub(since_us);
            let mut upgrade = lock(&self.upgrade);
            upgrade.pause_us = Some(pause_us);
            upgrade.state = if upgrade.message.is_some() { UpgradeState::Failed } else { UpgradeState::Done };
            let (from, to) = (upgrade.from_version.as_deref(), upgrade.to_version.as_deref());
            tracing::info!(from, to, pause_us, failed = upgrade.message, "upgrade is over");
        }
        self.notify("READY=1");
    }

    /// Reports that the daemon ends.
    pub fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    fn notify(&self, lines: &str) {
        if let Some(manager) = &self.manager {
            manager.notify(lines);
        }
    }
}

/// Shuts a listening socket down for all processes that have it, and for clients that wait there.
fn shut(fd: OwnedFd) {
    let socket = TcpStream::from(fd);
    // It may not be a socket, or not a listening one.
    let _: io::Result<()> = socket.shutdown(Shutdown::Both);
}
