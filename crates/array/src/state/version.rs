//! The versions of a structure that has two slots on every member, written in turn.

/// The durable version of such a structure, and the version begun last. Version `n` lies in slot
/// `n mod 2`.
///
/// The slot of the durable version is not written before a newer version is durable. A failed
/// attempt may be only in the caches of some members. So the next attempt must use the same slot
/// again, which a power cut may tear.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Version {
    durable: u64,
    begun: u64,
}

impl Version {
    /// The version that was found on the members, or 0 if there was none.
    pub fn found(sequence: u64) -> Version {
        Version { durable: sequence, begun: sequence }
    }

    /// Whether there is a version, or an attempt to write one.
    pub fn is_any(self) -> bool {
        self.begun > 0
    }

    /// Begins the next version: higher than all earlier ones, in the slot that does not hold the
    /// durable one.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1 + (self.begun - self.durable) % 2;
        self.begun
    }

    /// The version begun last is durable on all members.
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
