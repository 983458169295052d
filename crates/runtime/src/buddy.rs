//! A buddy allocator over indices: it records which blocks of an area are free, and touches no
//! memory of the area.
//!
//! Invariants:
//! 1. A block of order `o` is `2^o` units long and starts at a multiple of its length.
//! 2. Every unit lies in exactly one block that is free or handed out.
//! 3. Two free buddies never exist side by side: they are one block of the next order.

/// End of a list, or no block.
const NONE: u32 = u32::MAX;

/// In `states`: no free block starts here.
const NOT_FREE: u8 = u8::MAX;

#[derive(Debug, Clone, Copy)]
struct Links {
    next: u32,
    previous: u32,
}

pub(crate) struct Buddy {
    /// First free block of each order.
    heads: Vec<u32>,
    /// The neighbors of a free block in its list, at the index of its first unit.
    links: Vec<Links>,
    /// Order of the free block that starts at a unit, or `NOT_FREE`.
    states: Vec<u8>,
    free_units: usize,
}

impl Buddy {
    /// An area of `count` free blocks of the largest order.
    pub(crate) fn new(count: usize, order_max: u8) -> Buddy {
        let units = count << order_max;
        assert!(units < NONE as usize, "an area has fewer than 2^32 units");
        let mut buddy = Buddy {
            heads: vec![NONE; usize::from(order_max) + 1],
            links: vec![Links { next: NONE, previous: NONE }; units],
            states: vec![NOT_FREE; units],
            free_units: units,
        };
        for block in (0..count).rev() {
            buddy.push((block << order_max) as u32, order_max);
        }
        buddy
    }

    fn order_max(&self) -> u8 {
        (self.heads.len() - 1) as u8
    }

    pub(crate) fn free_units(&self) -> usize {
        self.free_units
    }

    fn push(&mut self, unit: u32, order: u8) {
        let head = self.heads[usize::from(order)];
        self.links[unit as usize] = Links { next: head, previous: NONE };
        if head != NONE {
            self.links[head as usize].previous = unit;
        }
        self.heads[usize::from(order)] = unit;
        self.states[unit as usize] = order;
    }

    fn unlink(&mut self, unit: u32, order: u8) {
        let Links { next, previous } = self.links[unit as usize];
        match previous {
            NONE => self.heads[usize::from(order)] = next,
            _ => self.links[previous as usize].next = next,
        }
        if next != NONE {
            self.links[next as usize].previous = previous;
        }
        self.states[unit as usize] = NOT_FREE;
    }

    /// Hands out a block: the index of its first unit. `None` if there is no room.
    pub(crate) fn alloc(&mut self, order: u8) -> Option<u32> {
        let found = (order..=self.order_max()).find(|&larger| self.heads[usize::from(larger)] != NONE)?;
        let unit = self.heads[usize::from(found)];
        self.unlink(unit, found);
        for half in (order..found).rev() {
            self.push(unit + (1 << half), half);
        }
        self.free_units -= 1 << order;
        Some(unit)
    }

    /// Takes back a block that [`Buddy::alloc`] gave with the same order.
    pub(crate) fn free(&mut self, mut unit: u32, mut order: u8) {
        assert!(self.states[unit as usize] == NOT_FREE, "block {unit} is freed twice");
        self.free_units += 1 << order;
        while order < self.order_max() {
            let buddy = unit ^ (1 << order);
            if self.states[buddy as usize] != order {
                break;
            }
            self.unlink(buddy, order);
            unit = unit.min(buddy);
            order += 1;
        }
        self.push(unit, order);
    }

    /// Free blocks of the largest order. Equal to the whole area when all blocks were freed.
    #[cfg(test)]
    pub(crate) fn whole_blocks(&self) -> usize {
        self.states.iter().filter(|&&state| state == self.order_max()).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ORDER_MAX: u8 = 5;
    const COUNT: usize = 4;

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_of_them_join_again(steps in prop::collection::vec((any::<bool>(), 0..=ORDER_MAX, any::<prop::sample::Index>()), 1..400)) {
            let mut buddy = Buddy::new(COUNT, ORDER_MAX);
            let mut held: Vec<(u32, u8)> = Vec::new();
            let mut used = [false; COUNT << ORDER_MAX];
            for (take, order, which) in steps {
                if take {
                    let room = buddy.free_units();
                    match buddy.alloc(order) {
                        Some(unit) => {
                            prop_assert_eq!(unit % (1 << order), 0, "a block starts at a multiple of its length");
                            for cell in &mut used[unit as usize..unit as usize + (1 << order)] {
                                prop_assert!(!*cell, "a unit is handed out twice");
                                *cell = true;
                            }
                            held.push((unit, order));
                        }
                        None => {
                            // Refused only if no aligned run of that length is free.
                            let free_run = used.chunks(1 << order).any(|run| run.iter().all(|&cell| !cell));
                            prop_assert!(!free_run, "{} units free, order {} refused", room, order);
                        }
                    }
                } else if !held.is_empty() {
                    let (unit, order) = held.swap_remove(which.index(held.len()));
                    used[unit as usize..unit as usize + (1 << order)].fill(false);
                    buddy.free(unit, order);
                }
                prop_assert_eq!(buddy.free_units(), used.iter().filter(|&&cell| !cell).count());
            }
            for (unit, order) in held {
                buddy.free(unit, order);
            }
            prop_assert_eq!(buddy.whole_blocks(), COUNT);
            prop_assert_eq!(buddy.free_units(), COUNT << ORDER_MAX);
        }
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_block_freed_twice_is_noticed() {
        let mut buddy = Buddy::new(1, 2);
        let unit = buddy.alloc(0).expect("room");
        buddy.free(unit, 0);
        buddy.free(unit, 0);
    }
}
