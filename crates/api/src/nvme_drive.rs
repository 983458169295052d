//! Notation for drives of other machines.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::AddressError;
use crate::duration::{format_duration, parse_duration};

/// Prefix of such a drive.
pub const NVME_TCP: &str = "nvme-tcp://";

/// The default port of NVMe/TCP.
const PORT: u16 = 4420;

/// Address of a target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TargetAddress {
    /// Host name or address, without brackets.
    pub host: String,
    /// Port, at least 1.
    pub port: u16,
}

/// A namespace of an NVMe/TCP target:
/// `nvme-tcp://HOST[:PORT]/NQN?nsid=N[&path=HOST[:PORT]]...[&dhchap-secret=FILE[&dhchap-ctrl-secret=FILE]][&tls-key=FILE][&loss=TIME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmeDrive {
    /// Addresses of the target, at least one. Several are paths to the same drive.
    pub addresses: Vec<TargetAddress>,
    /// The subsystem's NVMe qualified name.
    pub subsystem: String,
    /// Number of the namespace, at least 1.
    pub nsid: u32,
    /// A file on the daemon's machine with the secret with which this host authenticates
    /// (DH-HMAC-CHAP).
    pub secret: Option<PathBuf>,
    /// The same for the secret with which the target must authenticate; only with `secret`.
    pub controller_secret: Option<PathBuf>,
    /// A file on the daemon's machine with the key for encrypting all connections (TLS 1.3). With
    /// it, nothing is sent in the clear.
    pub tls_key: Option<PathBuf>,
    /// How long it may be unreachable before it counts as lost, if that is not the default
    /// [`NvmeDrive::LOSS_DEFAULT`].
    pub loss: Option<Duration>,
}

impl NvmeDrive {
    /// Default time that a drive may be unreachable.
    pub const LOSS_DEFAULT: Duration = Duration::from_secs(15);
    /// The shortest useful time: a target needs some seconds to detect that a connection has ended.
    pub const LOSS_MIN: Duration = Duration::from_secs(2);
    /// The longest time: writes to the group wait that long.
    pub const LOSS_MAX: Duration = Duration::from_secs(600);

    /// How long it may be unreachable.
    pub fn loss(&self) -> Duration {
        self.loss.unwrap_or(Self::LOSS_DEFAULT)
    }

    /// The name by which the daemon knows it: without other paths, files and times.
    pub fn name(&self) -> String {
        let NvmeDrive { addresses, subsystem, nsid, .. } = self;
        format!("{NVME_TCP}{}/{subsystem}?nsid={nsid}", addresses[0])
    }
}

/// Whether this is an IPv6 address, with or without the interface that it is reached through:
/// `fe80::1%eth0` (RFC 4007, clause 11).
fn is_ipv6(host: &str) -> bool {
    let (address, scope) = host.split_once('%').map_or((host, None), |(address, scope)| (address, Some(scope)));
    address.parse::<Ipv6Addr>().is_ok() && scope.is_none_or(is_interface)
}

/// Whether a network interface may have this name. Linux' names have at most 15 bytes.
pub(crate) fn is_interface(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=15).contains(&name.len()) && name.bytes().all(fits)
}

impl FromStr for TargetAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<TargetAddress, ()> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or(())?;
                is_ipv6(host).then_some(()).ok_or(())?;
                (host, port)
            }
            None => {
                let end = text.find(':').unwrap_or(text.len());
                let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
                if !(1..=253).contains(&end) || !text[..end].bytes().all(fits) {
                    return Err(());
                }
                text.split_at(end)
            }
        };
        let port = match port.strip_prefix(':') {
            // No sign and no leading zeroes: one address has one notation.
            Some(port) if port.starts_with(|first: char| ('1'..='9').contains(&first)) => port.parse().map_err(drop)?,
            None if port.is_empty() => PORT,
            _ => return Err(()),
        };
        Ok(TargetAddress { host: host.to_owned(), port })
    }
}

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TargetAddress { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl FromStr for NvmeDrive {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<NvmeDrive, AddressError> {
        let wrong = |what: &'static str| AddressError::NvmeDrive { text: without_secrets(text), what };
        let rest = text.strip_prefix(NVME_TCP).ok_or_else(|| wrong("it begins with nvme-tcp://"))?;
        let (first, rest) = rest.split_once('/').ok_or_else(|| wrong("there is no name of a subsystem"))?;
        let (subsystem, options) = rest.split_once('?').unwrap_or((rest, ""));
        let address = |text: &str| text.parse().map_err(|()| wrong("an address is HOST or HOST:PORT"));
        let is_name = |name: &str| {
            (5..=223).contains(&name.len())
                && name.starts_with("nqn.")
                && !name.contains(|c: char| c.is_control() || c == ' ')
        };
        if !is_name(subsystem) {
            return Err(wrong("the name of a subsystem begins with \"nqn.\""));
        }
        let file = |file: &str| {
            let is_there = file.starts_with('/') && !file.chars().any(char::is_control);
            is_there
                .then(|| PathBuf::from(file))
                .ok_or_else(|| wrong("a secret or key is in a file, whose path begins with '/'"))
        };
        let (mut addresses, mut nsid, mut loss) = (vec![address(first)?], None, None);
        let (mut secret, mut controller_secret, mut tls_key) = (None, None, None);
        for option in options.split('&') {
            match option.split_once('=') {
                Some(("nsid", number)) if nsid.is_none() => nsid = Some(number),
                Some(("path", other)) => addresses.push(address(other)?),
                Some(("loss", time)) if loss.is_none() => {
                    let time =
                        parse_duration(time).ok().filter(|time| (Self::LOSS_MIN..=Self::LOSS_MAX).contains(time));
                    loss = Some(time.ok_or_else(|| wrong("\"loss\" is a time from 2s to 10m"))?);
                }
                Some(("dhchap-secret", path)) if secret.is_none() => secret = Some(file(path)?),
                Some(("dhchap-ctrl-secret", path)) if controller_secret.is_none() => {
                    controller_secret = Some(file(path)?);
                }
                Some(("tls-key", path)) if tls_key.is_none() => tls_key = Some(file(path)?),
                None if option.is_empty() => {}
                _ => {
                    return Err(wrong(
                        "behind the name come nsid=N, and if wanted path=HOST:PORT, loss=TIME, dhchap-secret=FILE, dhchap-ctrl-secret=FILE, tls-key=FILE",
                    ));
                }
            }
        }
        if secret.is_none() && controller_secret.is_some() {
            return Err(wrong("dhchap-ctrl-secret goes with dhchap-secret"));
        }
        let nsid = nsid.ok_or_else(|| wrong("it does not say which namespace: add ?nsid=1"))?;
        let is_plain = nsid.starts_with(|first: char| ('1'..='9').contains(&first));
        // 0xFFFFFFFF means all namespaces: NVMe Base 2.0, clause 3.2.1.2.
        let nsid = nsid.parse().ok().filter(|nsid| is_plain && *nsid < u32::MAX);
        let nsid = nsid.ok_or_else(|| wrong("\"nsid\" is a number, at least 1"))?;
        let mut known = Vec::new();
        for address in &addresses {
            if known.contains(&address) {
                return Err(wrong("an address is there twice"));
            }
            known.push(address);
        }
        Ok(NvmeDrive { addresses, subsystem: subsystem.to_owned(), nsid, secret, controller_secret, tls_key, loss })
    }
}

impl fmt::Display for NvmeDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        self.addresses[1..].iter().try_for_each(|path| write!(f, "&path={path}"))?;
        let file = |f: &mut fmt::Formatter<'_>, option, file: &Option<PathBuf>| {
            file.as_ref().map_or(Ok(()), |file| write!(f, "&{option}={}", file.display()))
        };
        file(f, "dhchap-secret", &self.secret)?;
        file(f, "dhchap-ctrl-secret", &self.controller_secret)?;
        file(f, "tls-key", &self.tls_key)?;
        self.loss.map_or(Ok(()), |loss| write!(f, "&loss={}", format_duration(loss)))
    }
}

/// The text for an error message. A secret that was given instead of its file is hidden.
fn without_secrets(text: &str) -> String {
    let is_secret = |part: &&str| ["=DHHC-1:", "=NVMeTLSkey-1:"].iter().any(|begin| part.contains(begin));
    let shown = |part: &str| match part.split_once('=') {
        Some((option, _)) if is_secret(&part) => format!("{option}=..."),
        _ => part.to_owned(),
    };
    text.split('&').map(shown).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_of_another_machine_says_where_it_is_and_which_one() {
        let drive: NvmeDrive = "nvme-tcp://target/nqn.2026-11.com.example:a?nsid=3".parse().unwrap();
        assert_eq!(drive.addresses, [TargetAddress { host: "target".into(), port: 4420 }]);
        assert_eq!(
            (drive.subsystem.as_str(), drive.nsid, drive.loss()),
            ("nqn.2026-11.com.example:a", 3, NvmeDrive::LOSS_DEFAULT)
        );
        assert_eq!(drive.to_string(), "nvme-tcp://target:4420/nqn.2026-11.com.example:a?nsid=3");

        let paths: NvmeDrive =
            "nvme-tcp://[fe80::1]:5/nqn.x?path=10.0.0.2:6&loss=3s&nsid=1&path=10.0.0.3".parse().unwrap();
        assert_eq!(paths.name(), "nvme-tcp://[fe80::1]:5/nqn.x?nsid=1");
        let all = "nvme-tcp://[fe80::1]:5/nqn.x?nsid=1&path=10.0.0.2:6&path=10.0.0.3:4420&loss=3s";
        assert_eq!(paths.to_string(), all);
        assert_eq!(all.parse(), Ok(paths));

        let proven = "nvme-tcp://a:1/nqn.x?nsid=1&dhchap-secret=/etc/own.key&dhchap-ctrl-secret=/etc/its.key&loss=3s";
        assert_eq!(proven.parse::<NvmeDrive>().unwrap().to_string(), proven);
        let encrypted = "nvme-tcp://a:1/nqn.x?nsid=1&tls-key=/etc/own.tls";
        let drive: NvmeDrive = encrypted.parse().unwrap();
        assert_eq!((drive.to_string().as_str(), drive.name().as_str()), (encrypted, "nvme-tcp://a:1/nqn.x?nsid=1"));
    }

    #[test]
    fn a_link_local_address_says_through_which_interface() {
        let drive: NvmeDrive = "nvme-tcp://[fe80::1%eth0]/nqn.x?nsid=1&path=[fe80::2%3]:5".parse().unwrap();
        assert_eq!(drive.addresses[0], TargetAddress { host: "fe80::1%eth0".into(), port: 4420 });
        assert_eq!(drive.to_string(), "nvme-tcp://[fe80::1%eth0]:4420/nqn.x?nsid=1&path=[fe80::2%3]:5");
        for host in ["[fe80::1%]", "[fe80::1%a b]", "[fe80::1%eth0%1]", "[x%eth0]", "[fe80::1%interface-of-16b]"] {
            assert!(format!("nvme-tcp://{host}/nqn.x?nsid=1").parse::<NvmeDrive>().is_err(), "{host}");
        }
    }

    #[test]
    fn a_secret_in_place_of_its_file_is_refused_and_not_repeated() {
        for text in [
            "nvme-tcp://a/nqn.x?nsid=1&tls-key=NVMeTLSkey-1:01:VRLb:&loss=3s",
            "nvme-tcp://a/nqn.x?tls-key=NVMeTLSkey-1:01:VRLb:&nsid=0",
            "nvme-tcp://a/nqn.x?x=1&dhchap-secret=DHHC-1:00:VRLb:",
        ] {
            let said = text.parse::<NvmeDrive>().unwrap_err().to_string();
            assert!(!said.contains("VRLb") && said.contains("=..."), "{said}");
        }
    }

    #[test]
    fn what_is_no_such_drive_is_refused_with_the_reason() {
        for (text, what) in [
            ("nvme-tcp://target", "there is no name of a subsystem"),
            ("nvme-tcp://target/x?nsid=1", "the name of a subsystem begins with \"nqn.\""),
            ("nvme-tcp:///nqn.x?nsid=1", "an address is HOST or HOST:PORT"),
            ("nvme-tcp://a:0/nqn.x?nsid=1", "an address is HOST or HOST:PORT"),
            ("nvme-tcp://a/nqn.x", "it does not say which namespace: add ?nsid=1"),
            (
                "nvme-tcp://a/nqn.x?x=1",
                "behind the name come nsid=N, and if wanted path=HOST:PORT, loss=TIME, dhchap-secret=FILE, dhchap-ctrl-secret=FILE, tls-key=FILE",
            ),
            ("nvme-tcp://a/nqn.x?path=b", "it does not say which namespace: add ?nsid=1"),
            ("nvme-tcp://a/nqn.x?nsid=0", "\"nsid\" is a number, at least 1"),
            ("nvme-tcp://a/nqn.x?nsid=4294967295", "\"nsid\" is a number, at least 1"),
            ("nvme-tcp://a/nqn.x?nsid=1&loss=1s", "\"loss\" is a time from 2s to 10m"),
            ("nvme-tcp://a/nqn.x?nsid=1&path=a:4420", "an address is there twice"),
            ("nvme-tcp://a/nqn.x?nsid=1&dhchap-secret=key", "a secret or key is in a file, whose path begins with '/'"),
            ("nvme-tcp://a/nqn.x?nsid=1&dhchap-ctrl-secret=/k", "dhchap-ctrl-secret goes with dhchap-secret"),
            ("nvme-tcp://a/nqn.x?nsid=1&tls-key=", "a secret or key is in a file, whose path begins with '/'"),
        ] {
            let error = text.parse::<NvmeDrive>().unwrap_err().to_string();
            assert_eq!(error, format!("{text:?} is no drive of another machine: {what}"));
        }
    }
}
