//! Arrays of Linux md, by what Linux wrote and by models.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod assess;
mod geometry;
mod golden;
mod read;
mod support;
