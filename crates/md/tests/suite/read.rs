//! Arrays on simulated drives, read as a whole and in parts, with missing members and unreadable
//! blocks.

use crate::support::{Plain, Table, bytes, content, copies_table, lay_out, parity_table, stripes_table};
use drive::{Block, BlockError, Buf, BufMut, WriteZeroes};
use md::{Array, Candidate, Level, NotMember, assess, examine};
use proptest::prelude::*;
use sim::{DriveOptions, Latency, Sim, SimDrive, SimEnv};

/// An array that is laid out on drives.
struct Made {
    sim: Sim,
    drives: Vec<SimDrive>,
    content: Vec<u8>,
    chunk_bytes: usize,
}

#[derive(Debug, Clone)]
struct Shape {
    level: i32,
    layout: u32,
    disks: usize,
    chunk: u32,
    table: Table,
    data_chunks: usize,
    survives: usize,
}

const ROWS: usize = 12;

fn shape(level: i32, layout: u32, disks: usize, chunk: u32) -> Shape {
    let (table, data_chunks, survives) = match level {
        0 => (stripes_table(&vec![ROWS as u64; disks], false), ROWS * disks, 0),
        1 => ((0..ROWS).map(|row| vec![crate::support::Cell::Data(row as u64); disks]).collect(), ROWS, disks - 1),
        10 => {
            let (near, far) = (layout as usize & 0xFF, layout as usize >> 8 & 0xFF);
            (copies_table(near, far, layout >> 16 != 0, disks, ROWS), ROWS / far * disks / near, near * far - 1)
        }
        6 => (parity_table(Level::Raid6, layout, disks, ROWS as u64), ROWS * (disks - 2), 2),
        4 => (parity_table(Level::Raid4, layout, disks, ROWS as u64), ROWS * (disks - 1), 1),
        _ => (parity_table(Level::Raid5, layout, disks, ROWS as u64), ROWS * (disks - 1), 1),
    };
    Shape { level, layout, disks, chunk, table, data_chunks, survives }
}

fn plain(shape: &Shape, number: usize) -> Plain {
    let size = ROWS as u64 * u64::from(shape.chunk);
    let mut plain = Plain::new(shape.level, shape.layout, shape.disks as u32, shape.chunk, size, number as u32);
    if shape.level == 0 {
        plain.size = 0;
    }
    plain
}

/// `sector_bytes` of each drive. `change` can change each superblock last.
fn make(seed: u64, shape: &Shape, sector_bytes: u32, change: impl Fn(usize, &mut Plain)) -> Made {
    let sim = Sim::new(seed);
    let chunk_bytes = bytes(u64::from(shape.chunk));
    let content = content(shape.data_chunks * chunk_bytes, seed);
    let images = lay_out(&shape.table, shape.layout, chunk_bytes, &content);
    let drives = images.iter().enumerate().map(|(number, image)| {
        let mut plain = plain(shape, number);
        change(number, &mut plain);
        let size = (bytes(plain.data_offset) + image.len()).next_multiple_of(4096) as u64 + (64 << 10);
        let mut options = DriveOptions::new(&format!("d{number}"), size, sector_bytes);
        options.latency = Latency::between(1, 1000);
        let drive = SimDrive::with_options(&sim.env(), options);
        drive.write_raw(plain.super_offset * 512, &plain.bytes());
        drive.write_raw(plain.data_offset * 512, image);
        drive
    });
    let drives = drives.collect();
    Made { sim, drives, content, chunk_bytes }
}

fn candidates(made: &Made, present: &[usize]) -> Vec<Candidate> {
    present.iter().map(|&disk| made.sim.block_on(examine(&made.drives[disk])).unwrap()).collect()
}

fn open(made: &Made, present: &[usize], allow_inconsistent: bool) -> Result<Array<SimEnv>, String> {
    let found = candidates(made, present);
    let assessment = assess(&found.iter().collect::<Vec<_>>(), allow_inconsistent);
    let assembly = assessment.assembly.map_err(|refusal| refusal.to_string())?;
    Ok(Array::new(made.sim.env(), &assembly, |index| made.drives[present[index]].clone().into()))
}

fn read(made: &Made, array: &Array<SimEnv>, offset: usize, len: usize) -> Result<Vec<u8>, BlockError> {
    let read = made.sim.block_on(array.read(offset as u64, BufMut::zeroed(len)));
    read.map(|buf| buf.to_vec())
}

fn shapes() -> impl Strategy<Value = Shape> {
    let chunk = prop_oneof![Just(8_u32), Just(16), Just(64)];
    let parity = prop_oneof![
        (Just(4), Just(0_u32), 3..6_usize),
        (Just(5), 0..=5_u32, 3..7_usize),
        (Just(6), prop_oneof![0..=5_u32, 8..=10_u32, 16..=20_u32], 4..8_usize),
    ];
    let copies = prop_oneof![Just(0x102_u32), Just(0x103), Just(0x201), Just(0x202), Just(0x1_0201), Just(0x1_0301)]
        .prop_flat_map(|layout| (Just(10), Just(layout), 6..8_usize));
    let others = prop_oneof![(Just(0), Just(2_u32), 1..5_usize), (Just(1), Just(0_u32), 1..4_usize)];
    (prop_oneof![parity, copies, others], chunk)
        .prop_map(|((level, layout, disks), chunk)| shape(level, layout, disks, chunk))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]

    /// With as many members missing as the level survives, and more unreadable blocks as far as the
    /// redundancy allows.
    #[test]
    fn every_byte_is_read_back_whatever_the_level_survives_is_missing(
        shape in shapes(),
        sector_bytes in prop_oneof![Just(512_u32), Just(4096)],
        seed in any::<u64>(),
        order in Just((0..8_usize).collect::<Vec<_>>()).prop_shuffle(),
        gone in 0..3_usize,
        ranges in prop::collection::vec((any::<prop::sample::Index>(), 1..200_000_usize), 1..6),
    ) {
        let made = make(seed, &shape, sector_bytes, |_, _| {});
        let order: Vec<usize> = order.into_iter().filter(|disk| *disk < shape.disks).collect();
        let gone = gone.min(shape.survives);
        let array = open(&made, &order[gone..], false).unwrap();
        prop_assert_eq!(array.size_bytes(), made.content.len() as u64);
        // Unreadable sectors use up the remaining redundancy, with different ones in each row.
        let spare = shape.survives - gone;
        let grain = made.chunk_bytes;
        for row in 0..ROWS {
            // Mirrored copies may be in different rows, so only one disk at a time.
            let hurt = if shape.level == 10 { usize::from(spare > 0 && row == 0) } else { spare };
            for step in 0..hurt {
                let disk = order[gone + (row + step) % (shape.disks - gone)];
                let start = (64 * 512 + row * grain + (row * 512) % grain) as u64 / 4096 * 4096;
                made.drives[disk].media_error(start..start + 512);
            }
        }
        for (at, len) in ranges {
            let offset = at.index(made.content.len());
            let len = len.min(made.content.len() - offset);
            prop_assert_eq!(read(&made, &array, offset, len).unwrap(), &made.content[offset..offset + len]);
        }
        for drive in &made.drives {
            prop_assert_eq!(drive.counts().writes, 0);
        }
    }
}

#[test]
fn a_whole_array_is_read_in_as_few_operations_as_it_has_chunks() {
    let shape = shape(5, 2, 4, 64);
    let made = make(1, &shape, 512, |_, _| {});
    let array = open(&made, &[0, 1, 2, 3], false).unwrap();
    for drive in &made.drives {
        drive.take_counts();
    }
    assert_eq!(read(&made, &array, 0, made.content.len()).unwrap(), made.content);
    let reads: u64 = made.drives.iter().map(|drive| drive.counts().reads).sum();
    assert_eq!(reads, shape.data_chunks as u64);
}

#[test]
fn two_bad_blocks_of_one_strip_on_different_members_are_both_computed() {
    let shape = shape(5, 2, 3, 64);
    let made = make(2, &shape, 512, |_, _| {});
    let array = open(&made, &[0, 1, 2], false).unwrap();
    let at = 64 * 512;
    made.drives[0].media_error(at..at + 512);
    made.drives[1].media_error(at + 8192..at + 8192 + 512);
    assert_eq!(read(&made, &array, 0, made.content.len()).unwrap(), made.content);
    // Both are unreadable in one block, so it is lost. The blocks around it are read.
    made.drives[2].media_error(at..at + 512);
    assert_eq!(read(&made, &array, 0, 4096), Err(BlockError::Lost { lost: 2, survives: 1 }));
    assert_eq!(read(&made, &array, 4096, 60_000).unwrap(), made.content[4096..64_096]);
}

#[test]
fn bytes_across_two_blocks_are_read_from_the_copy_that_has_each() {
    let shape = shape(1, 0, 2, 8);
    let made = make(5, &shape, 4096, |_, _| {});
    let array = open(&made, &[0, 1], false).unwrap();
    let at = 64 * 512;
    made.drives[0].media_error(at..at + 512);
    made.drives[1].media_error(at + 4096..at + 4096 + 512);
    // Reads of less than a block, from both.
    for offset in [513, 1024, 4095] {
        assert_eq!(read(&made, &array, offset, 3584).unwrap(), made.content[offset..offset + 3584], "from {offset}");
    }
}

#[test]
fn blocks_in_a_members_list_of_bad_blocks_are_never_read_from_it() {
    let shape = shape(5, 2, 3, 64);
    let listed = |number: usize, plain: &mut Plain| {
        if number == 0 {
            (plain.features, plain.bad_offset, plain.bad_sectors) = (8, 24, 1);
        }
    };
    let made = make(3, &shape, 512, listed);
    // The second chunk of the drive, in sectors of the drive. The data there is wrong.
    let mut list = vec![0xFF; 512];
    list[..8].copy_from_slice(&((64_u64 + 64) << 10 | 64).to_le_bytes());
    made.drives[0].write_raw((8 + 24) * 512, &list);
    made.drives[0].write_raw((64 + 64) * 512, &vec![0xEE; 64 * 512]);
    let array = open(&made, &[0, 1, 2], false).unwrap();
    assert_eq!(read(&made, &array, 0, made.content.len()).unwrap(), made.content);

    // The list cannot be read: no block is known to be good, so the drive is not used.
    made.drives[0].media_error((8 + 24) * 512..(8 + 25) * 512);
    let found = candidates(&made, &[0, 1, 2]);
    let assessment = assess(&found.iter().collect::<Vec<_>>(), false);
    let said: Vec<String> = assessment.left_out.iter().map(|(index, why)| format!("{index}: {why}")).collect();
    assert_eq!(said, ["0: its list of bad blocks cannot be read"]);
    let array = open(&made, &[0, 1, 2], false).unwrap();
    assert_eq!(read(&made, &array, 0, made.content.len()).unwrap(), made.content);
}

#[test]
fn parity_that_may_not_fit_is_not_computed_with_unless_that_was_chosen() {
    let shape = shape(6, 2, 5, 8);
    // Resynced up to the sixth row.
    let made = make(4, &shape, 512, |_, plain| plain.resync_offset = 6 * 8);
    let all = [0, 1, 2, 3, 4];
    let array = open(&made, &all, false).unwrap();
    assert_eq!(read(&made, &array, 0, made.content.len()).unwrap(), made.content, "from the members themselves");
    made.drives.iter().take(2).for_each(|drive| drive.media_error(0..1 << 30));
    let row = 3 * made.chunk_bytes;
    assert_eq!(read(&made, &array, 0, 6 * row).unwrap(), made.content[..6 * row], "below, parity fits");
    assert_eq!(read(&made, &array, 6 * row, row), Err(BlockError::Lost { lost: 1, survives: 0 }));

    let made = make(4, &shape, 512, |_, plain| plain.resync_offset = 0);
    let refused = open(&made, &all[1..], false).err().unwrap();
    assert_eq!(
        refused,
        "it was not stopped cleanly and is degraded (slots 0 are missing): what was being written may be computed wrongly, \
         so md does not start it without --force"
    );
    let array = open(&made, &all[1..], true).unwrap();
    assert_eq!(read(&made, &array, 0, made.content.len()).unwrap(), made.content);
}

#[test]
fn a_superblock_is_found_although_other_places_cannot_be_read() {
    let shape = shape(1, 0, 2, 8);
    let made = make(6, &shape, 512, |_, _| {});
    let end = drive::Drive::info(&made.drives[0]).size_bytes;
    made.drives[0].media_error(0..512);
    made.drives[0].media_error(end - 8192..end);
    assert!(made.sim.block_on(examine(&made.drives[0])).is_ok());
    made.drives[0].media_error(4096..4608);
    assert!(matches!(made.sim.block_on(examine(&made.drives[0])), Err(NotMember::Drive(_))));
}

#[test]
fn a_drive_without_a_superblock_is_no_member_and_writes_are_refused() {
    let shape = shape(1, 0, 2, 8);
    let made = make(5, &shape, 512, |_, _| {});
    let empty = SimDrive::new(&made.sim.env(), "empty", 1 << 20, 512);
    assert_eq!(made.sim.block_on(examine(&empty)).unwrap_err(), NotMember::Superblock(md::SuperblockError::NotMd));
    let array = open(&made, &[1], false).unwrap();
    let refused = "read-only: an md array is imported for reading";
    let said = |result: Result<(), BlockError>| result.unwrap_err().to_string();
    assert_eq!(said(made.sim.block_on(array.write(0, Buf::zeroes(4096), false))), refused);
    assert_eq!(said(made.sim.block_on(array.discard(0, 4096))), refused);
    assert_eq!(said(made.sim.block_on(array.write_zeroes(0, 4096, WriteZeroes::default()))), refused);
    assert_eq!(made.sim.block_on(array.flush()), Ok(()));
    let size = array.size_bytes();
    assert!(matches!(read(&made, &array, size as usize - 1, 2), Err(BlockError::OutOfRange { .. })));
    assert!(read(&made, &array, size as usize, 0).unwrap().is_empty());
}
