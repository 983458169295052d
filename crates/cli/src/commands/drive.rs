//! `purlin drive` and `purlin spare`.

use api::{
    Changed, DriveWipe, ErrorCode, Group, JobKind, Member, MemberFail, MemberReplace, MemberState, ShareCreate,
    SpareAdd,
};

use super::host::{read_key, read_tls_key};
use super::{drive_name, drive_names};
use crate::ask::{consent, consent_to};
use crate::common_args::{Common, NewDrives};
use crate::drive_args::{DriveCommand, SpareCommand};
use crate::output::{has_colour, show, show_changed};
use crate::share_args::ShareArgs;
use crate::{Client, Failure, progress, shared, table};

pub(super) async fn run(common: &Common, client: &Client, command: DriveCommand) -> Result<(), Failure> {
    match command {
        DriveCommand::List => show(common, &client.drives().await?, |list| table::drives(has_colour(), &list.drives)),
        DriveCommand::Show { drive } => show(common, &client.drive(&drive_name(&drive)?).await?, table::drive),
        DriveCommand::Share(args) => share(common, client, args).await,
        DriveCommand::Shares => show(common, &client.shares().await?, |list| shared::list(has_colour(), &list.shares)),
        DriveCommand::Unshare { drive } => unshare(common, client, &drive_name(&drive)?).await,
        DriveCommand::Fail { group, member, dry_run } => {
            let now = client.group(&group).await?;
            let slot = slot_of(&now, &member)?;
            if !dry_run.dry_run {
                consent_to_fail(common, &now, slot)?;
            }
            let changed = client.member_fail(&group, slot, &MemberFail { dry_run: dry_run.dry_run }).await?;
            show_changed(common, &changed, |now| with_health(format!("failed slot {slot} of {group}"), now))
        }
        DriveCommand::Wipe { drive, dry_run } => {
            let drive = drive_name(&drive)?;
            let planned = client.drive_wipe(&drive, &DriveWipe { dry_run: true }).await?;
            if dry_run.dry_run {
                return show_changed(common, &planned, |_| String::new());
            }
            consent_to(common, &planned, &format!("{drive} belongs to no group then"))?;
            let changed = client.drive_wipe(&drive, &DriveWipe { dry_run: false }).await?;
            show_changed(common, &changed, |now| {
                now.map_or_else(String::new, |now| format!("erased the group {:?} from {}", now.group, now.drive))
            })
        }
        DriveCommand::Replace { group, member, with, wait, new_drives, dry_run } => {
            let slot = slot_of(&client.group(&group).await?, &member)?;
            let request = MemberReplace {
                with: drive_name(&with)?,
                create_files_bytes: new_drives.create_files,
                wipe_foreign: new_drives.wipe_foreign,
                dry_run: dry_run.dry_run,
            };
            request.validate()?;
            replace(common, client, &group, slot, &request, wait).await
        }
    }
}

async fn share(common: &Common, client: &Client, args: ShareArgs) -> Result<(), Failure> {
    let request = ShareCreate {
        drives: drive_names(&args.drives)?,
        address: Some(args.nvme_tcp),
        hosts: args.host,
        allow_any_host: args.allow_any_host,
        dry_run: args.dry_run.dry_run,
    };
    request.validate()?;
    // Secret and key are set first, so that the host never has access without them.
    let (secret, tls_key) = (read_key(&args.key)?, read_tls_key(&args.key, false)?);
    if secret.is_some() || tls_key.is_some() {
        let [host] = &request.hosts[..] else {
            return Err(Failure::Usage("a secret or key is for one host: name it with --host".to_owned()));
        };
        if let (Some(key), false) = (&tls_key, request.dry_run) {
            client.host_tls_key_set(None, host, key).await?;
        }
        if let (Some(key), false) = (&secret, request.dry_run) {
            client.host_key_set(None, host, key).await?;
        }
    }
    show_changed(common, &client.share_create(&request).await?, |list| {
        list.map_or_else(String::new, |list| shared::urls(&list.shares).trim_end().to_owned())
    })
}

async fn unshare(common: &Common, client: &Client, drive: &str) -> Result<(), Failure> {
    let known = client.shares().await?.shares.into_iter().find(|share| share.drive == drive || share.id == drive);
    let known = known.ok_or_else(|| Failure::Refused {
        code: ErrorCode::DriveNotFound,
        message: format!("{drive} is not shared: see `purlin drive shares`"),
    })?;
    if known.queue_count > 0 {
        consent(common, &format!("{} is in use: hosts that use it lose it", known.drive))?;
    }
    let changed = client.share_delete(&known.id).await?;
    show_changed(common, &changed, |_| format!("{} is shared no longer", known.drive))
}

pub(super) async fn run_spare(common: &Common, client: &Client, command: SpareCommand) -> Result<(), Failure> {
    match command {
        SpareCommand::Add { group, drive, new_drives: NewDrives { create_files, wipe_foreign }, dry_run } => {
            let request = SpareAdd {
                drive: drive_name(&drive)?,
                create_files_bytes: create_files,
                wipe_foreign,
                dry_run: dry_run.dry_run,
            };
            request.validate()?;
            if wipe_foreign && !request.dry_run {
                let planned = client.spare_add(&group, &SpareAdd { dry_run: true, ..request.clone() }).await?;
                consent_to_wipe(common, &planned, &request.drive)?;
            }
            let changed = client.spare_add(&group, &request).await?;
            show_changed(common, &changed, |now| with_health(format!("added spare {} to {group}", request.drive), now))
        }
        SpareCommand::Remove { group, drive, dry_run } => {
            let drive = drive_name(&drive)?;
            let changed = client.spare_remove(&group, &drive, dry_run.dry_run).await?;
            show_changed(common, &changed, |_| format!("removed spare {drive} from {group}"))
        }
    }
}

/// The slot of a member that is given by its slot or its drive.
fn slot_of(group: &Group, member: &str) -> Result<u32, Failure> {
    if let Ok(slot) = member.parse() {
        return Ok(slot);
    }
    let drive = member.parse().ok().and_then(|drive| drive_name(&drive).ok());
    let its = |known: &&Member| known.drive.is_some() && known.drive == drive;
    group.members.iter().find(its).map(|known| known.slot).ok_or_else(|| Failure::Refused {
        code: ErrorCode::MemberNotFound,
        message: format!(
            "the group {:?} has no member {member}: name a slot or a drive as `purlin group show {}` does",
            group.name, group.name
        ),
    })
}

/// Asks if the group cannot lose another member after this one.
fn consent_to_fail(common: &Common, group: &Group, slot: u32) -> Result<(), Failure> {
    let known = group.members.iter().find(|member| member.slot == slot);
    let Some(Member { drive, state: MemberState::InSync, .. }) = known else { return Ok(()) };
    if group.losses_left != 1 {
        return Ok(());
    }
    let drive = drive.as_deref().unwrap_or("the drive");
    let what =
        format!("this takes {drive} out of slot {slot} of {}: data are lost if another drive fails then", group.name);
    consent(common, &what)
}

/// Without `--wipe-foreign` the daemon refuses drives with content, so data can be lost only with
/// it. The plan comes from the daemon, so a refusal comes before the question.
fn consent_to_wipe(common: &Common, planned: &Changed<Group>, drive: &str) -> Result<(), Failure> {
    consent_to(common, planned, &format!("this overwrites what {drive} holds"))
}

fn with_health(done: String, group: Option<&Group>) -> String {
    match group {
        Some(group) => format!("{done}; the group is {}", group.health.as_str()),
        None => done,
    }
}

async fn replace(
    common: &Common,
    client: &Client,
    group: &str,
    slot: u32,
    request: &MemberReplace,
    wait: bool,
) -> Result<(), Failure> {
    if request.wipe_foreign && !request.dry_run {
        let planned = client.member_replace(group, slot, &MemberReplace { dry_run: true, ..request.clone() }).await?;
        consent_to_wipe(common, &planned, &request.with)?;
    }
    let mut changed = client.member_replace(group, slot, request).await?;
    let jobs = changed.object.iter().flat_map(|group| &group.jobs);
    let fills = |job: &&api::Job| matches!(job.kind, JobKind::Rebuild | JobKind::Replace) && job.slot == Some(slot);
    let job = jobs.filter(fills).max_by_key(|job| job.id).map(|job| (job.id, job.kind));
    let copies = job.is_some_and(|(_, kind)| kind == JobKind::Replace);
    if let Some((id, _)) = job.filter(|_| wait) {
        progress::wait(client, group, id).await?;
        changed.object = Some(client.group(group).await?);
    }
    show_changed(common, &changed, |now| {
        let verb = match (copies, wait) {
            (true, false) => "copying",
            (true, true) => "copied",
            (false, false) => "rebuilding",
            (false, true) => "rebuilt",
        };
        let preposition = if copies { "to" } else { "onto" };
        with_health(format!("{verb} slot {slot} of {group} {preposition} {}", request.with), now)
    })
}
