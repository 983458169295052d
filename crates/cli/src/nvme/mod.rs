//! `purlin nvme`: this machine as an NVMe/TCP host. Only block devices need the daemon.

mod bench;
mod connections;
mod device;
mod discover;
mod edges;
mod host;
#[cfg(target_os = "linux")]
#[path = "ring.rs"]
mod io_loop;
#[cfg(not(target_os = "linux"))]
#[path = "tokio_loop.rs"]
mod io_loop;
mod mdns;
#[cfg(not(target_os = "linux"))]
mod nbd_server;
pub mod reports;
mod serve;

use std::time::Duration;

use initiator::{Address, ConnectError, Namespace, Network, Options, Selection};
use nvme::Nqn;
use nvme::auth::{Credentials, Refusal};
use nvme::host::HostError;
use nvme::target::Host;
use nvme::tcp::Digests;
use tokio::task::LocalSet;

use crate::common_args::Common;
use crate::nvme_args::{ConnectionArgs, HostArgs, NvmeCommand};
use crate::{Client, Failure, secret};

/// Executes the command.
///
/// # Errors
/// [`Failure`], one sentence.
pub(crate) async fn run(common: &Common, client: &Client, command: NvmeCommand) -> Result<(), Failure> {
    // The initiator's tasks stay on this thread.
    let tasks = LocalSet::new();
    let done = async {
        match command {
            NvmeCommand::Discover { address: Some(address), no_follow, host, .. } => {
                discover::run(common, &address, !no_follow, &host).await
            }
            NvmeCommand::Discover { address: None, seconds, .. } => {
                mdns::run(common, Duration::from_secs(seconds.into())).await
            }
            NvmeCommand::Connect(args) if args.ublk => device::connect(common, client, &args).await,
            NvmeCommand::Connect(args) => serve::run(common, args).await,
            NvmeCommand::List => connections::list(common, client).await,
            NvmeCommand::Disconnect(args) => connections::disconnect(common, client, &args).await,
            NvmeCommand::Bench(args) => bench::run(common, args).await,
        }
    };
    tasks.run_until(done).await
}

/// Options to ask a target: host, secrets and digests.
fn options(args: &HostArgs, subsystem: Nqn) -> Result<Options, Failure> {
    let digests = Digests { header: args.hdr_digest, data: args.data_digest };
    let credentials = match &args.dhchap_secret {
        None => None,
        Some(file) => {
            let controller = args.dhchap_ctrl_secret.as_deref().map(secret::read).transpose()?;
            Some(Credentials { host: secret::read(file)?, controller })
        }
    };
    let tls = args.tls_key.as_deref().map(secret::read_tls).transpose()?;
    Ok(Options { digests, credentials, tls, ..Options::new(host::identity(args)?, subsystem) })
}

/// Options to connect and reconnect.
fn connection_options(host: &HostArgs, connection: &ConnectionArgs, subsystem: &Nqn) -> Result<Options, Failure> {
    let seconds = |count: u32| Duration::from_secs(count.into());
    Ok(Options {
        queues: connection.nr_io_queues,
        queue_entries: connection.queue_size,
        keep_alive: seconds(connection.keep_alive_tmo),
        command_timeout: seconds(connection.io_timeout),
        reconnect_delay: seconds(connection.reconnect_delay),
        reconnect_delay_max: seconds(connection.reconnect_delay) * 10,
        loss_timeout: connection.loss_timeout(),
        ..options(host, subsystem.clone())?
    })
}

async fn connect<N: Network>(
    network: &N,
    addresses: &[Address],
    nsid: Option<u32>,
    options: Options,
) -> Result<Namespace<N>, Failure> {
    let selection = nsid.map_or(Selection::Only, Selection::Number);
    let (host, has_tls) = (options.host.clone(), options.tls.is_some());
    let connected = Namespace::connect(network, addresses, selection, options).await;
    connected.map_err(|error| explained(&error, &host, has_tls))
}

/// The error, with a hint at a remedy.
fn explained(error: &ConnectError, host: &Host, has_tls: bool) -> Failure {
    use nvme::Status;
    let hint = match error {
        ConnectError::Refused { source: HostError::Failed { status, .. }, .. }
            if status.0 & 0x7FF == Status::CONNECT_INVALID_HOST.0 & 0x7FF =>
        {
            let insecure = if has_tls { "" } else { ", or use TLS if it has to (--tls --tls-key FILE)" };
            format!("; this host is {}: allow it there, say who it is with --hostnqn{insecure}", host.nqn)
        }
        ConnectError::Refused { source: HostError::Parameter { .. }, address } => {
            format!("; `purlin nvme discover {address}` lists what {} may use", host.nqn)
        }
        ConnectError::Refused { source: HostError::Authentication, .. } => {
            " (--dhchap-secret FILE; it has to be the secret that the target knows of this host)".to_owned()
        }
        ConnectError::Refused { source: HostError::NotAuthenticated(Refusal::Failed), .. } => {
            format!("; the target knows another one of {}, or none of its own for --dhchap-ctrl-secret", host.nqn)
        }
        ConnectError::Refused { source: HostError::Impostor(Refusal::Failed), .. } => {
            " (--dhchap-ctrl-secret)".to_owned()
        }
        ConnectError::Choose { nsids, .. } if !nsids.is_empty() => " (--nsid)".to_owned(),
        _ => String::new(),
    };
    Failure::Ended(format!("{error}{hint}"))
}
