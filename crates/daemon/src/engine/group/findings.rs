//! Scrub findings in terms of drives and volumes.

use api::{PlaceContent, PlaceFault, ScrubPlace, VolumePlace};
use array::{Fault, Finding, Geometry, GroupStatus};
use format::Catalogue;

use crate::engine::group::Group;

/// The place in a volume of a byte of the group.
fn volume_at(group: &str, catalogue: &Catalogue, byte: u64) -> Option<VolumePlace> {
    for volume in &catalogue.volumes {
        let mut before = 0;
        for extent in &volume.extents {
            if (extent.start_byte..extent.start_byte + extent.len_bytes).contains(&byte) {
                let offset_bytes = before + byte - extent.start_byte;
                // The last block of a volume may reach beyond the volume's end.
                let inside = offset_bytes < volume.size_bytes;
                return inside.then(|| VolumePlace { volume: format!("{group}/{}", volume.name), offset_bytes });
            }
            before += extent.len_bytes;
        }
    }
    None
}

/// The content that a finding concerns, and the bytes of the group that it may have changed.
fn content(geometry: &Geometry, finding: &Finding) -> (PlaceContent, Vec<u64>) {
    let place = geometry.place(finding.offset);
    let role = finding.member.and_then(|member| geometry.role(place.stripe_group, place.offset, member));
    match role {
        // With mirrors, each copy holds the same data, so any wrong copy concerns that data.
        _ if geometry.data == 1 => (PlaceContent::Data, vec![finding.offset]),
        Some(role) if role < geometry.data => (PlaceContent::Data, vec![finding.offset]),
        Some(_) => (PlaceContent::Parity, Vec::new()),
        None => {
            let each = (0..geometry.data).map(|role| geometry.offset(place.stripe_group, role, place.offset));
            (PlaceContent::Either, each.collect())
        }
    }
}

fn fault(fault: Fault) -> PlaceFault {
    match fault {
        Fault::Damaged => PlaceFault::Damaged,
        Fault::Unreadable => PlaceFault::Unreadable,
        Fault::Checksum => PlaceFault::Checksum,
        Fault::Contradiction => PlaceFault::Contradiction,
    }
}

/// A finding as the API shows it.
pub(crate) fn place(group: &Group, status: &GroupStatus, catalogue: &Catalogue, finding: &Finding) -> ScrubPlace {
    let (content, bytes) = content(&group.shared.geometry, finding);
    let member = finding.member.and_then(|member| status.members.get(usize::from(member.0)));
    ScrubPlace {
        offset_bytes: finding.offset,
        member_offset_bytes: finding.member_offset,
        slot: finding.member.map(|member| u32::from(member.0)),
        drive: member.and_then(|member| group.drive(member.drive?)).map(|drive| drive.name),
        fault: fault(finding.fault),
        content,
        volumes: bytes.into_iter().filter_map(|byte| volume_at(&group.name, catalogue, byte)).collect(),
        repaired: finding.repaired,
    }
}

/// The content at a place, in words: "tank/db at 4096", "parity", "free space".
pub(crate) fn words(place: &ScrubPlace) -> String {
    let volumes: Vec<String> = place.volumes.iter().map(|at| format!("{} at {}", at.volume, at.offset_bytes)).collect();
    match place.content {
        PlaceContent::Parity => "parity".to_owned(),
        _ if volumes.is_empty() => "free space".to_owned(),
        PlaceContent::Data | PlaceContent::Unknown => volumes.join(", "),
        PlaceContent::Either => format!("parity, or one of {}", volumes.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use array::MemberIndex;
    use format::{ExtentRecord, Layout, Level, Shape, ThinVolumeRecord, VolumeKind, VolumeRecord};

    const STRIP: u64 = 64 << 10;

    fn geometry(level: Level, members: u16) -> Geometry {
        let shape = Shape::of(level, members).strip_bytes(STRIP as u32).build().unwrap();
        Geometry::new(&shape, &Layout::plan(&shape, 64 << 20, false).unwrap(), 512)
    }

    fn finding(offset: u64, member: Option<MemberIndex>) -> Finding {
        Finding { offset, member, member_offset: 0, fault: Fault::Damaged, repaired: false }
    }

    #[test]
    fn a_place_belongs_to_the_volume_whose_extent_covers_it() {
        let extent = |start_byte, len_bytes| ExtentRecord { start_byte, len_bytes };
        let volume = |id, name: &str, size_bytes, extents| VolumeRecord {
            id,
            name: name.into(),
            kind: VolumeKind::Direct,
            size_bytes,
            created_unix_s: 0,
            extents,
            thin: ThinVolumeRecord::default(),
            conversion: None,
        };
        let volumes = vec![
            volume(1, "a", 12_288, vec![extent(65_536, 8192), extent(0, 4096)]),
            volume(2, "b", 100, vec![extent(8192, 4096)]),
        ];
        let catalogue = Catalogue { next_id: 3, volumes, ..Catalogue::default() };
        let at = |byte| volume_at("tank", &catalogue, byte).map(|place| (place.volume, place.offset_bytes));
        assert_eq!(at(65_536 + 4096), Some(("tank/a".into(), 4096)));
        assert_eq!(at(4095), Some(("tank/a".into(), 8192 + 4095)));
        assert_eq!((at(4096), at(65_536 + 8192)), (None, None), "free space");
        assert_eq!((at(8192 + 99), at(8192 + 100)), (Some(("tank/b".into(), 99)), None), "what rounds it up");
    }

    #[test]
    fn a_finding_is_data_parity_or_either() {
        let raid6 = geometry(Level::Raid6, 5);
        let stripe_group = raid6.place(0).stripe_group;
        for role in 0..5 {
            let offset =
                if role < 3 { raid6.offset(stripe_group, role, 4096) } else { raid6.offset(stripe_group, 0, 4096) };
            let (what, bytes) = content(&raid6, &finding(offset, Some(raid6.member(stripe_group, 4096, role))));
            let expected = if role < 3 { (PlaceContent::Data, vec![offset]) } else { (PlaceContent::Parity, vec![]) };
            assert_eq!((what, bytes), expected, "role {role}");
        }
        let raid5 = geometry(Level::Raid5, 3);
        let expected = (PlaceContent::Either, vec![4096, STRIP + 4096]);
        assert_eq!(content(&raid5, &finding(4096, None)), expected);
        let mirror = geometry(Level::Raid1, 2);
        assert_eq!(content(&mirror, &finding(4096, None)), (PlaceContent::Data, vec![4096]));
    }
}
