//! Exports.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::host::check_host;
use crate::{AnaState, Invalid, NbdAddress, Reservation, VolumeName};

/// `GET /v1/exports`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExportList {
    /// All exports, by identity.
    pub exports: Vec<Export>,
}

/// A volume offered to clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// Identity; stays the same when the daemon is restarted.
    pub id: String,
    /// Full name of the volume.
    pub volume: String,
    /// The protocol.
    pub protocol: Protocol,
    /// Address: `unix:PATH` or `HOST:PORT`. For a block device, its node: `/dev/ublkbN`.
    pub address: String,
    /// The address for a client, such as `nbd+unix:///tank/db?socket=/run/db.sock`. For a block
    /// device, its stable path: `/dev/purlin/tank/db`.
    pub uri: String,
    /// Whether writes are refused.
    pub read_only: bool,
    /// TLS files if clients must use TLS; `null` if TLS is not used.
    pub tls: Option<ExportTls>,
    /// Block size of a block device or of a namespace, in bytes; `null` for NBD.
    pub block_bytes: Option<u32>,
    /// Bytes that the drives write atomically at a power failure. If it is less than `block_bytes`,
    /// a power failure may leave a block partly written. `null` for NBD, which has no such
    /// guarantee, and if unknown.
    #[serde(default)]
    pub atomic_bytes: Option<u32>,
    /// Whether it accepts connections, or the block device exists. Otherwise `message` says why
    /// not.
    pub listening: bool,
    /// Why it does not listen; `null` otherwise.
    pub message: Option<String>,
    /// Connected clients. For a block device, its mounts and the devices on top of it. For
    /// NVMe/TCP, each I/O queue that has used it counts as one.
    pub connection_count: u32,
    /// For NVMe/TCP, the name of the subsystem; `null` for others.
    pub nqn: Option<String>,
    /// For NVMe/TCP, the namespace number (NSID); `null` for others.
    pub nsid: Option<u32>,
    /// For NVMe/TCP, how it reaches the volume; `null` for others.
    pub ana: Option<AnaState>,
    /// For NVMe/TCP, the hosts that may use it; `null` for any host, and for other protocols.
    pub hosts: Option<Vec<String>>,
    /// For NVMe/TCP, those of the allowed hosts that must use TLS; empty for other protocols.
    pub tls_hosts: Vec<String>,
    /// For NVMe/TCP, those of the allowed hosts that must authenticate (DH-HMAC-CHAP); empty for
    /// other protocols.
    #[serde(default)]
    pub secret_hosts: Vec<String>,
    /// Those of `secret_hosts` to which the target authenticates, too, if they ask: it has a secret
    /// for them.
    #[serde(default)]
    pub mutual_hosts: Vec<String>,
    /// For NVMe/TCP, the hosts that are registered with the namespace, and the reservation; `null`
    /// if there are none, and for other protocols.
    pub reservation: Option<Reservation>,
}

/// The protocol of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Network block device, fixed newstyle.
    Nbd,
    /// Block device of the daemon's machine, through the kernel's ublk.
    Ublk,
    /// NVMe over TCP.
    NvmeTcp,
    /// A protocol that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

/// PEM files on the daemon's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportTls {
    /// The certificate chain of the daemon.
    pub cert: String,
    /// Its private key.
    pub key: String,
    /// Certificates that must have signed client certificates; `null`: clients need no certificate.
    #[serde(default)]
    pub ca: Option<String>,
}

/// `POST /v1/exports`. Exactly one of `nbd`, `ublk` and `nvme_tcp` must be present.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportCreate {
    /// Full name of the volume, `GROUP/VOLUME`.
    pub volume: String,
    /// Where to listen for NBD clients: `unix:PATH` or `HOST:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<String>,
    /// Create a block device on the daemon's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ublk: Option<UblkCreate>,
    /// Create a namespace for NVMe hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<NvmeTcpCreate>,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Accept TLS only. For NBD.
    #[serde(default)]
    pub tls: Option<ExportTls>,
}

/// Parameters of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UblkCreate {
    /// N in `/dev/ublkbN`; default: the lowest free number.
    #[serde(default)]
    pub number: Option<u32>,
    /// Block size in bytes: 512 or 4096. Default: the size that the group's drives write atomically
    /// at a power failure; for an import, that of its drives.
    #[serde(default)]
    pub block_bytes: Option<u32>,
    /// Requests that each queue takes at the same time: 1 to 4096, default 128.
    #[serde(default)]
    pub depth: Option<u16>,
}

/// Parameters of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NvmeTcpCreate {
    /// Address to listen on: `HOST:PORT`; default `0.0.0.0:4420`.
    #[serde(default)]
    pub address: Option<String>,
    /// Namespace number, 1 to 65535. Default: the number that the volume has at other addresses, or
    /// else the lowest free number.
    #[serde(default)]
    pub nsid: Option<u32>,
    /// Block size in bytes: 512 or 4096. Default: the size that the volume has at other addresses,
    /// or else the size that the group's drives write atomically at a power failure.
    #[serde(default)]
    pub block_bytes: Option<u32>,
    /// NVMe qualified names of the hosts that may use it.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Allow any host that can reach the address; then `hosts` must be empty.
    #[serde(default)]
    pub allow_any_host: bool,
}

impl NvmeTcpCreate {
    /// Default address, with the port that IANA assigned.
    pub const ADDRESS_DEFAULT: &str = "0.0.0.0:4420";
    /// The highest namespace number.
    pub const NSID_MAX: u32 = 65_535;
}

impl UblkCreate {
    /// Default depth.
    pub const DEPTH_DEFAULT: u16 = 128;
    /// Device numbers are below this: the kernel has 20 bits for them.
    pub const NUMBERS: u32 = 1 << 20;
}

/// Protocol and address of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportPlace {
    /// To NBD clients.
    Nbd(NbdAddress),
    /// As a block device.
    Ublk(UblkCreate),
    /// To NVMe hosts, at an address, as a namespace.
    NvmeTcp(NbdAddress, NvmeTcpCreate),
}

impl ExportCreate {
    /// Checks everything that does not need the volume, and returns the parts.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(VolumeName, ExportPlace), Invalid> {
        let volume = self.volume.parse()?;
        let place = match (&self.nbd, &self.ublk, &self.nvme_tcp) {
            (Some(nbd), None, None) => ExportPlace::Nbd(valid_address(nbd)?),
            (None, Some(ublk), None) => {
                if self.tls.is_some() {
                    return Err(Invalid::new("a block device of this machine has no use for TLS"));
                }
                ExportPlace::Ublk(valid_device(*ublk)?)
            }
            (None, None, Some(nvme)) => {
                if self.tls.is_some() {
                    return Err(Invalid::new("NVMe/TCP does not take certificates: its hosts have keys of TLS"));
                }
                valid_namespace(nvme)?
            }
            (None, None, None) => return Err(Invalid::new("an export needs a protocol: nbd, ublk or nvme_tcp")),
            _ => return Err(Invalid::new("an export has one protocol: nbd, ublk or nvme_tcp")),
        };
        Ok((volume, place))
    }
}

fn valid_address(nbd: &str) -> Result<NbdAddress, Invalid> {
    let address: NbdAddress = nbd.parse().map_err(|e: crate::AddressError| Invalid::new(e.to_string()))?;
    match &address {
        NbdAddress::Unix(path) if !path.is_absolute() => Err(Invalid::new(format!(
            "the socket path {:?} is relative: the daemon needs one that begins with '/'",
            path.display()
        ))),
        _ => Ok(address),
    }
}

fn valid_namespace(nvme: &NvmeTcpCreate) -> Result<ExportPlace, Invalid> {
    let address = nvme_address(nvme.address.as_deref().unwrap_or(NvmeTcpCreate::ADDRESS_DEFAULT))?;
    let last = NvmeTcpCreate::NSID_MAX;
    if let Some(nsid) = nvme.nsid.filter(|nsid| !(1..=last).contains(nsid)) {
        return Err(Invalid::new(format!("there is no namespace {nsid}: they are 1 to {last}")));
    }
    if let Some(bytes) = nvme.block_bytes.filter(|bytes| !matches!(bytes, 512 | 4096)) {
        return Err(Invalid::new(format!("blocks of {bytes} bytes: a namespace has blocks of 512 or 4096")));
    }
    check_nvme_hosts(&nvme.hosts, nvme.allow_any_host)?;
    Ok(ExportPlace::NvmeTcp(address, nvme.clone()))
}

/// Parses the address of an NVMe/TCP export.
pub(crate) fn nvme_address(text: &str) -> Result<NbdAddress, Invalid> {
    match text.parse() {
        Ok(address @ NbdAddress::Tcp { .. }) => Ok(address),
        _ => Err(Invalid::new(format!("{text:?} is not an address: write HOST:PORT, such as 0.0.0.0:4420"))),
    }
}

/// Checks that some host may use it, and that the choice is unambiguous.
pub(crate) fn check_nvme_hosts(hosts: &[String], allow_any_host: bool) -> Result<(), Invalid> {
    for host in hosts {
        check_host(host)?;
    }
    match (hosts.is_empty(), allow_any_host) {
        (true, false) => Err(Invalid::new(
            "no host could use it: name those that may with --host NQN, or say --allow-any-host for all that reach the \
             address (in the API: hosts, allow_any_host)",
        )),
        (false, true) => Err(Invalid::new("either any host may use it, or those that are named")),
        _ => Ok(()),
    }
}

fn valid_device(ublk: UblkCreate) -> Result<UblkCreate, Invalid> {
    if let Some(number) = ublk.number.filter(|&number| number >= UblkCreate::NUMBERS) {
        let last = UblkCreate::NUMBERS - 1;
        return Err(Invalid::new(format!("there is no device number {number}: they are 0 to {last}")));
    }
    if let Some(bytes) = ublk.block_bytes.filter(|bytes| !matches!(bytes, 512 | 4096)) {
        return Err(Invalid::new(format!("blocks of {bytes} bytes: a block device has blocks of 512 or 4096")));
    }
    if let Some(depth) = ublk.depth.filter(|depth| !(1..=4096).contains(depth)) {
        return Err(Invalid::new(format!("a depth of {depth}: a queue takes 1 to 4096 requests")));
    }
    Ok(ublk)
}
