//! Every crash of random programs, over a model of a group.

use sim::engine::seeds;
use sim::thin::{Program, check};

#[test]
fn every_crash_of_a_program_leaves_what_was_promised() {
    let (mut crashes, mut recoveries) = (0, 0);
    for seed in seeds(40) {
        let counts = check(&Program::random(seed));
        (crashes, recoveries) = (crashes + counts.crashes, recoveries + counts.recoveries);
    }
    assert!(crashes > 1000 && recoveries > 5 * crashes, "{crashes} crashes, {recoveries} recoveries");
}
