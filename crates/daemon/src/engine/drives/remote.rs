//! Drives of other machines: NVMe/TCP namespaces as drives of this daemon.
//!
//! Invariants:
//! 1. This daemon opens a namespace only once, under whichever address. It is recognized by the
//!    identity that it reports.
//! 2. A namespace is opened only when its target no longer executes commands of this daemon, or of
//!    a killed daemon with the same state directory: a late write could overwrite a newer one.
//! 3. Answered writes are durable (`initiator::Namespace` as a drive).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::drive::{BufMut, Drive, DriveError, DriveInfo, Env, Segments, join_all};
use api::{ErrorCode, NvmeDrive};
use initiator::{Address, ConnectError, Known, Namespace, Options, Selection, discover, quiet_time, this_host};
use nvme::DISCOVERY_NQN;
use nvme::auth::{Credentials, Secret};
use nvme::host::HostError;
use nvme::tcp::Digests;
use nvme::tls::TlsKey;
use runtime::{Backend, BackendDrive, OpenDrive, ShardEnv, ShardHandle};
use zeroize::Zeroizing;

use crate::engine::errors::stopping;
use crate::engine::imports::connected::Connected;
use crate::engine::names::Names;
use crate::http::{Answer, ControlError};

/// The longest keep-alive timeout: a target closes a connection on which it received nothing for
/// this long. The timeout is shorter for a drive with a short loss timeout.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(5);

/// After this time no target executes earlier commands any more, however it measures time.
const QUIET_MAX: Duration = quiet_time(KEEP_ALIVE_MAX, true);

/// The timeout of a connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A command that is not answered within this time is aborted. Soon after, its connection is
/// closed.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);

/// The maximum bytes that are read from a secret's file. No secret has more than 103.
const SECRET_BYTES_MAX: u64 = 4096;

/// How often a drive in use is checked for being free.
const LOOK: Duration = Duration::from_millis(20);

/// The file that records that drives of other machines are in use. It remains after a daemon is
/// killed.
const MARK: &str = "remote-drives";

/// The file with this machine's host NQN, if the system has none.
const NAME: &str = "hostnqn";

/// The state of a namespace that is in use.
#[derive(Debug, Default)]
struct Use {
    /// It has no user any more: its connections are being closed.
    closing: AtomicBool,
    /// The number of shards that cannot reach it, for longer than its loss timeout.
    out_of_reach: AtomicUsize,
    /// It was out of reach at some time.
    was_out_of_reach: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    /// By identity.
    used: Mutex<BTreeMap<String, Arc<Use>>>,
    mark: PathBuf,
}

/// The drives of other machines that this daemon uses.
pub(crate) struct Remotes {
    shard: ShardHandle,
    names: Arc<Names>,
    folder: PathBuf,
    shared: Arc<Shared>,
    /// Before this time targets may still execute commands of a killed daemon.
    quiet_from: Instant,
    /// The drives that the last attempt could not reach, by their text, with the reason.
    unreached: Mutex<BTreeMap<String, (ControlError, Instant)>>,
}

/// How long a drive counts as unreachable after a failed attempt. Opening it under the lock for
/// changes fails at once then, instead of waiting again.
const UNREACHED_FOR: Duration = Duration::from_secs(10);

/// Whether a drive can be reached.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reach {
    /// It has been out of reach for longer than its loss timeout.
    pub is_lost: bool,
    /// It was lost at some time since it was opened.
    pub was_lost: bool,
}

/// A namespace in use. It is free after the last claim is dropped.
struct Claim {
    shared: Arc<Shared>,
    identity: String,
    how: Arc<Use>,
}

/// A namespace that was found and claimed, ready to be opened as a drive.
pub(crate) struct Remote {
    known: Known,
    claim: Arc<Claim>,
}

/// The namespace on one shard, with its own connections.
pub(crate) struct Attached {
    env: ShardEnv,
    namespace: Namespace<ShardEnv>,
    claim: Arc<Claim>,
}

impl Shared {
    fn used(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Use>>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut used = self.shared.used();
        used.remove(&self.identity);
        if used.is_empty() {
            // If it cannot be removed, the next daemon waits unnecessarily.
            let _ = std::fs::remove_file(&self.shared.mark);
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.claim.how.closing.store(true, Ordering::Release);
    }
}

impl Remote {
    /// The properties that the namespace reported.
    pub fn known(&self) -> &Known {
        &self.known
    }

    fn attached(&self, env: &ShardEnv) -> Attached {
        let namespace = Namespace::attach(env, &self.known);
        env.spawn(watch(namespace.clone(), self.claim.how.clone()));
        Attached { env: env.clone(), namespace, claim: self.claim.clone() }
    }

    /// Serves it as a block device on the calling shard.
    pub fn connected(&self, env: &ShardEnv) -> Connected {
        Connected::new(self.attached(env))
    }
}

impl Backend for Remote {
    fn attach(&self, env: &ShardEnv) -> Rc<dyn BackendDrive> {
        Rc::new(self.attached(env))
    }
}

impl Attached {
    pub fn namespace(&self) -> &Namespace<ShardEnv> {
        &self.namespace
    }
}

/// Tracks whether the drive is in reach, until it is closed.
async fn watch(namespace: Namespace<ShardEnv>, how: Arc<Use>) {
    while !namespace.is_closed() {
        namespace.until(true).await;
        if namespace.is_closed() {
            return;
        }
        how.was_out_of_reach.store(true, Ordering::Release);
        how.out_of_reach.fetch_add(1, Ordering::AcqRel);
        namespace.until(false).await;
        how.out_of_reach.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let (namespace, claim) = (self.namespace.clone(), self.claim.clone());
        self.env.spawn(async move {
            namespace.close().await;
            drop(claim);
        });
    }
}

impl Drive for Attached {
    fn info(&self) -> &DriveInfo {
        self.namespace.known().drive()
    }

    fn read(&self, offset: u64, buf: BufMut) -> impl Future<Output = Result<BufMut, DriveError>> {
        Drive::read(&self.namespace, offset, buf)
    }

    fn write(&self, offset: u64, data: Segments, fua: bool) -> impl Future<Output = Result<(), DriveError>> {
        Drive::write(&self.namespace, offset, data, fua)
    }

    fn flush(&self) -> impl Future<Output = Result<(), DriveError>> {
        Drive::flush(&self.namespace)
    }

    fn discard(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), DriveError>> {
        Drive::discard(&self.namespace, offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), DriveError>> {
        Drive::write_zeroes(&self.namespace, offset, len)
    }
}

impl Remotes {
    /// `state` is the state directory, which records that remote drives are in use. `shard` makes
    /// the connection attempts.
    pub fn new(shard: ShardHandle, names: Arc<Names>, state: &Path) -> Remotes {
        let mark = state.join(MARK);
        let quiet_from = Instant::now() + if mark.exists() { QUIET_MAX } else { Duration::ZERO };
        let shared = Arc::new(Shared { used: Mutex::default(), mark });
        Remotes { shard, names, folder: state.to_owned(), shared, quiet_from, unreached: Mutex::default() }
    }

    /// Connects to a drive, and claims it. Also returns its identity, which is the same under every
    /// address. The caller holds the lock for changes, so its hosts have to be looked up before
    /// ([`Names::look_up_drive`]).
    ///
    /// # Errors
    /// It cannot be reached or used, or is in use already.
    pub async fn open(&self, drive: &NvmeDrive) -> Answer<(OpenDrive, String)> {
        let name = drive.name();
        if let Some(error) = self.unreached_lately(drive) {
            return Err(error);
        }
        let known = self.find_known(drive).await?;
        if known.info().read_only {
            return Err(ControlError::new(ErrorCode::DriveUnfit, format!("{name} is write protected")));
        }
        let remote = self.take(&name, known).await?;
        let info = DriveInfo { name, ..remote.known.drive().clone() };
        let identity = remote.claim.identity.clone();
        Ok((OpenDrive::remote(info, Box::new(remote)), identity))
    }

    /// Connects to a namespace and disconnects again, after waiting until the commands of a killed
    /// daemon are no longer executed. Does not claim it.
    ///
    /// # Errors
    /// It cannot be reached or used.
    pub async fn find(&self, drive: &NvmeDrive) -> Answer<Known> {
        self.names.look_up_drive(drive).await?;
        self.find_known(drive).await
    }

    /// Like [`Remotes::find`], after the hosts were looked up.
    async fn find_known(&self, drive: &NvmeDrive) -> Answer<Known> {
        tokio::time::sleep_until(self.quiet_from.into()).await;
        self.look(drive, &drive.name()).await
    }

    /// Claims a namespace that was found.
    ///
    /// # Errors
    /// It is in use already.
    pub async fn take(&self, name: &str, known: Known) -> Answer<Remote> {
        let claim = self.claim(name, &known.identity()).await?;
        Ok(Remote { known, claim })
    }

    /// Whether a connection to a drive succeeds. Does not claim it.
    ///
    /// # Errors
    /// The reason why it cannot be reached.
    pub async fn answers(&self, text: &str) -> Answer<()> {
        let invalid = |error: api::AddressError| ControlError::new(ErrorCode::Invalid, error.to_string());
        let drive: NvmeDrive = text.parse().map_err(invalid)?;
        self.names.look_up_drive(&drive).await?;
        self.try_to_reach(&drive).await
    }

    /// Connects to those of the drives that are on other machines, all at once. Must be called
    /// before the lock for changes is taken: opening the drives is quick afterwards, whether they
    /// can be reached or not.
    ///
    /// # Errors
    /// A host is not known. A drive that cannot be reached is reported when it is opened.
    pub async fn try_all(&self, texts: &[String]) -> Answer<()> {
        self.names.look_up_drives(texts).await?;
        let drives: Vec<NvmeDrive> = texts.iter().filter_map(|text| text.parse().ok()).collect();
        join_all(drives.iter().map(|drive| self.try_to_reach(drive)).collect::<Vec<_>>()).await;
        Ok(())
    }

    async fn try_to_reach(&self, drive: &NvmeDrive) -> Answer<()> {
        let found = self.find_known(drive).await;
        let mut unreached = self.unreached.lock().unwrap_or_else(PoisonError::into_inner);
        unreached.retain(|_, (_, at)| at.elapsed() < UNREACHED_FOR);
        match &found {
            Ok(_) => unreached.remove(&drive.to_string()),
            Err(error) => unreached.insert(drive.to_string(), (error.clone(), Instant::now())),
        };
        found.map(drop)
    }

    fn unreached_lately(&self, drive: &NvmeDrive) -> Option<ControlError> {
        let unreached = self.unreached.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = unreached.get(&drive.to_string()).filter(|(_, at)| at.elapsed() < UNREACHED_FOR);
        lately.map(|(error, _)| error.clone())
    }

    /// Connects, and disconnects again. The hosts have to be looked up before.
    async fn look(&self, drive: &NvmeDrive, name: &str) -> Answer<Known> {
        let mut addresses = Vec::new();
        for target in &drive.addresses {
            let found = self
                .names
                .addresses(&target.host, target.port)
                .map_err(|error| ControlError::new(ErrorCode::DriveNotFound, format!("{name}: {}", error.message)))?;
            addresses.push(Address::from(found[0]));
        }
        let invalid = |error: String| ControlError::new(ErrorCode::Invalid, format!("{name}: {error}"));
        let subsystem = drive.subsystem.parse().map_err(|error: nvme::NqnError| invalid(error.to_string()))?;
        let host = this_host(None, None, Some(&self.folder.join(NAME))).map_err(|error| invalid(error.to_string()))?;
        let (own, nsid) = (host.nqn.clone(), drive.nsid);
        let keep_alive = KEEP_ALIVE_MAX.min(drive.loss() / 2);
        let controller = drive.controller_secret.as_deref().map(|file| secret(name, file)).transpose()?;
        let own_secret = drive.secret.as_deref().map(|file| secret(name, file)).transpose()?;
        let options = Options {
            credentials: own_secret.map(|host| Credentials { host, controller }),
            tls: drive.tls_key.as_deref().map(|file| tls_key(name, file)).transpose()?,
            // A damaged header could send a write to a wrong place.
            digests: Digests { header: true, data: true },
            keep_alive,
            connect_timeout: CONNECT_WITHIN,
            command_timeout: COMMAND_WITHIN,
            reconnect_delay_max: keep_alive,
            loss_timeout: Some(drive.loss()),
            ..Options::new(host, subsystem)
        };
        let found = self.shard.call(move || async move {
            let env = ShardEnv::current();
            match Namespace::connect(&env, &addresses, Selection::Number(nsid), options.clone()).await {
                Ok(namespace) => {
                    let known = namespace.known().clone();
                    namespace.close().await;
                    Ok(known)
                }
                Err(error) => {
                    let wants_tls = wants_tls(&env, &error, options).await;
                    Err((error, wants_tls))
                }
            }
        });
        let found: Result<Known, (ConnectError, bool)> = found.await.map_err(|_| stopping())?;
        found.map_err(|(error, wants_tls)| {
            let code = match error {
                ConnectError::NoNamespace { .. } => ErrorCode::DriveNotFound,
                ConnectError::Unfit { .. } => ErrorCode::DriveUnfit,
                _ => ErrorCode::Unreachable,
            };
            let hint = match error {
                ConnectError::Refused { .. } | ConnectError::NoNamespace { .. } | ConnectError::Tls { .. } => {
                    format!("; this host is {own}")
                }
                _ => String::new(),
            };
            let said = if wants_tls {
                "the target wants this host to use TLS, and no key was given (&tls-key=FILE)".to_owned()
            } else {
                error.to_string()
            };
            ControlError::new(code, format!("{name}: {said}{hint}"))
        })
    }

    /// Claims a namespace. Waits while it is being closed.
    async fn claim(&self, name: &str, identity: &str) -> Answer<Arc<Claim>> {
        let until = Instant::now() + QUIET_MAX + CONNECT_WITHIN;
        loop {
            let found = {
                let mut used = self.shared.used();
                let found = used.get(identity).cloned();
                if found.is_none() {
                    if used.is_empty() {
                        mark(&self.shared.mark).map_err(|error| {
                            let mark = self.shared.mark.display();
                            ControlError::new(ErrorCode::Io, format!("{name}: cannot write {mark}: {error}"))
                        })?;
                    }
                    let how = Arc::new(Use::default());
                    used.insert(identity.to_owned(), how.clone());
                    let (shared, identity) = (self.shared.clone(), identity.to_owned());
                    return Ok(Arc::new(Claim { shared, identity, how }));
                }
                found
            };
            match found {
                Some(how) if how.closing.load(Ordering::Acquire) && Instant::now() < until => {
                    tokio::time::sleep(LOOK).await;
                }
                _ => {
                    let message =
                        format!("{name} is in use by this daemon already, maybe under another address ({identity})");
                    return Err(ControlError::new(ErrorCode::DriveInUse, message));
                }
            }
        }
    }

    /// The reachability of an open drive, by its identity.
    pub fn reach(&self, identity: &str) -> Reach {
        let used = self.shared.used();
        let Some(how) = used.get(identity) else { return Reach::default() };
        Reach {
            is_lost: how.out_of_reach.load(Ordering::Acquire) > 0,
            was_lost: how.was_out_of_reach.load(Ordering::Acquire),
        }
    }

    /// Waits until all dropped namespaces are closed, or had enough time for it.
    pub async fn closed(&self) {
        let until = Instant::now() + QUIET_MAX + CONNECT_WITHIN;
        while !self.shared.used().is_empty() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Reads a secret. Errors do not quote the content of the file.
fn secret(name: &str, file: &Path) -> Answer<Secret> {
    parsed(name, file, "secret")
}

/// Reads a TLS key the same way.
fn tls_key(name: &str, file: &Path) -> Answer<TlsKey> {
    parsed(name, file, "key of TLS")
}

fn parsed<T: FromStr<Err: Display>>(name: &str, file: &Path, what: &str) -> Answer<T> {
    let invalid = |said: String| ControlError::new(ErrorCode::Invalid, format!("{name}: {said}"));
    let mut text = Zeroizing::new(String::new());
    let read = File::open(file).and_then(|opened| opened.take(SECRET_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| invalid(format!("cannot read the {what} in {}: {error}", file.display())))?;
    let parsed = text.trim().parse();
    parsed.map_err(|error| invalid(format!("{} holds no {what} of an NVMe host: {error}", file.display())))
}

/// Whether a connection was refused because it did not use TLS, as far as the target's discovery
/// log tells.
async fn wants_tls(env: &ShardEnv, error: &ConnectError, options: Options) -> bool {
    let ConnectError::Refused { address, source: HostError::Failed { .. } } = error else { return false };
    let Ok(discovery) = DISCOVERY_NQN.parse() else { return false };
    if options.tls.is_some() {
        return false;
    }
    // The log is only used for the text of an error.
    let asked = Options { subsystem: discovery, ..options.clone() };
    let found = discover(env, address, &asked).await;
    let entries = found.map(|found| found.entries).unwrap_or_default();
    entries.iter().any(|entry| entry.subsystem == options.subsystem && entry.needs_secure_channel)
}

/// Records that drives of other machines are in use, before the first one is.
fn mark(path: &Path) -> std::io::Result<()> {
    File::create(path)?.sync_all()?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
