//! `purlin referral`.

use api::Referral;
use comfy_table::Cell;

use crate::common_args::Common;
use crate::fit::{Column, table};
use crate::output::{has_colour, show, show_changed};
use crate::referral_args::ReferralCommand;
use crate::{Client, Failure};

pub(super) async fn run(common: &Common, client: &Client, command: ReferralCommand) -> Result<(), Failure> {
    match command {
        ReferralCommand::List => show(common, &client.referrals().await?, |list| text(has_colour(), &list.referrals)),
        ReferralCommand::Add { address } => {
            let changed = client.referral_add(&address.to_string()).await?;
            show_changed(common, &changed, |_| format!("NVMe hosts are referred to {address}"))
        }
        ReferralCommand::Remove { address } => {
            let changed = client.referral_remove(&address.to_string()).await?;
            show_changed(common, &changed, |_| format!("NVMe hosts are referred to {address} no longer"))
        }
    }
}

fn text(colour: bool, referrals: &[Referral]) -> String {
    if referrals.is_empty() {
        return "no referrals; add one with: purlin referral add IP:PORT\n".to_owned();
    }
    let rows = referrals.iter().map(|referral| vec![Cell::new(&referral.address)]);
    table(colour, &[Column::Word("ADDRESS")], rows.collect())
}
