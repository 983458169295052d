//! Creates groups: plans the superblock of a new group, and writes it to its drives.

use api::{ErrorCode, GroupCreate, GroupUpdate, SafetyMode, format_bytes};
use array::{CreateError, NewGroup, create};
use format::{CrashSafety, Shape, Superblock};
use runtime::{OpenDrive, ShardEnv};

use crate::engine::Engine;
use crate::engine::errors::{new_uuid, stopping};
use crate::http::{Answer, ControlError};

fn create_error(error: &CreateError) -> ControlError {
    let code = match error {
        CreateError::Layout(_) | CreateError::SpareTooSmall { .. } => ErrorCode::DriveUnfit,
        CreateError::Drive { .. } => ErrorCode::Io,
        CreateError::Invalid(_) => ErrorCode::Invalid,
    };
    ControlError::new(code, error.to_string())
}

/// The content of a new group's superblock that the request decides, with new UUIDs for the group
/// and its drives.
pub(super) fn new_group(
    request: &GroupCreate,
    shape: Shape,
    drive_count: usize,
    created_unix_s: u64,
) -> Answer<NewGroup> {
    let mut identities = Vec::new();
    for _ in 0..drive_count {
        identities.push(new_uuid()?);
    }
    Ok(NewGroup {
        array: new_uuid()?,
        name: request.name.clone(),
        shape,
        crash_safety: match request.crash_safety {
            // Unknown modes were refused with the request.
            None | Some(SafetyMode::On | SafetyMode::Unknown) => CrashSafety::On,
            Some(SafetyMode::Off) => CrashSafety::Off,
            Some(SafetyMode::Strict) => CrashSafety::Strict,
        },
        // A group without a log has no checksums.
        checksums: request.checksums.unwrap_or(true),
        drives: identities,
        created_unix_s,
    })
}

/// The settings of a new group, as changes of the defaults.
pub(super) fn settings_of(request: &GroupCreate) -> GroupUpdate {
    GroupUpdate {
        client_p99_us: request.client_p99_us,
        retire_slow: request.retire_slow,
        scrub_every_s: request.scrub_every_s,
        thin_warn_percents: request.thin_warn_percents.clone(),
        dry_run: request.dry_run,
    }
}

/// "1 spare", "2 spares".
fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The steps of a request that say what a new group is made of, and how much it holds.
pub(super) fn layout_steps(request: &GroupCreate, shape: &Shape, superblock: &Superblock) -> Vec<String> {
    let tolerated = match shape.survives() {
        0 => "no member".to_owned(),
        1 => "any member".to_owned(),
        count => format!("any {count} members"),
    };
    let usable = format_bytes(superblock.layout.capacity_bytes(shape));
    let spares = match request.spares.len() {
        0 => String::new(),
        count => format!(" and {}", counted(count, "spare")),
    };
    vec![
        format!("write the group {:?} to {}{spares}", request.name, counted(shape.members.into(), "member")),
        format!("{} of {usable} usable, {tolerated} may be lost", shape.level),
    ]
}

impl Engine {
    /// Computes the superblock of a group that is to be created. Writes nothing.
    pub(super) async fn plan_new_group(&self, new: NewGroup, opens: Vec<OpenDrive>) -> Answer<Superblock> {
        let planning = self.shards[0].call(move || async move {
            let env = ShardEnv::current();
            let drives: Vec<_> = opens.iter().map(|open| env.attach(open)).collect();
            array::plan(&new, &drives)
        });
        planning.await.map_err(|_| stopping())?.map_err(|error| create_error(&error))
    }

    pub(super) async fn write_new_group(&self, new: NewGroup, opens: Vec<OpenDrive>) -> Answer<()> {
        let writing = self.shards[0].call(move || async move {
            let env = ShardEnv::current();
            let drives: Vec<_> = opens.iter().map(|open| env.attach(open)).collect();
            create::<ShardEnv>(&new, &drives).await.map(|_| ())
        });
        writing.await.map_err(|_| stopping())?.map_err(|error| create_error(&error))
    }
}
