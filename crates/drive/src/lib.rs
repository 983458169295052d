//! What the engine asks of its surroundings.
//!
//! Five nouns, and no implementation of four of them:
//!
//! - [`Drive`]: something with sectors. Real ones are in `runtime`, simulated ones in `sim`.
//! - [`Env`]: time, tasks and buffers of the shard that the engine runs on.
//! - [`Block`]: what an export sees of a volume: a byte-addressed block device.
//! - [`BufMut`], [`Buf`]: owned, aligned memory that travels through all layers without being copied.
//! - [`Kept`]: memory that outlives a killed process.
//!
//! Everything here is single-threaded by design: futures are not `Send`, because a request stays on the shard that took
//! it or crosses to another as a message. Buffers are `Send`.

mod block;
mod buf;
mod device;
mod env;
mod join;
mod kept;
mod oneshot;
mod prefetch;

pub use block::{Block, BlockError, Extent, WriteZeroes};
pub use buf::{BUF_ALIGN, Buf, BufMut};
pub use device::{Drive, DriveError, DriveInfo, Segments};
pub use env::{Env, Nanos};
pub use join::{JoinAll, join_all};
pub use kept::Kept;
pub use oneshot::{Canceled, Receiver, Sender, oneshot};
pub use prefetch::prefetch;
