//! The rules, a file each.

pub mod book;
pub mod imports;
pub mod length;
pub mod links;
pub mod names;
pub mod width;
pub mod words;
