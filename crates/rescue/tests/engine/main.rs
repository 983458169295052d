//! The rescue reader reads drives that the engine wrote. The two share nothing but the format: its
//! documents, and the crates `format` and `gf`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod converting;
mod crash;
mod damage;
mod hostile;
mod image;
mod losses;
mod members;
mod thin;
mod thin_losses;
mod thin_repacked;
mod thin_segments;
