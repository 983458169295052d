//! The places of sectors, compared with tables that are filled row by row like the pictures in
//! md(4).

use crate::support::{Cell, Plain, Table, copies_table, parity_table, power, stripes_table};
use md::{Candidate, Geometry, Level, SectorPlace, Superblock, Version, assess};

fn candidate(plain: &Plain) -> Candidate {
    let superblock = Superblock::decode(&plain.bytes(), Version::V1_2, 8).unwrap();
    Candidate { superblock, drive_sectors: 1 << 40, sector_bytes: 512, bad: Ok(Vec::new()) }
}

fn geometry(level: i32, layout: u32, disks: usize, chunk: u32, sizes: &[u64]) -> Geometry {
    let made: Vec<Candidate> = (0..disks)
        .map(|number| {
            let mut plain = Plain::new(level, layout, disks as u32, chunk, sizes[0], number as u32);
            if level == 0 {
                (plain.size, plain.data_size, plain.features) = (0, sizes[number], 4096);
            }
            candidate(&plain)
        })
        .collect();
    assess(&made.iter().collect::<Vec<_>>(), false).assembly.unwrap().geometry
}

/// Every sector of the array is where the table has it, with all its copies, and the array has as
/// many sectors as the table.
fn fits(geometry: &Geometry, table: &Table, chunk: u64, what: &str) {
    let mut seen = 0;
    let total = geometry.sectors() / chunk;
    for (row, cells) in table.iter().enumerate() {
        for (disk, cell) in cells.iter().enumerate() {
            let Cell::Data(number) = cell else { continue };
            if *number >= total {
                continue;
            }
            seen += 1;
            let start = row as u64 * chunk;
            for within in [0, 1, chunk - 1] {
                let sector = number * chunk + within;
                match geometry.locate(sector) {
                    SectorPlace::Copies { at, sectors } => {
                        assert!(at.contains(&(disk, start + within)), "{what}: {sector} at {at:?}, not {disk} {row}");
                        assert_eq!(sectors, chunk - within, "{what}");
                    }
                    SectorPlace::Strip { row: in_row, index, sector: at, sectors } => {
                        let there = geometry.parity().unwrap().row(in_row).data[index];
                        assert_eq!((there, at, in_row), (disk, start + within, row as u64), "{what}: {sector}");
                        assert_eq!(sectors, chunk - within, "{what}");
                    }
                }
            }
        }
    }
    let copies = match geometry.locate(0) {
        SectorPlace::Copies { at, .. } => at.len() as u64,
        SectorPlace::Strip { .. } => 1,
    };
    assert_eq!(seen, total * copies, "{what}: the table has every chunk of the array with every copy");
}

#[test]
fn parity_arrays_are_laid_out_as_in_the_pictures_of_md() {
    let five = (0..=5).map(|layout| (Level::Raid5, 5, layout, 3));
    let six = (0..=5).chain(8..=10).chain(16..=20).map(|layout| (Level::Raid6, 6, layout, 4));
    for (level, number, layout, least) in five.chain(six).chain([(Level::Raid4, 4, 0, 2)]) {
        for disks in least..=9 {
            let rows = 3 * disks as u64 + 1;
            // A partial chunk at the end of the members is not used.
            let geometry = geometry(number, layout, disks, 16, &[rows * 16 + 5]);
            let table = parity_table(level, layout, disks, rows);
            let what = format!("{level} layout {layout} of {disks}");
            assert_eq!(geometry.sectors(), rows * 16 * (disks as u64 - if number == 6 { 2 } else { 1 }), "{what}");
            fits(&geometry, &table, 16, &what);
            let parity = geometry.parity().unwrap();
            for (number, cells) in table.iter().enumerate() {
                let row = parity.row(number as u64);
                assert_eq!(cells[row.p], Cell::P(number as u64), "{what}");
                let Some(q) = row.q else { continue };
                assert_eq!(cells[q], Cell::Q(number as u64), "{what}");
                assert_eq!(row.powers.len(), parity.power_count(), "{what}");
                for &disk in &row.data {
                    assert_eq!(row.powers[power(layout, cells, disk) as usize], Some(disk), "{what} row {number}");
                }
                assert_eq!(row.powers.iter().flatten().count(), row.data.len(), "{what}");
            }
        }
    }
}

#[test]
fn raid_10_is_laid_out_as_in_the_pictures_of_md() {
    for disks in 2..=7_usize {
        for near in 1..=disks {
            for far in 1..=disks / near {
                for offset in [false, true] {
                    let rows = 6 * far;
                    let layout = near as u32 | (far as u32) << 8 | u32::from(offset) << 16;
                    let geometry = geometry(10, layout, disks, 8, &[rows as u64 * 8]);
                    let table = copies_table(near, far, offset, disks, rows);
                    let what = format!("raid10 near {near} far {far} offset {offset} of {disks}");
                    assert_eq!(geometry.sectors() / 8, (rows / far * disks / near) as u64, "{what}");
                    fits(&geometry, &table, 8, &what);
                    // Any loss of fewer members than there are copies is survived. The loss of all
                    // copies of one chunk is not.
                    let SectorPlace::Copies { at, .. } = geometry.locate(0) else { panic!() };
                    assert_eq!(at.len(), near * far);
                    assert!(!geometry.is_readable(|disk| at.iter().all(|(copy, _)| *copy != disk)), "{what}");
                    assert!(geometry.is_readable(|disk| disk == at[0].0 || at.iter().all(|(copy, _)| *copy != disk)));
                }
            }
        }
    }
}

#[test]
fn far_copies_of_members_that_are_not_filled_begin_where_md_puts_them() {
    // 11 chunks on each of 4: 5 rows of chunks are used, and the copies begin behind them.
    let odd = geometry(10, 0x201, 4, 8, &[11 * 8]);
    assert_eq!(odd.sectors(), 20 * 8);
    let SectorPlace::Copies { at, .. } = odd.locate(0) else { panic!() };
    assert_eq!(at[..], [(0, 0), (1, 5 * 8)]);
    // 3 disks, 2 near copies: 7 chunks on each are 10 chunks, with one place left.
    assert_eq!(geometry(10, 0x102, 3, 8, &[7 * 8]).sectors(), 10 * 8);
}

#[test]
fn raid_0_of_unequal_members_is_laid_out_in_zones_in_both_of_mds_ways() {
    for chunks in [vec![4, 4, 4], vec![3, 5, 5], vec![7, 2, 4, 4], vec![1, 2, 3, 4, 5], vec![9]] {
        for (layout, original) in [(1, true), (2, false)] {
            // 12 sectors: a chunk of RAID 0 need not be a power of two. The rest of a member is not
            // used.
            let sizes: Vec<u64> = chunks.iter().map(|count| count * 12 + 5).collect();
            let geometry = geometry(0, layout, chunks.len(), 12, &sizes);
            assert_eq!(geometry.sectors(), chunks.iter().sum::<u64>() * 12);
            fits(&geometry, &stripes_table(&chunks, original), 12, &format!("raid0 of {chunks:?}, layout {layout}"));
        }
    }
}

#[test]
fn a_mirror_has_every_sector_on_every_disk() {
    let geometry = geometry(1, 0, 3, 0, &[1001]);
    assert_eq!((geometry.sectors(), geometry.chunk_sectors()), (1001, 0));
    let SectorPlace::Copies { at, sectors } = geometry.locate(1000) else { panic!() };
    assert_eq!((&at[..], sectors), (&[(0, 1000), (1, 1000), (2, 1000)][..], 1));
}
