//! The superblock as text for people.

use std::fmt;

use super::{MemberState, Rebuild, Role, Superblock};

impl fmt::Display for MemberState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Member(slot) => formatter.pad(&format!("member {slot}")),
            Role::Spare => formatter.pad("spare"),
        }
    }
}

impl fmt::Display for Superblock {
    /// One fact per line: a label of 14 characters, then the value. Ends without a line break.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = &self.layout;
        writeln!(formatter, "{:<14}{} {}", "array", self.name, self.array)?;
        writeln!(formatter, "{:<14}{}, {}", "drive", self.drive, self.role)?;
        writeln!(formatter, "{:<14}{}", "shape", self.shape)?;
        writeln!(formatter, "{:<14}{}", "capacity", Bytes(layout.capacity_bytes(&self.shape)))?;
        let held = Some(self.held_epoch).filter(|held| *held > 0);
        let held = held.map_or_else(String::new, |held| format!(", all members in sync had {held} or a later one"));
        writeln!(formatter, "{:<14}{}{held}", "epoch", self.epoch)?;
        let stopped = if self.clean { "stopped in order" } else { "in use, or stopped by a crash" };
        writeln!(formatter, "{:<14}{stopped}", "state")?;
        let (safety, generation) = (self.crash_safety.name(), self.log_generation);
        writeln!(formatter, "{:<14}{safety}, log generation {generation}", "crash safety")?;
        writeln!(formatter, "{:<14}{} s since 1970", "created", self.created_unix_s)?;
        for (slot, entry) in self.members.iter().enumerate() {
            write!(formatter, "{:<14}{} {}", format!("member {slot}"), entry.uuid, entry.state)?;
            if let Some(Rebuild { next_chunk, .. }) = self.rebuild.filter(|rebuild| usize::from(rebuild.member) == slot)
            {
                write!(formatter, ", {next_chunk} of {} allocation chunks done", layout.chunk_count)?;
            }
            writeln!(formatter)?;
        }
        for spare in &self.spares {
            writeln!(formatter, "{:<14}{spare}", "spare")?;
        }
        let regions =
            [("map", layout.map), ("log", layout.log), ("catalogue", layout.catalogue), ("data", layout.data)];
        for (name, region) in regions {
            writeln!(formatter, "{name:<14}{} at {}", Bytes(region.len), region.offset)?;
        }
        writeln!(
            formatter,
            "{:<14}{} of {} on each member",
            "chunks",
            layout.chunk_count,
            Bytes(layout.chunk_bytes.into())
        )?;
        write!(formatter, "{:<14}superblock version {}", "format", self.version)?;
        let features = self.features;
        let bits = features.incompatible | features.read_only_compatible | features.compatible;
        if bits != 0 {
            write!(
                formatter,
                ", features incompatible {:#x}, read-only compatible {:#x}, compatible {:#x}",
                features.incompatible, features.read_only_compatible, features.compatible
            )?;
        }
        Ok(())
    }
}

/// A size in the largest binary unit in which it is at least 1, with at most two decimals and no
/// trailing zeroes.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = (self.0.max(1).ilog2() / 10) as usize;
        let hundredths = (u128::from(self.0) * 100) >> (10 * power);
        let (whole, part) = (hundredths / 100, hundredths % 100);
        match part {
            0 => write!(formatter, "{whole} {}", UNITS[power]),
            part if part % 10 == 0 => write!(formatter, "{whole}.{} {}", part / 10, UNITS[power]),
            part => write!(formatter, "{whole}.{part:02} {}", UNITS[power]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_never_rounded_up() {
        let text = |bytes| Bytes(bytes).to_string();
        assert_eq!(text(0), "0 B");
        assert_eq!(text(1023), "1023 B");
        assert_eq!(text(64 << 10), "64 KiB");
        assert_eq!(text(3 << 19), "1.5 MiB");
        assert_eq!(text((1 << 30) - 1), "1023.99 MiB");
        assert_eq!(text(u64::MAX), "15.99 EiB");
    }
}
