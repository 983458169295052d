//! The TCP transport: NVMe/TCP Transport 1.0.

mod controller;
mod frame;
pub mod pdu;
mod violation;

pub use controller::{Limits, Receiver, Step, To};
pub use pdu::{Digests, Head, Kind, Writer};
pub use violation::Violation;
