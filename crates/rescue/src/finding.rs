//! What is wrong, and where.

use serde::{Deserialize, Serialize};

use crate::group::Group;
use crate::survey::Found;

/// What something is wrong with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// A drive as a whole: not opened, no member, too small.
    Drive,
    /// A copy of a superblock.
    Superblock,
    /// A place of the group.
    Member,
    /// A slot of a block of the allocation map.
    Map,
    /// A slot of the catalogue.
    Catalogue,
    /// The log of writes under way.
    Log,
    /// Data and parity.
    Stripe,
    /// Checksums of data and parity.
    Checksum,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// With what.
    pub structure: Structure,
    /// Name of the group, where it belongs to one.
    pub group: Option<String>,
    /// The drive it is on, where that is known.
    pub drive: Option<String>,
    /// The member's slot in the group, where that is known.
    pub slot: Option<u16>,
    /// Where on the drive, in bytes.
    pub offset_bytes: Option<u64>,
    /// How many bytes are concerned.
    pub len_bytes: Option<u64>,
    /// What is wrong, for people.
    pub message: String,
}

impl Finding {
    /// A finding about a group as a whole.
    pub(crate) fn group(group: &Group, structure: Structure, message: String) -> Finding {
        let group = Some(group.name().to_owned());
        Finding { structure, group, drive: None, slot: None, offset_bytes: None, len_bytes: None, message }
    }

    /// A finding on the member in a slot.
    pub(crate) fn member(
        group: &Group,
        drives: &[Found],
        slot: usize,
        structure: Structure,
        message: String,
    ) -> Finding {
        let drive = group.members[slot].map(|index| drives[index].drive.name().to_owned());
        Finding { drive, slot: Some(slot as u16), ..Finding::group(group, structure, message) }
    }

    /// Adds it to others. One that goes on where the last one ends, and says the same, makes that
    /// longer instead: a region that cannot be read is one finding, however many blocks it has.
    pub(crate) fn add_to(self, findings: &mut Vec<Finding>) {
        if let Some(last) = findings.last_mut() {
            let end = last.offset_bytes.zip(last.len_bytes).map(|(offset, len)| offset + len);
            let same = Finding { offset_bytes: last.offset_bytes, len_bytes: last.len_bytes, ..self.clone() } == *last;
            if same && end.is_some() && end == self.offset_bytes {
                last.len_bytes = last.len_bytes.zip(self.len_bytes).map(|(before, len)| before + len);
                return;
            }
        }
        findings.push(self);
    }

    /// The same, at a place.
    pub(crate) fn at(self, offset: u64, len: u64) -> Finding {
        Finding { offset_bytes: Some(offset), len_bytes: Some(len), ..self }
    }
}
