//! Drives and listening addresses as people write them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use crate::nvme_drive::{NVME_TCP, NvmeDrive};
use crate::size::{SizeError, parse_bytes};

/// Why a drive or an address could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// `mem:` without a usable name and size.
    #[error("{0:?} is not a memory drive: write mem:NAME:SIZE, such as mem:a:1GiB")]
    Memory(String),
    /// The size of a memory drive.
    #[error("{text:?} is not a memory drive: {source}")]
    MemorySize {
        /// The text that was given.
        text: String,
        /// The problem with its size.
        source: SizeError,
    },
    /// `nvme-tcp://` without a usable address.
    #[error("{text:?} is no drive of another machine: {what}")]
    NvmeDrive {
        /// The text that was given.
        text: String,
        /// The problem with it.
        what: &'static str,
    },
    /// An empty drive name, or one with control characters.
    #[error("{0:?} is not a drive: write a path, mem:NAME:SIZE, or nvme-tcp://HOST/NQN?nsid=N")]
    Drive(String),
    /// Not a listening address.
    #[error("{0:?} is not an address: write unix:PATH or HOST:PORT, such as unix:/run/db.sock or 127.0.0.1:10809")]
    Nbd(String),
}

/// The medium of a drive, as named in requests.
///
/// `mem:NAME:SIZE` is memory of the daemon and is lost when the daemon ends; `mem:NAME` names an
/// existing one. `nvme-tcp://HOST/NQN?nsid=N` is a drive of another machine. Any other text is the
/// path of a block device or a file on the daemon's machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriveSpec {
    /// Memory of the daemon.
    Memory {
        /// Its name.
        name: String,
        /// Its size; `None` names an existing memory drive.
        size_bytes: Option<u64>,
    },
    /// A namespace of an NVMe/TCP target.
    Nvme(NvmeDrive),
    /// A block device or a file.
    Path(PathBuf),
}

impl DriveSpec {
    /// The name of the drive in later requests: `mem:NAME`, `nvme-tcp://HOST:PORT/NQN?nsid=N`, or
    /// the path.
    pub fn name(&self) -> String {
        match self {
            DriveSpec::Memory { name, .. } => format!("mem:{name}"),
            DriveSpec::Nvme(drive) => drive.name(),
            DriveSpec::Path(path) => path.display().to_string(),
        }
    }
}

impl FromStr for DriveSpec {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<DriveSpec, AddressError> {
        if let Some(memory) = text.strip_prefix("mem:") {
            let (name, size) = match memory.split_once(':') {
                Some((name, size)) => (name, Some(size)),
                None => (memory, None),
            };
            if crate::check_name("drive", name).is_err() {
                return Err(AddressError::Memory(text.to_owned()));
            }
            let size_bytes = size
                .map(|size| {
                    parse_bytes(size).map_err(|source| AddressError::MemorySize { text: text.to_owned(), source })
                })
                .transpose()?;
            return Ok(DriveSpec::Memory { name: name.to_owned(), size_bytes });
        }
        if text.starts_with(NVME_TCP) {
            return text.parse().map(DriveSpec::Nvme);
        }
        if text.is_empty() || text.chars().any(char::is_control) {
            return Err(AddressError::Drive(text.to_owned()));
        }
        Ok(DriveSpec::Path(PathBuf::from(text)))
    }
}

impl fmt::Display for DriveSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DriveSpec::Memory { name, size_bytes: Some(size_bytes) } => {
                write!(f, "mem:{name}:{}", crate::format_bytes_exact(*size_bytes))
            }
            DriveSpec::Nvme(drive) => drive.fmt(f),
            _ => f.write_str(&self.name()),
        }
    }
}

/// A name or path encoded for a URI: everything except RFC 3986's unreserved characters and `/` is
/// percent-encoded.
pub fn uri_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Address that an NBD export listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdAddress {
    /// `unix:PATH`.
    Unix(PathBuf),
    /// `HOST:PORT`; an IPv6 host in brackets.
    Tcp {
        /// Host name or address, without brackets.
        host: String,
        /// Port, at least 1.
        port: u16,
    },
}

impl FromStr for NbdAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<NbdAddress, AddressError> {
        let refuse = || AddressError::Nbd(text.to_owned());
        if text.chars().any(|c| c.is_control()) {
            return Err(refuse());
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(refuse()) } else { Ok(NbdAddress::Unix(PathBuf::from(path))) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').filter(|host| host.contains(':')).ok_or_else(refuse)?,
            None if host.contains(':') => return Err(refuse()),
            None => host,
        };
        // One address has one notation, so that two exports at the same address are noticed: no
        // sign and no leading zeroes.
        if !port.starts_with(|first: char| ('1'..='9').contains(&first)) {
            return Err(refuse());
        }
        let port: u16 = port.parse().map_err(|_| refuse())?;
        if host.is_empty() || host.contains(['/', ' ', '[', ']']) {
            return Err(refuse());
        }
        Ok(NbdAddress::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            NbdAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            NbdAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_drive_is_a_path_or_named_memory() {
        assert_eq!("/dev/nvme0n1".parse(), Ok(DriveSpec::Path("/dev/nvme0n1".into())));
        assert_eq!("a:b".parse(), Ok(DriveSpec::Path("a:b".into())));
        let memory: DriveSpec = "mem:a:1GiB".parse().unwrap();
        assert_eq!(memory, DriveSpec::Memory { name: "a".into(), size_bytes: Some(1 << 30) });
        assert_eq!((memory.name(), memory.to_string()), ("mem:a".into(), "mem:a:1GiB".into()));
        assert_eq!("mem:a".parse(), Ok(DriveSpec::Memory { name: "a".into(), size_bytes: None }));
        for (text, sentence) in [
            ("", "\"\" is not a drive: write a path, mem:NAME:SIZE, or nvme-tcp://HOST/NQN?nsid=N"),
            ("mem:", "\"mem:\" is not a memory drive: write mem:NAME:SIZE, such as mem:a:1GiB"),
            ("mem::1G", "\"mem::1G\" is not a memory drive: write mem:NAME:SIZE, such as mem:a:1GiB"),
            (
                "mem:a:x",
                "\"mem:a:x\" is not a memory drive: \"x\" is not a size: write a number with a unit, such as 64KiB, \
                 10GiB or 1.5TiB",
            ),
        ] {
            assert_eq!(text.parse::<DriveSpec>().unwrap_err().to_string(), sentence);
        }
    }

    #[test]
    fn an_export_listens_on_a_path_or_a_port() {
        assert_eq!("unix:/run/db.sock".parse(), Ok(NbdAddress::Unix("/run/db.sock".into())));
        assert_eq!("[::1]:10809".parse(), Ok(NbdAddress::Tcp { host: "::1".into(), port: 10809 }));
        assert_eq!("host:1".parse(), Ok(NbdAddress::Tcp { host: "host".into(), port: 1 }));
        for text in ["", "unix:", "host", "host:", ":1", "host:0", "host:65536", "::1:10809", "[::1:1", "/a:1"] {
            assert_eq!(text.parse::<NbdAddress>(), Err(AddressError::Nbd(text.into())), "{text}");
        }
        assert_eq!(
            "10809".parse::<NbdAddress>().unwrap_err().to_string(),
            "\"10809\" is not an address: write unix:PATH or HOST:PORT, such as unix:/run/db.sock or 127.0.0.1:10809"
        );
    }

    #[test]
    fn an_address_has_one_notation() {
        for text in ["host:+1", "host:01", "host:00080", "[host]:1", "[]:1"] {
            assert_eq!(text.parse::<NbdAddress>(), Err(AddressError::Nbd(text.into())), "{text}");
        }
        for text in ["host:1", "[::1]:65535"] {
            assert_eq!(text.parse::<NbdAddress>().unwrap().to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back_the_same(text in "\\PC{0,30}|nvme-tcp://[a-z.]{1,5}(:[0-9]{1,4})?/nqn\\.[a-z]{0,3}\\?nsid=[0-9]{1,3}(&path=[a-z]{1,3}){0,2}(&loss=[0-9]{1,2}s)?|mem:[a-z]{1,5}(:[0-9]{1,5}[KMG])?|[a-z\\[\\]:]{1,9}:[0-9]{1,5}") {
            if let Ok(drive) = text.parse::<DriveSpec>() {
                prop_assert_eq!(drive.to_string().parse::<DriveSpec>(), Ok(drive));
            }
            if let Ok(address) = text.parse::<NbdAddress>() {
                prop_assert_eq!(address.to_string().parse::<NbdAddress>(), Ok(address));
            }
        }
    }
}
