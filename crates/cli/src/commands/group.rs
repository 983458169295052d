//! `purlin group`.

use api::{
    Group, GroupAssemble, GroupCreate, GroupForget, GroupScan, GroupStart, GroupStop, Rename, Scrub, ScrubAction,
    ScrubRequest, format_bytes,
};

use super::{counted, drive_names, import, renamed};
use crate::ask::{consent_by_name, consent_to};
use crate::common_args::Common;
use crate::group_args::{GroupCommand, GroupCreateArgs, Switch};
use crate::output::{has_colour, show, show_changed};
use crate::{Client, Failure, maintenance, progress, scanned, table};

pub(super) async fn run(common: &Common, client: &Client, command: GroupCommand) -> Result<(), Failure> {
    match command {
        GroupCommand::Create(args) => create(common, client, args).await,
        GroupCommand::List => show(common, &client.groups().await?, |list| {
            table::groups(has_colour(), &list.groups) + &table::not_started(&list.not_started)
        }),
        GroupCommand::Show { group } => {
            show(common, &client.group(&group).await?, |group| table::group(has_colour(), group))
        }
        GroupCommand::Set { group, settings, dry_run } => {
            let request = settings.update(dry_run.dry_run);
            request.validate()?;
            let changed = client.group_update(&group, &request).await?;
            let said = if changed.steps.is_empty() { "nothing to change".to_owned() } else { changed.steps.join("; ") };
            show_changed(common, &changed, |_| format!("{group}: {said}"))
        }
        GroupCommand::Scrub { group, repair, wait, pause, resume, stop, status } => {
            let chosen = [
                (pause, ScrubAction::Pause),
                (resume, ScrubAction::Resume),
                (stop, ScrubAction::Stop),
                (status, ScrubAction::Status),
            ];
            let action =
                chosen.into_iter().find(|(is_chosen, _)| *is_chosen).map_or(ScrubAction::Start, |(_, action)| action);
            scrub(common, client, &group, ScrubRequest { action, repair }, wait).await
        }
        GroupCommand::Assemble { drives, more_drives, name, dry_run } => {
            let drives = drive_names(&[drives, more_drives].concat())?;
            let request = GroupAssemble { drives, name, dry_run: dry_run.dry_run };
            request.validate()?;
            show_changed(common, &client.group_assemble(&request).await?, |group| started("assembled", group))
        }
        GroupCommand::ImportMd(args) => import::import_md(common, client, args).await,
        GroupCommand::Scan { drives } => {
            let request = GroupScan { drives: drive_names(&drives)? };
            request.validate()?;
            show(common, &client.group_scan(&request).await?, |found| scanned::scanned(has_colour(), found))
        }
        GroupCommand::Start { group, dry_run } => {
            let request = GroupStart { dry_run: dry_run.dry_run };
            show_changed(common, &client.group_start(&group, &request).await?, |group| started("started", group))
        }
        GroupCommand::Rename { group, new, force, dry_run } => {
            let request = Rename { name: new, force, dry_run: dry_run.dry_run };
            request.validate_group()?;
            let changed = client.group_rename(&group, &request).await?;
            show_changed(common, &changed, |_| renamed(&changed.steps, "group", &group, &request.name))
        }
        GroupCommand::Stop { group, force, dry_run } => {
            let request = GroupStop { force, dry_run: dry_run.dry_run };
            let changed = client.group_stop(&group, &request).await?;
            show_changed(common, &changed, |_| format!("stopped group {group}; its drives hold all of it"))
        }
        GroupCommand::Forget { group, dry_run } => {
            let changed = client.group_forget(&group, &GroupForget { dry_run: dry_run.dry_run }).await?;
            show_changed(common, &changed, |_| format!("forgot group {group}; its drives hold all of it"))
        }
        GroupCommand::Delete { group, dry_run } => delete(common, client, &group, dry_run.dry_run).await,
    }
}

fn started(verb: &str, group: Option<&Group>) -> String {
    group.map_or_else(
        || format!("{verb} the group"),
        |group| {
            let (name, health, size) = (&group.name, group.health.as_str(), format_bytes(group.capacity_bytes));
            format!("{verb} group {name}: {}, {health}, {size}", group.level)
        },
    )
}

async fn create(common: &Common, client: &Client, args: GroupCreateArgs) -> Result<(), Failure> {
    let settings = args.settings.update(args.dry_run.dry_run);
    let request = GroupCreate {
        name: args.name,
        level: args.level,
        drives: drive_names(&args.drives)?,
        spares: drive_names(&args.spares)?,
        parity: args.parity,
        copies: args.copies,
        sets: args.sets,
        strip_bytes: args.strip,
        crash_safety: args.crash_safety,
        checksums: args.checksums.map(|switch| switch == Switch::On),
        client_p99_us: settings.client_p99_us,
        retire_slow: settings.retire_slow,
        scrub_every_s: settings.scrub_every_s,
        thin_warn_percents: settings.thin_warn_percents,
        create_files_bytes: args.new_drives.create_files,
        wipe_foreign: args.new_drives.wipe_foreign,
        dry_run: args.dry_run.dry_run,
    };
    request.validate()?;
    if !request.dry_run {
        // The daemon refuses an invalid request before the user is asked.
        let planned = client.group_create(&GroupCreate { dry_run: true, ..request.clone() }).await?;
        let drives = counted(request.drives.len() + request.spares.len(), "drive");
        let verb = if request.create_files_bytes.is_some() { "creates or overwrites" } else { "overwrites" };
        consent_to(common, &planned, &format!("this {verb} {drives}"))?;
    }
    show_changed(common, &client.group_create(&request).await?, |group| started("created", group))
}

async fn delete(common: &Common, client: &Client, group: &str, dry_run: bool) -> Result<(), Failure> {
    if !dry_run {
        let planned = client.group_delete(group, true).await?;
        consent_by_name(common, &planned, &format!("this destroys group {group} and every volume in it"), group)?;
    }
    show_changed(common, &client.group_delete(group, dry_run).await?, |_| format!("deleted group {group}"))
}

async fn scrub(
    common: &Common,
    client: &Client,
    group: &str,
    request: ScrubRequest,
    wait: bool,
) -> Result<(), Failure> {
    let mut scrub = client.scrub(group, &request).await?;
    if wait && let Some(job) = &scrub.job {
        let job = Some(progress::wait(client, group, job.id).await?);
        scrub = Scrub { job, schedule: client.group(group).await?.scrub };
    }
    show(common, &scrub, |scrub| maintenance::scrub(group, scrub))?;
    match scrub.job.as_ref().filter(|_| wait).and_then(|job| job.findings.as_ref()) {
        Some(found) if found.mismatch_count > found.repaired_count => Err(Failure::Ended(format!(
            "the scrub of {group} found {}, {} of them put right",
            counted(usize::try_from(found.mismatch_count).unwrap_or(usize::MAX), "difference"),
            found.repaired_count
        ))),
        _ => Ok(()),
    }
}
