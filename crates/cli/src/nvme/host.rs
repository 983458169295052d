//! The identity of this machine for NVMe targets.

use std::path::PathBuf;

use initiator::{ThisHostError, this_host};
use nvme::target::Host;

use crate::Failure;
use crate::nvme_args::HostArgs;

/// The name and identifier: from the command line, from the system, or generated once for this
/// user.
///
/// # Errors
/// If a generated name cannot be stored: a host with a new name each time is of no use.
pub(super) fn identity(args: &HostArgs) -> Result<Host, Failure> {
    this_host(args.hostnqn.clone(), args.hostid, own_file().as_deref()).map_err(|error| match error {
        ThisHostError::NoPlace => Failure::Usage(
            "this host has no name, and there is no home folder to keep one in: say --hostnqn NQN".to_owned(),
        ),
        error => Failure::Ended(error.to_string()),
    })
}

/// The file with this user's host name.
fn own_file() -> Option<PathBuf> {
    let folder = if cfg!(windows) {
        std::env::var_os("APPDATA").map(PathBuf::from)
    } else {
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".config"));
        std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute()).or_else(home)
    };
    Some(folder?.join("purlin").join("hostnqn"))
}
