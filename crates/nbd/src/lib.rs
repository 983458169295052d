//! The server side of the NBD protocol, sans-I/O: bytes in, bytes and actions out.
//!
//! The crate follows <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>; quoted
//! words and clause names are from there. It implements fixed newstyle, structured replies and
//! `base:allocation`, but neither oldstyle nor experimental extensions. It opens no socket,
//! allocates no payload and has no clock.
//!
//! One connection is two state machines, one after the other:
//!
//! - [`Handshake`] negotiates options with the help of a [`Directory`] until the client has chosen
//!   an export;
//! - [`Transmission`] splits the stream into checked [`Request`]s, and says where to put the data
//!   of a write.
//!
//! [`Replies`] writes the answers. [`client`] has the messages of the client side, for tests and
//! tools.
//!
//! ```
//! use nbd::{client, Directory, ExportInfo, Handshake, Listed, Progress, Refusal, Step, TlsPolicy};
//!
//! struct One;
//! impl Directory for One {
//!     type Export = ();
//!     fn list(&self) -> Vec<Listed> {
//!         vec![]
//!     }
//!     fn find(&self, name: &str) -> Result<((), ExportInfo), Refusal> {
//!         let info = ExportInfo {
//!             name: name.into(), description: String::new(), size_bytes: 1 << 20,
//!             read_only: false, multi_conn: true, block_bytes_preferred: 4096,
//!         };
//!         if name == "disk" { Ok(((), info)) } else { Err(Refusal::Unknown) }
//!     }
//! }
//!
//! let mut sent = Vec::new(); // goes to the client
//! let mut handshake = Handshake::new(TlsPolicy::Off, &mut sent);
//! let mut input = client::flags(true, true);
//! input.extend(client::go("disk", &[]));
//! input.extend(client::flush(7));
//!
//! let mut transmission = loop {
//!     let (taken, progress) = handshake.step(&input, &One, &mut sent);
//!     input.drain(..taken);
//!     match progress {
//!         Progress::Continue => {}
//!         Progress::Entered(transmission, ()) => break transmission,
//!         other => panic!("{other:?}"),
//!     }
//! };
//! let (_, step) = transmission.step(&input);
//! assert!(matches!(step, Step::Request(request) if request.cookie == 7));
//! ```

#![forbid(unsafe_code)]

pub mod client;
mod directory;
mod handshake;
mod limits;
mod reply;
mod table;
mod transmission;
mod violation;
pub mod wire;

pub use directory::{Directory, ExportInfo, Listed, Refusal};
pub use handshake::{Handshake, Progress, TlsPolicy};
pub use limits::{
    DIRECT_BYTES_MIN, DRAIN_BYTES_MAX, INPUT_BYTES_MIN, OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX,
    PAYLOAD_BYTES_MAX, STATUS_DESCRIPTORS_MAX, STRING_BYTES_MAX,
};
pub use reply::{Descriptor, Errno, Head, Replies};
pub use table::tables;
pub use transmission::{Command, Request, Step, Transmission};
pub use violation::Violation;
