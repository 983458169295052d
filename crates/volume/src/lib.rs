//! Virtual drives over a drive group.
//!
//! So far one kind, [`Direct`]: each address of the volume has a fixed place in the group.

#![forbid(unsafe_code)]

mod direct;
mod space;

pub use direct::Direct;
pub use space::{Space, allocate, extend, shrink};
