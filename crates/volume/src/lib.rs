//! Volumes on a drive group.
//!
//! - [`Direct`]: each address of the volume has a fixed place in the group.
//! - [`thin`]: a volume takes space when it is written, and its blocks move.

#![forbid(unsafe_code)]

mod direct;
mod space;
pub mod thin;

pub use direct::Direct;
pub use space::{Space, allocate, extend, shrink};
