//! The command line of `purlin referral`.

use std::net::SocketAddr;

use api::{Invalid, check_referral};
use clap::Subcommand;

fn parse_referral(text: &str) -> Result<SocketAddr, Invalid> {
    check_referral(text)
}

/// Verbs of referrals.
#[derive(Debug, Subcommand)]
pub enum ReferralCommand {
    /// List where NVMe hosts are told to ask, too
    #[command(after_help = "Examples:\n  purlin referral list")]
    List,
    /// Tell NVMe hosts of another discovery service; those that watch hear of it at once
    #[command(after_help = "\
Examples:
  purlin referral add 10.0.0.6:4420
  purlin referral add [fd00::6]:8009

The discovery log of every address that this daemon listens at for NVMe hosts names it, to every host; what is offered there, and to
whom, it says itself. `nvme connect-all` and `purlin nvme discover` ask there as well.")]
    Add {
        /// Where it listens: an IP address and a port
        #[arg(value_name = "IP:PORT", value_parser = parse_referral)]
        address: SocketAddr,
    },
    /// Tell NVMe hosts of another discovery service no longer
    #[command(after_help = "Examples:\n  purlin referral remove 10.0.0.6:4420")]
    Remove {
        /// Where it listens, from `purlin referral list`
        #[arg(value_name = "IP:PORT", value_parser = parse_referral)]
        address: SocketAddr,
    },
}
