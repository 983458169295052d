//! `purlin import`, and `purlin group import-md`.

use api::{ImportForget, ImportMd};

use super::drive_names;
use crate::common_args::Common;
use crate::import_args::{ImportCommand, ImportMdArgs};
use crate::output::{has_colour, show, show_changed};
use crate::{Client, Failure, imported};

pub(super) async fn run(common: &Common, client: &Client, command: ImportCommand) -> Result<(), Failure> {
    match command {
        ImportCommand::List => {
            show(common, &client.imports().await?, |list| imported::imports(has_colour(), &list.imports))
        }
        ImportCommand::Show { import } => {
            show(common, &client.import(&import).await?, |import| imported::import(has_colour(), import))
        }
        ImportCommand::Forget { import, force, dry_run } => {
            let request = ImportForget { force, dry_run: dry_run.dry_run };
            let changed = client.import_forget(&import, &request).await?;
            show_changed(common, &changed, |_| format!("forgot import {import}; its drives are as they were"))
        }
    }
}

pub(super) async fn import_md(common: &Common, client: &Client, args: ImportMdArgs) -> Result<(), Failure> {
    let request = ImportMd {
        drives: drive_names(&args.drives)?,
        name: args.name,
        array: args.array,
        allow_inconsistent: args.allow_inconsistent,
        dry_run: args.dry_run.dry_run,
    };
    request.validate()?;
    show(common, &client.import_md(&request).await?, |answer| imported::answer(has_colour(), answer))
}
