//! Linux md arrays, from images that Linux wrote and from models.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod assess;
mod geometry;
mod golden;
mod read;
mod support;
