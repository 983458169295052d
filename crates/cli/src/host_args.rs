//! The command line of `purlin host`.

use std::path::PathBuf;

use api::DhGroup;
use clap::{Args, Subcommand};
use nvme::auth::Hash;

use crate::args::DryRun;
use crate::limit_args::LimitArgs;

/// Verbs of NVMe hosts.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the hosts that exports or shared drives name or that have used one, and what they have
    /// done
    #[command(after_help = "Examples:\n  purlin host list")]
    List,
    /// Show a host: what it may use, and what it has done with it
    #[command(after_help = "Examples:\n  purlin host show nqn.2014-08.org.nvmexpress:uuid:8a1c...")]
    Show {
        /// Its NVMe qualified name; on Linux: /etc/nvme/hostnqn
        host: String,
    },
    /// Let a host use an export or a shared drive; if it is connected it sees the namespace at once
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
        /// Identity of an export over NVMe/TCP, from `purlin export list`, or of a shared drive,
        /// from `purlin drive shares`
        #[arg(value_name = "EXPORT|SHARE")]
        export: String,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Limit how fast a host may use an export, on all its queues together; holds at once
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
        /// Identity of an export over NVMe/TCP, from `purlin export list`
        export: String,
        #[command(flatten)]
        limit: LimitArgs,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Secrets that hosts prove with who they are (DH-HMAC-CHAP), and keys that they encrypt with
    /// (TLS)
    #[command(subcommand)]
    Key(HostKeyCommand),
    /// Let a host use an export or a shared drive no longer: it loses the namespace at once, and
    /// what is in flight is answered
    #[command(after_help = "\
Examples:
  purlin host deny nqn.2014-08.org.nvmexpress:uuid:8a1c... tank-3
  purlin host deny nqn.2014-08.org.nvmexpress:uuid:8a1c... share-1")]
    Deny {
        /// Its NVMe qualified name
        host: String,
        /// Identity of an export over NVMe/TCP, from `purlin export list`, or of a shared drive,
        /// from `purlin drive shares`
        #[arg(value_name = "EXPORT|SHARE")]
        export: String,
    },
}

/// Verbs of secrets.
#[derive(Debug, Subcommand)]
pub enum HostKeyCommand {
    /// Make a secret, for a host or for the target, or a key of TLS, for both
    #[command(after_help = "\
Examples:
  purlin host key generate --out host.key
  purlin host key generate --hash sha512 > host.key
  purlin host key generate --tls --out host.tls

It is what `nvme gen-dhchap-key` makes, or `nvme gen-tls-key`. Both ends have it in a file; Linux takes it with `nvme connect
--dhchap-secret`, or `nvme check-tls-key --insert`.")]
    Generate {
        /// Write it to this new file, which only you may read, instead of stdout
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Make a key of TLS
        #[arg(long)]
        tls: bool,
        /// Hash function that makes the host's key of it: sha256, sha384, sha512 or none; for TLS
        /// sha256 or sha384
        #[arg(long, value_name = "HASH", default_value = "sha256", value_parser = parse_hash)]
        hash: Transform,
    },
    /// Give a host a secret or a key of TLS, or another one: it counts from its next connection on
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
        /// The key of TLS that the host has counts as well, until the next change
        #[arg(long, requires = "tls_key")]
        keep_old: bool,
    },
    /// Let a host in by its name alone, as before it had a secret, or without TLS, as before it had
    /// a key of that
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
        /// Its key of TLS, not its secret
        #[arg(long)]
        tls: bool,
    },
}

/// What secrets and keys are for.
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
    /// For people.
    pub fn name(&self) -> &str {
        self.group.as_deref().unwrap_or("shared drives")
    }
}

/// Secrets and keys in files.
#[derive(Debug, Clone, Args)]
pub struct KeyArgs {
    /// File with the host's secret (DHHC-1:...), or - for stdin
    #[arg(long, value_name = "FILE|-")]
    pub dhchap_secret: Option<PathBuf>,
    /// File with the target's secret, for a host that asks the target to prove itself, too
    #[arg(long, value_name = "FILE", requires = "dhchap_secret")]
    pub dhchap_ctrl_secret: Option<PathBuf>,
    /// Diffie-Hellman group: null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or ffdhe8192
    #[arg(long, value_name = "GROUP", default_value = "ffdhe3072", requires = "dhchap_secret", value_parser = parse_dh_group)]
    pub dh_group: DhGroup,
    /// File with the host's key of TLS (NVMeTLSkey-1:...), or - for stdin
    #[arg(long, value_name = "FILE|-")]
    pub tls_key: Option<PathBuf>,
}

/// What makes a key of a secret.
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
