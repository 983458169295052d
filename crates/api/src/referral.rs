//! Referrals: other discovery services that NVMe hosts may ask.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Invalid;

/// `GET /v1/referrals`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReferralList {
    /// The referrals, by address.
    pub referrals: Vec<Referral>,
}

/// Another discovery service, listed in the discovery log at every address of this daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Referral {
    /// Address of the service: `IP:PORT`.
    pub address: String,
}

/// Checks the address of a referral. A discovery log has numeric addresses (TCP Transport 1.0,
/// clause 3.1.1). An interface of this machine, as in `[fe80::6%eth0]:8009`, is omitted: it means
/// nothing to a host, which uses its own interfaces.
///
/// # Errors
/// [`Invalid`] if hosts could not connect to the address.
pub fn check_referral(text: &str) -> Result<SocketAddr, Invalid> {
    let address: Option<SocketAddr> = without_interface(text).parse().ok();
    let can_be_asked =
        |address: &SocketAddr| address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast();
    address.filter(can_be_asked).ok_or_else(|| {
        Invalid::new(format!(
            "{text:?} is not where hosts could ask: write an IP address with a port, such as 10.0.0.6:8009"
        ))
    })
}

fn without_interface(text: &str) -> String {
    match text.split_once('%').and_then(|(before, behind)| Some((before, behind.split_once(']')?))) {
        Some((before, (interface, port))) if crate::nvme_drive::is_interface(interface) => format!("{before}]{port}"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_referral_is_an_address_that_hosts_can_reach() {
        for text in ["10.0.0.6:8009", "[fd00::6]:4420"] {
            assert_eq!(check_referral(text).unwrap().to_string(), text);
        }
        assert_eq!(check_referral("[fe80::6%eth0]:8009").unwrap().to_string(), "[fe80::6]:8009");
        for text in [
            "[fe80::6%]:8009",
            "[fe80::6%e/0]:8009",
            "10.0.0.6%eth0:8009",
            "",
            "10.0.0.6",
            "10.0.0.6:0",
            "0.0.0.0:4420",
            "[::]:4420",
            "224.0.0.1:4420",
            "target:4420",
            "fd00::6:1:x",
        ] {
            assert!(
                check_referral(text).unwrap_err().to_string().contains("write an IP address with a port"),
                "{text}"
            );
        }
    }
}
