//! `purlin nvme connect --ublk`: the daemon makes a namespace a block device of this machine. Also
//! `list` and `disconnect` for such devices.

use std::path::Path;
use std::time::Duration;

use api::{
    ExportCreate, GroupHealth, Import, ImportForget, ImportNvme, NvmeDrive, TargetAddress, UblkCreate, format_bytes,
};
use comfy_table::Cell;

use crate::common_args::Common;
use crate::fit::{Column, table};
use crate::nvme_args::{ConnectArgs, DisconnectArgs};
use crate::output::show;
use crate::table::{dash, health};
use crate::{Client, Failure};

/// Lets the daemon connect and create a block device.
pub(super) async fn connect(common: &Common, client: &Client, args: &ConnectArgs) -> Result<(), Failure> {
    let request = ImportNvme { drive: drive(args)?.to_string(), name: args.name.clone(), dry_run: false };
    request.validate()?;
    let import = client.import_nvme(&request).await?.object.ok_or_else(|| gone("import"))?;
    let ublk = UblkCreate { number: args.number, ..UblkCreate::default() };
    let export = ExportCreate { volume: import.volume.clone(), ublk: Some(ublk), ..ExportCreate::default() };
    if let Err(error) = client.export_create(&export).await {
        // The import is useless without its device. The first error is the one to report.
        let _ = client.import_forget(&import.name, &ImportForget::default()).await;
        return Err(error);
    }
    show(common, &client.import(&import.name).await?, |import| {
        let namespace = import.namespace.as_ref();
        format!(
            "namespace {} of {}, {}, is {}\n",
            namespace.map_or(0, |namespace| namespace.nsid),
            namespace.map_or("", |namespace| &namespace.subsystem),
            format_bytes(namespace.and_then(|namespace| namespace.size_bytes).unwrap_or_default()),
            device(import)
        )
    })
}

fn gone(what: &str) -> Failure {
    Failure::Ended(format!("the daemon answered without the {what}"))
}

/// The stable name of its device.
fn device(import: &Import) -> String {
    format!("/dev/purlin/{}", import.volume)
}

/// The namespace in the form of the daemon.
fn drive(args: &ConnectArgs) -> Result<NvmeDrive, Failure> {
    let file = |path: &Path| match path.to_str() {
        Some("-") => Err(Failure::Usage(
            "with --ublk, secrets and keys are in files: the daemon reads them again when it is restarted".to_owned(),
        )),
        _ => std::path::absolute(path)
            .map_err(|source| Failure::Local { what: format!("cannot tell where {} is", path.display()), source }),
    };
    let loss = args.connection.loss_timeout();
    let loss = loss.filter(|loss| (NvmeDrive::LOSS_MIN..=NvmeDrive::LOSS_MAX).contains(loss)).ok_or_else(|| {
        let (least, most) = (NvmeDrive::LOSS_MIN.as_secs(), NvmeDrive::LOSS_MAX.as_secs());
        Failure::Usage(format!("with --ublk, --ctrl-loss-tmo is from {least} to {most}"))
    })?;
    let address = |address: &initiator::Address| TargetAddress { host: address.host.clone(), port: address.port };
    Ok(NvmeDrive {
        addresses: args.addresses.iter().map(address).collect(),
        subsystem: args.subsystem.to_string(),
        nsid: args.connection.nsid.unwrap_or_default(),
        secret: args.host.dhchap_secret.as_deref().map(file).transpose()?,
        controller_secret: args.host.dhchap_ctrl_secret.as_deref().map(file).transpose()?,
        tls_key: args.host.tls_key.as_deref().map(file).transpose()?,
        loss: Some(loss).filter(|loss| *loss != Duration::from_secs(600)),
    })
}

/// The namespaces that the daemon has connected; empty without a daemon.
pub(super) async fn devices(client: &Client) -> Result<Vec<Import>, Failure> {
    match client.imports().await {
        Ok(list) => Ok(list.imports.into_iter().filter(|import| import.namespace.is_some()).collect()),
        Err(Failure::Unreachable { .. } | Failure::Forbidden { .. } | Failure::Elsewhere) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

pub(super) fn text(colour: bool, devices: &[Import]) -> String {
    let columns = [
        Column::Number("NSID"),
        Column::Number("SIZE"),
        Column::Word("HEALTH"),
        Column::Word("PATHS"),
        Column::Word("IMPORT"),
        Column::Word("DEVICE"),
        Column::Word("NQN"),
    ];
    let row = |import: &Import| {
        let namespace = import.namespace.as_ref()?;
        let paths: Vec<String> =
            namespace.paths.iter().map(|path| format!("{} {}", path.address, path.state)).collect();
        Some(vec![
            Cell::new(namespace.nsid),
            namespace.size_bytes.map_or_else(dash, |size| Cell::new(format_bytes(size))),
            health(import.health),
            if paths.is_empty() { dash() } else { Cell::new(paths.join(", ")) },
            Cell::new(&import.name),
            if import.exports.is_empty() { dash() } else { Cell::new(device(import)) },
            Cell::new(&namespace.subsystem),
        ])
    };
    let mut text = table(colour, &columns, devices.iter().filter_map(row).collect());
    for import in devices.iter().filter(|import| import.health != GroupHealth::Optimal) {
        if let Some(message) = &import.message {
            text.push_str(&format!("{}: {message}\n", import.name));
        }
    }
    text
}

/// Disconnects the selected devices. Returns their state from before.
pub(super) async fn disconnect(client: &Client, args: &DisconnectArgs) -> Result<Vec<Import>, Failure> {
    let is_meant = |import: &Import| {
        import.namespace.as_ref().is_some_and(|namespace| {
            let subsystem = args.subsystem.as_ref().is_none_or(|nqn| nqn.as_str() == namespace.subsystem);
            subsystem && args.nsid.is_none_or(|nsid| nsid == namespace.nsid)
        })
    };
    let mut ended = Vec::new();
    for import in devices(client).await?.into_iter().filter(is_meant) {
        let request = ImportForget { force: args.force, dry_run: false };
        client.import_forget(&import.name, &request).await?;
        ended.push(import);
    }
    Ok(ended)
}

pub(super) fn ended(import: &Import) -> String {
    let namespace = import.namespace.as_ref().map_or((0, ""), |namespace| (namespace.nsid, &namespace.subsystem));
    format!("disconnected namespace {} of {}; {} is gone\n", namespace.0, namespace.1, device(import))
}
