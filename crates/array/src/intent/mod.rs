//! The intent log: frames of content that are durable before the content has its place in the
//! group. A store over the array acknowledges small writes with them. `docs/format/intent-log.md`
//! has the bytes.
//!
//! Guarantees:
//! 1. A frame that was appended is on the drives of m+1 members of one set, or of all members in
//!    sync if there are fewer. A holder that fails takes a copy with it, and the group survives one
//!    loss less. So the frame is readable as long as the group is.
//! 2. A frame appended with FUA, or before a flush, survives a power cut.
//! 3. A frame's space is not written again before the store has reclaimed it.
//! 4. A full log makes appends wait. It never makes them fail.
//!
//! Example: RAID 6 with 4+2 members, one stream. Frames of 8 KiB, from an empty log.
//!
//! ```text
//! frame 1   members 0 1 2   at 0 on each              3 writes of 8 KiB
//! frame 2   members 1 2 3   at 8 KiB, 8 KiB, 0
//! frame 3   members 2 3 4   at 16 KiB, 8 KiB, 0
//! member 2 fails
//! frame 4   members 3 4 5   at 16 KiB, 8 KiB, 0
//! ```
//!
//! Frames 1 to 3 have two copies now, and the group survives one more loss. Before a drive takes
//! member 2's slot and is called in sync, the store reclaims frames 1 to 4
//! ([`Array::before_in_sync`]). Two more losses could take their copies otherwise.
//!
//! Tests: `sim/tests/engine/intent.rs`.

pub(crate) mod append;
pub(crate) mod read;

pub use append::IntentLog;
pub use read::FoundIntent;
