//! All targets.

mod address;
mod arguments;
mod catalogue;
mod connection;
mod duration;
mod foreign;
mod http;
mod image;
mod layout;
mod log;
mod map;
mod md;
mod nbd_replies;
mod nbd_script;
mod nbd_stream;
mod nvme_answers;
mod nvme_auth;
mod nvme_host;
mod nvme_replies;
mod nvme_script;
mod nvme_stream;
mod nvme_target;
mod nvme_tls;
mod request;
mod samples;
mod seal;
mod size;
mod superblock;
mod thin;

use crate::target::Target;

/// All targets, sorted by name.
pub const TARGETS: [Target; 31] = [
    address::TARGET,
    arguments::TARGET,
    catalogue::TARGET,
    duration::TARGET,
    foreign::TARGET,
    http::ROUTER,
    http::TOKENS,
    image::TARGET,
    thin::FRAME,
    layout::TARGET,
    log::FRAME,
    log::LOST,
    map::TARGET,
    md::TARGET,
    nbd_replies::TARGET,
    nbd_script::TARGET,
    nbd_stream::TARGET,
    nvme_answers::TARGET,
    nvme_auth::TARGET,
    nvme_replies::TARGET,
    nvme_script::TARGET,
    nvme_stream::TARGET,
    nvme_tls::TARGET,
    request::TARGET,
    size::TARGET,
    superblock::COPIES,
    superblock::TARGET,
    thin::ANCHOR,
    thin::BATCH,
    thin::NODE,
    thin::PACKED,
];

/// Finds a target by its name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
