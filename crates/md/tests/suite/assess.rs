//! Which drives and which arrays are accepted.

use crate::support::Plain;
use md::{Assembly, Assessment, BadBlocksError, Candidate, LeftOut, Superblock, Version, assess, sets};

fn candidate(plain: &Plain) -> Candidate {
    let superblock = Superblock::decode(&plain.bytes(), Version::V1_2, 8).unwrap();
    Candidate { superblock, drive_sectors: 4096, sector_bytes: 512, bad: Ok(Vec::new()) }
}

/// An array of `disks`, each superblock changed by `change`.
fn array(level: i32, layout: u32, disks: u32, change: impl Fn(u32, &mut Plain)) -> Vec<Candidate> {
    let one = |number| {
        let mut plain = Plain::new(level, layout, disks, 16, 1024, number);
        change(number, &mut plain);
        candidate(&plain)
    };
    (0..disks).map(one).collect()
}

fn judge(candidates: &[Candidate]) -> Assessment {
    assess(&candidates.iter().collect::<Vec<_>>(), false)
}

fn left_out(assessment: &Assessment) -> Vec<String> {
    assessment.left_out.iter().map(|(index, why)| format!("{index}: {why}")).collect()
}

fn refused(candidates: &[Candidate]) -> String {
    judge(candidates).assembly.unwrap_err().to_string()
}

fn missing(assessment: &Assessment) -> Vec<usize> {
    assessment.assembly.as_ref().map(Assembly::missing).unwrap()
}

#[test]
fn members_that_do_not_have_everything_are_left_out_with_the_reason() {
    // Slot 0 is two events behind. Slot 1 is being rebuilt. Slot 2 is complete and one event
    // behind, which does not count. Slot 3 is faulty for the others.
    let found = array(1, 0, 6, |number, plain| {
        plain.roles = vec![0, 1, 2, 0xFFFE, 0xFFFF, 5];
        match number {
            0 => (plain.events, plain.roles) = (98, vec![0, 1, 2, 3, 4, 5]),
            1 => (plain.features, plain.recovery_offset) = (2, 100),
            2 => plain.events = 99,
            3 => (plain.events, plain.roles) = (99, vec![0, 1, 2, 3, 4, 5]),
            _ => {}
        }
    });
    let assessment = judge(&found);
    assert_eq!(
        left_out(&assessment),
        [
            "0: stale: its superblock has seen 98 events, the newest 100",
            "1: its rebuild has not ended: 100 of 1024 sectors are done",
            "3: marked faulty",
            "4: a spare",
        ]
    );
    assert_eq!(missing(&assessment), [0, 1, 3, 4]);

    // A rebuild that is complete.
    let found = array(1, 0, 2, |_, plain| (plain.features, plain.recovery_offset) = (2, u64::MAX));
    assert_eq!(missing(&judge(&found)), [0; 0]);
}

#[test]
fn drives_that_cannot_hold_what_they_should_are_left_out() {
    let mut found = array(1, 0, 5, |number, plain| match number {
        0 => plain.data_size = 1023,
        1 => plain.data_offset = 65,
        2 => plain.size = 1025,
        _ => {}
    });
    found[1].sector_bytes = 4096;
    found[3].drive_sectors = 64 + 1023;
    found[3].bad = Err(LeftOut::BadBlocks(BadBlocksError::Size(9)));
    found[4].bad = Ok(vec![100..200, 300..301]);
    let assessment = judge(&found[..3]);
    assert_eq!(
        left_out(&assessment),
        [
            "0: too small: its data would end at sector 1088, of 1087",
            "1: its data begin at sector 65, which its sectors of 4096 bytes do not allow",
            "2: its superblock describes another shape than the newest",
        ]
    );
    assert_eq!(
        assessment.assembly.unwrap_err().to_string(),
        "too few of its members can be read: 5 of 5 are missing (raid1, slots 0, 1, 2, 3, 4)"
    );
    let assessment = judge(&found[3..]);
    assert_eq!(left_out(&assessment), ["0: its list of bad blocks takes 9 sectors, not 1 to 8"]);
    assert_eq!(assessment.assembly.unwrap().members[4].as_ref().unwrap().bad, [100..200, 300..301]);
    found[3].bad = Ok(Vec::new());
    assert_eq!(left_out(&judge(&found[3..])), ["0: too small: its data would end at sector 1088, of 1087"]);
}

#[test]
fn a_replacement_counts_only_where_the_member_is_gone_and_it_is_complete() {
    let mut found = array(5, 2, 3, |_, plain| plain.roles = vec![0, 1, 2, 1]);
    let replacement = |features, recovery_offset| {
        let mut plain = Plain::new(5, 2, 3, 16, 1024, 3);
        (plain.roles, plain.features, plain.recovery_offset) = (vec![0, 1, 2, 1], features, recovery_offset);
        candidate(&plain)
    };
    found.push(replacement(16, 0));
    assert_eq!(left_out(&judge(&found)), ["3: the replacement of a member that is still there"]);
    found.remove(1);
    let assessment = judge(&found);
    assert_eq!(assessment.assembly.unwrap().members[1].as_ref().unwrap().candidate, 2);
    found[2] = replacement(16 | 2, 512);
    assert_eq!(left_out(&judge(&found)), ["2: its rebuild has not ended: 512 of 1024 sectors are done"]);
}

#[test]
fn arrays_that_cannot_be_read_are_named_with_the_reason() {
    for (what, change) in [
        (
            "it uses features that are not known here (0x6000)",
            &(|plain: &mut Plain| plain.features = 0x6000) as &dyn Fn(&mut Plain),
        ),
        ("it is being reshaped: let md finish that first", &|plain| plain.features = 4),
        ("it is being reshaped: let md finish that first", &|plain| plain.features = 64),
        ("it is a clustered array, which other machines may be using", &|plain| plain.features = 256),
        ("it has a write journal, whose content would be missing: remove the journal with md first", &|plain| {
            plain.features = 512
        }),
        ("its level is linear: raid0, raid1, raid4, raid5, raid6 and raid10 are read", &|plain| plain.level = -1),
        ("its level is number 7: raid0, raid1, raid4, raid5, raid6 and raid10 are read", &|plain| plain.level = 7),
        ("it cannot be read: the layout 0x6 of raid5 is not known here", &|plain| plain.layout = 6),
        ("it cannot be read: the layout 0x10 of raid5 is not known here", &|plain| plain.layout = 16),
        ("it cannot be read: a chunk of 24 sectors", &|plain| plain.chunk = 24),
        ("it cannot be read: a chunk of 0 sectors", &|plain| plain.chunk = 0),
        ("it cannot be read: 0 sectors on each member", &|plain| plain.size = 0),
        ("it cannot be read: 15 sectors on each member", &|plain| plain.size = 15),
        ("it cannot be read: 18446744073709551615 sectors on each member", &|plain| plain.size = u64::MAX),
        ("it cannot be read: the layout 0x20102 of raid10 is not known here", &|plain| {
            (plain.level, plain.layout) = (10, 0x2_0102);
        }),
        ("it cannot be read: the layout 0x202 of raid10 is not known here", &|plain| {
            (plain.level, plain.layout) = (10, 0x202);
        }),
        ("it cannot be read: raid6 of 3 disks", &|plain| plain.level = 6),
        ("it cannot be read: raid6 of 63 disks: it is read up to 62", &|plain| {
            (plain.level, plain.disks) = (6, 63);
        }),
        ("it cannot be read: raid5 of 4294967295 disks", &|plain| plain.disks = u32::MAX),
    ] {
        assert_eq!(refused(&array(5, 2, 3, |_, plain| change(plain))), what);
    }
    assert_eq!(
        refused(&array(5, 2, 4, |_, _| {})[..2]),
        "too few of its members can be read: 2 of 4 are missing (raid5, slots 2, 3)"
    );
    assert_eq!(
        refused(&array(0, 0, 2, |_, _| {})[1..]),
        "too few of its members can be read: 1 of 2 are missing (raid0, slots 0)"
    );
    // Members of RAID 0 of different sizes, without and with the flag for the layout of the larger.
    let zones = |features, layout| {
        array(0, layout, 2, move |number, plain| {
            (plain.features, plain.data_size) = (features, 1024 + 256 * u64::from(number));
        })
    };
    assert!(refused(&zones(0, 1)).starts_with("it cannot be read: members of different sizes, and nothing says"));
    assert_eq!(refused(&zones(4096, 3)), "it cannot be read: the layout 0x3 of raid0 is not known here");
    assert_eq!(judge(&zones(4096, 2)).assembly.unwrap().geometry.sectors(), 2 * 1024 + 256);
}

#[test]
fn sides_that_went_separate_ways_and_copies_of_a_drive_are_refused() {
    let split = array(1, 0, 2, |number, plain| {
        plain.roles = if number == 0 { vec![0, 0xFFFE] } else { vec![0xFFFE, 1] };
    });
    assert_eq!(
        refused(&split),
        "its drives have gone separate ways (each says that the other failed): give only those of the side to be read"
    );
    assert_eq!(missing(&judge(&split[1..])), [0]);
    // A spare that comes first does not count.
    let mut spare = Plain::new(1, 0, 2, 16, 1024, 2);
    spare.roles = vec![0, 0xFFFE, 0xFFFF];
    let with_spare = [vec![candidate(&spare)], split].concat();
    assert!(refused(&with_spare).starts_with("its drives have gone separate ways"));

    let mut copied = array(5, 2, 3, |_, _| {});
    copied.push(copied[1].clone());
    assert_eq!(refused(&copied), "two of its drives claim slot 1: give only one of them");
}

#[test]
fn an_array_that_was_not_stopped_cleanly_is_refused_where_data_would_come_from_its_parity() {
    let dirty = |level, layout, disks| array(level, layout, disks, |_, plain| plain.resync_offset = 0);
    let said = "it was not stopped cleanly and is degraded";
    for (level, layout, disks) in [(5, 2, 3), (6, 2, 5), (4, 0, 3), (5, 5, 3)] {
        let found = dirty(level, layout, disks);
        assert!(judge(&found).assembly.is_ok(), "whole: every block is read from its member");
        assert!(refused(&found[1..]).starts_with(said), "{level}");
        let chosen = assess(&found[1..].iter().collect::<Vec<_>>(), true).assembly.unwrap();
        assert_eq!((chosen.missing(), chosen.trusted_sectors), (vec![0], u64::MAX));
    }
    // Only parity is missing.
    assert_eq!(missing(&judge(&dirty(4, 0, 3)[..2])), [2]);
    assert_eq!(missing(&judge(&dirty(6, 5, 5)[..3])), [3, 4]);
    // Copies have no parity.
    assert_eq!(missing(&judge(&dirty(10, 0x102, 4)[1..])), [0]);
    assert_eq!(missing(&judge(&dirty(1, 0, 2)[1..])), [0]);
}

#[test]
fn drives_are_sorted_by_array() {
    let mut found = array(1, 0, 2, |_, _| {});
    found.extend(array(5, 2, 3, |_, plain| plain.array = [7; 16]));
    found.swap(1, 3);
    assert_eq!(sets(&found.iter().collect::<Vec<_>>()), [vec![0, 3], vec![1, 2, 4]]);
}
