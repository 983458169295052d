//! The set of open records.

use std::collections::VecDeque;

/// Sequences in a window that moves on. They are added in order, and removed in nearly that order.
#[derive(Default)]
pub(super) struct OpenSet {
    /// The lowest one. Without meaning if the set is empty.
    first: u64,
    /// For each sequence from the first on, whether it is in the set. The first is.
    window: VecDeque<bool>,
}

impl OpenSet {
    /// Adds the sequence after the last one, or any if the set is empty.
    pub fn push(&mut self, sequence: u64) {
        if self.window.is_empty() {
            self.first = sequence;
        }
        debug_assert_eq!(sequence, self.first + self.window.len() as u64, "sequences come in order");
        self.window.push_back(true);
    }

    /// Removes a sequence that is in the set.
    pub fn remove(&mut self, sequence: u64) {
        self.window[(sequence - self.first) as usize] = false;
        while self.window.front() == Some(&false) {
            self.window.pop_front();
            self.first += 1;
        }
    }

    /// The lowest sequence.
    pub fn first(&self) -> Option<u64> {
        (!self.window.is_empty()).then_some(self.first)
    }

    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// All sequences, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (self.first..).zip(&self.window).filter(|(_, is_in)| **is_in).map(|(sequence, _)| sequence)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_an_ordered_set_holds(steps in proptest::collection::vec(any::<Option<proptest::sample::Index>>(), 0..200)) {
            let (mut set, mut model) = (OpenSet::default(), BTreeSet::new());
            for (sequence, step) in (7..).zip(steps) {
                set.push(sequence);
                model.insert(sequence);
                if let Some(index) = step {
                    // On average two are removed for every two that are added.
                    for _ in 0..2 {
                        let Some(&gone) = model.iter().nth(index.index(model.len().max(1))) else { break };
                        set.remove(gone);
                        model.remove(&gone);
                    }
                }
                prop_assert_eq!(set.first(), model.first().copied());
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
