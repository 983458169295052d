//! Drives whose checksums are right, but whose contents contradict themselves, the group, or the
//! drive's size. The engine and the rescue reader refuse them with a reason, and neither of them
//! panics or grows without bound.

use std::io;

use array::{AssembleError, assemble, load};
use drive::BufMut;
use format::log::{Entry, PartData, encode_frame, frame_len};
use format::{
    CATALOGUE_SLOTS, Catalogue, CrashSafety, ExtentRecord, Layout, Level, Region, Role, Superblock, ThinVolumeRecord,
    VolumeKind, VolumeRecord, catalogue_slot_bytes, catalogue_slot_offset, encode_slot, map_block_count,
    superblock_offsets,
};
use rescue::{Extraction, RescueError, Structure, Target, list};
use sim::engine::{Group, KIB, Protection, in_machine, new_drives, shape};
use sim::{Sim, SimDrive};

use crate::image::*;

/// Writes images back to their drives.
fn restore(images: &[Image], drives: &[SimDrive]) {
    for (image, drive) in images.iter().zip(drives) {
        drive.write_raw(0, &image.bytes);
    }
}

/// A group of 4+2 whose power failed after one block was overwritten. The record of that write is
/// in the logs of P and Q.
fn crashed(sim: &Sim) -> (Vec<SimDrive>, Vec<Image>) {
    let shape = shape(Level::Raid6, 6, 16 * KIB);
    let drives = new_drives(sim, 6, 768 * KIB, 512);
    let group = Group::create_with(sim, shape, Protection::plain(CrashSafety::On), drives, 1);
    let catalogue = catalogue(group.size());
    let write = |byte: u8, len: usize, fua: bool| {
        let data = BufMut::copy_of(&vec![byte; len]).freeze();
        sim.block_on(group.leader().write(0, data, fua)).unwrap();
    };
    sim.block_on(group.leader().set_catalogue(catalogue)).unwrap();
    write(1, 64 << 10, false);
    sim.block_on(group.leader().flush()).unwrap();
    // Other writes may be lost with the power.
    write(2, 4096, true);
    let drives = group.cut(sim);
    let images = images(&drives);
    (drives, images)
}

/// The last frame of a member that has a record with a payload.
fn last_frame(images: &[Image]) -> (usize, u64, format::log::Frame) {
    let has_payload = |frame: &format::log::Frame| frame.parts.iter().any(|part| !part.payload.is_empty());
    frames(images).into_iter().rfind(|(_, _, frame)| has_payload(frame)).expect("the overwrite was logged")
}

/// Writes the frame of a member again with other entries, and payloads cut to fit them. Its
/// checksum is right.
fn forge(images: &mut [Image], change: impl Fn(&Entry) -> Entry) {
    let newest = newest(images);
    let (index, at, frame) = last_frame(images);
    let bytes = images[index].bytes[at as usize..].to_vec();
    let entries: Vec<Vec<Entry>> = frame.parts.iter().map(|part| part.entries.iter().map(&change).collect()).collect();
    let parts: Vec<PartData<'_>> = (frame.parts.iter().zip(&entries))
        .map(|(part, entries)| {
            let len = entries.iter().map(|entry| entry.payload_len(part.role, part.whole, 4)).sum::<usize>();
            PartData {
                sequence: part.sequence,
                stripe_group: part.stripe_group,
                holders: part.holders,
                in_sync: part.in_sync,
                role: part.role,
                entries,
                whole: part.whole,
                payload: &bytes[part.payload.start..part.payload.start + len],
            }
        })
        .collect();
    let mut forged = vec![0; frame_len(&parts)];
    encode_frame(&newest.array, &frame.head, &parts, &mut forged);
    images[index].bytes[at as usize..at as usize + forged.len()].copy_from_slice(&forged);
}

#[test]
fn records_whose_parts_contradict_each_other_change_nothing_and_are_named() {
    let sim = Sim::new(1);
    let (drives, mut images) = crashed(&sim);
    let before = extract(&images, "rest", false).unwrap().0;
    forge(&mut images, |entry| Entry { len: entry.len / 2, checksums: Vec::new(), ..entry.clone() });
    restore(&images, &drives);

    let report = check_all(&images);
    let named = |finding: &&rescue::Finding| finding.message.contains("contradict each other");
    assert_eq!(report.findings.iter().filter(named).count(), 1, "{:?}", report.findings);
    assert_eq!(extract(&images, "rest", true).unwrap().0, before, "what the record does not name is as it was");
    extract(&images, "db", true).unwrap();

    let env = sim.env();
    let replayed = sim.block_on(async {
        let drives = in_machine(&drives);
        let assembly = assemble(&env, &drives).await.unwrap();
        load(&env, &assembly, &drives, None, Box::new(|_| {})).await.unwrap().replayed.unwrap()
    });
    assert_eq!(replayed.contradictory, 1, "{replayed:?}");
    sim.kill_tasks();
    let group = Group::open(&sim, drives, 2);
    let read = sim.block_on(group.leader().read(0, BufMut::zeroed(64 << 10))).unwrap();
    assert!(read[..4096].iter().all(|&byte| byte == 2), "the write was durable");
    assert!(read[4096..].iter().all(|&byte| byte == 1));
}

/// Writes a catalogue to all slots of all members, newer than any other, with right checksums.
fn forge_catalogue(images: &mut [Image], catalogue: &Catalogue) {
    let newest = newest(images);
    let slot_bytes = catalogue_slot_bytes(&newest.layout);
    for image in images {
        for slot in 0..CATALOGUE_SLOTS {
            let bytes = encode_slot(catalogue, &newest.array, 1000 + slot, slot_bytes).unwrap();
            let at = catalogue_slot_offset(&newest.layout, slot) as usize;
            image.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

#[test]
fn a_catalogue_with_extents_outside_of_the_group_is_refused_by_all_readers() {
    let sim = Sim::new(2);
    let (drives, mut images) = crashed(&sim);
    let volume = VolumeRecord {
        id: 1,
        name: "db".to_owned(),
        kind: VolumeKind::Direct,
        size_bytes: 1 << 40,
        created_unix_s: u64::MAX,
        extents: vec![ExtentRecord { start_byte: 1 << 50, len_bytes: 1 << 40 }],
        thin: ThinVolumeRecord::default(),
        conversion: None,
    };
    forge_catalogue(&mut images, &Catalogue { next_id: 2, volumes: vec![volume], ..Catalogue::default() });
    restore(&images, &drives);

    let survey = survey(&images);
    let report = list(&survey);
    assert_eq!(report.groups[0].volumes, []);
    let warning = |warning: &String| warning.contains("the table of volumes cannot be read");
    assert!(report.groups[0].warnings.iter().any(warning), "{:?}", report.groups[0].warnings);
    let finding = |finding: &rescue::Finding| finding.structure == Structure::Catalogue;
    assert!(check_all(&images).findings.iter().any(finding));
    assert!(matches!(Extraction::new(&survey, "tank", "db", true), Err(RescueError::Catalogue { .. })));

    let env = sim.env();
    let refused = sim.block_on(async {
        let drives = in_machine(&drives);
        let assembly = assemble(&env, &drives).await.unwrap();
        load(&env, &assembly, &drives, None, Box::new(|_| {})).await.err()
    });
    assert_eq!(refused, Some(AssembleError::Catalogue));
}

/// A sink that discards the extracted data.
struct Nothing;

impl Target for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }

    fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn skip(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// The layout with data of 2^46 bytes on each member, and the allocation map behind it. Log and
/// catalogue stay where they are.
fn with_a_long_data_region(layout: &Layout) -> Layout {
    let data = Region { len: 1 << 46, ..layout.data };
    let chunk_count = data.len / u64::from(layout.chunk_bytes);
    let map = Region { offset: data.end(), len: map_block_count(chunk_count) * 2 * 4096 };
    Layout { data, chunk_count, map, checksums: None, member_bytes: map.end() + 4096, ..*layout }
}

#[test]
fn a_small_image_that_claims_to_be_large_costs_no_more_than_its_own_size() {
    let sim = Sim::new(3);
    let (drives, mut images) = crashed(&sim);
    let newest = newest(&images);
    let whole = Layout::plan(&newest.shape, 1 << 48, false).unwrap();
    for layout in [whole, with_a_long_data_region(&newest.layout)] {
        for (index, image) in images.iter_mut().enumerate() {
            let (role, drive) = (Role::Member(index as u16), newest.members[index].uuid);
            let bytes = Superblock { layout, role, drive, ..newest.clone() }.encode();
            for at in superblock_offsets(image.bytes.len() as u64).unwrap() {
                image.bytes[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        let capacity_bytes = layout.capacity_bytes(&newest.shape);
        if layout.catalogue.end() < images[0].bytes.len() as u64 {
            let extents = vec![ExtentRecord { start_byte: 0, len_bytes: capacity_bytes }];
            let (name, kind) = ("db".to_owned(), VolumeKind::Direct);
            let volume = VolumeRecord {
                id: 1,
                name,
                kind,
                size_bytes: capacity_bytes,
                created_unix_s: 1,
                extents,
                thin: ThinVolumeRecord::default(),
                conversion: None,
            };
            forge_catalogue(&mut images, &Catalogue { next_id: 2, volumes: vec![volume], ..Catalogue::default() });
            let survey = survey(&images);
            let extraction = Extraction::new(&survey, "tank", "db", true).unwrap();
            let report = extraction.run(&mut Nothing, &mut |_, _| {}).unwrap();
            assert_eq!(report.lost_bytes, capacity_bytes, "nobody knows what was written");
        }
        assert_eq!(list(&survey(&images)).groups.len(), 1);
        let report = check_all(&images);
        let cut_off = |finding: &rescue::Finding| finding.message.contains("its end is cut off");
        assert!(report.findings.iter().any(cut_off), "{:?}", report.findings);
        assert!(report.findings.len() < 100, "{} findings", report.findings.len());
        restore(&images, &drives);
        let env = sim.env();
        let assembled = sim.block_on(async { assemble(&env, &in_machine(&drives)).await.map(|_| ()) });
        assert!(matches!(assembled, Err(AssembleError::TooFew { .. })), "{assembled:?}");
    }
}
