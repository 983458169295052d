//! Discovery of the subsystems that an address offers.

use nvme::host::{DiscoveredSubsystem, DiscoveryLog};

use crate::controller::{Controller, Purpose};
use crate::network::{Address, Network};
use crate::{ConnectError, Options};

/// The answer of a discovery controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovered {
    /// GENCTR: the generation of the log.
    pub generation: u64,
    /// Its entries.
    pub entries: Vec<DiscoveredSubsystem>,
}

/// Queries a discovery controller. The subsystem in `options` must be the discovery subsystem
/// ([`nvme::DISCOVERY_NQN`]).
///
/// # Errors
/// [`ConnectError`]
pub async fn discover<N: Network>(env: &N, address: &Address, options: &Options) -> Result<Discovered, ConnectError> {
    let controller = Controller::open(env, address, options, Purpose::Discovery).await?;
    let log = controller.lead(DiscoveryLog::new()).await;
    controller.shutdown().await;
    let (generation, entries) = log?;
    let entries = entries.iter().map(DiscoveredSubsystem::of).collect::<Result<_, _>>();
    let entries = entries.map_err(|source| ConnectError::Refused { address: address.clone(), source })?;
    Ok(Discovered { generation, entries })
}
