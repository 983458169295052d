//! The interfaces between the engine and its environment.
//!
//! Five concepts, four of them without an implementation here:
//!
//! - [`Drive`]: a device with sectors. Real ones are in `runtime`, simulated ones in `sim`.
//! - [`Env`]: time, tasks and buffers of the shard that the engine runs on. [`Tasks`] is the same
//!   without drives.
//! - [`Block`]: a volume in the form in which exports use it: a byte-addressed block device.
//! - [`BufMut`], [`Buf`]: owned, aligned memory that passes through all layers without being
//!   copied.
//! - [`WarmState`]: memory that outlives a killed process.
//!
//! There are also tools for their users: [`join_all`], [`race`], [`within`], [`oneshot`],
//! [`offload`] for computations that would delay a shard, [`Input`] for the received bytes of a
//! connection, and [`Order`] for changes that overlap.
//!
//! All code here is single-threaded by design. Futures are not `Send`, because a request stays on
//! the shard that took it or crosses to another as a message. Buffers are `Send`.

mod block;
mod buf;
mod device;
mod env;
mod input;
mod join;
mod offload;
mod oneshot;
mod order;
mod prefetch;
mod race;
mod view;
mod warm;

pub use block::{Block, BlockError, Extent, ThinUse, WriteZeroes};
pub use buf::{BUF_ALIGN, Buf, BufMut};
pub use device::{Drive, DriveError, DriveInfo, Segments};
pub use env::{Env, Nanos, Tasks};
pub use input::Input;
pub use join::{JoinAll, join_all};
pub use offload::{Offload, offload};
pub use oneshot::{Canceled, Receiver, Sender, oneshot};
pub use order::{Order, Turn};
pub use prefetch::prefetch;
pub use race::{race, within};
pub use view::View;
pub use warm::WarmState;
