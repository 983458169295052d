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
    /// Identity; stays the same when the daemon starts again.
    pub id: String,
    /// Full name of the volume.
    pub volume: String,
    /// The protocol spoken.
    pub protocol: Protocol,
    /// Where it listens: `unix:PATH` or `HOST:PORT`. Of a block device, its node: `/dev/ublkbN`.
    pub address: String,
    /// What a client is to be told, such as `nbd+unix:///tank/db?socket=/run/db.sock`. Of a block
    /// device, the path that stays the same: `/dev/purlin/tank/db`.
    pub uri: String,
    /// Writes are refused.
    pub read_only: bool,
    /// Clients must use TLS; `null` where they must not.
    pub tls: Option<ExportTls>,
    /// Block size of a block device or of a namespace, in bytes; `null` for NBD.
    pub block_bytes: Option<u32>,
    /// What the drives write whole or not at all when the power fails, in bytes. Where it is less
    /// than `block_bytes`, a power cut may leave a block partly written. `null` for NBD, which
    /// promises nothing about it, and where it is not known.
    #[serde(default)]
    pub atomic_bytes: Option<u32>,
    /// It takes connections, or the block device is there. Otherwise `message` says why not.
    pub listening: bool,
    /// Why it does not listen; `null` otherwise.
    pub message: Option<String>,
    /// Clients connected now. Of a block device: its mounts, and the devices on top of it. Over
    /// NVMe/TCP each I/O queue that has used it is one.
    pub connection_count: u32,
    /// Of NVMe/TCP, the name of the subsystem; `null` for others.
    pub nqn: Option<String>,
    /// Of NVMe/TCP, the number of the namespace; `null` for others.
    pub nsid: Option<u32>,
    /// Of NVMe/TCP, how it reaches the volume; `null` for others.
    pub ana: Option<AnaState>,
    /// Of NVMe/TCP, the hosts that may use it; `null` for any host, and for other protocols.
    pub hosts: Option<Vec<String>>,
    /// Of NVMe/TCP, the hosts that have to use TLS, of those that may use it; empty for other
    /// protocols.
    pub tls_hosts: Vec<String>,
    /// Of NVMe/TCP, the hosts that have to authenticate (DH-HMAC-CHAP), of those that may use it;
    /// empty for other protocols.
    #[serde(default)]
    pub secret_hosts: Vec<String>,
    /// Of those, the hosts to which the target proves itself, too, if they ask: it has a secret for
    /// them.
    #[serde(default)]
    pub mutual_hosts: Vec<String>,
    /// Of NVMe/TCP, the hosts that are registered with the namespace, and what they have reserved;
    /// `null` where there are none, and for other protocols.
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

/// Files in PEM, on the daemon's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportTls {
    /// The certificate chain of the daemon.
    pub cert: String,
    /// Its private key.
    pub key: String,
    /// Certificates that client certificates must be signed by; `null` asks clients for none.
    #[serde(default)]
    pub ca: Option<String>,
}

/// `POST /v1/exports`. Exactly one of `nbd`, `ublk` and `nvme_tcp` is there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportCreate {
    /// Full name of the volume, `GROUP/VOLUME`.
    pub volume: String,
    /// Where to listen for NBD clients: `unix:PATH` or `HOST:PORT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<String>,
    /// Make it a block device of the daemon's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ublk: Option<UblkCreate>,
    /// Make it a namespace for NVMe hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<NvmeTcpCreate>,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Speak TLS only. For NBD.
    #[serde(default)]
    pub tls: Option<ExportTls>,
}

/// What a block device is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UblkCreate {
    /// N in `/dev/ublkbN`; the lowest that is free where it is left out.
    #[serde(default)]
    pub number: Option<u32>,
    /// Size of its blocks in bytes: 512 or 4096. By default what the drives of the group write
    /// whole or not at all when the power fails; of an import that of its drives.
    #[serde(default)]
    pub block_bytes: Option<u32>,
    /// Requests that each of its queues takes at the same time: 1 to 4096, 128 by default.
    #[serde(default)]
    pub depth: Option<u16>,
}

/// What a namespace is to be.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NvmeTcpCreate {
    /// Where to listen: `HOST:PORT`; `0.0.0.0:4420` where it is left out.
    #[serde(default)]
    pub address: Option<String>,
    /// Its number, 1 to 65535; the lowest that is free where it is left out, or the one that the
    /// volume has elsewhere.
    #[serde(default)]
    pub nsid: Option<u32>,
    /// Size of its blocks in bytes: 512 or 4096. By default that which the volume has elsewhere, or
    /// else what the drives of the group write whole or not at all when the power fails.
    #[serde(default)]
    pub block_bytes: Option<u32>,
    /// NVMe qualified names of the hosts that may use it.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Any host may use it that reaches the address; then `hosts` has to be empty.
    #[serde(default)]
    pub allow_any_host: bool,
}

impl NvmeTcpCreate {
    /// Where it listens, where nothing else is said: the port that IANA has assigned.
    pub const ADDRESS_DEFAULT: &str = "0.0.0.0:4420";
    /// The highest number of a namespace.
    pub const NSID_MAX: u32 = 65_535;
}

impl UblkCreate {
    /// Depth, where none is asked for.
    pub const DEPTH_DEFAULT: u16 = 128;
    /// Numbers end before this: the kernel has 20 bits for them.
    pub const NUMBERS: u32 = 1 << 20;
}

/// Where a volume is offered.
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
    /// Checks what can be checked without the volume, and gives the parts.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
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

/// Where NVMe hosts are waited for.
pub(crate) fn nvme_address(text: &str) -> Result<NbdAddress, Invalid> {
    match text.parse() {
        Ok(address @ NbdAddress::Tcp { .. }) => Ok(address),
        _ => Err(Invalid::new(format!("{text:?} is not an address: write HOST:PORT, such as 0.0.0.0:4420"))),
    }
}

/// Somebody may use it, and it is clear who.
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
