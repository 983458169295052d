//! A map from stripe groups, for data that is looked up with every write.
//!
//! A hash table with linear probing. A removal moves later entries up so that they are still found,
//! so nothing slows down with time. The hash is the same in every run, and the order of the entries
//! is not visible: the same seed gives the same run.

use crate::geometry::UnitIndex;

/// Slots of the smallest table.
const SLOTS_MIN: usize = 16;

pub(crate) struct UnitMap<V> {
    /// Empty, or a power of two of slots; at least one in four is empty.
    slots: Vec<Option<(UnitIndex, V)>>,
    len: usize,
}

impl<V> Default for UnitMap<V> {
    fn default() -> Self {
        UnitMap { slots: Vec::new(), len: 0 }
    }
}

impl<V> UnitMap<V> {
    /// A map with room for this many stripe groups.
    fn with_room(len: usize) -> Self {
        let slots = if len == 0 { 0 } else { (len + len / 2).next_power_of_two().max(SLOTS_MIN) };
        UnitMap { slots: (0..slots).map(|_| None).collect(), len: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slot where the search for a stripe group begins. The table must have slots.
    #[inline]
    fn home(&self, unit: UnitIndex) -> usize {
        // Stripe groups that are used together are often neighbors: the golden ratio spreads their
        // bits (Knuth, 6.4).
        (unit.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - self.slots.len().trailing_zeros())) as usize
    }

    #[inline]
    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The slot of a stripe group, or the empty slot where it would be. The table must have slots.
    #[inline]
    fn find(&self, unit: UnitIndex) -> usize {
        let mut slot = self.home(unit);
        while self.slots[slot].as_ref().is_some_and(|(other, _)| *other != unit) {
            slot = self.next(slot);
        }
        slot
    }

    pub fn get(&self, unit: UnitIndex) -> Option<&V> {
        if self.len == 0 {
            return None;
        }
        self.slots[self.find(unit)].as_ref().map(|(_, value)| value)
    }

    pub fn get_mut(&mut self, unit: UnitIndex) -> Option<&mut V> {
        if self.len == 0 {
            return None;
        }
        let slot = self.find(unit);
        self.slots[slot].as_mut().map(|(_, value)| value)
    }

    /// The value of a stripe group, created if there is none.
    pub fn or_default(&mut self, unit: UnitIndex) -> &mut V
    where
        V: Default,
    {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            let old = std::mem::replace(self, UnitMap::with_room((self.len + 1) * 2));
            self.take_over(old);
        }
        let slot = self.find(unit);
        if self.slots[slot].is_none() {
            self.len += 1;
        }
        &mut self.slots[slot].get_or_insert_with(|| (unit, V::default())).1
    }

    pub fn remove(&mut self, unit: UnitIndex) -> Option<V> {
        if self.len == 0 {
            return None;
        }
        let mut hole = self.find(unit);
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
        *self = UnitMap::with_room(old.len);
        self.take_over(old);
    }

    /// Moves all entries of another map here. There must be room, and none of its stripe groups.
    fn take_over(&mut self, old: UnitMap<V>) {
        self.len += old.len;
        for entry in old.slots.into_iter().flatten() {
            let slot = self.find(entry.0);
            self.slots[slot] = Some(entry);
        }
    }

    /// All stripe groups, in order.
    pub fn units(&self) -> Vec<UnitIndex> {
        let mut units: Vec<UnitIndex> = self.slots.iter().flatten().map(|(unit, _)| *unit).collect();
        units.sort_unstable();
        units
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_unit_map_holds_what_an_ordered_map_holds(steps in proptest::collection::vec((0u8..9, 0u64..48, 0u32..100), 0..400)) {
            let mut map: UnitMap<u32> = UnitMap::default();
            let mut model: BTreeMap<u64, u32> = BTreeMap::new();
            for (what, unit, value) in steps {
                match what {
                    0..=4 => {
                        *map.or_default(UnitIndex(unit)) += value;
                        *model.entry(unit).or_default() += value;
                    }
                    5..=7 => prop_assert_eq!(map.remove(UnitIndex(unit)), model.remove(&unit)),
                    _ => {
                        map.retain(|old| *old % 3 != 0);
                        model.retain(|_, old| *old % 3 != 0);
                    }
                }
                prop_assert_eq!(map.is_empty(), model.is_empty());
                prop_assert_eq!(map.get(UnitIndex(unit)), model.get(&unit));
                prop_assert_eq!(map.get_mut(UnitIndex(unit)).copied(), model.get(&unit).copied());
            }
            let units: Vec<UnitIndex> = model.keys().map(|&unit| UnitIndex(unit)).collect();
            prop_assert_eq!(map.units(), units);
            for (unit, value) in model {
                prop_assert_eq!(map.get(UnitIndex(unit)), Some(&value));
            }
        }
    }
}
