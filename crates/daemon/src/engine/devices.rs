//! Exports as block devices of this machine.
//!
//! Invariants:
//! 1. A device is ours if the kernel keeps our identity with it. Others' devices are never touched.
//! 2. A device that is in use is not removed: a file system on it would be cut off from its writes.
//! 3. When the daemon ends, in order or not, devices stay; the next one finds them by number and
//!    identity.
//! 4. A device is never larger than what it serves: that grows first, on all shards, and the device
//!    after it. A daemon that is killed in between leaves a device that is too small, which the
//!    next one puts right when it takes the device over.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::{ErrorCode, format_bytes};
use export::{Budget, ExportState, serve_queue};
use format::{ExportKind, ExportRecord, Uuid};
use runtime::{ShardEnv, ShardHandle, UblkControl, UblkDevice, UblkError, UblkSpec, UblkState};

use super::drives::stopping;
use super::group::Group;
use super::shard::{self, GroupKey};
use crate::http::{Answer, ControlError};

/// The largest request of a device. The kernel splits larger ones.
const IO_BYTES_MAX: u32 = 1 << 20;

/// Where the names that stay the same are.
const NAMES: &str = "/dev/purlin";

/// What becomes of a device whose service ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceEnd {
    /// It stays, and what is asked of it waits for the next daemon.
    Stays,
    /// It goes; refused while it is in use.
    Goes,
}

/// What a device is made of, and what the kernel is told of it. Sizes are in bytes.
#[derive(Debug, Clone)]
pub(super) struct Backing {
    /// Whose export it is; with the export's number it makes the device's identity.
    pub owner: Uuid,
    /// What it serves, as shards find it.
    pub key: GroupKey,
    pub volume: u64,
    pub size_bytes: u64,
    /// What is there as a whole or not at all after a power cut, a power of two: file systems count
    /// on it.
    pub physical_block_bytes: u32,
    /// A power of two, as the next one.
    pub io_min_bytes: u32,
    pub io_opt_bytes: u32,
    pub discard_granularity_bytes: u32,
    pub has_discard: bool,
    pub has_write_zeroes: bool,
}

impl Backing {
    /// Of a volume of a group.
    pub async fn of_volume(group: &Group, volume: u64) -> Answer<Backing> {
        let catalogue = group.catalogue().await?;
        let record = catalogue.volumes.iter().find(|record| record.id == volume);
        let geometry = &group.shared.geometry;
        let (strip, stripe) = (geometry.strip as u32, geometry.stripe_data());
        // What a discard gives back: whole zones.
        let zone = stripe * geometry.rows();
        Ok(Backing {
            owner: group.uuid,
            key: group.key,
            volume,
            size_bytes: record.map_or(0, |record| record.size_bytes),
            physical_block_bytes: group.atomic_bytes(),
            io_min_bytes: strip,
            io_opt_bytes: io_opt_bytes(stripe, strip),
            discard_granularity_bytes: u32::try_from(zone).unwrap_or(strip),
            has_discard: true,
            has_write_zeroes: true,
        })
    }
}

/// The kernel takes powers of two. Half a stripe would be a lie, so a stripe of another size is not
/// told.
pub(super) fn io_opt_bytes(stripe: u64, strip: u32) -> u32 {
    u32::try_from(stripe).ok().filter(|stripe| stripe.is_power_of_two()).unwrap_or(strip)
}

/// The block devices of this daemon.
pub(super) struct Devices {
    shards: Vec<ShardHandle>,
    /// Memory for the requests of all devices.
    budget: Arc<Budget>,
}

/// The path of a device's node.
fn node(number: u32) -> String {
    format!("/dev/ublkb{number}")
}

/// The path of a volume's device that stays the same: `/dev/purlin/GROUP/VOLUME`.
pub(super) fn stable_path(volume: &str) -> PathBuf {
    Path::new(NAMES).join(volume)
}

/// What the kernel keeps with the device of an export. Not 0.
fn identity(owner: &Uuid, export: u64) -> u64 {
    let (half, _) = owner.as_bytes().split_first_chunk::<8>().expect("a UUID has 16 bytes");
    (u64::from_le_bytes(*half) ^ export.rotate_left(32)) | 1
}

fn device_error(error: UblkError) -> ControlError {
    let code = match error {
        UblkError::NoDriver | UblkError::TooOld | UblkError::KeepsSize(_) => ErrorCode::Invalid,
        UblkError::Taken(_) => ErrorCode::Busy,
        UblkError::Gone(_) | UblkError::Os { .. } => ErrorCode::Io,
    };
    ControlError::new(code, error.to_string())
}

/// Runs commands of the control device, which block.
async fn control<T: Send + 'static>(
    commands: impl FnOnce(&mut UblkControl) -> Result<T, UblkError> + Send + 'static,
) -> Answer<T> {
    let running = tokio::task::spawn_blocking(move || commands(&mut UblkControl::open()?));
    running.await.map_err(|_| stopping())?.map_err(device_error)
}

impl Devices {
    pub fn new(shards: Vec<ShardHandle>, budget: Arc<Budget>) -> Devices {
        Devices { shards, budget }
    }

    /// The lowest number that no device has.
    pub async fn free_number(&self) -> Answer<u32> {
        control(|control| {
            for number in 0.. {
                match control.find(number) {
                    Ok(None) => return Ok(number),
                    // Also one that we may not look at is there.
                    Ok(Some(_)) | Err(UblkError::Os { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            unreachable!("the kernel has fewer devices than numbers")
        })
        .await
    }

    /// Makes the device of an export, or goes on with the one that a daemon before this one left.
    pub async fn offer(&self, backing: &Backing, record: &ExportRecord, state: &Arc<ExportState>) -> Answer<()> {
        let spec = self.spec(backing, record, state.name())?;
        let number = spec.number.expect("a record has its number");
        let size_bytes = spec.size_bytes;
        let (device, was_there) = control(move |control| {
            match control.find(number)? {
                Some(found) if found.identity != spec.identity => return Err(UblkError::Taken(number)),
                // Made by a daemon that was killed before it could start it, or by one that had no
                // privileges.
                Some(found) if found.state == UblkState::Dead => control.delete(number)?,
                Some(_) => return Ok((control.recover(number)?, true)),
                None => {}
            }
            Ok((control.add(&spec)?, false))
        })
        .await?;
        let started = self.start(&device, backing, state).await;
        if let Err(error) = started {
            state.stop();
            if !was_there {
                drop(device);
                let gone = control(move |control| control.delete(number)).await;
                gone.unwrap_or_else(|error| tracing::error!(device = number, %error, "not removed"));
            }
            return Err(error);
        }
        if !device.is_recoverable() {
            tracing::warn!(device = %node(number), "the daemon has no privileges: the device ends with it");
        }
        if was_there && let Err(error) = control(move |control| control.resize(number, size_bytes)).await {
            tracing::warn!(device = %node(number), size_bytes, %error, "the device does not have its volume's size");
        }
        link(state.name(), number);
        Ok(())
    }

    /// Whether a device that is there can have another size.
    ///
    /// # Errors
    /// If the kernel has no driver, or it is not for us to ask.
    pub async fn can_resize(&self) -> Answer<bool> {
        control(|control| Ok(control.can_resize())).await
    }

    /// Gives the device of an export, if it is there and ours, the size of what it serves.
    ///
    /// # Errors
    /// If the kernel does not do it. Nothing has changed then.
    pub async fn resize(&self, backing: &Backing, record: &ExportRecord, name: &str) -> Answer<()> {
        let spec = self.spec(backing, record, name)?;
        let number = spec.number.expect("a record has its number");
        control(move |control| match control.find(number)? {
            Some(found) if found.identity == spec.identity => control.resize(number, spec.size_bytes),
            _ => Ok(()),
        })
        .await
    }

    fn spec(&self, backing: &Backing, record: &ExportRecord, name: &str) -> Answer<UblkSpec> {
        let &ExportKind::Ublk { number, block_bytes, depth, read_only } = &record.kind else {
            unreachable!("asked for block devices only")
        };
        let volume_bytes = backing.size_bytes;
        let size_bytes = volume_bytes - volume_bytes % u64::from(block_bytes);
        if size_bytes == 0 {
            return Err(ControlError::new(
                ErrorCode::Invalid,
                format!("the volume \"{name}\" of {} holds no block of {block_bytes}", format_bytes(volume_bytes)),
            ));
        }
        Ok(UblkSpec {
            number: Some(number),
            queues: self.shards.len() as u16,
            depth,
            io_bytes_max: IO_BYTES_MAX,
            identity: identity(&backing.owner, record.id),
            size_bytes,
            block_bytes,
            physical_block_bytes: backing.physical_block_bytes.max(block_bytes),
            io_min_bytes: backing.io_min_bytes.max(block_bytes),
            io_opt_bytes: backing.io_opt_bytes.max(block_bytes),
            discard_granularity_bytes: backing.discard_granularity_bytes.max(block_bytes),
            has_discard: backing.has_discard,
            has_write_zeroes: backing.has_write_zeroes,
            read_only,
        })
    }

    /// Serves all queues of a device, and starts it.
    async fn start(&self, device: &UblkDevice, backing: &Backing, state: &Arc<ExportState>) -> Answer<()> {
        for queue in 0..device.queues() {
            // The kernel spreads its cores over the queues in order, as the shards are spread over
            // the cores.
            let handle = &self.shards[usize::from(queue) % self.shards.len()];
            let (device, state, budget) = (device.clone(), state.clone(), self.budget.clone());
            let (key, volume) = (backing.key, backing.volume);
            let serving = handle.call(move || async move {
                let env = ShardEnv::current();
                let block = shard::served(key, volume).ok_or_else(stopping)?;
                let slots = device.slots(&env, queue).map_err(|error| {
                    ControlError::new(ErrorCode::Io, format!("queue {queue} of {}: {error}", node(device.number())))
                })?;
                let name = format!("{} queue {queue}", node(device.number()));
                drive::Env::spawn(&env, serve_queue(env.clone(), slots, block, state, name, budget));
                Ok::<(), ControlError>(())
            });
            serving.await.map_err(|_| stopping())??;
        }
        let device = device.clone();
        control(move |control| control.start(&device)).await
    }

    /// Removes the device of an export that is not served: what a daemon before this one left, if
    /// it is there.
    ///
    /// # Errors
    /// If it is in use, or the kernel does not remove it.
    pub async fn discard(&self, owner: &Uuid, record: &ExportRecord, volume: &str) -> Answer<()> {
        let ExportKind::Ublk { number, .. } = record.kind else { return Ok(()) };
        let (own, volume) = (identity(owner, record.id), volume.to_owned());
        let found = control(move |control| control.find(number)).await;
        // Without a driver there is no device either.
        let is_own = matches!(&found, Ok(Some(found)) if found.identity == own);
        if !is_own {
            return Ok(());
        }
        refuse_in_use(number, &volume)?;
        unlink(&volume, number);
        control(move |control| {
            control.stop(number)?;
            control.delete(number)
        })
        .await
    }

    /// Ends a device's service.
    ///
    /// # Errors
    /// If the device is to go and is in use, or the kernel does not remove it. It is served as
    /// before if it is in use.
    pub async fn withdraw(&self, number: u32, state: &ExportState, end: DeviceEnd) -> Answer<()> {
        match end {
            DeviceEnd::Stays => {
                state.stop();
                state.stopped().await;
            }
            DeviceEnd::Goes => {
                refuse_in_use(number, state.name())?;
                unlink(state.name(), number);
                // What is under way has to end before the kernel lets go.
                state.hurry();
                // The kernel asks what it still has to ask, and its queues end by that.
                control(move |control| control.stop(number)).await?;
                state.stop();
                state.stopped().await;
                control(move |control| control.delete(number)).await?;
            }
        }
        Ok(())
    }
}

/// Who uses a device, as words.
pub(super) fn users(number: u32, volume: &str) -> Vec<String> {
    let (path, stable) = (node(number), stable_path(volume).display().to_string());
    let Ok(metadata) = std::fs::metadata(&path) else { return Vec::new() };
    let device = metadata.rdev();
    // As `makedev(3)` of Linux packs it.
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    let device = format!("{major}:{minor}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // proc_pid_mountinfo(5): the third field is the device, the fifth the place; behind the dash
    // come type and source.
    let mounted = mounts.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let source = fields.iter().position(|&field| field == "-").and_then(|dash| fields.get(dash + 2));
        let ours =
            fields.get(2) == Some(&device.as_str()) || source.is_some_and(|&source| source == path || source == stable);
        ours.then(|| fields.get(4).map(|place| format!("mounted at {place}"))).flatten()
    });
    let holders = std::fs::read_dir(format!("/sys/block/ublkb{number}/holders")).into_iter().flatten().flatten();
    let held = holders.map(|holder| format!("part of {}", holder.file_name().display()));
    mounted.chain(held).collect()
}

/// Refuses to remove a device that somebody relies on.
pub(super) fn refuse_in_use(number: u32, volume: &str) -> Answer<()> {
    let mut users = users(number, volume);
    if users.is_empty() {
        // Mounts elsewhere and swap claim a device as well.
        let claimed = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(node(number));
        if claimed.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            users.push("claimed by the kernel or another process".to_owned());
        }
    }
    if users.is_empty() {
        return Ok(());
    }
    Err(ControlError::new(
        ErrorCode::Busy,
        format!("{} (\"{volume}\") is in use: {}; let go of it first", node(number), users.join(", ")),
    ))
}

/// Makes the name that stays the same. Without it the device works all the same.
fn link(volume: &str, number: u32) {
    let path = stable_path(volume);
    let make = || {
        for folder in [Path::new(NAMES), path.parent().unwrap_or(Path::new(NAMES))] {
            // Names are for everybody, whatever this process keeps to itself; who may use a device
            // the device says.
            std::fs::create_dir_all(folder)?;
            std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(node(number), &path)
    };
    if let Err(error) = make() {
        tracing::warn!(path = %path.display(), %error, "the device has no name there");
    }
}

/// Removes the name, if it is this device's.
pub(super) fn unlink(volume: &str, number: u32) {
    let path = stable_path(volume);
    if std::fs::read_link(&path).is_ok_and(|target| target == Path::new(&node(number))) {
        let _ = std::fs::remove_file(&path);
        // Only if it was the last of its group.
        let _ = path.parent().map(std::fs::remove_dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_export_of_each_group_has_its_identity() {
        let (one, other) = (Uuid::from_random([1; 16]), Uuid::from_random([2; 16]));
        let all = [identity(&one, 1), identity(&one, 2), identity(&other, 1), identity(&other, 2)];
        for (index, identity) in all.iter().enumerate() {
            assert!(*identity != 0 && !all[..index].contains(identity));
        }
    }
}
