//! `purlin export`.

use api::{ExportCreate, ExportTls, NbdAddress};

use super::absolute;
use crate::args::{Common, ExportCommand, ExportCreateArgs};
use crate::output::{has_colour, show, show_changed};
use crate::{Client, Failure, table};

pub(super) async fn run(common: &Common, client: &Client, command: ExportCommand) -> Result<(), Failure> {
    match command {
        ExportCommand::Create(args) => create(common, client, args).await,
        ExportCommand::List => {
            show(common, &client.exports().await?, |list| table::exports(has_colour(), &list.exports))
        }
        ExportCommand::Delete { id } => {
            show_changed(common, &client.export_delete(&id).await?, |_| format!("deleted export {id}"))
        }
    }
}

async fn create(common: &Common, client: &Client, args: ExportCreateArgs) -> Result<(), Failure> {
    let nbd = match args.nbd {
        NbdAddress::Unix(path) => format!("unix:{}", absolute(&path)?),
        tcp => tcp.to_string(),
    };
    let tls = match (args.tls_cert, args.tls_key) {
        (Some(cert), Some(key)) => Some(ExportTls {
            cert: absolute(&cert)?,
            key: absolute(&key)?,
            ca: args.tls_ca.as_deref().map(absolute).transpose()?,
        }),
        _ => None,
    };
    let request = ExportCreate { volume: args.volume.to_string(), nbd, read_only: args.read_only, tls };
    request.validate()?;
    show_changed(common, &client.export_create(&request).await?, |export| {
        export.map_or_else(
            || "created the export".to_owned(),
            |export| format!("created export {} of {}: {}", export.id, export.volume, export.uri),
        )
    })
}
