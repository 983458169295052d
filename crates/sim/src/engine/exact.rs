//! A model that knows every byte, for runs without a power cut: a read must give the last written
//! data.

use ::drive::{BlockError, Buf, BufMut, WriteZeroes, join_all};
use array::Array;
use format::Shape;

use super::group::{Group, KIB, subsets};
use crate::{Rng, Sim, SimDrive, SimEnv};

/// Reads everything without some sets of members, `most` sets drawn at random. The group was
/// stopped in order; the drives do not change.
pub fn verify_without_members(sim: &Sim, drives: &[SimDrive], shape: Shape, model: &Model, rng: &mut Rng, most: usize) {
    let mut sets = subsets(usize::from(shape.members).min(12), shape.survives());
    sets.retain(|set| set.len() == shape.survives());
    rng.shuffle(&mut sets);
    for lost in sets.into_iter().take(most) {
        let left: Vec<SimDrive> =
            (0..drives.len()).filter(|index| !lost.contains(index)).map(|index| drives[index].clone()).collect();
        let group = Group::open(sim, left, 1);
        sim.block_on(verify(&group, model, rng));
        sim.block_on(group.stop());
    }
}

/// The expected content of the group.
pub struct Model {
    /// The group's bytes, from offset 0.
    pub bytes: Vec<u8>,
    /// Ranges that [`work`] has changed since this was emptied: offsets and lengths.
    pub changed: Vec<(u64, u64)>,
}

impl Model {
    /// A new group of `size` bytes: zeroes.
    pub fn new(size: u64) -> Model {
        Model { bytes: vec![0; size as usize], changed: Vec::new() }
    }
}

/// A range of mixed size and alignment: bytes, sectors, blocks, strips, stripes and stripe groups.
pub fn any_range(rng: &mut Rng, size: u64, stripe: u64, stripe_group: u64) -> (u64, u64) {
    let grain = *rng.pick(&[1, 512, 512, 4096, 4096, 4096, stripe, stripe_group]);
    if grain == stripe_group {
        return (rng.below(size / stripe_group) * stripe_group, stripe_group);
    }
    let longest = *rng.pick(&[grain, 4 * grain, stripe, 3 * stripe]);
    let start = rng.below(size) / grain * grain;
    let len = (1 + rng.below(longest.div_ceil(grain))) * grain;
    (start, len.min(size - start))
}

/// Runs `rounds` rounds of up to `width` requests at the same time, on disjoint ranges, and checks
/// every answer.
pub async fn work(group: &Group, model: &mut Model, rng: &mut Rng, rounds: usize, width: usize) {
    let size = group.size();
    let geometry = &group.leader().shared().geometry;
    let (stripe, stripe_group) =
        (geometry.stripe_data_bytes(), geometry.stripe_data_bytes() * geometry.rows() * geometry.sets);
    for _ in 0..rounds {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for _ in 0..width {
            let (start, len) = any_range(rng, size, stripe, stripe_group);
            if ranges.iter().all(|&(other, other_len)| start + len <= other || other + other_len <= start) {
                ranges.push((start, len));
            }
        }
        let requests = ranges.into_iter().map(|(start, len)| {
            let array = rng.pick(&group.shards).clone();
            let kind = rng.below(20);
            let expected = model.bytes[start as usize..(start + len) as usize].to_vec();
            let mut new = vec![0; len as usize];
            if kind < 10 {
                rng.fill(&mut new);
            }
            if kind < 14 {
                model.changed.push((start, len));
                model.bytes[start as usize..(start + len) as usize].copy_from_slice(&new);
            }
            async move { request(&array, kind, start, len, expected, new).await }
        });
        let requests: Vec<_> = requests.collect();
        for result in join_all(requests).await {
            result.expect("no more members are lost than the level survives");
        }
    }
}

async fn request(
    array: &Array<SimEnv>,
    kind: u64,
    start: u64,
    len: u64,
    expected: Vec<u8>,
    new: Vec<u8>,
) -> Result<(), BlockError> {
    match kind {
        0..10 => array.write(start, Buf::from(new), kind == 0).await,
        10..12 => array.discard(start, len).await,
        12..14 => {
            let how = WriteZeroes { keep_allocated: kind == 12, ..WriteZeroes::default() };
            array.write_zeroes(start, len, how).await
        }
        14 => array.flush().await,
        _ => {
            let read = array.read(start, BufMut::zeroed(len as usize)).await?;
            same(&read, &expected, start);
            Ok(())
        }
    }
}

/// Reads everything, on a shard of the seed's choice, and compares.
pub async fn verify(group: &Group, model: &Model, rng: &mut Rng) {
    let size = group.size();
    let mut at = 0;
    while at < size {
        let len = (64 * KIB).min(size - at);
        let array = rng.pick(&group.shards);
        let read = array.read(at, BufMut::zeroed(len as usize)).await.expect("everything can be read");
        same(&read, &model.bytes[at as usize..(at + len) as usize], at);
        at += len;
    }
}

/// Compares the bytes read at `start`.
///
/// # Panics
/// If they differ; the message gives the first difference, and the number of wrong bytes.
pub fn same(read: &[u8], expected: &[u8], start: u64) {
    if let Some(at) = (0..expected.len()).find(|&at| read[at] != expected[at]) {
        let wrong = (0..expected.len()).filter(|&at| read[at] != expected[at]).count();
        panic!(
            "byte {} is {:#x} instead of {:#x}; {wrong} of {} bytes of the read at {start} are wrong",
            start + at as u64,
            read[at],
            expected[at],
            expected.len()
        );
    }
}
