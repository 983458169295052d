//! `purlin nvme connect`: exports a namespace to NBD clients, until it is ended.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::{NbdAddress, format_bytes, uri_escaped};
use initiator::{Address, Namespace, Network, Options, PathState, PathStatus};
use tokio::sync::Notify;

use super::connection_options;
use super::connections::announce;
use super::io_loop::{Disk, IoLoop, NbdListener};
use super::reports::{NvmeConnection, NvmePath};
use crate::Failure;
use crate::common_args::Common;
use crate::ending::Ending;
use crate::nvme_args::ConnectArgs;
use crate::output::{on_stderr, show};

/// Time for NBD clients and a last flush at the end.
pub(super) const ENDING_MAX: Duration = Duration::from_secs(5);

/// Interval between checks for a remaining path.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The namespace to connect.
pub(super) struct Wanted {
    pub addresses: Vec<Address>,
    pub nsid: Option<u32>,
    pub options: Options,
}

/// The state of an exported namespace.
pub(super) struct DiskState {
    nsid: u32,
    size_bytes: u64,
    block_bytes: u32,
    read_only: bool,
    paths: Vec<PathStatus>,
}

impl DiskState {
    pub fn of<N: Network>(disk: &Namespace<N>) -> DiskState {
        DiskState {
            nsid: disk.info().nsid,
            size_bytes: disk.size_bytes(),
            block_bytes: disk.info().block_bytes,
            read_only: disk.is_read_only(),
            paths: disk.paths(),
        }
    }
}

/// The NBD name and description of a namespace.
pub(super) fn export_name<N: Network>(disk: &Namespace<N>) -> (String, String) {
    (format!("nsid{}", disk.info().nsid), format!("namespace of {}", disk.known().subsystem()))
}

/// An exported namespace.
pub(super) struct Served {
    disk: Disk,
    subsystem: String,
    nbd_uri: String,
    started_unix_s: u64,
    /// A request to end.
    pub end: Notify,
}

pub(super) async fn run(common: &Common, args: ConnectArgs) -> Result<(), Failure> {
    let fail = |source| Failure::Local { what: "cannot listen for Ctrl-C".to_owned(), source };
    let mut ending = Ending::listen().map_err(fail)?;
    let place = NbdListener::bind(&args.nbd).await?;
    if let NbdAddress::Tcp { host, .. } = &args.nbd
        && !is_local(host)
    {
        let place = &args.nbd;
        on_stderr(&format!(
            "purlin: warning: every client that reaches {place} may read and write: NBD has no passwords"
        ));
    }
    let options = connection_options(&args.host, &args.connection, &args.subsystem)?;
    let wanted = Wanted { addresses: args.addresses, nsid: args.connection.nsid, options };
    let io_loop = IoLoop::start()?;
    let disk = tokio::select! {
        disk = io_loop.serve(place, wanted) => disk?,
        () = ending.told() => return Ok(()),
    };
    let served = Rc::new(Served {
        disk,
        subsystem: args.subsystem.to_string(),
        nbd_uri: uri(&args.nbd),
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        end: Notify::new(),
    });
    let control = announce(served.clone()).await;
    let ended = match &control {
        Ok(_) => until_the_end(common, &served, &mut ending).await,
        Err(_) => Ok(()),
    };
    // The target has all data that NBD clients have written. A flush makes them durable, too.
    served.disk.end().await;
    control.map(drop).and(ended)
}

async fn until_the_end(common: &Common, served: &Served, ending: &mut Ending) -> Result<(), Failure> {
    show(common, &served.report().await, |report| {
        let NvmeConnection { nsid, subsystem, size_bytes, nbd_uri, .. } = report;
        format!("namespace {nsid} of {subsystem}, {}, is at {nbd_uri}\n", format_bytes(*size_bytes))
    })?;
    tokio::select! {
        () = served.end.notified() => Ok(()),
        () = ending.told() => Ok(()),
        error = gone(served) => Err(error),
    }
}

impl Served {
    /// Number of connected NBD clients.
    pub fn clients(&self) -> u64 {
        self.disk.clients()
    }

    pub async fn report(&self) -> NvmeConnection {
        let DiskState { nsid, size_bytes, block_bytes, read_only, paths } = self.disk.state().await;
        NvmeConnection {
            subsystem: self.subsystem.clone(),
            nsid,
            size_bytes,
            block_bytes,
            read_only,
            nbd_uri: self.nbd_uri.clone(),
            client_count: self.clients(),
            pid: std::process::id(),
            started_unix_s: self.started_unix_s,
            paths: paths.iter().map(path).collect(),
        }
    }
}

fn path(path: &PathStatus) -> NvmePath {
    NvmePath {
        address: path.address.to_string(),
        state: path.state.name().to_owned(),
        connect_count: path.connects,
        last_error: path.last_error.clone(),
    }
}

fn uri(address: &NbdAddress) -> String {
    match address {
        NbdAddress::Unix(path) => format!("nbd+unix:///?socket={}", uri_escaped(&path.display().to_string())),
        tcp => format!("nbd://{tcp}"),
    }
}

fn is_local(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns when no path is left.
async fn gone(served: &Served) -> Failure {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let paths = served.disk.state().await.paths;
        if paths.iter().all(|path| path.state == PathState::Lost) {
            let errors: Vec<String> = paths.into_iter().filter_map(|path| path.last_error).collect();
            return Failure::Ended(format!("the namespace cannot be reached any more: {}", errors.join("; ")));
        }
    }
}
