//! Groups with members on targets: the real engine and the real initiator, over a simulated network
//! with delays, cuts and resets. A test's name is the promise it checks.

mod members;
mod splits;

use sim::engine as group;
