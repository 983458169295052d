//! Secrets with which NVMe hosts authenticate, and keys with which they encrypt. They can be set,
//! but are never returned.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The Diffie-Hellman group of an authentication.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DhGroup {
    /// None: an eavesdropper can guess secrets offline, which is useless against random ones.
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
    /// A group that this version does not know.
    #[serde(other)]
    Unknown,
}

impl DhGroup {
    /// All groups, in the order of their NVMe numbers.
    pub const ALL: [DhGroup; 6] = [
        DhGroup::Null,
        DhGroup::Ffdhe2048,
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
    ];

    /// The name in the kernel and nvme-cli.
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
/// authentication on, a host must authenticate with this secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostKeySet {
    /// The host's secret, as `nvme gen-dhchap-key` prints it: `DHHC-1:HH:BASE64:`.
    pub secret: String,
    /// The subsystem's secret, for a host that asks the target to authenticate, too; `null`: none.
    #[serde(default)]
    pub controller_secret: Option<String>,
    /// The Diffie-Hellman group. Hosts that do not support it are refused.
    #[serde(default)]
    pub dh_group: DhGroup,
}

impl fmt::Debug for HostKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostKeySet").field("dh_group", &self.dh_group).finish_non_exhaustive()
    }
}

/// States that a host must authenticate. The secret is not shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostKey {
    /// Name of the group whose namespaces the host may use after authentication; `null`: the entry
    /// is for the shared drives of this machine.
    pub group: Option<String>,
    /// Whether the target has a secret, too, and authenticates to a host that asks.
    pub mutual: bool,
    /// The Diffie-Hellman group.
    pub dh_group: DhGroup,
}

/// `PUT /v1/groups/{group}/hosts/{host}/tls-key`, or `/v1/shares/hosts/{host}/tls-key`: from its
/// next connection on, a host must use TLS with this key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostTlsKeySet {
    /// The key, as `nvme gen-tls-key` prints it: `NVMeTLSkey-1:HH:BASE64:`.
    pub key: String,
    /// Keep the previous key valid, too, until the next change, so that the host can switch to the
    /// new one at any time.
    #[serde(default)]
    pub keep_old: bool,
}

impl fmt::Debug for HostTlsKeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostTlsKeySet").field("keep_old", &self.keep_old).finish_non_exhaustive()
    }
}

/// States that a host must use TLS. The key is not shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostTlsKey {
    /// Name of the group whose exports require it; `null`: the entry is for the shared drives of
    /// this machine.
    pub group: Option<String>,
    /// Number of valid keys: 2 during a key change.
    pub key_count: u32,
}
