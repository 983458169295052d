//! Arithmetic, compared with a simple oracle.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod codes;
mod crc32c;
mod kernels;
mod oracle;
mod vectors;
