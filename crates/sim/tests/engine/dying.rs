//! A member dies in the middle of a write, and then the power fails.

use drive::{Buf, BufMut};
use format::{CrashSafety, Level, Shape};
use sim::Sim;

use crate::group::*;

const BLOCK: u64 = 4096;

/// Writes `len` bytes at 0 over known data. Member `dying` dies after `death` operations, the power
/// fails after `cut`. Returns the blocks as they are read afterwards: `a`, `b`, `?` for an error,
/// `!` for anything else; and whether the write was over before the power failed.
fn story(
    shape: Shape,
    safety: CrashSafety,
    disconnected: Option<usize>,
    dying: usize,
    death: u64,
    cut: u64,
    len: u64,
) -> (String, bool) {
    let sim = Sim::new(1);
    let drives = new_drives(&sim, usize::from(shape.members), 512 * KIB, 4096);
    let mut group = Group::create_with(&sim, shape, Protection { safety, checksums: true }, drives, 1);
    let blocks = 2 * group.leader().shared().geometry.stripe_data_bytes() / BLOCK;
    let fill = |byte: u8, len: u64| Buf::from(vec![byte; len as usize]);
    sim.block_on(async {
        group.leader().write(0, fill(b'a', blocks * BLOCK), false).await.expect("all is well");
        group.leader().flush().await.expect("all is well");
    });
    if let Some(disconnected) = disconnected {
        let mut drives = sim.block_on(group.stop());
        drives.remove(disconnected);
        group = Group::open(&sim, drives, 1);
        sim.block_on(async {
            // The first write after an assembly changes the superblocks, which is not the subject
            // here.
            group.leader().write(blocks / 2 * BLOCK, fill(b'a', BLOCK), true).await.expect("the level survives it");
        });
    }
    let index = dying - usize::from(disconnected.is_some_and(|disconnected| disconnected < dying));
    group.drives[index].fail_after(death);
    sim.stop_after(cut);
    let over = sim.try_block_on(group.leader().write(0, fill(b'b', len), false)).is_some();
    let mut drives = group.cut(&sim);
    drives.remove(index);
    let group = Group::open(&sim, drives, 1);
    let seen = sim.block_on(async {
        let mut seen = String::new();
        for block in 0..blocks {
            let read = group.leader().read(block * BLOCK, BufMut::zeroed(BLOCK as usize)).await;
            seen.push(match read {
                Ok(read) if read.iter().all(|&byte| byte == read[0]) && b"ab".contains(&read[0]) => read[0] as char,
                Ok(_) => '!',
                Err(_) => '?',
            });
        }
        seen
    });
    (seen, over)
}

#[test]
fn a_member_that_dies_in_the_middle_of_a_write_takes_no_other_block_along_in_a_crash() {
    let strip = 4 * KIB;
    let mut bad = Vec::new();
    // Each moment of death has a quarter of the moments of the cut, so that this takes seconds.
    for (shape, disconnected) in [
        (shape(Level::Raid5, 3, strip), None),
        (shape(Level::Raid6, 5, strip), Some(2)),
        (shape(Level::Raid7, 6, strip), Some(3)),
    ] {
        for safety in [CrashSafety::On, CrashSafety::Strict] {
            for dying in (0..usize::from(shape.members)).filter(|&member| Some(member) != disconnected) {
                for len in [BLOCK, 2 * BLOCK] {
                    for death in 0..4 {
                        for cut in (0..34).filter(|cut| (cut + death + dying as u64).is_multiple_of(4)) {
                            let (seen, over) = story(shape, safety, disconnected, dying, death, cut, len);
                            let (touched, untouched) = seen.split_at((len / BLOCK) as usize);
                            let warm = untouched.chars().all(|block| block == 'a');
                            let right =
                                touched.chars().all(|block| "ab".contains(block) || (len > BLOCK && block == '?'));
                            if !warm || !right {
                                bad.push(format!("{shape}, {safety:?}, away {disconnected:?}, dying {dying} after {death}, {len} bytes, cut {cut}: {seen} {over}"));
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(bad.is_empty(), "{} stories, such as\n{}", bad.len(), bad[..bad.len().min(25)].join("\n"));
}
