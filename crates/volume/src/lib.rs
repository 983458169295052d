//! Volumes on a drive group.
//!
//! There is one kind so far, [`Direct`]: each address of the volume has a fixed place in the group.

#![forbid(unsafe_code)]

mod direct;
mod space;

pub use direct::Direct;
pub use space::{Space, allocate, extend, shrink};
