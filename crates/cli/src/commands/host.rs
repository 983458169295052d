//! `purlin host`.

use std::path::PathBuf;

use api::{ErrorCode, HostKeySet, HostTlsKeySet, Share, check_host};

use super::limited;
use crate::common_args::Common;
use crate::host_args::{HostCommand, HostKeyCommand, KeyArgs, KeyPlace, Transform};
use crate::output::{has_colour, show, show_changed};
use crate::{Client, Failure, HostKey, hosts, secret};

pub(super) async fn run(common: &Common, client: &Client, command: HostCommand) -> Result<(), Failure> {
    match command {
        HostCommand::List => show(common, &client.hosts().await?, |list| hosts::list(has_colour(), &list.hosts)),
        HostCommand::Show { host } => {
            let known = client.hosts().await?.hosts.into_iter().find(|known| known.nqn == host);
            let known = known.ok_or_else(|| Failure::Refused {
                code: ErrorCode::HostNotFound,
                message: format!("no export or shared drive names the host {host:?}, and it has used none"),
            })?;
            show(common, &known, |host| hosts::one(has_colour(), host))
        }
        HostCommand::Allow { host, export, key } => allow(common, client, &host, &export, &key).await,
        HostCommand::Limit { host, export, limit, dry_run } => {
            check_host(&host)?;
            let update = limit.update(dry_run.dry_run);
            update.validate()?;
            let changed = client.host_limit(&export, &host, &update).await?;
            show_changed(common, &changed, |_| {
                limited(&changed.steps, &format!("what {host} does with the export {export}"))
            })
        }
        HostCommand::Key(HostKeyCommand::Generate { out, tls, hash }) => generate_key(common, out, tls, hash),
        HostCommand::Key(HostKeyCommand::Set { host, of, key, keep_old }) => {
            set_key(common, client, &host, &of, &key, keep_old).await
        }
        HostCommand::Key(HostKeyCommand::Remove { host, of, tls: true }) => {
            let changed = client.host_tls_key_remove(of.group.as_deref(), &host).await?;
            show_changed(common, &changed, |_| format!("{host} is let in to {} without TLS", of.name()))
        }
        HostCommand::Key(HostKeyCommand::Remove { host, of, tls: false }) => {
            let changed = client.host_key_remove(of.group.as_deref(), &host).await?;
            show_changed(common, &changed, |_| format!("{host} is let in to {} by its name alone", of.name()))
        }
        HostCommand::Deny { host, export } => deny(common, client, &host, &export).await,
    }
}

async fn allow(common: &Common, client: &Client, host: &str, export: &str, key: &KeyArgs) -> Result<(), Failure> {
    check_host(host)?;
    // Secret and key are set first, so that the host never has access without them.
    let (secret, tls_key) = (read_key(key)?, read_tls_key(key, false)?);
    let share = find_share(client, export).await?;
    let has_key = secret.is_some() || tls_key.is_some();
    let of = if has_key && share.is_none() { Some(group_of(client, export).await?) } else { None };
    if let Some(key) = tls_key {
        client.host_tls_key_set(of.as_deref(), host, &key).await?;
    }
    if let Some(key) = secret {
        client.host_key_set(of.as_deref(), host, &key).await?;
    }
    if let Some(share) = share {
        let changed = client.share_host_allow(&share.id, host).await?;
        return show_changed(common, &changed, |_| format!("{host} may use the shared drive {}", share.drive));
    }
    let changed = client.host_allow(export, host).await?;
    show_changed(common, &changed, |_| format!("{host} may use the export {export}"))
}

async fn deny(common: &Common, client: &Client, host: &str, export: &str) -> Result<(), Failure> {
    if let Some(share) = find_share(client, export).await? {
        let changed = client.share_host_deny(&share.id, host).await?;
        let done = format!("{host} may use the shared drive {} no longer", share.drive);
        return show_changed(common, &changed, |_| done);
    }
    let changed = client.host_deny(export, host).await?;
    show_changed(common, &changed, |_| format!("{host} may use the export {export} no longer"))
}

fn generate_key(common: &Common, out: Option<PathBuf>, tls: bool, hash: Transform) -> Result<(), Failure> {
    let made = if tls { secret::generate_tls(hash.0)? } else { secret::generate(hash.0)? };
    let key = match out {
        Some(file) => {
            secret::write(&file, &made)?;
            HostKey { file: Some(file.display().to_string()), secret: None }
        }
        None => HostKey { file: None, secret: Some((*made).clone()) },
    };
    show(common, &key, |key| key.secret.as_ref().map_or_else(String::new, |secret| format!("{secret}\n")))
}

async fn set_key(
    common: &Common,
    client: &Client,
    host: &str,
    of: &KeyPlace,
    key: &KeyArgs,
    keep_old: bool,
) -> Result<(), Failure> {
    check_host(host)?;
    match (read_key(key)?, read_tls_key(key, keep_old)?) {
        (Some(key), None) => {
            let changed = client.host_key_set(of.group.as_deref(), host, &key).await?;
            let done = format!("{host} authenticates for {} from its next connection on", of.name());
            show_changed(common, &changed, |_| done)
        }
        (None, Some(key)) => {
            let changed = client.host_tls_key_set(of.group.as_deref(), host, &key).await?;
            let done = format!("{host} uses TLS for {} from its next connection on", of.name());
            show_changed(common, &changed, |_| done)
        }
        (None, None) => {
            let which = "say which: --dhchap-secret FILE or --tls-key FILE, or - for stdin";
            Err(Failure::Usage(which.to_owned()))
        }
        (Some(_), Some(_)) => Err(Failure::Usage("one at a time: --dhchap-secret or --tls-key".to_owned())),
    }
}

/// The secrets in files, if given.
pub(super) fn read_key(key: &KeyArgs) -> Result<Option<HostKeySet>, Failure> {
    let Some(file) = &key.dhchap_secret else { return Ok(None) };
    let text = |file: &PathBuf| secret::read(file).map(|secret| secret.text().to_string());
    let controller_secret = key.dhchap_ctrl_secret.as_ref().map(text).transpose()?;
    Ok(Some(HostKeySet { secret: text(file)?, controller_secret, dh_group: key.dh_group }))
}

/// The TLS key in a file, if given.
pub(super) fn read_tls_key(key: &KeyArgs, keep_old: bool) -> Result<Option<HostTlsKeySet>, Failure> {
    let Some(file) = &key.tls_key else { return Ok(None) };
    let key = secret::read_tls(file)?.text().to_string();
    Ok(Some(HostTlsKeySet { key, keep_old }))
}

/// The shared drive with this identifier or drive.
async fn find_share(client: &Client, name: &str) -> Result<Option<Share>, Failure> {
    let is = |share: &Share| share.id == name || share.drive == name;
    let Some(share) = client.shares().await?.shares.into_iter().find(is) else { return Ok(None) };
    // An export of a group named "share" may have the same identifier as a shared drive.
    match client.export(name).await {
        Ok(_) => {
            let drive = &share.drive;
            let message =
                format!("{name} is an export, and the shared drive {drive}: say {drive} if you mean that one");
            Err(Failure::Usage(message))
        }
        Err(Failure::Refused { code: ErrorCode::ExportNotFound, .. }) => Ok(Some(share)),
        Err(failure) => Err(failure),
    }
}

/// The group that an export's volume is in.
async fn group_of(client: &Client, export: &str) -> Result<String, Failure> {
    let found = client.export(export).await?;
    Ok(found.volume.split_once('/').map_or(found.volume.clone(), |(group, _)| group.to_owned()))
}
