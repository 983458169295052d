//! What the engine asks of its surroundings.
//!
//! Five nouns, and no implementation of four of them:
//!
//! - [`Drive`]: something with sectors. Real ones are in `runtime`, simulated ones in `sim`.
//! - [`Env`]: time, tasks and buffers of the shard that the engine runs on; [`Tasks`] is that
//!   without drives.
//! - [`Block`]: what an export sees of a volume: a byte-addressed block device.
//! - [`BufMut`], [`Buf`]: owned, aligned memory that travels through all layers without being
//!   copied.
//! - [`Kept`]: memory that outlives a killed process.
//!
//! Beside them what all of their users need: [`join_all`], [`race`], [`within`], [`oneshot`],
//! [`aside`] for what would hold up a shard, [`Input`], what a connection has received, and
//! [`Order`] for changes that overlap.
//!
//! Everything here is single-threaded by design: futures are not `Send`, because a request stays on
//! the shard that took it or crosses to another as a message. Buffers are `Send`.

mod aside;
mod block;
mod buf;
mod device;
mod env;
mod input;
mod join;
mod kept;
mod oneshot;
mod order;
mod prefetch;
mod race;
mod view;

pub use aside::{Aside, aside};
pub use block::{Block, BlockError, Extent, WriteZeroes};
pub use buf::{BUF_ALIGN, Buf, BufMut};
pub use device::{Drive, DriveError, DriveInfo, Segments};
pub use env::{Env, Nanos, Tasks};
pub use input::Input;
pub use join::{JoinAll, join_all};
pub use kept::Kept;
pub use oneshot::{Canceled, Receiver, Sender, oneshot};
pub use order::{Order, Turn};
pub use prefetch::prefetch;
pub use race::{race, within};
pub use view::View;
