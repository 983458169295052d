//! Exports over real sockets, with real clients. All in one program, since each further one would
//! compile the whole crate again.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod budget;
mod clients;
mod common;
mod limits;
mod nvme_abort;
mod nvme_access;
mod nvme_auth;
mod nvme_discovery;
mod nvme_errors;
mod nvme_flow_control;
mod nvme_fua;
mod nvme_fused;
mod nvme_history;
mod nvme_hostile;
mod nvme_hosts;
mod nvme_io;
mod nvme_keep_alive;
mod nvme_namespaces;
mod nvme_queues;
mod nvme_reservations;
mod nvme_tls;
mod nvme_views;
mod service;
mod tls;
