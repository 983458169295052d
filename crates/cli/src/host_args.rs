//! Arguments of `purlin host`.

use std::path::PathBuf;

use api::DhGroup;
use clap::{Args, Subcommand};
use nvme::auth::Hash;

use crate::common_args::DryRun;
use crate::limit_args::LimitArgs;

/// Verbs of NVMe hosts.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the hosts that exports or shared drives name or that have used one, and their activity
    #[command(after_help = "Examples:\n  purlin host list")]
    List,
    /// Show a host: its access and its activity
    #[command(after_help = "Examples:\n  purlin host show nqn.2014-08.org.nvmexpress:uuid:8a1c...")]
    Show {
        /// Its NVMe qualified name; on Linux: /etc/nvme/hostnqn
        host: String,
    },
    /// Let a host use an export or a shared drive; a connected host sees the namespace at once
    #[command(after_help = "\
Examples:
  purlin host allow nqn.2014-08.org.nvmexpress:uuid:8a1c... tank-3
  purlin host allow nqn.2014-08.org.nvmexpress:uuid:8a1c... tank-3 --dhchap-secret host.key --dhchap-ctrl-secret target.key
  purlin host allow nqn.2014-08.org.nvmexpress:uuid:8a1c... tank-3 --tls-key host.tls
  purlin host allow nqn.2014-08.org.nvmexpress:uuid:8a1c... share-1

With a secret, which is as `purlin host key set` gives it one, it has to prove who it is for every export of the group, or for all shared
drives, and with a key of TLS to encrypt what it sends and reads there.")]
    Allow {
        /// Its NVMe qualified name; on Linux: /etc/nvme/hostnqn
        host: String,
        /// Identifier of an export over NVMe/TCP, from `purlin export list`, or of a shared drive,
        /// from `purlin drive shares`
        #[arg(value_name = "EXPORT|SHARE")]
        export: String,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Limit the rate of a host on an export, on all its queues together; effective at once
    #[command(after_help = "\
Examples:
  purlin host limit nqn.2014-08.org.nvmexpress:uuid:8a1c... tank-3 --iops 5k
  purlin host limit nqn.2014-08.org.nvmexpress:uuid:8a1c... tank-3 --bandwidth 200MiB --burst 1s
  purlin host limit nqn.2014-08.org.nvmexpress:uuid:8a1c... tank-3 --iops off --bandwidth off

Requests over the limit wait, in the order in which they came; they never fail. Other hosts do not notice, and neither does what
this host does with other exports. A limit of the volume, from `purlin volume limit`, holds as well.")]
    Limit {
        /// Its NVMe qualified name; on Linux: /etc/nvme/hostnqn
        host: String,
        /// Identifier of an export over NVMe/TCP, from `purlin export list`
        export: String,
        #[command(flatten)]
        limit: LimitArgs,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Secrets for authentication of hosts (DH-HMAC-CHAP), and keys for encryption (TLS)
    #[command(subcommand)]
    Key(HostKeyCommand),
    /// Stop a host from using an export or a shared drive: it loses the namespace at once, and
    /// requests in flight are answered
    #[command(after_help = "\
Examples:
  purlin host deny nqn.2014-08.org.nvmexpress:uuid:8a1c... tank-3
  purlin host deny nqn.2014-08.org.nvmexpress:uuid:8a1c... share-1")]
    Deny {
        /// Its NVMe qualified name
        host: String,
        /// Identifier of an export over NVMe/TCP, from `purlin export list`, or of a shared drive,
        /// from `purlin drive shares`
        #[arg(value_name = "EXPORT|SHARE")]
        export: String,
    },
}

/// Verbs of secrets.
#[derive(Debug, Subcommand)]
pub enum HostKeyCommand {
    /// Generate a secret, for a host or for the target, or a TLS key, for both
    #[command(after_help = "\
Examples:
  purlin host key generate --out host.key
  purlin host key generate --hash sha512 > host.key
  purlin host key generate --tls --out host.tls

It is what `nvme gen-dhchap-key` makes, or `nvme gen-tls-key`. Both ends have it in a file; Linux takes it with `nvme connect
--dhchap-secret`, or `nvme check-tls-key --insert`.")]
    Generate {
        /// Write it to this new file, readable only by you, instead of stdout
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Generate a TLS key
        #[arg(long)]
        tls: bool,
        /// Hash function that derives the host's key: sha256, sha384, sha512 or none; for TLS
        /// sha256 or sha384
        #[arg(long, value_name = "HASH", default_value = "sha256", value_parser = parse_hash)]
        hash: Transform,
    },
    /// Set or replace a host's secret or TLS key; effective from its next connection on
    #[command(after_help = "\
Examples:
  purlin host key set nqn.2014-08.org.nvmexpress:uuid:8a1c... tank --dhchap-secret host.key
  purlin host key set nqn.2014-08.org.nvmexpress:uuid:8a1c... tank --dhchap-secret host.key --dhchap-ctrl-secret target.key
  purlin host key generate | tee host.key | purlin host key set nqn.2026-11.com.example:a tank --dhchap-secret -
  purlin host key set nqn.2014-08.org.nvmexpress:uuid:8a1c... tank --tls-key new.tls --keep-old
  purlin host key set nqn.2014-08.org.nvmexpress:uuid:8a1c... --shares --tls-key host.tls

The host then proves who it is for all exports of the group, or encrypts. Connections that are there stay. Secrets and keys lie on the drives
of the group, in the clear, those for shared drives in the daemon's state directory; nothing shows them again.")]
    Set {
        /// Its NVMe qualified name; on Linux: /etc/nvme/hostnqn
        host: String,
        #[command(flatten)]
        of: KeyPlace,
        #[command(flatten)]
        key: KeyArgs,
        /// The host's previous TLS key stays valid, too, until the next change
        #[arg(long, requires = "tls_key")]
        keep_old: bool,
    },
    /// Remove a host's secret, or with --tls its TLS key: it connects without authentication or
    /// without TLS again
    #[command(after_help = "\
Examples:
  purlin host key remove nqn.2014-08.org.nvmexpress:uuid:8a1c... tank
  purlin host key remove nqn.2014-08.org.nvmexpress:uuid:8a1c... tank --tls
  purlin host key remove nqn.2014-08.org.nvmexpress:uuid:8a1c... --shares --tls")]
    Remove {
        /// Its NVMe qualified name
        host: String,
        #[command(flatten)]
        of: KeyPlace,
        /// Remove its TLS key, not its secret
        #[arg(long)]
        tls: bool,
    },
}

/// The use of secrets and keys.
#[derive(Debug, Clone, Args)]
pub struct KeyPlace {
    /// Group whose exports the host uses
    #[arg(required_unless_present = "shares", conflicts_with = "shares")]
    pub group: Option<String>,
    /// The drives that this machine shares (`purlin drive share`), not a group's exports
    #[arg(long)]
    pub shares: bool,
}

impl KeyPlace {
    /// The name in messages.
    pub fn name(&self) -> &str {
        self.group.as_deref().unwrap_or("shared drives")
    }
}

/// Files with secrets and keys.
#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// File with the host's secret (DHHC-1:...), or - for stdin
    #[arg(long, value_name = "FILE|-")]
    pub dhchap_secret: Option<PathBuf>,
    /// File with the target's secret, for a host that requires the target to authenticate, too
    #[arg(long, value_name = "FILE", requires = "dhchap_secret")]
    pub dhchap_ctrl_secret: Option<PathBuf>,
    /// Diffie-Hellman group: null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or ffdhe8192
    #[arg(long, value_name = "GROUP", default_value = "ffdhe3072", requires = "dhchap_secret", value_parser = parse_dh_group)]
    pub dh_group: DhGroup,
    /// File with the host's TLS key (NVMeTLSkey-1:...), or - for stdin
    #[arg(long, value_name = "FILE|-")]
    pub tls_key: Option<PathBuf>,
}

/// The hash function that derives a key from a secret.
#[derive(Debug, Clone, Copy)]
pub struct Transform(pub Option<Hash>);

fn parse_hash(text: &str) -> Result<Transform, String> {
    Ok(Transform(match text {
        "none" => None,
        "sha256" => Some(Hash::Sha256),
        "sha384" => Some(Hash::Sha384),
        "sha512" => Some(Hash::Sha512),
        _ => return Err(format!("`{text}` is not sha256, sha384, sha512 or none")),
    }))
}

fn parse_dh_group(text: &str) -> Result<DhGroup, String> {
    let found = DhGroup::ALL.into_iter().find(|group| group.name() == text);
    found.ok_or_else(|| format!("`{text}` is not one of {}", DhGroup::ALL.map(DhGroup::name).join(", ")))
}
