//! Sockets on a shard's ring.

mod listener;
mod socket;
mod stream;

pub use listener::{Incoming, Listener, Peer};
pub use socket::Closer;
pub use stream::{Stream, StreamReader, StreamWriter};
