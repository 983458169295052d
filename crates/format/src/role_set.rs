//! Sets of strips of a stripe.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

/// Some strips of a stripe, by role: data strips from 0 on, then the parity strips.
///
/// On the members a set is a number with a bit for each role: bit 0 is data strip 0. A stripe has
/// at most 64 strips.
///
/// # Examples
/// ```
/// use format::RoleSet;
/// let stripe = RoleSet::below(6);
/// let data = RoleSet::below(4);
/// assert_eq!((stripe - data).iter().collect::<Vec<_>>(), [4, 5]);
/// assert_eq!(data.bits(), 0b1111);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RoleSet(u64);

impl RoleSet {
    /// No strip.
    pub const EMPTY: RoleSet = RoleSet(0);

    /// The strips whose bits are set.
    pub const fn from_bits(bits: u64) -> RoleSet {
        RoleSet(bits)
    }

    /// A bit for each strip.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The first `count` strips of a stripe, at most 64.
    pub const fn below(count: usize) -> RoleSet {
        if count == 0 { RoleSet(0) } else { RoleSet(u64::MAX >> (u64::BITS as usize - count)) }
    }

    /// Whether the strip is in the set. No set has a strip from 64 on.
    pub const fn contains(self, role: usize) -> bool {
        role < u64::BITS as usize && self.0 >> role & 1 == 1
    }

    /// Adds a strip.
    ///
    /// # Panics
    /// If a stripe cannot have it: its role is 64 or more.
    pub fn insert(&mut self, role: usize) {
        assert!(role < u64::BITS as usize, "strip {role} of 64");
        self.0 |= 1 << role;
    }

    /// Number of strips.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is no strip.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The strip, if the set has one only.
    pub fn only(self) -> Option<usize> {
        (self.len() == 1).then(|| self.0.trailing_zeros() as usize)
    }

    /// The strips, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let role = bits.trailing_zeros();
            bits &= bits.wrapping_sub(1);
            (role < u64::BITS).then_some(role as usize)
        })
    }
}

impl FromIterator<usize> for RoleSet {
    fn from_iter<I: IntoIterator<Item = usize>>(roles: I) -> RoleSet {
        let mut set = RoleSet::EMPTY;
        roles.into_iter().for_each(|role| set.insert(role));
        set
    }
}

impl BitOr for RoleSet {
    type Output = RoleSet;

    fn bitor(self, other: RoleSet) -> RoleSet {
        RoleSet(self.0 | other.0)
    }
}

impl BitOrAssign for RoleSet {
    fn bitor_assign(&mut self, other: RoleSet) {
        self.0 |= other.0;
    }
}

impl BitAnd for RoleSet {
    type Output = RoleSet;

    fn bitand(self, other: RoleSet) -> RoleSet {
        RoleSet(self.0 & other.0)
    }
}

/// The strips of the first set that are not in the second.
impl Sub for RoleSet {
    type Output = RoleSet;

    fn sub(self, other: RoleSet) -> RoleSet {
        RoleSet(self.0 & !other.0)
    }
}

impl fmt::Debug for RoleSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::RoleSet;

    #[test]
    fn a_set_has_the_strips_whose_bits_are_set_in_order() {
        assert_eq!(RoleSet::EMPTY.iter().count(), 0);
        assert_eq!(RoleSet::from_bits(0b1011).iter().collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(RoleSet::from_bits(1 << 63 | 1).iter().collect::<Vec<_>>(), [0, 63]);
        assert_eq!(RoleSet::below(64).iter().collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
        assert_eq!((RoleSet::below(0), RoleSet::below(3).bits()), (RoleSet::EMPTY, 0b111));
        assert_eq!([5, 0, 5].into_iter().collect::<RoleSet>(), RoleSet::from_bits(0b10_0001));
        assert!(!RoleSet::below(64).contains(64));
        assert_eq!([0b100, 0b110, 0].map(|bits| RoleSet::from_bits(bits).only()), [Some(2), None, None]);
        assert_eq!(format!("{:?}", RoleSet::from_bits(0b101)), "{0, 2}");
    }
}
