//! Drives of other machines: NVMe/TCP namespaces as drives of this daemon.
//!
//! Invariants:
//! 1. This daemon has a namespace open once, whatever its address is: it goes by what the namespace
//!    says it is.
//! 2. A namespace is opened only when nothing executes any more that this daemon, or a killed one
//!    before it with the same state directory, had sent to it: a late write would be taken for a
//!    new one.
//! 3. What was answered is durable (`initiator::Namespace` as a drive).

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

use super::connected::Connected;
use super::drives::stopping;
use super::names::Names;
use crate::http::{Answer, ControlError};

/// A target ends a connection that it has not heard of for so long. A drive that may be out of
/// reach for less has less.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(5);

/// However a target keeps time, it executes nothing any more after this of what was sent before.
const QUIET_MAX: Duration = quiet_time(KEEP_ALIVE_MAX, true);

/// How long a connect may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A command that is not answered within this is aborted, and soon after its connection given up.
const COMMAND_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of a file that is read for a secret, at most: none has more than 103.
const SECRET_BYTES_MAX: u64 = 4096;

/// How often it is looked whether a drive is free.
const LOOK: Duration = Duration::from_millis(20);

/// The file that says that drives of other machines are in use. It outlives a daemon that is
/// killed.
const MARK: &str = "remote-drives";

/// The file that has this machine's name, if the system has none.
const NAME: &str = "hostnqn";

/// How a namespace that is in use is.
#[derive(Debug, Default)]
struct Use {
    /// Nobody has it any more: its connections are being closed.
    closing: AtomicBool,
    /// Shards that cannot reach it, for longer than it may be.
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
pub(super) struct Remotes {
    shard: ShardHandle,
    names: Arc<Names>,
    folder: PathBuf,
    shared: Arc<Shared>,
    /// Until then a daemon that was killed may be heard by targets.
    quiet_from: Instant,
    /// Drives that could not be reached when it was tried last, as they are written, with the
    /// reason.
    unreached: Mutex<BTreeMap<String, (ControlError, Instant)>>,
}

/// For how long a drive that could not be reached counts as such: whoever opens it with the lock
/// for changes does not wait for it once more.
const UNREACHED_FOR: Duration = Duration::from_secs(10);

/// Whether a drive can be reached.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reach {
    /// It is out of reach, for longer than it may be.
    pub is_lost: bool,
    /// It was, since it was opened.
    pub was_lost: bool,
}

/// A namespace in use. Free when the last one is dropped.
struct Claim {
    shared: Arc<Shared>,
    identity: String,
    how: Arc<Use>,
}

/// A namespace that was found and taken: what a drive is opened as.
pub(super) struct Remote {
    known: Known,
    claim: Arc<Claim>,
}

/// The namespace on a shard, with connections of its own.
pub(super) struct Attached {
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
            // One that stays makes the next daemon wait for nothing.
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
    /// What it said of itself.
    pub fn known(&self) -> &Known {
        &self.known
    }

    fn attached(&self, env: &ShardEnv) -> Attached {
        let namespace = Namespace::attach(env, &self.known);
        env.spawn(watch(namespace.clone(), self.claim.how.clone()));
        Attached { env: env.clone(), namespace, claim: self.claim.clone() }
    }

    /// As a block device on the calling shard.
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

/// Notes when the drive is out of reach, and when it is there again, until it is closed.
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
    /// With the state directory, in which it is noted that such drives are in use. Connections are
    /// tried from `shard`.
    pub fn new(shard: ShardHandle, names: Arc<Names>, state: &Path) -> Remotes {
        let mark = state.join(MARK);
        let quiet_from = Instant::now() + if mark.exists() { QUIET_MAX } else { Duration::ZERO };
        let shared = Arc::new(Shared { used: Mutex::default(), mark });
        Remotes { shard, names, folder: state.to_owned(), shared, quiet_from, unreached: Mutex::default() }
    }

    /// Connects to a drive, and takes it. Gives what it is, too: the same under every address. Its
    /// hosts were looked up before ([`Names::look_up_drive`]), since the caller holds the lock for
    /// changes.
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

    /// Connects to a namespace and disconnects again, when nothing executes any more that a killed
    /// daemon had sent. It is not taken.
    ///
    /// # Errors
    /// It cannot be reached or used.
    pub async fn find(&self, drive: &NvmeDrive) -> Answer<Known> {
        self.names.look_up_drive(drive).await?;
        self.find_known(drive).await
    }

    /// As [`Remotes::find`], once the hosts were looked up.
    async fn find_known(&self, drive: &NvmeDrive) -> Answer<Known> {
        tokio::time::sleep_until(self.quiet_from.into()).await;
        self.look(drive, &drive.name()).await
    }

    /// Takes a namespace that was found.
    ///
    /// # Errors
    /// It is in use already.
    pub async fn take(&self, name: &str, known: Known) -> Answer<Remote> {
        let claim = self.claim(name, &known.identity()).await?;
        Ok(Remote { known, claim })
    }

    /// Whether a drive can be reached, as far as a connection tells. It is not taken.
    ///
    /// # Errors
    /// Why not.
    pub async fn answers(&self, text: &str) -> Answer<()> {
        let invalid = |error: api::AddressError| ControlError::new(ErrorCode::Invalid, error.to_string());
        let drive: NvmeDrive = text.parse().map_err(invalid)?;
        self.names.look_up_drive(&drive).await?;
        self.try_to_reach(&drive).await
    }

    /// Connects to the drives among those that a person wrote that are on other machines, all at
    /// once. To be called before the lock for changes is taken: opening them is quick afterwards,
    /// whether they can be reached or not.
    ///
    /// # Errors
    /// A host is not known. That a drive cannot be reached is the error of opening it.
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

    /// Connects, and disconnects again. The hosts were looked up before.
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
            // A header that arrives damaged could lead a write astray.
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

    /// Takes a namespace; one that is being closed is waited for.
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

    /// How a drive that is open is reached, by its identity.
    pub fn reach(&self, identity: &str) -> Reach {
        let used = self.shared.used();
        let Some(how) = used.get(identity) else { return Reach::default() };
        Reach {
            is_lost: how.out_of_reach.load(Ordering::Acquire) > 0,
            was_lost: how.was_out_of_reach.load(Ordering::Acquire),
        }
    }

    /// Waits until everything that was dropped is closed, or has had time enough for it.
    pub async fn closed(&self) {
        let until = Instant::now() + QUIET_MAX + CONNECT_WITHIN;
        while !self.shared.used().is_empty() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Reads a secret. What the file holds is not told.
fn secret(name: &str, file: &Path) -> Answer<Secret> {
    parsed(name, file, "secret")
}

/// Reads a key of TLS the same way.
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

/// Whether a connection in the clear was refused since it was one, as far as the target's discovery
/// log says so.
async fn wants_tls(env: &ShardEnv, error: &ConnectError, options: Options) -> bool {
    let ConnectError::Refused { address, source: HostError::Failed { .. } } = error else { return false };
    let Ok(discovery) = DISCOVERY_NQN.parse() else { return false };
    if options.tls.is_some() {
        return false;
    }
    // What it says decides over no more than how an error reads.
    let asked = Options { subsystem: discovery, ..options.clone() };
    let found = discover(env, address, &asked).await;
    let entries = found.map(|found| found.entries).unwrap_or_default();
    entries.iter().any(|entry| entry.subsystem == options.subsystem && entry.needs_secure_channel)
}

/// Notes that drives of other machines are in use, before the first of them is.
fn mark(path: &Path) -> std::io::Result<()> {
    File::create(path)?.sync_all()?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
