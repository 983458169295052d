//! The inputs of the tests: the corpus, inputs close to it, and mutations from a seed.

use crate::mutate::{Mutator, neighbours};
use crate::rng::Rng;
use crate::target::{Seed, Target};

/// Inputs of the random walk that [`Mutations`] remembers.
const WALK: usize = 64;

/// How many inputs there are beside the corpus.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Most neighbors of each corpus input: its prefixes, and the input with single bits flipped.
    pub neighbours_max: usize,
    /// Number of mutated inputs.
    pub mutations: usize,
    /// The same seed and corpus give the same mutations.
    pub seed: u64,
}

/// Nothing, then `corpus`, then its neighbors, then mutations.
pub fn inputs(target: &Target, corpus: Vec<Seed>, plan: Plan) -> impl Iterator<Item = Vec<u8>> + Send + use<> {
    let mut pool = vec![Vec::new()];
    pool.extend(corpus.into_iter().map(|seed| seed.bytes));
    let close = pool.clone().into_iter().flat_map(move |input| neighbours(input, plan.neighbours_max));
    let mutations = Mutations {
        rng: Rng::new(plan.seed),
        mutator: Mutator::new(target.dictionary, target.input_bytes_max),
        pool: pool.clone(),
        walk: Vec::new(),
    };
    pool.into_iter().chain(close).chain(mutations.take(plan.mutations))
}

/// Endless mutations of a pool of inputs, and of earlier mutations (a random walk).
struct Mutations {
    rng: Rng,
    mutator: Mutator,
    pool: Vec<Vec<u8>>,
    walk: Vec<Vec<u8>>,
}

impl Iterator for Mutations {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let Mutations { rng, mutator, pool, walk } = self;
        let bases = if !walk.is_empty() && rng.one_in(4) { &*walk } else { &*pool };
        let mut input = bases[rng.below(bases.len())].clone();
        let other = &pool[rng.below(pool.len())];
        mutator.mutate(rng, &mut input, other);
        if rng.one_in(16) {
            if walk.len() < WALK { walk.push(input.clone()) } else { walk[rng.below(WALK)].clone_from(&input) }
        }
        Some(input)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::examine::tests::target;
    use crate::run;

    fn all(seed: u64) -> Vec<Vec<u8>> {
        let target = Target { dictionary: &[b"h"], input_bytes_max: 16, ..target(|_| ()) };
        let plan = Plan { neighbours_max: 100, mutations: 50_000, seed };
        inputs(&target, vec![Seed::new("near", b"cras".as_slice())], plan).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_inputs_and_another_gives_others() {
        let (once, again, other) = (all(5), all(5), all(6));
        assert_eq!(once, again);
        let once: HashSet<Vec<u8>> = once.into_iter().collect();
        assert!(other.iter().filter(|input| !once.contains(*input)).count() > 10_000);
    }

    #[test]
    fn a_fault_behind_a_magic_and_a_length_is_found_once() {
        let target = target(|input| assert!(!input.starts_with(b"crash") || input.len() != 7, "found"));
        let crashes = run(&target, all(5).into_iter());
        assert_eq!(crashes.len(), 1);
        assert!(crashes[0].input.starts_with(b"crash"));
    }
}
