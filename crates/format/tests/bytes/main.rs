//! The bytes on drives: golden images, damage, and data of other systems.

#![forbid(unsafe_code)]

mod common;
mod copies;
mod damage;
mod foreign;
mod golden;
mod thin;
