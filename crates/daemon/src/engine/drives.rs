//! Opening drives of every kind, and refusing those that hold something.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::drive::DriveError;
use api::{ErrorCode, NvmeDrive};
use array::{Probe, probe, read_superblock};
use format::Superblock;
use runtime::{OpenDrive, OpenError, ShardEnv, ShardHandle, create_file};

use super::group::GroupDrive;
use super::identity;
use super::remote::Remotes;
use crate::http::{Answer, ControlError};

/// How long a drive is waited for when it is looked at first: as long as one of a running group.
pub(super) const GLANCE_WITHIN: Duration = Duration::from_secs(30);

/// How drives are opened.
pub(super) struct Opener {
    /// Those of other machines.
    pub remotes: Remotes,
    /// Those of this machine: reads and writes of NVMe namespaces pass by the block layer.
    pub passthrough: bool,
}

/// How long drives that are in use are waited for when groups are started again, each.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// How often it is looked whether they are free.
const LET_GO_LOOK: Duration = Duration::from_millis(20);

/// A drive that was opened for a request. Files that the request made are removed again unless it
/// is kept.
pub(super) struct Taken {
    pub name: String,
    /// As a person would write it to open it again.
    pub text: String,
    /// What it is under any name, where it says so.
    pub identity: Option<String>,
    pub open: OpenDrive,
    created: Option<PathBuf>,
}

impl Taken {
    /// The request succeeded: whatever was made for it stays.
    pub fn keep(mut self) -> GroupDrive {
        self.created = None;
        let Taken { name, text, identity, open, .. } = &self;
        GroupDrive { name: name.clone(), text: text.clone(), identity: identity.clone(), open: open.clone() }
    }

    /// A drive of this machine.
    fn local(name: String, spec: &runtime::DriveSpec, open: OpenDrive, created: Option<PathBuf>) -> Taken {
        let identity = open.device_number().and_then(|device| identity::of(&identity::folder_of(device)));
        Taken { name, text: spec.to_string(), identity, open, created }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(path) = self.created.take() {
            // The request's own error is the one to report.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What may be done to make a drive fit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Consent {
    /// Files that are not there are made with this size.
    pub create_files_bytes: Option<u64>,
    /// What a drive holds may be overwritten.
    pub wipe_foreign: bool,
    /// The request says only what would be done: the drive is read, and nothing about it changes,
    /// its times included.
    pub dry_run: bool,
}

impl Consent {
    /// To nothing but to use drives as they are, or to look at them.
    pub fn none(dry_run: bool) -> Consent {
        Consent { dry_run, ..Consent::default() }
    }
}

/// The name by which a drive is known, from what a person wrote.
pub(super) fn name_of(text: &str) -> Answer<String> {
    let spec: api::DriveSpec = text.parse().map_err(|error: api::AddressError| invalid(error.to_string()))?;
    Ok(spec.name())
}

fn invalid(message: String) -> ControlError {
    ControlError::new(ErrorCode::Invalid, message)
}

/// What a person wrote.
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

/// Opens a drive. One of this machine blocks on the operating system for moments.
pub(super) async fn open(opener: &Opener, text: &str, consent: Consent) -> Answer<Taken> {
    match spec_of(text)? {
        (name, Spec::Local(spec)) if consent.dry_run => open_planned(opener, name, &spec, consent).await,
        (name, Spec::Local(spec)) => open_local(opener, name, &spec, consent).await,
        (name, Spec::Remote(drive)) => {
            let (open, identity) = opener.remotes.open(&drive).await?;
            Ok(Taken { name, text: drive.to_string(), identity: Some(identity), open, created: None })
        }
    }
}

async fn open_local(opener: &Opener, name: String, spec: &runtime::DriveSpec, consent: Consent) -> Answer<Taken> {
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
        Ok(open) => Ok(Taken::local(name, spec, open, created)),
        Err(error) => {
            if let Some(path) = created {
                // The error of opening is the one to report.
                let _ = std::fs::remove_file(path);
            }
            Err(error)
        }
    }
}

/// Opens a drive of this machine for reading. In place of a file that would be made there is one
/// without a name; where the file system has no such files, it is made and removed.
async fn open_planned(opener: &Opener, name: String, spec: &runtime::DriveSpec, consent: Consent) -> Answer<Taken> {
    let open = match to_create(spec, consent.create_files_bytes) {
        Some((path, bytes)) => match OpenDrive::unnamed_beside(path, bytes) {
            Ok(open) => open,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return open_local(opener, name, spec, consent).await;
            }
            Err(error) => return Err(cannot_create(path, &error)),
        },
        None => OpenDrive::open_read_only(spec).map_err(|error| refusal(&error))?,
    };
    Ok(Taken::local(name, spec, open, None))
}

/// The file that is not there, and the size that it is to have.
fn to_create(spec: &runtime::DriveSpec, create_files_bytes: Option<u64>) -> Option<(&Path, u64)> {
    match spec {
        runtime::DriveSpec::Path(path) if !path.exists() => Some((path, create_files_bytes?)),
        _ => None,
    }
}

fn cannot_create(path: &Path, error: &std::io::Error) -> ControlError {
    ControlError::new(code_of(error), format!("cannot create {}: {error}", path.display()))
}

/// Of a drive that has not answered within [`GLANCE_WITHIN`].
pub(super) fn silent() -> ControlError {
    let seconds = GLANCE_WITHIN.as_secs();
    ControlError::new(ErrorCode::Io, format!("the drive has not answered for {seconds} s"))
}

/// The drive is asked for its format, and may not answer: its adapter is being reset, or it hangs.
async fn open_passthrough(spec: runtime::DriveSpec) -> Answer<OpenDrive> {
    let opening = tokio::task::spawn_blocking(move || OpenDrive::open_passthrough(&spec));
    match tokio::time::timeout(GLANCE_WITHIN, opening).await {
        Ok(opened) => opened.map_err(|_| stopping())?.map_err(|error| refusal(&error)),
        Err(_) => Err(silent()),
    }
}

/// Opens a drive of this machine for reading only. Blocks on the operating system for moments.
pub(super) fn open_read_only(text: &str) -> Answer<Taken> {
    let (name, Spec::Local(spec)) = spec_of(text)? else {
        return Err(invalid(format!("{text} is a drive of another machine: only drives of this one are read so")));
    };
    match OpenDrive::open_read_only(&spec) {
        Ok(open) => Ok(Taken::local(name, &spec, open, None)),
        Err(error) => Err(refusal(&error)),
    }
}

/// Opens a drive of a group that is started again. One that is in use is waited for: the kernel
/// lets go of the drives of a killed daemon only when everything it was given is done, which may be
/// after the next one began.
pub(super) async fn open_let_go(opener: &Opener, text: &str, consent: Consent) -> Answer<Taken> {
    let began = Instant::now();
    loop {
        let opened = open(opener, text, consent).await;
        if !is_let_go_soon(&opened, began) {
            return opened;
        }
        tokio::time::sleep(LET_GO_LOOK).await;
    }
}

/// The same, for reading only.
pub(super) async fn open_read_only_let_go(text: &str) -> Answer<Taken> {
    let began = Instant::now();
    loop {
        let opened = open_read_only(text);
        if !is_let_go_soon(&opened, began) {
            return opened;
        }
        tokio::time::sleep(LET_GO_LOOK).await;
    }
}

fn is_let_go_soon(opened: &Answer<Taken>, began: Instant) -> bool {
    let is_in_use = opened.as_ref().is_err_and(|error| error.code == ErrorCode::DriveInUse);
    is_in_use && began.elapsed() < LET_GO_WITHIN
}

/// Reads what a drive holds. To be called on a shard.
pub(super) async fn probe_open(open: OpenDrive) -> Result<Probe, DriveError> {
    let env = ShardEnv::current();
    probe(&env, &env.attach(&open)).await
}

/// What the superblock of a drive says.
pub(super) async fn superblock_of(shard: &ShardHandle, taken: &Taken) -> Answer<Option<Superblock>> {
    let open = taken.open.clone();
    let found = shard.call(move || async move {
        let env = ShardEnv::current();
        read_superblock(&env, &env.attach(&open)).await
    });
    let found = found.await.map_err(|_| stopping())?;
    let found =
        found.map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot read {}: {error}", taken.name)))?;
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

/// Whether what the system says of a path is for the one who named it to put right, or the drive's
/// fault.
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

/// Refuses a drive that holds something, recognised or not, unless that may be overwritten. Gives
/// what would be lost.
pub(super) async fn inspect(shard: &ShardHandle, taken: &Taken, consent: Consent) -> Answer<Vec<String>> {
    let open = taken.open.clone();
    let found = shard.call(move || probe_open(open));
    let found = found.await.map_err(|_| stopping())?;
    let found: Probe =
        found.map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot read {}: {error}", taken.name)))?;
    let mut holds: Vec<String> =
        found.foreign.iter().map(|foreign| format!("{} holds {foreign}", taken.name)).collect();
    if let Ok(superblock) = &found.superblock {
        // Recognised again as a foreign signature, but here its name is known for certain.
        holds = vec![format!("{} belongs to the Purlin array {} ({})", taken.name, superblock.name, superblock.array)];
    }
    if holds.is_empty() && !found.starts_blank {
        holds = vec![format!("{} holds data that is not recognised", taken.name)];
    }
    if holds.is_empty() || consent.wipe_foreign {
        return Ok(holds);
    }
    let message = format!("{}: nothing was written; to overwrite it, say --wipe-foreign", holds.join("; "));
    Err(ControlError::new(ErrorCode::ForeignData, message))
}

pub(super) fn stopping() -> ControlError {
    ControlError::new(ErrorCode::Unavailable, "the daemon is stopping")
}
