//! Exports.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Invalid, NbdAddress, VolumeName};

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
    /// Where it listens: `unix:PATH` or `HOST:PORT`.
    pub address: String,
    /// What a client is to be told, such as `nbd+unix:///tank/db?socket=/run/db.sock`.
    pub uri: String,
    /// Writes are refused.
    pub read_only: bool,
    /// Clients must use TLS; `null` where they must not.
    pub tls: Option<ExportTls>,
    /// It takes connections. Otherwise `message` says why not.
    pub listening: bool,
    /// Why it does not listen; `null` otherwise.
    pub message: Option<String>,
    /// Clients connected now.
    pub connection_count: u32,
}

/// The protocol of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Network block device, fixed newstyle.
    Nbd,
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

/// `POST /v1/exports`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportCreate {
    /// Full name of the volume, `GROUP/VOLUME`.
    pub volume: String,
    /// Where to listen for NBD clients: `unix:PATH` or `HOST:PORT`.
    pub nbd: String,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
    /// Speak TLS only.
    #[serde(default)]
    pub tls: Option<ExportTls>,
}

impl ExportCreate {
    /// Checks what can be checked without the volume, and gives the parts.
    ///
    /// # Errors
    /// A sentence that says what makes no sense.
    pub fn validate(&self) -> Result<(VolumeName, NbdAddress), Invalid> {
        let volume = self.volume.parse()?;
        let address: NbdAddress = self.nbd.parse().map_err(|e: crate::AddressError| Invalid::new(e.to_string()))?;
        if let NbdAddress::Unix(path) = &address
            && !path.is_absolute()
        {
            return Err(Invalid::new(format!(
                "the socket path {:?} is relative: the daemon needs one that begins with '/'",
                path.display()
            )));
        }
        Ok((volume, address))
    }
}
