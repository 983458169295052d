//! Opening drives, and refusing those that hold something.

use std::path::PathBuf;
use std::time::Duration;

use api::ErrorCode;
use array::{Probe, probe};
use runtime::{OpenDrive, OpenError, ShardEnv, ShardHandle, create_file};

use crate::http::{Answer, ControlError};

/// How long drives that are in use are waited for when groups are started again, each.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);

/// How often it is looked whether they are free.
const LET_GO_LOOK: Duration = Duration::from_millis(20);

/// A drive that was opened for a request. Files that the request made are removed again unless it is kept.
pub(super) struct Taken {
    pub name: String,
    pub spec: runtime::DriveSpec,
    pub open: OpenDrive,
    created: Option<PathBuf>,
}

impl Taken {
    /// The request succeeded: whatever was made for it stays.
    pub fn keep(mut self) -> (String, runtime::DriveSpec, OpenDrive) {
        self.created = None;
        (self.name.clone(), self.spec.clone(), self.open.clone())
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
#[derive(Debug, Clone, Copy)]
pub(super) struct Consent {
    /// Files that are not there are made with this size.
    pub create_files_bytes: Option<u64>,
    /// What is recognised on a drive may be overwritten.
    pub wipe_foreign: bool,
}

/// The name by which a drive is known, from what a person wrote.
pub(super) fn name_of(text: &str) -> Answer<String> {
    let spec: api::DriveSpec = text.parse().map_err(|error: api::AddressError| invalid(error.to_string()))?;
    Ok(spec.name())
}

fn invalid(message: String) -> ControlError {
    ControlError::new(ErrorCode::Invalid, message)
}

fn spec_of(text: &str) -> Answer<(String, runtime::DriveSpec)> {
    let spec: api::DriveSpec = text.parse().map_err(|error: api::AddressError| invalid(error.to_string()))?;
    let name = spec.name();
    let spec = match spec {
        api::DriveSpec::Path(path) => runtime::DriveSpec::Path(path),
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
    Ok((name, spec))
}

/// Opens a drive. Blocks on the operating system for moments.
pub(super) fn open(text: &str, consent: Option<Consent>) -> Answer<Taken> {
    let (name, spec) = spec_of(text)?;
    let mut created = None;
    if let (runtime::DriveSpec::Path(path), Some(Consent { create_files_bytes: Some(bytes), .. })) = (&spec, consent)
        && !path.exists()
    {
        create_file(path, bytes)
            .map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot create {}: {error}", path.display())))?;
        created = Some(path.clone());
    }
    match OpenDrive::open(&spec) {
        Ok(open) => Ok(Taken { name, spec, open, created }),
        Err(error) => {
            if let Some(path) = created {
                // The error of opening is the one to report.
                let _ = std::fs::remove_file(path);
            }
            Err(refusal(&error))
        }
    }
}

/// Opens a drive for reading only. Blocks on the operating system for moments.
pub(super) fn open_read_only(text: &str) -> Answer<Taken> {
    let (name, spec) = spec_of(text)?;
    match OpenDrive::open_read_only(&spec) {
        Ok(open) => Ok(Taken { name, spec, open, created: None }),
        Err(error) => Err(refusal(&error)),
    }
}

/// Opens a drive of a group that is started again. One that is in use is waited for: the kernel lets go of the drives of a killed
/// daemon only when everything it was given is done, which may be after the next one began.
pub(super) async fn open_let_go(text: &str) -> Answer<Taken> {
    when_let_go(|| open(text, None)).await
}

/// The same, for reading only.
pub(super) async fn open_read_only_let_go(text: &str) -> Answer<Taken> {
    when_let_go(|| open_read_only(text)).await
}

async fn when_let_go(open: impl Fn() -> Answer<Taken>) -> Answer<Taken> {
    let began = std::time::Instant::now();
    loop {
        match open() {
            Err(error) if error.code == ErrorCode::DriveInUse && began.elapsed() < LET_GO_WITHIN => {
                tokio::time::sleep(LET_GO_LOOK).await;
            }
            other => return other,
        }
    }
}

fn refusal(error: &OpenError) -> ControlError {
    let code = match error {
        OpenError::InUse { .. } => ErrorCode::DriveInUse,
        OpenError::NotFound { .. } => ErrorCode::DriveNotFound,
        OpenError::NotADrive { .. }
        | OpenError::TooSmall { .. }
        | OpenError::SectorSize { .. }
        | OpenError::OtherSize { .. } => ErrorCode::DriveUnfit,
        _ => ErrorCode::Io,
    };
    ControlError::new(code, error.to_string())
}

/// Refuses a drive that holds something that is recognised, unless that may be overwritten. Gives what would be lost.
pub(super) async fn inspect(shard: &ShardHandle, taken: &Taken, consent: Consent) -> Answer<Vec<String>> {
    let open = taken.open.clone();
    let found = shard.call(move || async move { probe(&ShardEnv::current().attach(&open)).await });
    let found = found.await.map_err(|_| stopping())?;
    let found: Probe =
        found.map_err(|error| ControlError::new(ErrorCode::Io, format!("cannot read {}: {error}", taken.name)))?;
    let mut holds: Vec<String> =
        found.foreign.iter().map(|foreign| format!("{} holds {foreign}", taken.name)).collect();
    if let Ok(superblock) = &found.superblock {
        // Recognised again as a foreign signature, but here its name is known for certain.
        holds = vec![format!("{} belongs to the Purlin array {} ({})", taken.name, superblock.name, superblock.array)];
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
