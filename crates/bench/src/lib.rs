//! Code that the benchmark programs share: it measures several contenders side by side, and reports
//! the results.
//!
//! Machines are busy and clocks drift. So a number is only compared with a number from the same
//! run, measured right next to it: [`pairs`] for two contenders in this thread, [`rounds`] for any
//! number of contenders, with CPU time. [`report`] compares the results with the targets.
//! [`process`], [`daemon`], [`fio`] and [`spdk`] run the programs that are measured from outside,
//! and [`group`] and [`load`] the engine in this process.

#![forbid(unsafe_code)]

pub mod arguments;
pub mod attack;
pub mod daemon;
pub mod fio;
pub mod group;
pub mod initiator;
pub mod load;
pub mod pairs;
pub mod process;
pub mod report;
pub mod rounds;
pub mod spdk;

/// Why a measurement failed: one sentence for the user.
pub type Error = Box<dyn std::error::Error>;
