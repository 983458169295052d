//! Exports as block devices of this machine.
//!
//! Invariants:
//! 1. A device belongs to this daemon if the kernel keeps the daemon's identity with it. Other
//!    devices are never touched.
//! 2. A device that is in use is not removed: a file system on it would lose its writes.
//! 3. When the daemon ends, in order or not, its devices stay. The next daemon finds them by number
//!    and identity.
//! 4. A device is never larger than the volume or namespace that it serves: that grows first, on
//!    all shards, then the device. If the daemon is killed in between, the device is too small. The
//!    next daemon corrects its size when it takes the device over.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::{ErrorCode, format_bytes};
use export::{Budget, ExportState, serve_queue};
use format::{ExportKind, ExportRecord, Uuid};
use runtime::{ShardEnv, ShardHandle, UblkControl, UblkDevice, UblkError, UblkSpec, UblkState};

use crate::engine::errors::stopping;
use crate::engine::group::shard::GroupKey;
use crate::engine::group::{Group, shard};
use crate::http::{Answer, ControlError};

/// The largest request of a device. The kernel splits larger ones.
const IO_BYTES_MAX: u32 = 1 << 20;

/// The folder of the stable device names.
const NAMES: &str = "/dev/purlin";

/// How a device's service ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceEnd {
    /// The device stays, and requests to it wait for the next daemon.
    Stays,
    /// The device is removed. Refused while it is in use.
    Goes,
}

/// The properties of a device, as the kernel gets them. Sizes are in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Backing {
    /// The owner of the export. Together with the export's number it makes the device's identity.
    pub owner: Uuid,
    /// The key under which shards find the served group or import.
    pub key: GroupKey,
    pub volume: u64,
    pub size_bytes: u64,
    /// The unit that a power cut leaves either old or new, never mixed: file systems rely on it. A
    /// power of two.
    pub physical_block_bytes: u32,
    /// A power of two, as is `io_opt_bytes`.
    pub io_min_bytes: u32,
    pub io_opt_bytes: u32,
    pub discard_granularity_bytes: u32,
    pub has_discard: bool,
    pub has_write_zeroes: bool,
}

impl Backing {
    /// The properties of a volume of a group.
    pub async fn of_volume(group: &Group, volume: u64) -> Answer<Backing> {
        let catalogue = group.catalogue().await?;
        let record = catalogue.volumes.iter().find(|record| record.id == volume);
        let geometry = &group.shared.geometry;
        let (strip, stripe) = (geometry.strip_bytes as u32, geometry.stripe_data_bytes());
        // A discard gives back whole allocation chunks.
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

/// The optimal request size. The kernel takes only powers of two, and half a stripe would be wrong.
/// So the strip is reported if the stripe is not a power of two.
pub(crate) fn io_opt_bytes(stripe: u64, strip: u32) -> u32 {
    u32::try_from(stripe).ok().filter(|stripe| stripe.is_power_of_two()).unwrap_or(strip)
}

/// The block devices of this daemon.
pub(crate) struct Devices {
    shards: Vec<ShardHandle>,
    /// Memory for the requests of all devices.
    budget: Arc<Budget>,
}

/// The path of a device's node.
fn node(number: u32) -> String {
    format!("/dev/ublkb{number}")
}

/// The stable path of a volume's device: `/dev/purlin/GROUP/VOLUME`.
pub(crate) fn stable_path(volume: &str) -> PathBuf {
    Path::new(NAMES).join(volume)
}

/// The identity that the kernel keeps with the device of an export. Never 0.
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

/// Runs commands of the control device. They block.
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
                    // A device that this process may not look at exists, too.
                    Ok(Some(_)) | Err(UblkError::Os { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            unreachable!("the kernel has fewer devices than numbers")
        })
        .await
    }

    /// Makes the device of an export, or takes over the one that a previous daemon left.
    pub async fn offer(&self, backing: &Backing, record: &ExportRecord, state: &Arc<ExportState>) -> Answer<()> {
        let spec = self.spec(backing, record, state.name())?;
        let number = spec.number.expect("a record has its number");
        let size_bytes = spec.size_bytes;
        let (device, was_there) = control(move |control| {
            match control.find(number)? {
                Some(found) if found.identity != spec.identity => return Err(UblkError::Taken(number)),
                // The device was made by a daemon that was killed before it started it, or that had
                // no privileges.
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

    /// Whether an existing device can be resized.
    ///
    /// # Errors
    /// If the kernel has no driver, or this process may not ask it.
    pub async fn can_resize(&self) -> Answer<bool> {
        control(|control| Ok(control.can_resize())).await
    }

    /// Resizes the device of an export, if it exists and belongs to this daemon, to the size of
    /// what it serves.
    ///
    /// # Errors
    /// If the kernel refuses. Nothing has changed then.
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
            // The kernel spreads its cores over the queues in order, just as the shards are spread
            // over the cores.
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

    /// Removes the device that a previous daemon left of an export that is not served, if it
    /// exists.
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
    /// If the device is to be removed and is in use, or the kernel does not remove it. A device
    /// that is in use is served as before.
    pub async fn withdraw(&self, number: u32, state: &ExportState, end: DeviceEnd) -> Answer<()> {
        match end {
            DeviceEnd::Stays => {
                state.stop();
                state.stopped().await;
            }
            DeviceEnd::Goes => {
                refuse_in_use(number, state.name())?;
                unlink(state.name(), number);
                // Requests in flight have to end before the kernel releases the device.
                state.hurry();
                // The kernel still sends its outstanding requests; its queues end after them.
                control(move |control| control.stop(number)).await?;
                state.stop();
                state.stopped().await;
                control(move |control| control.delete(number)).await?;
            }
        }
        Ok(())
    }
}

/// The users of a device, in words.
pub(crate) fn users(number: u32, volume: &str) -> Vec<String> {
    let (path, stable) = (node(number), stable_path(volume).display().to_string());
    let Ok(metadata) = std::fs::metadata(&path) else { return Vec::new() };
    let device = metadata.rdev();
    // The layout of `makedev(3)` on Linux.
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    let device = format!("{major}:{minor}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // proc_pid_mountinfo(5): the third field is the device, the fifth the mount point. Type and
    // source follow the dash.
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

/// Refuses to remove a device that is in use.
pub(crate) fn refuse_in_use(number: u32, volume: &str) -> Answer<()> {
    let mut users = users(number, volume);
    if users.is_empty() {
        // Mounts in other namespaces and swap claim a device as well.
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

/// Makes the stable name. Without it the device still works.
fn link(volume: &str, number: u32) {
    let path = stable_path(volume);
    let make = || {
        for folder in [Path::new(NAMES), path.parent().unwrap_or(Path::new(NAMES))] {
            // Every user may look names up, regardless of this process' umask. The device node
            // itself controls who may use the device.
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

/// Removes the stable name, if it leads to this device.
pub(crate) fn unlink(volume: &str, number: u32) {
    let path = stable_path(volume);
    if std::fs::read_link(&path).is_ok_and(|target| target == Path::new(&node(number))) {
        let _ = std::fs::remove_file(&path);
        // This succeeds only if it was the last name of its group.
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
