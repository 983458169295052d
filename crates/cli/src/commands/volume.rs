//! `purlin volume`.

use api::{
    ConvertAction, Rename, ThinUpdate, Volume, VolumeConvert, VolumeCreate, VolumeKind, VolumeName, VolumeUpdate,
    format_bytes, volume_bytes,
};

use super::{limited, renamed};
use crate::ask::consent;
use crate::common_args::Common;
use crate::output::{has_colour, show, show_changed};
use crate::volume_args::VolumeCommand;
use crate::volume_size::VolumeSize;
use crate::{Client, Failure, table};

pub(super) async fn run(common: &Common, client: &Client, command: VolumeCommand) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create { name, size, thin, settings, dry_run } => {
            let size_bytes = match size {
                VolumeSize::Bytes(bytes) => bytes,
                VolumeSize::Share(_) if thin => return Err(no_share_of_thin()),
                VolumeSize::Share(share) => share.of(client.group(&name.group).await?.free_bytes)?,
            };
            let settings = settings.update(dry_run.dry_run);
            let ThinUpdate { compression, quota_bytes, reserve_bytes, full_wait_ms, repack_after_s, dry_run } =
                settings;
            let (group, volume) = (name.group, name.volume);
            let request = VolumeCreate {
                group,
                volume,
                size_bytes,
                thin,
                compression,
                quota_bytes,
                reserve_bytes,
                full_wait_ms,
                repack_after_s,
                dry_run,
            };
            request.validate()?;
            show_changed(common, &client.volume_create(&request).await?, |volume| sized("created", volume))
        }
        VolumeCommand::List => {
            show(common, &client.volumes().await?, |list| table::volumes(has_colour(), &list.volumes))
        }
        VolumeCommand::Show { name } => show(common, &client.volume(&name).await?, table::volume),
        VolumeCommand::Set { name, settings, dry_run } => {
            let update = settings.update(dry_run.dry_run);
            update.validate()?;
            let changed = client.volume_thin(&name, &update).await?;
            show_changed(common, &changed, |_| set(&changed.steps, &name))
        }
        VolumeCommand::Convert { name, action, settings, dry_run } => {
            let ThinUpdate { compression, quota_bytes, reserve_bytes, full_wait_ms, repack_after_s, dry_run } =
                settings.update(dry_run.dry_run);
            let action = action.action();
            let request = VolumeConvert {
                action,
                compression,
                quota_bytes,
                reserve_bytes,
                full_wait_ms,
                repack_after_s,
                dry_run,
            };
            request.validate()?;
            show_changed(common, &client.volume_convert(&name, &request).await?, |_| converting(action, &name))
        }
        VolumeCommand::Limit { name, limit, dry_run } => {
            let update = limit.update(dry_run.dry_run);
            update.validate()?;
            let changed = client.volume_limit(&name, &update).await?;
            show_changed(common, &changed, |_| limited(&changed.steps, &format!("the volume {name}")))
        }
        VolumeCommand::Resize { name, size, dry_run } => resize(common, client, &name, size, dry_run.dry_run).await,
        VolumeCommand::Rename { name, new, force, dry_run } => {
            let request = Rename { name: in_its_group(&name, &new)?, force, dry_run: dry_run.dry_run };
            request.validate_volume()?;
            let changed = client.volume_rename(&name, &request).await?;
            let after = format!("{}/{}", name.group, request.name);
            show_changed(common, &changed, |_| renamed(&changed.steps, "volume", &name.to_string(), &after))
        }
        VolumeCommand::Delete { name, dry_run } => delete(common, client, &name, dry_run.dry_run).await,
    }
}

/// The new name of a volume in its group. `new` may contain the group.
fn in_its_group(name: &VolumeName, new: &str) -> Result<String, Failure> {
    let Some((group, volume)) = new.split_once('/') else { return Ok(new.to_owned()) };
    if group == name.group {
        return Ok(volume.to_owned());
    }
    Err(Failure::Usage(format!("{name} stays in its group: its new name is {}/... and not {new:?}", name.group)))
}

/// A thin volume takes nothing of the free space when it is made.
fn no_share_of_thin() -> Failure {
    Failure::Usage("the size of a thin volume is no share of the free space: give it in bytes, such as 10TiB".into())
}

fn set(steps: &[String], name: &VolumeName) -> String {
    if steps.is_empty() { format!("the volume {name} has these settings already") } else { steps.join("\n") }
}

fn converting(action: ConvertAction, name: &VolumeName) -> String {
    match action {
        ConvertAction::Cancel => format!("stopped the conversion of the volume {name}; it is as it was before"),
        ConvertAction::Thin | ConvertAction::Direct => {
            format!("the volume {name} is being converted: `purlin volume show {name}` says how far it is")
        }
    }
}

fn sized(verb: &str, volume: Option<&Volume>) -> String {
    volume.map_or_else(
        || format!("{verb} the volume"),
        |volume| format!("{verb} volume {}: {}", volume.name, format_bytes(volume.size_bytes)),
    )
}

async fn resize(
    common: &Common,
    client: &Client,
    name: &VolumeName,
    size: VolumeSize,
    dry_run: bool,
) -> Result<(), Failure> {
    if let VolumeSize::Bytes(size_bytes) = size {
        VolumeUpdate { size_bytes, confirm: None, dry_run }.validate()?;
    }
    let known = client.volume(name).await?;
    let before = known.size_bytes;
    let size_bytes = match size {
        VolumeSize::Bytes(bytes) => bytes,
        VolumeSize::Share(_) if known.kind == VolumeKind::Thin => return Err(no_share_of_thin()),
        VolumeSize::Share(share) => share.of(before + client.group(&name.group).await?.free_bytes)?,
    };
    let mut request = VolumeUpdate { size_bytes, confirm: None, dry_run };
    // The daemon refuses sizes beyond all numbers.
    let after = volume_bytes(size_bytes).unwrap_or(size_bytes);
    if after < before && !dry_run {
        let lost = format_bytes(before - after);
        consent(common, &format!("this destroys the last {lost} of volume {name}"))?;
        request.confirm = Some(name.to_string());
    }
    show_changed(common, &client.volume_resize(name, &request).await?, |volume| sized("resized", volume))
}

async fn delete(common: &Common, client: &Client, name: &VolumeName, dry_run: bool) -> Result<(), Failure> {
    if !dry_run {
        // The daemon refuses an invalid request before the user is asked.
        client.volume_delete(name, true).await?;
        consent(common, &format!("this destroys volume {name} and all that is on it"))?;
    }
    show_changed(common, &client.volume_delete(name, dry_run).await?, |_| format!("deleted volume {name}"))
}
