//! The command line of drives for other machines.

use api::{DriveSpec, NvmeTcpCreate};
use clap::Args;

use crate::args::DryRun;
use crate::host_args::KeyArgs;

/// `purlin drive share`.
#[derive(Debug, Args)]
pub struct ShareArgs {
    /// The drives: block devices or files that are there
    #[arg(required = true, value_name = "DRIVE")]
    pub drives: Vec<DriveSpec>,
    /// Where to wait for NVMe hosts
    #[arg(long, value_name = "HOST:PORT", default_value = NvmeTcpCreate::ADDRESS_DEFAULT)]
    pub nvme_tcp: String,
    /// NVMe qualified name of a host that may use them; may be repeated
    #[arg(long, value_name = "NQN", conflicts_with = "allow_any_host")]
    pub host: Vec<String>,
    /// Any host that reaches the address may use them
    #[arg(long)]
    pub allow_any_host: bool,
    #[command(flatten)]
    pub key: KeyArgs,
    #[command(flatten)]
    pub dry_run: DryRun,
}
