//! A finding: a defect, and where it is.

use serde::{Deserialize, Serialize};

use crate::group::Group;
use crate::survey::SurveyedDrive;

/// The structure that a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Structure {
    /// A drive as a whole: not opened, not a member, too small.
    Drive,
    /// A copy of a superblock.
    Superblock,
    /// A slot of the group.
    Member,
    /// A copy of a block of the allocation map.
    Map,
    /// A copy of the catalogue.
    Catalogue,
    /// The log of writes under way.
    Log,
    /// Data and parity.
    Stripe,
    /// Checksums of data and parity.
    Checksum,
    /// Anchors, tables and maps of thin volumes.
    Thin,
}

/// A defect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The damaged structure.
    pub structure: Structure,
    /// Name of the group, if it belongs to one.
    pub group: Option<String>,
    /// Name of the drive, if known.
    pub drive: Option<String>,
    /// Slot of the member in the group, if known.
    pub slot: Option<u16>,
    /// Offset on the drive, in bytes.
    pub offset_bytes: Option<u64>,
    /// Length of the affected range, in bytes.
    pub len_bytes: Option<u64>,
    /// Description for people.
    pub message: String,
}

impl Finding {
    /// A finding about a group as a whole.
    pub(crate) fn group(group: &Group, structure: Structure, message: String) -> Finding {
        let group = Some(group.name().to_owned());
        Finding { structure, group, drive: None, slot: None, offset_bytes: None, len_bytes: None, message }
    }

    /// A finding about the member in a slot.
    pub(crate) fn member(
        group: &Group,
        drives: &[SurveyedDrive],
        slot: usize,
        structure: Structure,
        message: String,
    ) -> Finding {
        let drive = group.members[slot].map(|index| drives[index].drive.name().to_owned());
        Finding { drive, slot: Some(slot as u16), ..Finding::group(group, structure, message) }
    }

    /// Adds this finding to `findings`. If it has the same text as the last one and continues its
    /// range, the last one is extended instead. So an unreadable region is one finding, however
    /// many blocks it has.
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

    /// The same finding, at a range of the drive.
    pub(crate) fn at(self, offset: u64, len: u64) -> Finding {
        Finding { offset_bytes: Some(offset), len_bytes: Some(len), ..self }
    }
}
