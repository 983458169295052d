//! `purlin export`.

use api::{ExportCreate, ExportTls, ExportUpdate, NbdAddress, NvmeTcpCreate, Protocol, UblkCreate};

use super::absolute;
use crate::common_args::Common;
use crate::export_args::{ExportCommand, ExportCreateArgs};
use crate::output::{has_colour, show, show_changed};
use crate::{Client, Failure, table};

pub(super) async fn run(common: &Common, client: &Client, command: ExportCommand) -> Result<(), Failure> {
    match command {
        ExportCommand::Create(args) => create(common, client, *args).await,
        ExportCommand::List => {
            show(common, &client.exports().await?, |list| table::exports(has_colour(), &list.exports))
        }
        ExportCommand::Show { id } => show(common, &client.export(&id).await?, table::export),
        ExportCommand::Set { id, ana, dry_run } => {
            let request = ExportUpdate { ana: Some(ana), dry_run: dry_run.dry_run };
            let changed = client.export_set(&id, &request).await?;
            let said = if changed.steps.is_empty() { "nothing to change".to_owned() } else { changed.steps.join("; ") };
            show_changed(common, &changed, |_| format!("{id}: {said}"))
        }
        ExportCommand::Delete { id } => {
            show_changed(common, &client.export_delete(&id).await?, |_| format!("deleted export {id}"))
        }
    }
}

async fn create(common: &Common, client: &Client, args: ExportCreateArgs) -> Result<(), Failure> {
    let nbd = match args.nbd {
        Some(NbdAddress::Unix(path)) => Some(format!("unix:{}", absolute(&path)?)),
        tcp => tcp.map(|address| address.to_string()),
    };
    // Sizes beyond 32 bits are refused below, like all sizes but two.
    let block_bytes = args.block_size.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
    let ublk = args.ublk.then_some(UblkCreate { number: args.number, block_bytes, depth: Some(args.depth) });
    let nvme_tcp = args.nvme_tcp.map(|address| NvmeTcpCreate {
        address: Some(address),
        nsid: args.nsid,
        block_bytes,
        hosts: args.host,
        allow_any_host: args.allow_any_host,
    });
    let tls = match (args.tls_cert, args.tls_key) {
        (Some(cert), Some(key)) => Some(ExportTls {
            cert: absolute(&cert)?,
            key: absolute(&key)?,
            ca: args.tls_ca.as_deref().map(absolute).transpose()?,
        }),
        _ => None,
    };
    let request = ExportCreate { volume: args.volume.to_string(), nbd, ublk, nvme_tcp, read_only: args.read_only, tls };
    request.validate()?;
    show_changed(common, &client.export_create(&request).await?, |export| {
        export.map_or_else(
            || "created the export".to_owned(),
            |export| match export.protocol {
                Protocol::Ublk => {
                    format!("created export {} of {}: {}, {}", export.id, export.volume, export.address, export.uri)
                }
                Protocol::NvmeTcp => format!(
                    "created export {} of {}: namespace {} of {} at {}",
                    export.id,
                    export.volume,
                    export.nsid.unwrap_or_default(),
                    export.nqn.as_deref().unwrap_or_default(),
                    export.address
                ),
                _ => format!("created export {} of {}: {}", export.id, export.volume, export.uri),
            },
        )
    })
}
