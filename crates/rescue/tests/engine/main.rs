//! What the engine wrote, read by the rescue. The two share nothing but the documents of the
//! format.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crash;
mod damage;
mod hostile;
mod image;
mod losses;
mod members;
