//! What this crate promises about its bytes.

#![forbid(unsafe_code)]

mod common;
mod copies;
mod damage;
mod foreign;
mod golden;
