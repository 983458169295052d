//! Opens drives of every kind, and refuses those that hold data.

pub(crate) mod arrivals;
pub(crate) mod find;
pub(crate) mod health;
pub(crate) mod hotplug;
pub(crate) mod identity;
pub(crate) mod query;
pub(crate) mod reconnect;
pub(crate) mod remote;
mod requested;
pub(crate) mod uevent;
pub(crate) mod unassigned;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::drive::DriveError;
use api::{ErrorCode, NvmeDrive};
use array::{Probe, probe, read_superblock};
use format::Superblock;
use runtime::{OpenDrive, OpenError, ShardEnv, ShardHandle, create_file};

use crate::engine::drives::remote::Remotes;
use crate::engine::errors::stopping;
use crate::engine::group::group_drive::GroupDrive;
use crate::http::{Answer, ControlError};

/// How long the first look at a drive may take: as long as a request of a running group.
pub(crate) const READ_WITHIN: Duration = Duration::from_secs(30);

/// How drives are opened.
pub(crate) struct Opener {
    /// Opens drives of other machines.
    pub remotes: Remotes,
    /// Whether reads and writes of this machine's NVMe namespaces bypass the block layer.
    pub passthrough: bool,
}

/// How long a group's start waits for each drive that is in use.
const RELEASED_WITHIN: Duration = Duration::from_secs(10);

/// How often a drive that is in use is tried again.
const RELEASED_RETRY: Duration = Duration::from_millis(20);

/// A drive that was opened for a request. Files that the request made are removed again unless the
/// drive is kept.
pub(crate) struct RequestedDrive {
    pub name: String,
    /// The drive in the form that an operator writes to open it again.
    pub text: String,
    /// The drive's identity under any name, if it reports one.
    pub identity: Option<String>,
    pub open: OpenDrive,
    /// It is a file that the request makes. A request that changes nothing has an unnamed file.
    pub is_new: bool,
    created: Option<PathBuf>,
}

impl RequestedDrive {
    /// The request succeeded: files that it made stay.
    pub fn keep(mut self) -> GroupDrive {
        self.created = None;
        let RequestedDrive { name, text, identity, open, .. } = &self;
        GroupDrive { name: name.clone(), text: text.clone(), identity: identity.clone(), open: open.clone() }
    }

    /// A drive of this machine.
    fn local(name: String, spec: &runtime::DriveSpec, open: OpenDrive, created: Option<PathBuf>) -> RequestedDrive {
        let identity = open.device_number().and_then(|device| identity::of(&identity::folder_of(device)));
        let is_new = created.is_some();
        RequestedDrive { name, text: spec.to_string(), identity, open, is_new, created }
    }
}

impl Drop for RequestedDrive {
    fn drop(&mut self) {
        if let Some(path) = self.created.take() {
            // The request's own error is the one to report.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The changes that a request may make to a drive so that it fits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Consent {
    /// Missing files are made with this size.
    pub create_files_bytes: Option<u64>,
    /// The content of a drive may be overwritten.
    pub wipe_foreign: bool,
    /// The request only reports what would be done. The drive is read, and nothing about it
    /// changes, not even its timestamps.
    pub dry_run: bool,
}

impl Consent {
    /// Allows only to use drives as they are, or to look at them.
    pub fn none(dry_run: bool) -> Consent {
        Consent { dry_run, ..Consent::default() }
    }
}

/// The name of a drive, from the text that an operator wrote.
pub(crate) fn name_of(text: &str) -> Answer<String> {
    let spec: api::DriveSpec = text.parse().map_err(|error: api::AddressError| invalid(error.to_string()))?;
    Ok(spec.name())
}

fn invalid(message: String) -> ControlError {
    ControlError::new(ErrorCode::Invalid, message)
}

/// A drive as an operator specified it.
enum Spec {
    Local(runtime::DriveSpec),
    Remote(NvmeDrive),
}

fn spec_of(text: &str) -> Answer<(String, Spec)> {
    let spec: api::DriveSpec = text.parse().map_err(|error: api::AddressError| invalid(error.to_string()))?;
    let name = spec.name();
    let spec = match spec {
        api::DriveSpec::Path(path) => runtime::DriveSpec::Path(path),
        api::DriveSpec::Nvme(drive) => return Ok((name, Spec::Remote(drive))),
        api::DriveSpec::Memory { name: memory, size_bytes: Some(size_bytes) } => {
            if size_bytes == 0 || size_bytes % 4096 != 0 {
                return Err(invalid(format!("the size of {name} is not a multiple of 4096, or zero")));
            }
            runtime::DriveSpec::Memory { name: memory, size_bytes }
        }
        api::DriveSpec::Memory { .. } => {
            return Err(invalid(format!("{name} needs a size: write {name}:SIZE, such as {name}:1GiB")));
        }
    };
    Ok((name, Spec::Local(spec)))
}

/// Opens a drive. For a drive of this machine, the system calls block for moments.
pub(crate) async fn open(opener: &Opener, text: &str, consent: Consent) -> Answer<RequestedDrive> {
    match spec_of(text)? {
        (name, Spec::Local(spec)) if consent.dry_run => open_planned(opener, name, &spec, consent).await,
        (name, Spec::Local(spec)) => open_local(opener, name, &spec, consent).await,
        (name, Spec::Remote(drive)) => {
            let (open, identity) = opener.remotes.open(&drive).await?;
            let (text, identity) = (drive.to_string(), Some(identity));
            Ok(RequestedDrive { name, text, identity, open, is_new: false, created: None })
        }
    }
}

async fn open_local(
    opener: &Opener,
    name: String,
    spec: &runtime::DriveSpec,
    consent: Consent,
) -> Answer<RequestedDrive> {
    let mut created = None;
    if let Some((path, bytes)) = to_create(spec, consent.create_files_bytes) {
        create_file(path, bytes).map_err(|error| cannot_create(path, &error))?;
        created = Some(path.to_owned());
    }
    let opened = if opener.passthrough {
        open_passthrough(spec.clone()).await
    } else {
        OpenDrive::open(spec).map_err(|error| refusal(&error))
    };
    match opened {
        Ok(open) => Ok(RequestedDrive::local(name, spec, open, created)),
        Err(error) => {
            if let Some(path) = created {
                // The error of opening is the one to report.
                let _ = std::fs::remove_file(path);
            }
            Err(error)
        }
    }
}

/// Opens a drive of this machine for reading. If a file would be made, an unnamed file takes its
/// place. On a file system without unnamed files, the file is made and removed.
async fn open_planned(
    opener: &Opener,
    name: String,
    spec: &runtime::DriveSpec,
    consent: Consent,
) -> Answer<RequestedDrive> {
    let new = to_create(spec, consent.create_files_bytes);
    let open = match new {
        Some((path, bytes)) => match OpenDrive::unnamed_beside(path, bytes) {
            Ok(open) => open,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return open_local(opener, name, spec, consent).await;
            }
            Err(error) => return Err(cannot_create(path, &error)),
        },
        None => OpenDrive::open_read_only(spec).map_err(|error| refusal(&error))?,
    };
    let mut drive = RequestedDrive::local(name, spec, open, None);
    drive.is_new = new.is_some();
    Ok(drive)
}

/// The missing file, and the size that it is to have.
fn to_create(spec: &runtime::DriveSpec, create_files_bytes: Option<u64>) -> Option<(&Path, u64)> {
    match spec {
        runtime::DriveSpec::Path(path) if !path.exists() => Some((path, create_files_bytes?)),
        _ => None,
    }
}

fn cannot_create(path: &Path, error: &std::io::Error) -> ControlError {
    ControlError::new(code_of(error), format!("cannot create {}: {error}", path.display()))
}

/// The error for a drive that has not answered within [`READ_WITHIN`].
pub(crate) fn silent() -> ControlError {
    let seconds = READ_WITHIN.as_secs();
    ControlError::new(ErrorCode::Io, format!("the drive has not answered for {seconds} s"))
}

/// Opening asks the drive for its format. The drive may not answer, because its adapter is being
/// reset or it hangs.
async fn open_passthrough(spec: runtime::DriveSpec) -> Answer<OpenDrive> {
    let opening = tokio::task::spawn_blocking(move || OpenDrive::open_passthrough(&spec));
    match tokio::time::timeout(READ_WITHIN, opening).await {
        Ok(opened) => opened.map_err(|_| stopping())?.map_err(|error| refusal(&error)),
        Err(_) => Err(silent()),
    }
}

/// Opens a drive of this machine for reading only. The system calls block for moments.
pub(crate) fn open_read_only(text: &str) -> Answer<RequestedDrive> {
    let (name, Spec::Local(spec)) = spec_of(text)? else {
        return Err(invalid(format!("{text} is a drive of another machine: only drives of this one are read so")));
    };
    match OpenDrive::open_read_only(&spec) {
        Ok(open) => Ok(RequestedDrive::local(name, &spec, open, None)),
        Err(error) => Err(refusal(&error)),
    }
}

/// Opens a drive of a group that is started again, and waits while it is in use. The kernel
/// releases the drives of a killed daemon only when all their requests are done, which may be after
/// the next daemon started.
pub(crate) async fn open_when_released(opener: &Opener, text: &str, consent: Consent) -> Answer<RequestedDrive> {
    let began = Instant::now();
    loop {
        let opened = open(opener, text, consent).await;
        if !is_released_soon(&opened, began) {
            return opened;
        }
        tokio::time::sleep(RELEASED_RETRY).await;
    }
}

/// The same as [`open_when_released`], for reading only.
pub(crate) async fn open_read_only_when_released(text: &str) -> Answer<RequestedDrive> {
    let began = Instant::now();
    loop {
        let opened = open_read_only(text);
        if !is_released_soon(&opened, began) {
            return opened;
        }
        tokio::time::sleep(RELEASED_RETRY).await;
    }
}

fn is_released_soon(opened: &Answer<RequestedDrive>, began: Instant) -> bool {
    let is_in_use = opened.as_ref().is_err_and(|error| error.code == ErrorCode::DriveInUse);
    is_in_use && began.elapsed() < RELEASED_WITHIN
}

/// Reads what a drive holds. Must be called on a shard.
pub(crate) async fn probe_open(open: OpenDrive) -> Result<Probe, DriveError> {
    let env = ShardEnv::current();
    probe(&env, &env.attach(&open)).await
}

/// Reads the superblock of a drive.
pub(crate) async fn superblock_of(shard: &ShardHandle, requested: &RequestedDrive) -> Answer<Option<Superblock>> {
    let open = requested.open.clone();
    let found = shard.call(move || async move {
        let env = ShardEnv::current();
        read_superblock(&env, &env.attach(&open)).await
    });
    let found = found.await.map_err(|_| stopping())?;
    let found =
        found.map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot read {}: {error}", requested.name)))?;
    Ok(found.ok())
}

fn refusal(error: &OpenError) -> ControlError {
    let code = match error {
        OpenError::InUse { .. } => ErrorCode::DriveInUse,
        OpenError::NotFound { .. } => ErrorCode::DriveNotFound,
        OpenError::NotADrive { .. }
        | OpenError::TooSmall { .. }
        | OpenError::SectorSize { .. }
        | OpenError::OtherSize { .. } => ErrorCode::DriveUnfit,
        OpenError::Io { source, .. } => code_of(source),
    };
    ControlError::new(code, error.to_string())
}

/// The code of an operating system error: `Invalid` and the like if the operator can correct the
/// path, `Io` if the drive failed.
fn code_of(error: &std::io::Error) -> ErrorCode {
    match error.kind() {
        ErrorKind::NotFound => ErrorCode::DriveNotFound,
        ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::InvalidInput
        | ErrorKind::InvalidFilename
        | ErrorKind::PermissionDenied
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::FileTooLarge => ErrorCode::Invalid,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
        _ => ErrorCode::Io,
    }
}

/// Refuses a drive that holds data, recognized or not, unless it may be overwritten. Returns
/// descriptions of what would be lost.
pub(crate) async fn inspect(shard: &ShardHandle, requested: &RequestedDrive, consent: Consent) -> Answer<Vec<String>> {
    let open = requested.open.clone();
    let found = shard.call(move || probe_open(open));
    let found = found.await.map_err(|_| stopping())?;
    let found: Probe =
        found.map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot read {}: {error}", requested.name)))?;
    let mut holds: Vec<String> =
        found.foreign.iter().map(|foreign| format!("{} holds {foreign}", requested.name)).collect();
    if let Ok(superblock) = &found.superblock {
        // It was recognized as a foreign signature as well, but here its name is known for certain.
        holds =
            vec![format!("{} belongs to the Purlin array {} ({})", requested.name, superblock.name, superblock.array)];
    }
    if holds.is_empty() && !found.starts_blank {
        holds = vec![format!("{} holds data that is not recognised", requested.name)];
    }
    if holds.is_empty() || consent.wipe_foreign {
        return Ok(holds);
    }
    let message = format!("{}: nothing was written; to overwrite it, say --wipe-foreign", holds.join("; "));
    Err(ControlError::new(ErrorCode::ForeignData, message))
}
