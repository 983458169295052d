//! NVMe/TCP hosts: access, secrets and keys, reservations, discovery.

pub(crate) mod announce;
pub(crate) mod history;
pub(crate) mod host_keys;
pub(crate) mod host_tls_keys;
pub(crate) mod hosts;
pub(crate) mod keyring;
pub(crate) mod referrals;
pub(crate) mod reservations;
