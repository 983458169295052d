//! Allocation of a group's space to volumes. Pure functions.

use format::{BLOCK, ExtentRecord};

/// The space of a group that volumes may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Total bytes.
    pub capacity_bytes: u64,
    /// Volumes begin at multiples of this, so that no two of them share a stripe.
    pub align_bytes: u64,
}

impl Space {
    /// The free ranges between those in `used`, in order. They begin at multiples of `align_bytes`.
    fn free(&self, used: &[ExtentRecord]) -> Vec<(u64, u64)> {
        let mut used: Vec<(u64, u64)> =
            used.iter().map(|extent| (extent.start_byte, extent.start_byte + extent.len_bytes)).collect();
        used.sort_unstable();
        let mut free = Vec::new();
        let mut at = 0;
        for (start, end) in used.into_iter().chain([(self.capacity_bytes, self.capacity_bytes)]) {
            if at < start {
                free.push((at, start));
            }
            at = end.next_multiple_of(self.align_bytes);
        }
        free
    }

    /// Most bytes that a new volume could have.
    pub fn free_bytes(&self, used: &[ExtentRecord]) -> u64 {
        self.free(used).iter().map(|(start, end)| end - start).sum()
    }
}

/// Finds room for `len` bytes outside of `used`: if possible in one piece, the smallest that fits;
/// otherwise in several, the largest first. `None` if there is not enough.
///
/// The extents hold `len` rounded up to [`BLOCK`].
pub fn allocate(space: Space, used: &[ExtentRecord], len: u64) -> Option<Vec<ExtentRecord>> {
    let mut left = len.checked_next_multiple_of(BLOCK as u64)?;
    let mut free = space.free(used);
    if let Some(&(start, _)) =
        free.iter().filter(|(start, end)| end - start >= left).min_by_key(|(start, end)| (end - start, *start))
    {
        return Some(vec![ExtentRecord { start_byte: start, len_bytes: left }]);
    }
    free.sort_by_key(|&(start, end)| (std::cmp::Reverse(end - start), start));
    let mut extents = Vec::new();
    for (start, end) in free {
        let take = (end - start).min(left) / BLOCK as u64 * BLOCK as u64;
        if take > 0 {
            extents.push(ExtentRecord { start_byte: start, len_bytes: take });
            left -= take;
        }
        if left == 0 {
            return Some(extents);
        }
    }
    None
}

/// Extends a volume to `len` bytes, in place as far as the space behind it is free. `used` are the
/// extents of all volumes, including its own.
pub fn extend(space: Space, used: &[ExtentRecord], own: &[ExtentRecord], len: u64) -> Option<Vec<ExtentRecord>> {
    let have: u64 = own.iter().map(|extent| extent.len_bytes).sum();
    let mut more = len.checked_next_multiple_of(BLOCK as u64)?.checked_sub(have)?;
    let mut grown = own.to_vec();
    if let Some(last) = grown.last_mut() {
        let end = last.start_byte + last.len_bytes;
        let next = used.iter().map(|extent| extent.start_byte).filter(|&start| start >= end).min();
        let step = more.min(next.unwrap_or(space.capacity_bytes) - end);
        last.len_bytes += step;
        more -= step;
    }
    if more > 0 {
        let others = used.iter().filter(|extent| !own.contains(extent)).chain(&grown);
        grown.extend(allocate(space, &others.copied().collect::<Vec<_>>(), more)?);
    }
    Some(grown)
}

/// Cuts a volume's extents to `len` bytes (rounded up to [`BLOCK`]). Returns the kept extents and
/// the freed ones.
pub fn shrink(own: &[ExtentRecord], len: u64) -> (Vec<ExtentRecord>, Vec<ExtentRecord>) {
    let mut keep = len.next_multiple_of(BLOCK as u64);
    let (mut kept, mut freed) = (Vec::new(), Vec::new());
    for extent in own {
        let here = extent.len_bytes.min(keep);
        keep -= here;
        if here > 0 {
            kept.push(ExtentRecord { start_byte: extent.start_byte, len_bytes: here });
        }
        if here < extent.len_bytes {
            freed.push(ExtentRecord { start_byte: extent.start_byte + here, len_bytes: extent.len_bytes - here });
        }
    }
    (kept, freed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::{Catalogue, ThinVolumeRecord, VolumeKind, VolumeRecord};
    use proptest::prelude::*;

    const SPACE: Space = Space { capacity_bytes: 64 << 20, align_bytes: 192 << 10 };

    fn catalogue(volumes: &[(u64, Vec<ExtentRecord>)]) -> Catalogue {
        let record = |(id, (size, extents)): (usize, &(u64, Vec<ExtentRecord>))| VolumeRecord {
            id: id as u64 + 1,
            name: format!("v{id}"),
            kind: VolumeKind::Direct,
            size_bytes: *size,
            created_unix_s: 0,
            extents: extents.clone(),
            thin: ThinVolumeRecord::default(),
            conversion: None,
        };
        let volumes: Vec<_> = volumes.iter().enumerate().map(record).collect();
        Catalogue { next_id: volumes.len() as u64 + 1, volumes, ..Catalogue::default() }
    }

    proptest! {
        #[test]
        fn volumes_never_overlap_whatever_is_created_resized_and_deleted(
            steps in proptest::collection::vec((0u8..3, 1u64..20 << 20, any::<proptest::sample::Index>()), 1..40)
        ) {
            let mut volumes: Vec<(u64, Vec<ExtentRecord>)> = Vec::new();
            for (kind, size, which) in steps {
                let used: Vec<ExtentRecord> = volumes.iter().flat_map(|(_, extents)| extents.clone()).collect();
                if kind == 0 || volumes.is_empty() {
                    let room = SPACE.free_bytes(&used);
                    match allocate(SPACE, &used, size) {
                        Some(extents) => volumes.push((size, extents)),
                        None => prop_assert!(size.next_multiple_of(BLOCK as u64) > room),
                    }
                } else {
                    let index = which.index(volumes.len());
                    let (old, extents) = volumes[index].clone();
                    if kind == 1 {
                        volumes.swap_remove(index);
                    } else if size < old {
                        volumes[index] = (size, shrink(&extents, size).0);
                    } else if let Some(grown) = extend(SPACE, &used, &extents, size) {
                        volumes[index] = (size, grown);
                    }
                }
                prop_assert_eq!(catalogue(&volumes).check(SPACE.capacity_bytes), Ok(()));
            }
        }
    }
}
