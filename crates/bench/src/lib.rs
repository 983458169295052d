//! What the benchmark programs share: measuring several things beside each other, and saying what
//! came of it.
//!
//! Machines are busy and clocks drift, so a number is only compared with one taken in the same run
//! right beside it: [`pairs`] for two contenders in this thread, [`rounds`] for any number, with
//! CPU time. [`report`] compares what was measured with what is to be reached. [`process`],
//! [`daemon`], [`fio`] and [`spdk`] run what is measured from outside.

#![forbid(unsafe_code)]

pub mod arguments;
pub mod attack;
pub mod daemon;
pub mod fio;
pub mod initiator;
pub mod pairs;
pub mod process;
pub mod report;
pub mod rounds;
pub mod spdk;

/// Why something could not be measured: one sentence for a person.
pub type Error = Box<dyn std::error::Error>;
