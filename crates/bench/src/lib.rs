//! What the benchmark programs share: measuring two things beside each other, and saying what came of it.
//!
//! Machines are busy and clocks drift, so a number is only compared with one taken in the same run right beside it: see
//! [`pairs`].

#![forbid(unsafe_code)]

pub mod pairs;
