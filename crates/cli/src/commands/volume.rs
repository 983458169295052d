//! `purlin volume`.

use api::{Volume, VolumeCreate, VolumeName, VolumeUpdate, format_bytes, volume_bytes};

use super::limited;
use crate::args::{Common, VolumeCommand};
use crate::ask::consent;
use crate::output::{has_colour, show, show_changed};
use crate::{Client, Failure, table};

pub(super) async fn run(common: &Common, client: &Client, command: VolumeCommand) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create { name, size, dry_run } => {
            let dry_run = dry_run.dry_run;
            let request = VolumeCreate { group: name.group, volume: name.volume, size_bytes: size, dry_run };
            request.validate()?;
            show_changed(common, &client.volume_create(&request).await?, |volume| sized("created", volume))
        }
        VolumeCommand::List => {
            show(common, &client.volumes().await?, |list| table::volumes(has_colour(), &list.volumes))
        }
        VolumeCommand::Show { name } => show(common, &client.volume(&name).await?, table::volume),
        VolumeCommand::Limit { name, limit, dry_run } => {
            let update = limit.update(dry_run.dry_run);
            update.validate()?;
            let changed = client.volume_limit(&name, &update).await?;
            show_changed(common, &changed, |_| limited(&changed.steps, &format!("the volume {name}")))
        }
        VolumeCommand::Resize { name, size, dry_run } => resize(common, client, &name, size, dry_run.dry_run).await,
        VolumeCommand::Delete { name, dry_run } => delete(common, client, &name, dry_run.dry_run).await,
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
    size_bytes: u64,
    dry_run: bool,
) -> Result<(), Failure> {
    let mut request = VolumeUpdate { size_bytes, confirm: None, dry_run };
    request.validate()?;
    let before = client.volume(name).await?.size_bytes;
    // What is beyond all numbers is refused by the daemon.
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
        // What would be refused is refused before anybody is asked.
        client.volume_delete(name, true).await?;
        consent(common, &format!("this destroys volume {name} and all that is on it"))?;
    }
    show_changed(common, &client.volume_delete(name, dry_run).await?, |_| format!("deleted volume {name}"))
}
