//! The engine on simulated drives, with faults of every kind. A test's name is the promise it
//! checks; a file covers one topic.
//!
//! Every test runs several seeds. `PURLIN_SIM_SEEDS=100000` makes those that draw at random run
//! that many, and `PURLIN_SIM_SEED=17` only the one that failed.

mod assembly;
mod at_once;
mod causes;
mod checksums;
mod counts;
mod crash;
mod dying;
mod errors;
mod fast_zeroes;
mod fuzz;
mod incomplete_writes;
mod intent;
mod interrupted_rebuilds;
mod levels;
mod overwritten;
mod owners;
mod paper;
mod rebuild;
mod records;
mod replacement;
mod resumed;
mod returns;
mod rows;
mod scrub;
mod scrub_job;
mod shards;
mod silent;
mod silent_assembly;
mod slow;
mod unknown;
mod unstarted;
mod volumes;

use sim::engine as group;
use sim::engine::history;
