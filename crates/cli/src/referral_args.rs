//! Arguments of `purlin referral`.

use std::net::SocketAddr;

use api::{Invalid, check_referral};
use clap::Subcommand;

fn parse_referral(text: &str) -> Result<SocketAddr, Invalid> {
    check_referral(text)
}

/// Verbs of referrals.
#[derive(Debug, Subcommand)]
pub enum ReferralCommand {
    /// List the discovery services that NVMe hosts are referred to
    #[command(after_help = "Examples:\n  purlin referral list")]
    List,
    /// Refer NVMe hosts to another discovery service; hosts that watch are notified at once
    #[command(after_help = "\
Examples:
  purlin referral add 10.0.0.6:4420
  purlin referral add [fd00::6]:8009

The discovery log of every address that this daemon listens at for NVMe hosts names it, to every host; what is offered there, and to
whom, it says itself. `nvme connect-all` and `purlin nvme discover` ask there as well.")]
    Add {
        /// Address of the service: an IP address and a port
        #[arg(value_name = "IP:PORT", value_parser = parse_referral)]
        address: SocketAddr,
    },
    /// Remove a referral to another discovery service
    #[command(after_help = "Examples:\n  purlin referral remove 10.0.0.6:4420")]
    Remove {
        /// Address of the service, from `purlin referral list`
        #[arg(value_name = "IP:PORT", value_parser = parse_referral)]
        address: SocketAddr,
    },
}
