//! Drive identification and health, as the drives report them.
//!
//! Byte offsets are of the NVM Express Base Specification: Identify Controller data structure (CNS
//! 01h), and SMART / Health Information log (LID 02h).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{DriveDetails, DriveHealth};
use array::GroupStatus;
use runtime::{NVME_HEALTH_BYTES, NVME_IDENTIFY_BYTES, nvme_health, nvme_identify};

use crate::engine::drives::identity;
use crate::engine::group::Group;
use crate::engine::group::group_drive::GroupDrive;
use crate::engine::{Engine, view};
use crate::http::{Answer, ControlError};

/// How often the drives of groups are asked for their health.
const ASK_EVERY: Duration = Duration::from_secs(60);

/// How long a drive may take to answer.
const ASK_WITHIN: Duration = Duration::from_secs(6);

/// The unit of the read and written data counters: thousands of 512 bytes.
const DATA_UNIT_BYTES: u64 = 512_000;

/// 0 °C in Kelvin, the unit of the log.
const ZERO_CELSIUS_K: i32 = 273;

/// The bits of the critical warning, from the lowest.
const CRITICAL: [&str; 6] = [
    "its spare blocks run out",
    "it is too hot or too cold",
    "it has become unreliable",
    "it takes no more writes",
    "the backup of its volatile memory has failed",
    "its persistent memory region takes no more writes or is unreliable",
];

/// The identification that a drive reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Who {
    serial: Option<String>,
    model: Option<String>,
    firmware: Option<String>,
}

/// Text of an identify structure: ASCII, padded with blanks.
fn text(bytes: &[u8]) -> Option<String> {
    let text: String =
        bytes.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).filter(|c| !c.is_control()).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn who(identify: &[u8]) -> Option<Who> {
    if identify.len() < NVME_IDENTIFY_BYTES {
        return None;
    }
    Some(Who { serial: text(&identify[4..24]), model: text(&identify[24..64]), firmware: text(&identify[64..72]) })
}

fn health(log: &[u8]) -> Option<DriveHealth> {
    if log.len() < NVME_HEALTH_BYTES {
        return None;
    }
    let number = |at: usize| {
        let bytes = log[at..at + 16].try_into().expect("sixteen bytes");
        u64::try_from(u128::from_le_bytes(bytes)).unwrap_or(u64::MAX)
    };
    let kelvin = i32::from(u16::from_le_bytes([log[1], log[2]]));
    let set = CRITICAL.iter().enumerate().filter(|(bit, _)| log[0] & (1 << bit) != 0);
    let mut warnings: Vec<String> = set.map(|(_, words)| (*words).to_owned()).collect();
    let (spare, threshold, used) = (log[3], log[4], log[5]);
    // Some drives report this by the bit, others only by the numbers.
    if spare < threshold && log[0] & 1 == 0 {
        warnings.push(CRITICAL[0].to_owned());
    }
    if used >= 100 {
        warnings.push(format!("it has {used} % of its estimated life behind it"));
    }
    Some(DriveHealth {
        critical_warning: u32::from(log[0]),
        // 0: not reported.
        temperature_c: (kelvin > 0).then_some(kelvin - ZERO_CELSIUS_K),
        used_percent: u32::from(used),
        spare_percent: u32::from(spare),
        spare_threshold_percent: u32::from(threshold),
        read_bytes: number(32).saturating_mul(DATA_UNIT_BYTES),
        written_bytes: number(48).saturating_mul(DATA_UNIT_BYTES),
        power_on_hours: number(128),
        unsafe_shutdown_count: number(144),
        media_error_count: number(160),
        warnings,
    })
}

/// Asks a drive through a separate descriptor. It claims nothing, so the group may close the drive
/// meanwhile. Blocks the calling thread.
fn query_device(device: (u32, u32)) -> Option<(Who, Option<DriveHealth>)> {
    let file = File::open(identity::path_of(device)?).ok()?;
    let opened = file.metadata().ok()?.rdev();
    if (libc::major(opened), libc::minor(opened)) != device {
        return None;
    }
    let who = nvme_identify(file.as_fd()).ok().and_then(|bytes| who(&bytes));
    Some((who.unwrap_or_default(), nvme_health(file.as_fd()).ok().and_then(|bytes| health(&bytes))))
}

/// The same from a task. Empty if the drive does not answer in time.
async fn answer(device: Option<(u32, u32)>) -> (Who, Option<DriveHealth>) {
    let Some(device) = device else { return (Who::default(), None) };
    let asking = tokio::task::spawn_blocking(move || query_device(device));
    tokio::time::timeout(ASK_WITHIN, asking).await.ok().and_then(Result::ok).flatten().unwrap_or_default()
}

/// The last health reports of the drives of groups, by device.
#[derive(Debug, Default)]
pub(crate) struct Healths(Mutex<BTreeMap<(u32, u32), DriveHealth>>);

impl Healths {
    pub(super) fn of(&self, device: (u32, u32)) -> Option<DriveHealth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&device).cloned()
    }

    /// Stores a report and returns the warnings that are new.
    fn set(&self, device: (u32, u32), health: DriveHealth) -> Vec<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let warnings = health.warnings.clone();
        let before = all.insert(device, health).map(|health| health.warnings).unwrap_or_default();
        warnings.into_iter().filter(|warning| !before.contains(warning)).collect()
    }
}

impl Engine {
    /// Asks the drives of all groups for their health once a minute, for as long as the engine
    /// lives.
    pub fn start_health(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(ASK_EVERY);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(engine) = engine.upgrade() else { return };
                for group in engine.all() {
                    engine.query_healths(&group).await;
                }
            }
        });
    }

    async fn query_healths(&self, group: &Group) {
        let named = |drive: &GroupDrive| Some((drive.name.clone(), drive.open.device_number()?));
        let drives: Vec<_> = group.drives().iter().flatten().filter_map(named).collect();
        for (drive, device) in drives {
            if let (_, Some(health)) = answer(Some(device)).await {
                for warning in self.healths.set(device, health) {
                    tracing::warn!(group = group.name, drive, warning, "a drive warns");
                }
            }
        }
    }

    /// The current warnings of the drives of a group.
    pub(crate) fn drive_warnings(&self, group: &Group, status: &GroupStatus) -> Vec<String> {
        let members =
            status.members.iter().filter_map(|member| Some((format!("member {}", member.member.0), member.drive?)));
        let spares = status.spares.iter().map(|id| ("spare".to_owned(), *id));
        let warnings = members.chain(spares).flat_map(|(role, id)| {
            let drive = group.drive(id);
            let reported = drive.as_ref().and_then(|drive| self.healths.of(drive.open.device_number()?));
            let name = drive.map(|drive| drive.name).unwrap_or_default();
            reported
                .map(|health| health.warnings)
                .unwrap_or_default()
                .into_iter()
                .map(move |warning| format!("{role}, {name}: {warning}"))
        });
        warnings.collect()
    }

    /// All known details of one drive.
    pub(crate) async fn query_drive(&self, name: &str) -> Answer<DriveDetails> {
        let device = std::fs::canonicalize(name)
            .ok()
            .and_then(|real| identity::look(real.strip_prefix("/dev").ok()?.to_str()?).map(|present| present.device));
        for group in self.all() {
            let by_name = group.drive_id(name).and_then(|id| Some((id, group.drive(id)?)));
            let Some((id, drive)) = by_name.or_else(|| group.find_device(device?)) else { continue };
            let seen = view::drive(&group, &group.status().await?, id, &drive);
            let device = drive.open.device_number();
            let folder = device.map(identity::folder_of);
            let reported = answer(device).await;
            let known = details(seen, drive.identity, folder.as_deref(), reported);
            return Ok(DriveDetails { passthrough: view::passthrough(&drive.open), ..known });
        }
        let unassigned_drives = self.unassigned_drives.list(&self.all());
        let unassigned =
            unassigned_drives.iter().find(|unassigned| unassigned.path == name || Some(unassigned.device) == device);
        let unassigned = unassigned.ok_or_else(|| ControlError::drive_not_found(name))?;
        let folder = identity::folder_of(unassigned.device);
        let reported = answer(Some(unassigned.device)).await;
        Ok(details(view::unassigned(unassigned), identity::of(&folder), Some(&folder), reported))
    }
}

/// Values that the drive reports take precedence over those of the kernel.
fn details(
    drive: api::Drive,
    identity: Option<String>,
    folder: Option<&std::path::Path>,
    (who, health): (Who, Option<DriveHealth>),
) -> DriveDetails {
    let kernel = |name: &str| identity::of_disk(folder?, name);
    DriveDetails {
        model: who.model.or_else(|| kernel("device/model")),
        serial: who.serial.or_else(|| kernel("device/serial")),
        firmware: who.firmware.or_else(|| kernel("device/firmware_rev")).or_else(|| kernel("device/rev")),
        identity,
        drive,
        passthrough: None,
        health,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(change: impl FnOnce(&mut [u8])) -> DriveHealth {
        let mut bytes = [0; NVME_HEALTH_BYTES];
        bytes[1..3].copy_from_slice(&311u16.to_le_bytes());
        (bytes[3], bytes[4], bytes[5]) = (100, 10, 3);
        change(&mut bytes);
        health(&bytes).unwrap()
    }

    #[test]
    fn the_log_is_read_as_the_specification_has_it() {
        let seen = log(|bytes| {
            for (at, value) in [(32, 2u8), (48, 3), (128, 4), (144, 5), (160, 6)] {
                bytes[at] = value;
            }
        });
        assert_eq!((seen.temperature_c, seen.used_percent, seen.spare_percent), (Some(38), 3, 100));
        assert_eq!((seen.read_bytes, seen.written_bytes), (1_024_000, 1_536_000));
        assert_eq!((seen.power_on_hours, seen.unsafe_shutdown_count, seen.media_error_count), (4, 5, 6));
        assert_eq!((seen.critical_warning, seen.warnings), (0, vec![]));
        assert_eq!(log(|bytes| bytes[1..3].fill(0)).temperature_c, None, "not reported");
        assert_eq!(log(|bytes| bytes[32..48].fill(0xff)).read_bytes, u64::MAX);
    }

    #[test]
    fn a_drive_that_nears_its_end_warns() {
        assert_eq!(log(|bytes| bytes[0] = 0b1001).warnings, ["its spare blocks run out", "it takes no more writes"]);
        assert_eq!(log(|bytes| bytes[3] = 9).warnings, ["its spare blocks run out"], "below its threshold");
        assert_eq!(log(|bytes| (bytes[0], bytes[3]) = (1, 9)).warnings.len(), 1, "once");
        assert_eq!(log(|bytes| bytes[5] = 99).warnings, [""; 0]);
        assert_eq!(log(|bytes| bytes[5] = 120).warnings, ["it has 120 % of its estimated life behind it"]);
        assert_eq!(log(|bytes| bytes[0] = 0b1100_0000).warnings, [""; 0], "bits that have no meaning yet");
    }

    #[test]
    fn short_answers_and_odd_texts_are_no_answers() {
        assert!(health(&[0; 511]).is_none() && who(&[0; 4095]).is_none());
        assert_eq!(who(&[0; NVME_IDENTIFY_BYTES]), Some(Who::default()));
        let mut bytes = [b' '; NVME_IDENTIFY_BYTES];
        bytes[4..11].copy_from_slice(b"S1\x1b[2J\0");
        assert_eq!(who(&bytes).unwrap().serial.as_deref(), Some("S1[2J"), "a terminal is not its business");
    }

    #[test]
    fn a_warning_is_logged_once() {
        let healths = Healths::default();
        let well = log(|_| {});
        let hot = || DriveHealth { warnings: vec!["hot".to_owned()], ..well.clone() };
        assert_eq!(healths.set((1, 2), hot()), ["hot"]);
        assert_eq!(healths.set((1, 2), hot()), [""; 0]);
        assert_eq!(healths.of((1, 2)), Some(hot()));
        healths.set((1, 2), DriveHealth { warnings: vec![], ..well.clone() });
        assert_eq!(healths.set((1, 2), hot()), ["hot"], "it came back");
    }
}
