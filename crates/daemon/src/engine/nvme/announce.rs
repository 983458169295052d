//! Announces discovery services by multicast DNS: NVMe TP 8009 (automated discovery of discovery
//! controllers), RFC 6762 and 6763.
//!
//! Invariants:
//! - The daemon listens at every address that it announces. When it stops listening, it sends a
//!   goodbye. An upgrade sends none: the next program listens there at once.
//! - Loopback addresses are announced on the loopback interface alone, and only if that interface
//!   was named.
//! - Only [`Announcer::end`] waits for a network, for [`GOODBYE_MAX`] at most. Errors are logged.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mdns_sd::{DaemonEvent, IfKind, IfPredicate, ServiceDaemon, ServiceInfo};
use nvme::{DISCOVERY_NQN, DISCOVERY_SERVICE_TYPE};

/// How long a stop waits for goodbyes to be sent.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// Maximum bytes of a DNS label: RFC 1035, clause 2.3.4.
const LABEL_BYTES_MAX: usize = 63;

/// Maximum bytes of an interface name on Linux (IFNAMSIZ without the terminating zero).
const INTERFACE_BYTES_MAX: usize = 15;

/// Linux' loopback interface, in every network namespace.
const LOOPBACK: &str = "lo";

/// The network interfaces on which services are announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interfaces {
    /// All except the loopback interface.
    All,
    /// The interfaces with these names, if they exist.
    Named(BTreeSet<String>),
}

impl Interfaces {
    /// Whether `address` of `interface` is announced on that interface.
    fn include(&self, interface: &str, address: IpAddr) -> bool {
        match self {
            Interfaces::All => interface != LOOPBACK && !address.is_loopback(),
            Interfaces::Named(names) => names.contains(interface) && (interface == LOOPBACK || !address.is_loopback()),
        }
    }
}

impl FromStr for Interfaces {
    type Err = String;

    /// Parses `all`, or names separated by commas.
    fn from_str(text: &str) -> Result<Interfaces, String> {
        if text == "all" {
            return Ok(Interfaces::All);
        }
        let is_name = |name: &str| {
            let fits = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
            (1..=INTERFACE_BYTES_MAX).contains(&name.len()) && name.chars().all(fits)
        };
        match text.split(',').find(|name| !is_name(name)) {
            Some(wrong) => Err(format!("{wrong:?} is not the name of a network interface")),
            None => Ok(Interfaces::Named(text.split(',').map(str::to_owned).collect())),
        }
    }
}

/// Announces the addresses where discovery services listen.
pub(crate) struct Announcer {
    daemon: ServiceDaemon,
    interfaces: Interfaces,
    /// The name of this machine, as a part of a DNS label.
    host: String,
    /// Service names, by the addresses of exports.
    announced: Mutex<BTreeMap<String, String>>,
}

impl Announcer {
    /// Starts a thread that answers on the interfaces. It announces nothing yet. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// If the thread cannot be started. A network that cannot be used is only logged: it may work
    /// later.
    pub fn new(interfaces: Interfaces) -> Result<Announcer, mdns_sd::Error> {
        let daemon = ServiceDaemon::new()?;
        let chosen = interfaces.clone();
        let others = IfPredicate::new(move |interface| !chosen.include(&interface.name, interface.ip()));
        daemon.disable_interface(IfKind::Predicate(others))?;
        let events = daemon.monitor()?;
        // This task ends with the thread.
        tokio::spawn(async move {
            while let Ok(event) = events.recv_async().await {
                log(event);
            }
        });
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Announcer { daemon, interfaces, host: label_part(&host), announced: Mutex::default() })
    }

    /// Announces a discovery service that listens at `listener`. `address` is the name its exports
    /// use for that place.
    pub fn announce(&self, address: &str, listener: SocketAddr) {
        let registered = service(&self.host, listener, &self.interfaces).and_then(|service| {
            let name = service.get_fullname().to_owned();
            self.daemon.register(service)?;
            Ok(name)
        });
        match registered {
            Ok(name) => {
                tracing::info!(address, service = name, "announcing discovery service");
                self.announced.lock().unwrap_or_else(PoisonError::into_inner).insert(address.to_owned(), name);
            }
            Err(error) => tracing::warn!(address, %error, "discovery service is not announced"),
        }
    }

    /// Withdraws the announcement: the daemon no longer listens there.
    pub fn withdraw(&self, address: &str) {
        let name = self.announced.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
        if let Some(Err(error)) = name.map(|name| self.daemon.unregister(&name)) {
            tracing::warn!(address, %error, "discovery service is announced although it ended");
        }
    }

    /// Ends the thread. Clients that know of a service are notified that it is gone, unless it
    /// `stays`.
    pub async fn end(&self, stays: bool) {
        if stays {
            // Goodbyes are sent only on enabled interfaces, so disable them all.
            let _ = self.daemon.disable_interface(IfKind::All);
        }
        let Ok(ended) = self.daemon.shutdown() else { return };
        let _ = tokio::time::timeout(GOODBYE_MAX, ended.recv_async()).await;
    }
}

fn log(event: DaemonEvent) {
    match event {
        // Each service is announced twice.
        DaemonEvent::Announce(service, at) => tracing::debug!(service, at, "discovery service was announced"),
        DaemonEvent::NameChange(change) => {
            let (service, name) = (change.original, change.new_name);
            tracing::warn!(service, name, "discovery service has another name: somebody else announces this one");
        }
        DaemonEvent::Error(error) => tracing::warn!(%error, "mDNS"),
        _ => {}
    }
}

/// The announcement of a listener: PTR, SRV and TXT, and the addresses that lead to it, each on its
/// own interface.
fn service(host: &str, listener: SocketAddr, interfaces: &Interfaces) -> Result<ServiceInfo, mdns_sd::Error> {
    let name = label(host, listener);
    // TP 8009, table of TXT keys.
    let text = [("p", "tcp"), ("nqn", DISCOVERY_NQN)];
    // Each service has its own host name. The addresses belong to that name, and a goodbye
    // withdraws them.
    let server = format!("{name}.local.");
    let mut service =
        ServiceInfo::new(DISCOVERY_SERVICE_TYPE, &name, &server, "", listener.port(), &text[..])?.enable_addr_auto();
    let interfaces = interfaces.clone();
    let leading = IfPredicate::new(move |interface| {
        interfaces.include(&interface.name, interface.ip()) && leads_to(interface.ip(), listener.ip())
    });
    service.set_interfaces(vec![IfKind::Predicate(leading)]);
    Ok(service)
}

/// Whether a client that connects to this address of the machine reaches the listener.
fn leads_to(address: IpAddr, listener: IpAddr) -> bool {
    match listener.to_canonical() {
        IpAddr::V4(any) if any.is_unspecified() => address.is_ipv4(),
        // A wildcard IPv6 socket accepts IPv4 as well.
        IpAddr::V6(any) if any.is_unspecified() => true,
        listener => address == listener,
    }
}

/// The service name of a listener, also used for its host. The same listener always gets the same
/// name, and different listeners get different ones.
fn label(host: &str, listener: SocketAddr) -> String {
    let place = match listener.ip() {
        any if any.is_unspecified() => format!("-{}", listener.port()),
        address => format!("-{}-{}", address.to_string().replace(['.', ':'], "-"), listener.port()),
    };
    let host = &host[..host.len().min(LABEL_BYTES_MAX - "purlin-".len() - place.len())];
    format!("purlin-{host}{place}")
}

/// The first part of a host name, with the characters that a DNS label may have.
fn label_part(host: &str) -> String {
    let first = host.trim().split('.').next().unwrap_or_default();
    let fits = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    first.chars().map(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_announced_for_the_listener_that_it_leads_to() {
        let cases: [(&str, &[&str], &[&str]); 5] = [
            ("10.0.0.5", &["10.0.0.5"], &["10.0.0.6", "fd00::5", "127.0.0.1"]),
            ("0.0.0.0", &["10.0.0.5", "192.168.1.1"], &["fd00::5"]),
            ("::", &["10.0.0.5", "fd00::5", "fe80::1"], &[]),
            ("fd00::5", &["fd00::5"], &["fd00::6", "10.0.0.5"]),
            ("::ffff:10.0.0.5", &["10.0.0.5"], &["10.0.0.6", "fd00::5"]),
        ];
        for (listener, leading, elsewhere) in cases {
            for leading in leading {
                assert!(leads_to(address(leading), address(listener)), "{leading} to {listener}");
            }
            for elsewhere in elsewhere {
                assert!(!leads_to(address(elsewhere), address(listener)), "{elsewhere} to {listener}");
            }
        }
    }

    #[test]
    fn loopback_addresses_are_announced_on_the_loopback_interface_alone_and_only_if_it_is_named() {
        let named: Interfaces = "lo,eth0".parse().unwrap();
        for loopback in [address("127.0.0.1"), address("127.3.2.1"), address("::1")] {
            assert!(!Interfaces::All.include("lo", loopback));
            assert!(!Interfaces::All.include("eth0", loopback));
            assert!(!named.include("eth0", loopback));
            assert!(named.include("lo", loopback));
        }
        assert!(!Interfaces::All.include("lo", address("10.0.0.5")));
    }

    #[test]
    fn interfaces_that_were_not_named_are_left_alone() {
        let named: Interfaces = "eth0,eth1".parse().unwrap();
        assert!(named.include("eth1", address("10.0.0.5")) && !named.include("eth2", address("10.0.0.5")));
        assert!(Interfaces::All.include("eth2", address("10.0.0.5")));
    }

    #[test]
    fn interfaces_are_names_or_all_of_them() {
        assert_eq!("all".parse(), Ok(Interfaces::All));
        assert_eq!("all,eth0".parse(), Ok(Interfaces::Named(["all".to_owned(), "eth0".to_owned()].into())));
        for wrong in ["", "eth0,", "eth 0", "a/b", "an-interface-of-16"] {
            let message = wrong.parse::<Interfaces>().unwrap_err();
            assert!(message.ends_with("is not the name of a network interface"), "{message}");
        }
    }

    #[test]
    fn each_listener_has_a_name_of_its_own_that_is_a_label() {
        let name = |host: &str, listener: &str| label(&label_part(host), listener.parse().unwrap());
        assert_eq!(name("Nas_1.example.com\n", "0.0.0.0:4420"), "purlin-nas-1-4420");
        assert_eq!(name("nas1", "10.0.0.5:4420"), "purlin-nas1-10-0-0-5-4420");
        assert_eq!(name("nas1", "[fd00::5]:8009"), "purlin-nas1-fd00--5-8009");
        let long = name(&"x".repeat(64), "[2001:db8:1111:2222:3333:4444:5555:6666]:65535");
        assert_eq!(long.len(), LABEL_BYTES_MAX);
        assert!(long.ends_with("2001-db8-1111-2222-3333-4444-5555-6666-65535"), "{long}");
    }

    #[test]
    fn a_discovery_service_is_announced_as_the_specification_says() {
        let service = service("nas1", "10.0.0.5:8009".parse().unwrap(), &Interfaces::All).unwrap();
        assert_eq!(service.get_fullname(), "purlin-nas1-10-0-0-5-8009._nvme-disc._tcp.local.");
        assert_eq!(service.get_hostname(), "purlin-nas1-10-0-0-5-8009.local.");
        assert_eq!(service.get_port(), 8009);
        assert_eq!(service.get_property_val_str("p"), Some("tcp"));
        assert_eq!(service.get_property_val_str("nqn"), Some("nqn.2014-08.org.nvmexpress.discovery"));
        assert!(service.get_addresses().is_empty() && service.is_addr_auto());
    }
}
