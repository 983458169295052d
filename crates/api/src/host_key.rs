//! Secrets that NVMe hosts prove themselves with, and keys that they encrypt with. They go in, and
//! never come out.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The Diffie-Hellman group of an authentication.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DhGroup {
    /// None: whoever listens may try secrets in his own time, which is of no use against random
    /// ones.
    Null,
    /// RFC 7919, 2048 bits.
    Ffdhe2048,
    /// RFC 7919, 3072 bits.
    #[default]
    Ffdhe3072,
    /// RFC 7919, 4096 bits.
    Ffdhe4096,
    /// RFC 7919, 6144 bits.
    Ffdhe6144,
    /// RFC 7919, 8192 bits.
    Ffdhe8192,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

impl DhGroup {
    /// All that there are, by the number that NVMe has for them.
    pub const ALL: [DhGroup; 6] = [
        DhGroup::Null,
        DhGroup::Ffdhe2048,
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
    ];

    /// The name, as the kernel and nvme-cli have it.
    pub fn name(self) -> &'static str {
        match self {
            DhGroup::Null => "null",
            DhGroup::Ffdhe2048 => "ffdhe2048",
            DhGroup::Ffdhe3072 => "ffdhe3072",
            DhGroup::Ffdhe4096 => "ffdhe4096",
            DhGroup::Ffdhe6144 => "ffdhe6144",
            DhGroup::Ffdhe8192 => "ffdhe8192",
            DhGroup::Unknown => "unknown",
        }
    }
}

impl fmt::Display for DhGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `PUT /v1/groups/{group}/hosts/{host}/key`, or `/v1/shares/hosts/{host}/key`: from its next
/// authentication on, a host has to prove itself with this.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostKeySet {
    /// The host's secret, as `nvme gen-dhchap-key` prints it: `DHHC-1:HH:BASE64:`.
    pub secret: String,
    /// The subsystem's secret, for a host that asks the target to prove itself, too; `null`: none.
    #[serde(default)]
    pub controller_secret: Option<String>,
    /// The Diffie-Hellman group; hosts that do not have it are refused.
    #[serde(default)]
    pub dh_group: DhGroup,
}

impl fmt::Debug for HostKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostKeySet").field("dh_group", &self.dh_group).finish_non_exhaustive()
    }
}

/// That a host has to prove itself. What with is not told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostKey {
    /// Name of the group, whose namespaces the host may use once it has; `null`: it is for the
    /// drives that this machine shares.
    pub group: Option<String>,
    /// The target has a secret, too, and proves itself to a host that asks.
    pub mutual: bool,
    /// The Diffie-Hellman group.
    pub dh_group: DhGroup,
}

/// `PUT /v1/groups/{group}/hosts/{host}/tls-key`, or `/v1/shares/hosts/{host}/tls-key`: from its
/// next connection on, a host has to use TLS with this key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostTlsKeySet {
    /// The key, as `nvme gen-tls-key` prints it: `NVMeTLSkey-1:HH:BASE64:`.
    pub key: String,
    /// The key that it has had so far counts as well, until the next change: so that the host may
    /// be given the new one at any time.
    #[serde(default)]
    pub keep_old: bool,
}

impl fmt::Debug for HostTlsKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostTlsKeySet").field("keep_old", &self.keep_old).finish_non_exhaustive()
    }
}

/// That a host has to use TLS. With which key is not told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostTlsKey {
    /// Name of the group, for whose exports it has to; `null`: it is for the drives that this
    /// machine shares.
    pub group: Option<String>,
    /// Keys that count: 2 while one is exchanged.
    pub key_count: u32,
}
