//! The environment of a host.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use drive::{BufMut, Segments, Tasks};
use thiserror::Error;

/// Time, tasks and connections. A handle that stays on one thread.
pub trait Network: Tasks {
    /// The receiving half of a connection.
    type Reader: Reader;
    /// The sending half.
    type Writer: Writer;

    /// Connects, without delay for small messages (TCP_NODELAY). The future may be dropped: then no
    /// connection stays open. The connection ends when both halves are dropped.
    fn connect(&self, address: &Address) -> impl Future<Output = io::Result<(Self::Reader, Self::Writer)>>;
}

/// The receiving half of a connection.
pub trait Reader: 'static {
    /// Waits for data and puts it into `buf` from index `from` on, where there is room. Returns the
    /// buffer, and the number of bytes: 0 if the other end has finished. The future may be dropped
    /// to end the connection.
    fn recv(&mut self, buf: BufMut, from: usize) -> impl Future<Output = (io::Result<usize>, BufMut)>;
}

/// The sending half of a connection.
pub trait Writer: 'static {
    /// Sends all segments in order. The future may be dropped to end the connection.
    fn send(&mut self, data: Segments) -> impl Future<Output = io::Result<()>>;
}

/// The port of NVMe/TCP: TCP Transport 1.0, clause 3.1.1.
pub const DEFAULT_PORT: u16 = 4420;

/// The address on which a target listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// A name or an IP address, without brackets. An IPv6 address may name an interface
    /// (`fe80::1%eth0`).
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Text that is not an address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no address: write HOST, HOST:PORT, or [IPV6]:PORT")]
pub struct AddressError(String);

/// Whether this is an IPv6 address, with or without the interface through which it is reached:
/// `fe80::1%eth0` (RFC 4007, clause 11).
fn is_ipv6(host: &str) -> bool {
    let (address, scope) = host.split_once('%').map_or((host, None), |(address, scope)| (address, Some(scope)));
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    // Linux limits names of interfaces to 15 bytes.
    let is_interface = |scope: &str| (1..=15).contains(&scope.len()) && scope.bytes().all(fits);
    address.parse::<Ipv6Addr>().is_ok() && scope.is_none_or(is_interface)
}

impl From<SocketAddr> for Address {
    /// The interface of a link-local address becomes a number.
    fn from(address: SocketAddr) -> Address {
        let host = match address {
            SocketAddr::V6(address) if address.scope_id() != 0 => format!("{}%{}", address.ip(), address.scope_id()),
            _ => address.ip().to_string(),
        };
        Address { host, port: address.port() }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// `HOST[:PORT]`. An IPv6 address with a port must be in brackets.
    fn from_str(text: &str) -> Result<Address, AddressError> {
        let wrong = || AddressError(text.to_owned());
        let port_of = |port: &str| port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong);
        let is_name = |host: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            (1..=253).contains(&host.len()) && host.bytes().all(fits)
        };
        if let Some(rest) = text.strip_prefix('[') {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            is_ipv6(host).then_some(()).ok_or_else(wrong)?;
            let port = match port.strip_prefix(':') {
                Some(port) => port_of(port)?,
                None if port.is_empty() => DEFAULT_PORT,
                None => return Err(wrong()),
            };
            return Ok(Address { host: host.to_owned(), port });
        }
        if text.parse::<IpAddr>().is_ok() || is_ipv6(text) {
            return Ok(Address { host: text.to_owned(), port: DEFAULT_PORT });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, port_of(port)?),
            None => (text, DEFAULT_PORT),
        };
        if !is_name(host) {
            return Err(wrong());
        }
        Ok(Address { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { host, port } = self;
        if host.contains(':') { write!(formatter, "[{host}]:{port}") } else { write!(formatter, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_printed() {
        for (text, host, port) in [
            ("10.0.0.5", "10.0.0.5", 4420),
            ("10.0.0.5:4421", "10.0.0.5", 4421),
            ("target-1.example:8009", "target-1.example", 8009),
            ("::1", "::1", 4420),
            ("[::1]", "::1", 4420),
            ("[fe80::2]:4421", "fe80::2", 4421),
            ("[fe80::2%eth0]:4421", "fe80::2%eth0", 4421),
            ("fe80::2%7", "fe80::2%7", 4420),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address, Address { host: host.to_owned(), port });
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn an_address_that_was_looked_up_keeps_its_interface() {
        for text in ["[fe80::2%7]:4421", "[fd00::2]:1", "10.0.0.5:4420"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::from(address).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            ":4420",
            "a:",
            "a:0",
            "a:65536",
            "a b",
            "[::1",
            "[::1]4420",
            "[x]:1",
            "[::1%]:1",
            "[::1%a b]:1",
            "a:1:2",
            "tcp://a",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
