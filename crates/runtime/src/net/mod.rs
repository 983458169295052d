//! Sockets on a shard's ring.

mod bound;
mod connect;
mod listener;
mod socket;
mod stream;

pub use bound::{Bound, ListenOn};
pub use listener::{Incoming, Listener, Peer};
pub use socket::Closer;
pub use stream::{Piece, SendsAtOnce, Stream, StreamReader, StreamWriter};
