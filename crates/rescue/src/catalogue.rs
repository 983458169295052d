//! Volumes and exports, from all copies: docs/format/catalogue.md.

use format::{BLOCK, CATALOGUE_SLOTS, Catalogue, SlotError, catalogue_slot_bytes, catalogue_slot_offset, decode_slot};

use crate::drive::plain;
use crate::finding::{Finding, Structure};
use crate::group::Group;
use crate::map::names;
use crate::survey::SurveyedDrive;

/// The catalogue of a group.
pub(crate) struct Volumes {
    /// The newest valid copy. The default, without any volume, if there never was a copy or it
    /// cannot be used.
    pub catalogue: Catalogue,
    /// Why the catalogue cannot be used: every copy is damaged, or the newest one breaks a rule of
    /// the format.
    pub unknown: Option<String>,
    /// Valid copies on all members.
    pub copies: u64,
}

enum Slot {
    Valid(u64, Box<Catalogue>),
    Absent,
    Bad(String),
}

impl Volumes {
    /// Reads every copy and reports the damage of each.
    pub(crate) fn read(group: &Group, drives: &[SurveyedDrive], findings: &mut Vec<Finding>) -> Volumes {
        let layout = &group.superblock.layout;
        let mut slots: Vec<(usize, u64, Slot)> = Vec::new();
        for member in group.present() {
            for number in 0..CATALOGUE_SLOTS {
                slots.push((member, number, read_slot(group, drives, member, number)));
            }
        }
        let mut bad = None;
        for (member, number, slot) in &slots {
            if let Slot::Bad(why) = slot {
                let name = if *number == 0 { 'A' } else { 'B' };
                let message = format!("slot {name} of the catalogue: {why}");
                let finding = Finding::member(group, drives, *member, Structure::Catalogue, message);
                findings.push(finding.at(catalogue_slot_offset(layout, *number), catalogue_slot_bytes(layout)));
                bad = Some(why.clone());
            }
        }
        let valid = |slot: &Slot| match slot {
            Slot::Valid(sequence, catalogue) => Some((*sequence, (**catalogue).clone())),
            Slot::Absent | Slot::Bad(_) => None,
        };
        let copies = slots.iter().filter(|(_, _, slot)| valid(slot).is_some()).count() as u64;
        let newest = slots.iter().filter_map(|(_, _, slot)| valid(slot)).max_by_key(|(sequence, _)| *sequence);
        let Some((sequence, catalogue)) = newest else {
            // The catalogue is intact on every member before a volume exists. So a member on which
            // both slots are absent proves that there is no volume.
            let has_any =
                |member| slots.iter().any(|(other, _, slot)| *other == member && !matches!(slot, Slot::Absent));
            if !group.present().all(has_any) {
                bad = None;
            }
            if bad.is_some() {
                let message = "the catalogue has no valid copy left: the volumes are not known".to_owned();
                findings.push(Finding::group(group, Structure::Catalogue, message));
            }
            return Volumes { catalogue: Catalogue::default(), unknown: bad, copies };
        };
        for member in group.present() {
            let own = slots.iter().filter(|(other, _, _)| *other == member);
            let own = own.filter_map(|(_, number, slot)| valid(slot).map(|(sequence, own)| (sequence, *number, own)));
            if slots.iter().any(|(other, _, slot)| *other == member && matches!(slot, Slot::Bad(_))) {
                continue; // What is wrong with its slots was said already.
            }
            compare(
                group,
                drives,
                member,
                own.max_by_key(|(sequence, _, _)| *sequence),
                (sequence, &catalogue),
                findings,
            );
        }
        let unknown =
            catalogue.check(layout.capacity_bytes(&group.superblock.shape)).err().map(|error| error.to_string());
        if let Some(why) = &unknown {
            let message = format!("the newest catalogue breaks a rule: {why}");
            findings.push(Finding::group(group, Structure::Catalogue, message));
        }
        // A catalogue that breaks a rule is not used: its extents may lie outside the group.
        let catalogue = if unknown.is_none() { catalogue } else { Catalogue::default() };
        Volumes { catalogue, unknown, copies }
    }
}

/// Reports a member that lacks the newest catalogue or whose copy differs.
fn compare(
    group: &Group,
    drives: &[SurveyedDrive],
    member: usize,
    own: Option<(u64, u64, Catalogue)>,
    newest: (u64, &Catalogue),
    findings: &mut Vec<Finding>,
) {
    let layout = &group.superblock.layout;
    let (message, offset, len) = match own {
        Some((sequence, _, catalogue)) if sequence == newest.0 && catalogue == *newest.1 => return,
        Some((sequence, number, _)) if sequence == newest.0 => (
            "the catalogue differs from the copies of the same sequence".to_owned(),
            catalogue_slot_offset(layout, number),
            catalogue_slot_bytes(layout),
        ),
        Some((sequence, _, _)) => (
            format!("the catalogue is behind: sequence {sequence}, the newest is {}", newest.0),
            layout.catalogue.offset,
            layout.catalogue.len,
        ),
        None => (
            format!("the catalogue is not there; other members have it with sequence {}", newest.0),
            layout.catalogue.offset,
            layout.catalogue.len,
        ),
    };
    findings.push(Finding::member(group, drives, member, Structure::Catalogue, message).at(offset, len));
}

fn read_slot(group: &Group, drives: &[SurveyedDrive], member: usize, number: u64) -> Slot {
    let layout = &group.superblock.layout;
    let offset = catalogue_slot_offset(layout, number);
    let mut bytes = vec![0; usize::try_from(catalogue_slot_bytes(layout)).expect("at most 1 MiB")];
    if group.read(drives, member, offset, &mut bytes).is_err() {
        // Blocks after the document may be unreadable. They are filled with 0xFF, so a document
        // that reaches into them fails its checksum.
        for (index, block) in bytes.chunks_mut(BLOCK).enumerate() {
            match group.read(drives, member, offset + (index * BLOCK) as u64, block) {
                Err(error) if index == 0 => return Slot::Bad(format!("cannot be read: {}", plain(&error))),
                Err(_) => block.fill(0xFF),
                Ok(()) => {}
            }
        }
    }
    let array = &group.superblock.array;
    match decode_slot(&bytes, array) {
        Ok((sequence, catalogue)) => Slot::Valid(sequence, Box::new(catalogue)),
        Err(SlotError::OtherArray { .. }) => Slot::Absent,
        Err(SlotError::NotACatalogue | SlotError::Checksum { part: "header" }) if !names(&bytes, array) => Slot::Absent,
        Err(SlotError::NotACatalogue) => Slot::Bad("its magic is gone".to_owned()),
        Err(error) => Slot::Bad(error.to_string()),
    }
}
