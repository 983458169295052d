//! A map from stripe groups, for data that is looked up with every write.
//!
//! A hash table with linear probing. A removal moves later entries up so that they are still found,
//! so nothing slows down with time. The hash is the same in every run, and the order of the entries
//! is not visible: the same seed gives the same run.

use crate::geometry::StripeGroup;

/// Slots of the smallest table.
const SLOTS_MIN: usize = 16;

pub(crate) struct StripeGroupMap<V> {
    /// Empty, or a power of two of slots; at least one in four is empty.
    slots: Vec<Option<(StripeGroup, V)>>,
    len: usize,
}

impl<V> Default for StripeGroupMap<V> {
    fn default() -> Self {
        StripeGroupMap { slots: Vec::new(), len: 0 }
    }
}

impl<V> StripeGroupMap<V> {
    /// A map with room for this many stripe groups.
    fn with_room(len: usize) -> Self {
        let slots = if len == 0 { 0 } else { (len + len / 2).next_power_of_two().max(SLOTS_MIN) };
        StripeGroupMap { slots: (0..slots).map(|_| None).collect(), len: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slot where the search for a stripe group begins. The table must have slots.
    #[inline]
    fn home(&self, stripe_group: StripeGroup) -> usize {
        // Stripe groups that are used together are often neighbors: the golden ratio spreads their
        // bits (Knuth, 6.4).
        (stripe_group.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - self.slots.len().trailing_zeros())) as usize
    }

    #[inline]
    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The slot of a stripe group, or the empty slot where it would be. The table must have slots.
    #[inline]
    fn find(&self, stripe_group: StripeGroup) -> usize {
        let mut slot = self.home(stripe_group);
        while self.slots[slot].as_ref().is_some_and(|(other, _)| *other != stripe_group) {
            slot = self.next(slot);
        }
        slot
    }

    pub fn get(&self, stripe_group: StripeGroup) -> Option<&V> {
        if self.len == 0 {
            return None;
        }
        self.slots[self.find(stripe_group)].as_ref().map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, stripe_group: StripeGroup) -> Option<&mut V> {
        if self.len == 0 {
            return None;
        }
        let slot = self.find(stripe_group);
        self.slots[slot].as_mut().map(|(_, value)| value)
    }

    /// The value of a stripe group, created if there is none.
    pub fn or_default(&mut self, stripe_group: StripeGroup) -> &mut V
    where
        V: Default,
    {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            let old = std::mem::replace(self, StripeGroupMap::with_room((self.len + 1) * 2));
            self.take_over(old);
        }
        let slot = self.find(stripe_group);
        if self.slots[slot].is_none() {
            self.len += 1;
        }
        &mut self.slots[slot].get_or_insert_with(|| (stripe_group, V::default())).1
    }

    pub fn remove(&mut self, stripe_group: StripeGroup) -> Option<V> {
        if self.len == 0 {
            return None;
        }
        let mut hole = self.find(stripe_group);
        let (_, value) = self.slots[hole].take()?;
        self.len -= 1;
        let mut slot = self.next(hole);
        while let Some((other, _)) = &self.slots[slot] {
            // An entry that would no longer be found behind the hole moves into it.
            let from_home = slot.wrapping_sub(self.home(*other)) & (self.slots.len() - 1);
            let from_hole = slot.wrapping_sub(hole) & (self.slots.len() - 1);
            if from_home >= from_hole {
                self.slots.swap(hole, slot);
                hole = slot;
            }
            slot = self.next(slot);
        }
        Some(value)
    }

    /// Keeps the entries for which `keeps` returns true, and only the memory that they need.
    pub fn retain(&mut self, mut keeps: impl FnMut(&mut V) -> bool) {
        for slot in &mut self.slots {
            if slot.as_mut().is_some_and(|(_, value)| !keeps(value)) {
                *slot = None;
                self.len -= 1;
            }
        }
        // The remaining entries may lie behind holes now.
        let old = std::mem::take(self);
        *self = StripeGroupMap::with_room(old.len);
        self.take_over(old);
    }

    /// Moves all entries of another map here. There must be room, and none of its stripe groups.
    fn take_over(&mut self, old: StripeGroupMap<V>) {
        self.len += old.len;
        for entry in old.slots.into_iter().flatten() {
            let slot = self.find(entry.0);
            self.slots[slot] = Some(entry);
        }
    }

    /// All stripe groups, in order.
    pub fn stripe_groups(&self) -> Vec<StripeGroup> {
        let mut stripe_groups: Vec<StripeGroup> =
            self.slots.iter().flatten().map(|(stripe_group, _)| *stripe_group).collect();
        stripe_groups.sort_unstable();
        stripe_groups
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_stripe_group_map_holds_what_an_ordered_map_holds(steps in proptest::collection::vec((0u8..9, 0u64..48, 0u32..100), 0..400)) {
            let mut map: StripeGroupMap<u32> = StripeGroupMap::default();
            let mut model: BTreeMap<u64, u32> = BTreeMap::new();
            for (what, stripe_group, value) in steps {
                match what {
                    0..=4 => {
                        *map.or_default(StripeGroup(stripe_group)) += value;
                        *model.entry(stripe_group).or_default() += value;
                    }
                    5..=7 => prop_assert_eq!(map.remove(StripeGroup(stripe_group)), model.remove(&stripe_group)),
                    _ => {
                        map.retain(|old| *old % 3 != 0);
                        model.retain(|_, old| *old % 3 != 0);
                    }
                }
                prop_assert_eq!(map.is_empty(), model.is_empty());
                prop_assert_eq!(map.get(StripeGroup(stripe_group)), model.get(&stripe_group));
                prop_assert_eq!(map.get_mut(StripeGroup(stripe_group)).copied(), model.get(&stripe_group).copied());
            }
            let stripe_groups: Vec<StripeGroup> = model.keys().map(|&stripe_group| StripeGroup(stripe_group)).collect();
            prop_assert_eq!(map.stripe_groups(), stripe_groups);
            for (stripe_group, value) in model {
                prop_assert_eq!(map.get(StripeGroup(stripe_group)), Some(&value));
            }
        }
    }
}
