//! Arguments of shared drives.

use api::{DriveSpec, NvmeTcpCreate};
use clap::Args;

use crate::common_args::DryRun;
use crate::host_args::KeyArgs;

/// `purlin drive share`.
#[derive(Debug, Args)]
pub struct ShareArgs {
    /// The drives: existing block devices or files
    #[arg(required = true, value_name = "DRIVE")]
    pub drives: Vec<DriveSpec>,
    /// Address to listen at for NVMe hosts
    #[arg(long, value_name = "HOST:PORT", default_value = NvmeTcpCreate::ADDRESS_DEFAULT)]
    pub nvme_tcp: String,
    /// NVMe qualified name of a host that may use them; may be repeated
    #[arg(long, value_name = "NQN", conflicts_with = "allow_any_host")]
    pub host: Vec<String>,
    /// Allow any host that reaches the address
    #[arg(long)]
    pub allow_any_host: bool,
    #[command(flatten)]
    pub key: KeyArgs,
    #[command(flatten)]
    pub dry_run: DryRun,
}
