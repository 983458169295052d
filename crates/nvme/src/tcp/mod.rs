//! The TCP transport: NVMe/TCP Transport 1.0.

mod controller;
mod frame;
mod host;
pub mod pdu;
mod violation;

pub use controller::{Limits, Receiver, Step, To};
pub use host::{Agreement, HostLimits, HostReceiver, HostStep, Piece, Pieces, Request, Transfer};
pub use pdu::{Digests, Head, Kind, Writer};
pub use violation::Violation;
