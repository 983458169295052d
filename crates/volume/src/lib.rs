//! Volumes on a drive group.
//!
//! - [`Direct`]: each address of the volume has a fixed place in the group.
//! - [`thin`]: a volume takes space when it is written, and its blocks move.
//! - [`convert`]: a volume of one kind gets the other, while it is in use.

#![forbid(unsafe_code)]

pub mod convert;
mod direct;
mod signal;
mod space;
pub mod thin;

pub use direct::Direct;
pub use space::{Space, allocate, extend, shrink};
