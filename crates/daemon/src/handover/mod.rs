//! Replacing the daemon while clients keep coming: its listening sockets go from one process to the
//! next.
//!
//! ```text
//!              upgrade                                     restart by a service manager
//!   old: stops groups, keeps sockets                old: stores sockets when they are bound (FDSTORE=1)
//!        executes the program, same pid                  stops groups, ends
//!   new: takes sockets by name (LISTEN_FDS)         new: takes sockets by name (LISTEN_FDS)
//!        starts groups, serves                           starts groups, serves
//! ```
//!
//! Invariants:
//! 1. A socket that listens is held here under a name, from the moment when it is bound until
//!    nobody shall come there any more. So it listens on while its listener is gone, and whoever
//!    connects waits.
//! 2. A socket that was given is used only if its name, type and address, and the file of a Unix
//!    socket, are those that are asked for. If not it is shut down, for those who wait there would
//!    wait for ever.
//! 3. Nothing is stopped for a program that cannot take over, as far as that can be known. If it
//!    cannot be executed in the end, this one is executed again.

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

/// Version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What this process got from the one before and leaves to the next.
pub struct Handover {
    sockets: Mutex<Sockets>,
    upgrade: Mutex<Upgrade>,
    /// When the upgrade stopped taking connections, in microseconds of `CLOCK_MONOTONIC`.
    since_us: Mutex<Option<u64>>,
    /// Somebody asked for an upgrade.
    asked: Notify,
    manager: Option<Manager>,
    /// Where this program was started from.
    program: PathBuf,
}

#[derive(Default)]
struct Sockets {
    /// Given and not taken yet, with the names of their descriptors.
    given: Vec<(String, OwnedFd)>,
    /// In use, by their own names, with the names of their descriptors.
    held: BTreeMap<String, (Option<String>, OwnedFd)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while a lock is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handover {
    /// Of a process that was given nothing, and has no service manager.
    pub fn alone() -> Handover {
        Handover {
            sockets: Mutex::default(),
            upgrade: Mutex::default(),
            since_us: Mutex::default(),
            asked: Notify::new(),
            manager: None,
            program: program::own_path(),
        }
    }

    /// What this process was started with, as its environment says it.
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

    /// The socket of this name, if it was given and is what is asked for.
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

    /// Keeps a socket that was bound under a name, for whoever comes next.
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

    /// Nobody shall come there any more.
    pub fn forget(&self, socket: &str) {
        let held = lock(&self.sockets).held.remove(socket);
        if let (Some(manager), Some((Some(name), _))) = (&self.manager, held) {
            manager.remove(&name);
        }
    }

    /// Closes what was given and is of no use, once all that is served now has been started.
    pub fn drop_unused(&self) {
        let unused = std::mem::take(&mut lock(&self.sockets).given);
        for (name, fd) in unused {
            tracing::info!(name, "a socket that was passed is not used, and closed");
            self.unstore(&name);
            // One that has the name of another may be the same socket.
            let is_used = lock(&self.sockets).held.values().any(|(held, _)| held.as_ref() == Some(&name));
            if !is_used {
                shut(fd);
            }
        }
    }

    /// Has the service manager close what it has under a name, but for a socket that is in use.
    fn unstore(&self, name: &str) {
        let Some(manager) = &self.manager else { return };
        manager.remove(name);
        for (_, fd) in lock(&self.sockets).held.values().filter(|(held, _)| held.as_deref() == Some(name)) {
            manager.store(name, fd.as_fd());
        }
    }

    /// Whether sockets outlive what is served now: they listen on, and their files stay.
    pub fn keeps(&self) -> bool {
        self.manager.is_some() || self.is_upgrade()
    }

    /// Whether what is served now ends because another program takes this one's place.
    pub fn is_upgrade(&self) -> bool {
        lock(&self.upgrade).state == UpgradeState::Running
    }

    /// How an upgrade stands.
    pub fn upgrade(&self) -> Upgrade {
        lock(&self.upgrade).clone()
    }

    /// Has the daemon replaced by a program, once it was looked at.
    ///
    /// # Errors
    /// If the program cannot take over, or an upgrade is under way.
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
        self.asked.notify_one();
        Ok(Changed::done(steps, upgrade.clone()))
    }

    /// Waits for an upgrade that is asked for.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// From now on nobody is served.
    pub fn begin(&self) {
        let now_us = monotonic_us();
        *lock(&self.since_us) = Some(now_us);
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// Executes the program that was planned, in the place of this process, and if that fails this
    /// program again. Returns only if that fails, too: then the sockets are there to be taken
    /// again. To be called when everything has stopped.
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

    /// Executes a program with sockets, and with what it has to know of the upgrade to `program`.
    /// Returns only if that fails, with the reason.
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

    /// Everything is served: an upgrade, if there was one, is over.
    pub fn ready(&self) {
        if let Some(since_us) = lock(&self.since_us).take() {
            let pause_us = monotonic_us().saturating_sub(since_us);
            let mut upgrade = lock(&self.upgrade);
            upgrade.pause_us = Some(pause_us);
            upgrade.state = if upgrade.message.is_some() { UpgradeState::Failed } else { UpgradeState::Done };
            let (from, to) = (upgrade.from_version.as_deref(), upgrade.to_version.as_deref());
            tracing::info!(from, to, pause_us, failed = upgrade.message, "upgrade is over");
        }
        self.tell("READY=1");
    }

    /// The daemon ends.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, lines: &str) {
        if let Some(manager) = &self.manager {
            manager.tell(lines);
        }
    }
}

/// Ends a listening socket for all who have it, and for those who wait there.
fn shut(fd: OwnedFd) {
    let socket = TcpStream::from(fd);
    // It may be no socket at all, or not one that listens.
    let _: io::Result<()> = socket.shutdown(Shutdown::Both);
}
