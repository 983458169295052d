//! The versions of a structure that has two slots on every member, written in turn.

/// Which version of such a structure is durable, and which was begun last. Version `n` lies in slot
/// `n mod 2`.
///
/// The slot of the version that is durable is not written before a newer one is: an attempt that
/// failed may be in no more than the caches of some members, and what a power cut tears then must
/// be its slot again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Version {
    durable: u64,
    begun: u64,
}

impl Version {
    /// The version that was found on the members; 0 if there was none.
    pub fn found(sequence: u64) -> Version {
        Version { durable: sequence, begun: sequence }
    }

    /// There is one, or some attempt to write one.
    pub fn is_any(self) -> bool {
        self.begun > 0
    }

    /// Begins the next version: above all there were, in the slot that does not hold the durable
    /// one.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1 + (self.begun - self.durable) % 2;
        self.begun
    }

    /// The version that was begun last is durable on all members.
    pub fn end(&mut self) {
        self.durable = self.begun;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_of_the_durable_version_is_not_written_before_another_one_is_durable() {
        let mut version = Version::found(7);
        assert_eq!([version.begin(), version.begin(), version.begin()], [8, 10, 12], "7 stays");
        version.end();
        assert_eq!([version.begin(), version.begin()], [13, 15], "12 stays");
        version.end();
        assert_eq!(version.begin(), 16);
        assert!(!Version::default().is_any());
        assert_eq!(Version::default().begin(), 1);
    }
}
