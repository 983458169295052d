//! Requests of users together with their history, and reading everything.

use ::drive::{Block, BlockError, Buf, BufMut, Env, View, WriteZeroes, join_all};
use array::Array;
use format::{BLOCK, ExtentRecord};
use smallvec::SmallVec;
use volume::Direct;

use super::{Loss, Shared, Version, Violation};
use crate::engine::exact::any_range;
use crate::engine::group::{Group, KIB};
use crate::{Rng, SimEnv};

/// Panics with the violation, if there is one.
fn demand(result: Result<(), Violation>) {
    if let Err(violation) = result {
        panic!("{violation}");
    }
}

/// Reads everything after a power cut, and takes the content as the truth.
///
/// # Panics
/// If a read gives content that is not allowed, or fails.
pub async fn settle(group: &Group, history: &Shared, rng: &mut Rng) {
    settle_with(group, history, rng, &[]).await;
}

/// As [`settle`], after a power cut with the losses of `lost`.
///
/// # Panics
/// As [`settle`].
pub async fn settle_with(group: &Group, history: &Shared, rng: &mut Rng, lost: &[Loss]) {
    history.borrow_mut().power_cut();
    each_chunk(group, history, rng, lost, |at, read| history.borrow_mut().settle(at, read)).await;
}

/// Reads everything, when no request was interrupted since the last time.
///
/// # Panics
/// As [`settle`].
pub async fn verify_latest(group: &Group, history: &Shared, rng: &mut Rng) {
    each_chunk(group, history, rng, &[], |at, read| history.borrow().check_latest(at, read)).await;
}

async fn each_chunk(
    group: &Group,
    history: &Shared,
    rng: &mut Rng,
    lost: &[Loss],
    check: impl Fn(u64, &[u8]) -> Result<(), Violation>,
) {
    let size = group.size();
    let block_bytes = history.borrow().block_bytes();
    let mut at = 0;
    while at < size {
        let len = (64 * KIB).min(size - at);
        let array = rng.pick(&group.shards).clone();
        match array.read(at, BufMut::zeroed(len as usize)).await {
            Ok(read) => demand(check(at, &read)),
            Err(_) => {
                for block in (at..at + len).step_by(block_bytes as usize) {
                    match array.read(block, BufMut::zeroed(block_bytes as usize)).await {
                        Ok(read) => demand(check(block, &read)),
                        Err(BlockError::Lost { .. } | BlockError::Unknown { .. }) => {
                            demand(history.borrow_mut().settle_unreadable(block, lost))
                        }
                        Err(error) => panic!("block {block} cannot be read: {error}"),
                    }
                }
            }
        }
        at += len;
    }
}

/// Rounds of up to `width` requests on disjoint blocks, flushes and FUA among them. A crash may
/// interrupt them at any time.
pub async fn work_for_a_crash(group: &Group, history: &Shared, rng: &mut Rng, rounds: usize, width: usize) {
    let geometry = &group.leader().shared().geometry;
    let (stripe, stripe_group) =
        (geometry.stripe_data_bytes(), geometry.stripe_data_bytes() * geometry.rows() * geometry.sets);
    let grain = geometry.sector_bytes;
    for _ in 0..rounds {
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut requests = Vec::new();
        for _ in 0..width {
            let (start, len) = any_range(rng, group.size(), stripe, stripe_group);
            let start = start / grain * grain;
            let len = len.next_multiple_of(grain).min(group.size() - start);
            if taken.iter().any(|&(other, other_len)| start < other + other_len && other < start + len) {
                continue;
            }
            taken.push((start, len));
            let array = rng.pick(&group.shards).clone();
            let change = match rng.below(12) {
                0..2 => Request::Write { fua: true },
                2..6 => Request::Write { fua: false },
                6..8 => Request::Discard,
                8 => Request::WriteZeroes { fua: true, keep: rng.chance(1, 2) },
                9..11 => Request::Flush,
                _ => Request::Read,
            };
            let pause = std::time::Duration::from_nanos(rng.below(300_000));
            let (history, env) = (history.clone(), group.env.clone());
            requests.push(async move {
                env.sleep(pause).await;
                perform(&array, &history, change, start, len).await.expect("nothing but the power fails");
            });
        }
        join_all(requests).await;
    }
}

/// A user's request to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Write a new version.
    Write {
        /// Durable when it is answered.
        fua: bool,
    },
    /// Deallocate the range.
    Discard,
    /// Write zeroes.
    WriteZeroes {
        /// Durable when it is answered.
        fua: bool,
        /// Keep the space allocated.
        keep: bool,
    },
    /// Write zeroes if that needs no data writes: otherwise it is refused, and changes nothing.
    FastZeroes {
        /// Durable when it is answered.
        fua: bool,
    },
    /// Make answered writes durable.
    Flush,
    /// Read, and compare.
    Read,
}

/// The target of requests: a group, or a volume that lies in it. Both go through `volume`. Its
/// address computation is repeated here for the history, which knows a block by its place in the
/// group.
pub struct Asked {
    volume: Direct<SimEnv>,
    extents: Vec<ExtentRecord>,
}

/// A part of a request: its place in the group, its offset in the request, and its length.
type Part = (u64, u64, u64);

impl Asked {
    /// The group on a shard, byte for byte.
    pub fn group(array: &Array<SimEnv>) -> Asked {
        Asked::new(array, vec![(0, array.size_bytes())])
    }

    /// A volume that takes the whole group, in four pieces out of order, short ones first: most
    /// requests fall there, and cross their ends.
    pub fn pieces(array: &Array<SimEnv>) -> Asked {
        let (size, block) = (array.size_bytes(), BLOCK as u64);
        let half = size / 2 / block * block;
        Asked::new(array, vec![(2 * block, 5 * block), (0, 2 * block), (half, size), (5 * block, half)])
    }

    fn new(array: &Array<SimEnv>, ranges: Vec<(u64, u64)>) -> Asked {
        let extent = |(start, end): (u64, u64)| ExtentRecord { start_byte: start, len_bytes: end - start };
        let extents: Vec<ExtentRecord> = ranges.into_iter().map(extent).collect();
        Asked { volume: Direct::new(array.clone(), array.size_bytes(), extents.clone()), extents }
    }

    fn parts(&self, start: u64, len: u64) -> SmallVec<[Part; 2]> {
        let (mut at, mut parts) = (0, SmallVec::new());
        for extent in &self.extents {
            let (from, to) = (start.max(at), (start + len).min(at + extent.len_bytes));
            if from < to {
                parts.push((extent.start_byte + from - at, from - start, to - from));
            }
            at += extent.len_bytes;
        }
        parts
    }
}

/// Does a request on a group and keeps the history.
///
/// # Errors
/// As the group answers.
///
/// # Panics
/// If a read gives content that is not allowed.
pub async fn perform(
    array: &Array<SimEnv>,
    history: &Shared,
    request: Request,
    start: u64,
    len: u64,
) -> Result<(), BlockError> {
    perform_on(&Asked::group(array), history, request, start, len).await
}

/// As [`perform`], on this target.
///
/// # Errors
/// As the group answers.
///
/// # Panics
/// If a read gives content that is not allowed.
pub async fn perform_on(
    asked: &Asked,
    history: &Shared,
    request: Request,
    start: u64,
    len: u64,
) -> Result<(), BlockError> {
    let (volume, parts) = (&asked.volume, asked.parts(start, len));
    let begin = |version| parts.iter().for_each(|&(at, _, len)| history.borrow_mut().begin(at, len, version));
    match request {
        Request::Write { fua } => {
            let version = history.borrow_mut().next_version();
            let mut bytes = BufMut::zeroed(len as usize);
            for &(at, from, len) in &parts {
                version.fill(at, &mut bytes[from as usize..(from + len) as usize]);
            }
            begin(version);
            let bytes: Buf = bytes.freeze();
            note_end(history, &parts, fua, volume.write(start, bytes, fua).await)?;
        }
        Request::Discard => {
            begin(Version::ZERO);
            note_end(history, &parts, false, volume.discard(start, len).await)?;
        }
        Request::WriteZeroes { fua, keep } => {
            let how = WriteZeroes { fua, keep_allocated: keep, only_fast: false };
            begin(Version::ZERO);
            note_end(history, &parts, fua, volume.write_zeroes(start, len, how).await)?;
        }
        Request::FastZeroes { fua } => {
            let how = WriteZeroes { fua, keep_allocated: false, only_fast: true };
            begin(Version::ZERO);
            let result = volume.write_zeroes(start, len, how).await;
            if result == Err(BlockError::NotFast) {
                parts.iter().for_each(|&(at, _, len)| history.borrow_mut().refused(at, len));
                return result;
            }
            note_end(history, &parts, fua, result)?;
        }
        Request::Flush => {
            let since = history.borrow().now();
            volume.flush().await?;
            history.borrow_mut().flushed(since);
        }
        Request::Read => {
            // As exports do.
            let mut read = BufMut::zeroed(len as usize);
            let is_there = volume.view_now(start, len as usize, |views| View::copy_all(views, &mut read)).is_some();
            if !is_there && !volume.read_now(start, &mut read) {
                read = volume.read(start, read).await?;
            }
            for &(at, from, len) in &parts {
                demand(history.borrow().check_latest(at, &read[from as usize..(from + len) as usize]));
            }
        }
    }
    Ok(())
}

fn note_end(history: &Shared, parts: &[Part], durable: bool, result: Result<(), BlockError>) -> Result<(), BlockError> {
    for &(at, _, len) in parts {
        match &result {
            Ok(()) => history.borrow_mut().end(at, len, durable),
            Err(_) => history.borrow_mut().failed(at, len),
        }
    }
    result
}
