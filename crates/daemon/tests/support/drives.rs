//! Drives that exist only here, as members and spares of groups.

use api::*;
use daemon::http::{Answer, ControlError};

use super::state::{GIB, State, drive_bytes, plain_name, refuse};

/// Members and spares of all groups.
pub fn list(state: &State) -> Answer<Vec<Drive>> {
    let drive = |name: &str, group: &Group, slot: Option<u32>, size_bytes: Option<u64>, state: DriveState| Drive {
        name: name.to_owned(),
        kind: match name.parse() {
            Ok(DriveSpec::Memory { .. }) => DriveKind::Memory,
            Ok(DriveSpec::Nvme(_)) => DriveKind::Remote,
            _ => DriveKind::File,
        },
        state,
        role: if slot.is_some() { DriveRole::Member } else { DriveRole::Spare },
        group: Some(group.name.clone()),
        slot,
        size_bytes,
        sector_bytes: Some(4096),
        io: IoCounters { read_count: 7, read_bytes: 28672, ..IoCounters::default() },
        errors: ErrorCounts::default(),
        read_latency_us: Some(LatencyUs { p50: 70.0, p99: 140.0, max: 900.0 }),
        write_latency_us: None,
        note: None,
    };
    let mut drives = Vec::new();
    for group in state.groups.values() {
        for member in &group.members {
            let health = if member.state == MemberState::Faulty { DriveState::Faulty } else { DriveState::Online };
            let name = member.drive.as_deref().unwrap_or("?");
            drives.push(drive(name, group, Some(member.slot), member.size_bytes, health));
        }
        for spare in &group.spares {
            drives.push(drive(&spare.drive, group, None, Some(spare.size_bytes), DriveState::Online));
        }
    }
    Ok(drives)
}

/// One of them, with what it says of itself; the drives in slot 0 are NVMe namespaces.
pub fn show(state: &State, drive: &str) -> Answer<DriveDetails> {
    let found = list(state)?.into_iter().find(|known| known.name == drive);
    let drive = found.ok_or_else(|| ControlError::drive_not_found(drive))?;
    let health = DriveHealth {
        critical_warning: 1,
        temperature_c: Some(38),
        used_percent: 3,
        spare_percent: 9,
        spare_threshold_percent: 10,
        read_bytes: 1_024_000,
        written_bytes: 1_536_000,
        power_on_hours: 8760,
        unsafe_shutdown_count: 5,
        media_error_count: 0,
        warnings: vec!["its spare blocks run out".into()],
    };
    let is_first = drive.slot == Some(0);
    Ok(DriveDetails {
        model: is_first.then(|| "Model X".into()),
        serial: is_first.then(|| "S1".into()),
        firmware: is_first.then(|| "1.0".into()),
        identity: is_first.then(|| "eui.0025385b71b00a55".into()),
        passthrough: (drive.kind == DriveKind::File).then(|| DrivePassthrough {
            node: None,
            refusal: Some("it is no NVMe namespace".into()),
            command_count: 0,
        }),
        health: is_first.then_some(health),
        drive,
    })
}

pub fn fail(state: &mut State, group: &str, slot: u32, request: &MemberFail) -> Answer<Changed<Group>> {
    state.member(group, slot)?;
    let now = state.settle(group);
    let member = state.member(group, slot)?;
    if member.state == MemberState::InSync && now.losses_left == 0 {
        return refuse(
            ErrorCode::WouldLoseData,
            format!("the group {group:?} cannot lose slot {slot}: its data need every member that is left"),
        );
    }
    let steps = vec![format!("stop using {}", member.drive.clone().unwrap_or_default())];
    if request.dry_run {
        return Ok(Changed::planned(steps));
    }
    member.state = MemberState::Faulty;
    state.take_spare(group);
    Ok(Changed::done(steps, state.settle(group)))
}

pub fn replace(state: &mut State, group: &str, slot: u32, request: &MemberReplace) -> Answer<Changed<Group>> {
    state.member(group, slot)?;
    let drive = plain_name(&request.with);
    state.check_unused(&drive)?;
    let size_bytes = drive_bytes(&request.with, request.create_files_bytes, request.wipe_foreign)?;
    let member = state.member(group, slot)?;
    if member.size_bytes.is_some_and(|needed| size_bytes < needed) {
        return refuse(
            ErrorCode::DriveUnfit,
            format!("{drive} is too small for the group {group:?}: {} of {GIB} bytes", size_bytes),
        );
    }
    let steps = vec![format!("write a superblock to {drive}"), format!("rebuild slot {slot} onto {drive}")];
    if request.dry_run {
        return Ok(Changed::planned(steps));
    }
    (member.drive, member.size_bytes) = (Some(drive), Some(size_bytes));
    member.state = MemberState::Rebuilding;
    state.start(group, JobKind::Rebuild, Some(slot), None);
    Ok(Changed::done(steps, state.settle(group)))
}

pub fn add_spare(state: &mut State, group: &str, request: &SpareAdd) -> Answer<Changed<Group>> {
    state.group(group)?;
    let drive = plain_name(&request.drive);
    state.check_unused(&drive)?;
    let size_bytes = drive_bytes(&request.drive, request.create_files_bytes, request.wipe_foreign)?;
    let steps = vec![format!("write a superblock to {drive}")];
    if request.dry_run {
        return Ok(Changed::planned(steps));
    }
    state.group(group)?.spares.push(Spare { drive, size_bytes });
    state.take_spare(group);
    Ok(Changed::done(steps, state.settle(group)))
}

pub fn remove_spare(state: &mut State, group: &str, drive: &str, dry_run: bool) -> Answer<Changed<Group>> {
    let there = state.group(group)?;
    let Some(index) = there.spares.iter().position(|spare| spare.drive == plain_name(drive)) else {
        return refuse(ErrorCode::DriveNotFound, format!("the group {group:?} has no spare {drive:?}"));
    };
    let steps = vec![format!("erase the superblock of {drive}")];
    if dry_run {
        return Ok(Changed::planned(steps));
    }
    there.spares.remove(index);
    Ok(Changed::done(steps, state.settle(group)))
}
