//! Where the regions of a member lie. All members of a group have the same layout.
//!
//! ```text
//! 0      4 KiB                                                          member_bytes
//! | head | map | log | catalogue | checksums | (gap) | data ... | (larger drives) | tail |
//! ```
//! A group without checksums has no such region.
//!
//! Invariants (verified by [`Layout::check`]):
//! 1. Regions start and end on [`BLOCK`], do not overlap, and leave the first block to the head
//!    superblock.
//! 2. `data` is a whole number of `max(strip_bytes, chunk_bytes)`, and `chunk_count` counts its
//!    allocation chunks in all sets.
//! 3. `map` has two slots for every map block, `catalogue` has two slots of equal size.
//! 4. `checksums`, if present, has an entry for every [`BLOCK`] of data.
//! 5. Each region ends at least one block before `member_bytes`, so that the tail superblock of the
//!    smallest drive has its block.

use thiserror::Error;

use crate::BLOCK;
use crate::map::{CHUNKS_PER_MAP_BLOCK, MAP_SLOTS, map_block_count};
use crate::shape::Shape;
use crate::sums::{SUMS_PER_BLOCK, sum_block_count};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// Least user data per bit of the allocation map. 128 KiB gives 8 Mi allocation chunks per TiB,
/// hence 1 MiB of memory per TiB.
const CHUNK_DATA_BYTES_MIN: u64 = 128 << 10;

/// Most allocation chunks of a group. Above 512 TiB the chunks grow instead of the memory for the
/// map. The engine has four bits for each chunk: 2 GiB of memory at this size.
const CHUNKS_MAX: u64 = 1 << 32;

/// Smallest allocation chunk on one member.
const CHUNK_BYTES_MIN: u32 = BLOCK as u32;

/// From this member size on, data starts on a multiple of [`DATA_ALIGN_BYTES`], the largest erase
/// block that alignment is useful for.
const LARGE_MEMBER_BYTES: u64 = 256 << 20;
const DATA_ALIGN_BYTES: u64 = 1 << 20;
/// Alignment of the data of smaller members, which are files and simulated drives.
const DATA_ALIGN_BYTES_SMALL: u64 = 64 << 10;

/// Least bytes of the log region.
pub(crate) const LOG_BYTES_MIN: u64 = 128 << 10;
const LOG_BYTES_MAX: u64 = 64 << 20;
/// The log takes one part in this many of a member.
const LOG_DIVISOR: u64 = 128;

const CATALOGUE_SLOT_BYTES_MIN: u64 = 16 << 10;
const CATALOGUE_SLOT_BYTES_MAX: u64 = 1 << 20;
/// One catalogue slot takes one part in this many of a member.
const CATALOGUE_DIVISOR: u64 = 1024;

/// Largest member: far above any drive, and low enough that no sum of offsets overflows.
const MEMBER_BYTES_MAX: u64 = 1 << 56;

/// A range of bytes on each member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// Start, in bytes from the start of the drive.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Region {
    /// First byte after the region.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Byte offsets on every member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Allocation map: [`crate::MapBlock`]s, two slots each.
    pub map: Region,
    /// The log that closes the write hole; see [`crate::log`].
    pub log: Region,
    /// Volumes and exports: two slots of half the region each.
    pub catalogue: Region,
    /// Checksums of the blocks of `data`, if the group keeps them; see [`crate::sums`].
    pub checksums: Option<Region>,
    /// User data and parity.
    pub data: Region,
    /// Bytes of one allocation chunk on each member. A power of two, which may be smaller or larger
    /// than a strip.
    pub chunk_bytes: u32,
    /// Allocation chunks of all sets together. Chunk `band * sets + set` starts at
    /// `band * chunk_bytes` of the data region, on every member of that set.
    pub chunk_count: u64,
    /// Size of the smallest drive that can be a member with this layout, in bytes, including both
    /// superblocks.
    pub member_bytes: u64,
}

/// Why there is no layout.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The smallest member has no room for one allocation chunk and the structures around it.
    #[error("members of {have} bytes are too small: this shape needs at least {need} bytes on each")]
    TooSmall {
        /// Smallest member size that works, in bytes.
        need: u64,
        /// Size of the smallest member given, in bytes.
        have: u64,
    },
    /// The smallest member is larger than any drive.
    #[error("members of {have} bytes are too large: the largest supported size is {MEMBER_BYTES_MAX} bytes")]
    TooLarge {
        /// Size of the smallest member given, in bytes.
        have: u64,
    },
}

/// The field of a layout that breaks an invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadLayout(pub(crate) &'static str);

impl Layout {
    /// Computes the layout for members, with or without a checksum region. The smallest member has
    /// `smallest_member_bytes`, which is the whole drive.
    ///
    /// # Errors
    /// [`LayoutError::TooSmall`] with the size that would suffice, [`LayoutError::TooLarge`].
    ///
    /// # Panics
    /// If the shape does not pass [`Shape::check`].
    pub fn plan(shape: &Shape, smallest_member_bytes: u64, checksums: bool) -> Result<Layout, LayoutError> {
        assert!(shape.check().is_ok(), "a layout is planned for a valid shape");
        let have = smallest_member_bytes;
        if have > MEMBER_BYTES_MAX {
            return Err(LayoutError::TooLarge { have });
        }
        let chunk_bytes = chunk_bytes_for(shape, have);
        let stripe_group = u64::from(shape.strip_bytes.max(chunk_bytes));
        let (map, log, catalogue) = regions_before_data(shape, have, chunk_bytes);
        let checksums = checksums.then(|| checksums_after(&catalogue, have));
        let align = if have >= LARGE_MEMBER_BYTES { DATA_ALIGN_BYTES } else { DATA_ALIGN_BYTES_SMALL };
        let data_offset = checksums.unwrap_or(catalogue).end().next_multiple_of(align);
        let tail_offset = (have & !(BLOCK_BYTES - 1)).saturating_sub(BLOCK_BYTES);
        let data_len = tail_offset.saturating_sub(data_offset) / stripe_group * stripe_group;
        if data_len == 0 {
            let need = smallest_member(shape, chunk_bytes, checksums.is_some());
            return Err(LayoutError::TooSmall { need, have });
        }
        let data = Region { offset: data_offset, len: data_len };
        let chunk_count = data_len / u64::from(chunk_bytes) * u64::from(shape.sets);
        let member_bytes = data.end() + BLOCK_BYTES;
        let layout = Layout { map, log, catalogue, checksums, data, chunk_bytes, chunk_count, member_bytes };
        assert_eq!(layout.check(shape), Ok(()), "a planned layout keeps the invariants");
        Ok(layout)
    }

    /// Bytes of user data that the group can hold.
    pub fn capacity_bytes(&self, shape: &Shape) -> u64 {
        self.data.len * shape.data_per_set() as u64 * u64::from(shape.sets)
    }

    /// The regions with their kinds, in the order of the superblock's table.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (RegionKind, Region)> {
        let always = [
            (RegionKind::Map, self.map),
            (RegionKind::Log, self.log),
            (RegionKind::Catalogue, self.catalogue),
            (RegionKind::Data, self.data),
        ];
        always.into_iter().chain(self.checksums.map(|region| (RegionKind::Checksums, region)))
    }

    /// Verifies the invariants of this file, for a layout that was read from a drive.
    pub(crate) fn check(&self, shape: &Shape) -> Result<(), BadLayout> {
        let holds = |condition, field| if condition { Ok(()) } else { Err(BadLayout(field)) };
        holds(self.member_bytes <= MEMBER_BYTES_MAX && self.member_bytes.is_multiple_of(BLOCK_BYTES), "member_bytes")?;
        let limit = self.member_bytes.saturating_sub(BLOCK_BYTES);
        let mut sorted: Vec<_> = self.regions().collect();
        sorted.sort_by_key(|(_, region)| region.offset);
        let mut free_from = BLOCK_BYTES;
        for (_, Region { offset, len }) in sorted {
            holds(offset.is_multiple_of(BLOCK_BYTES) && len.is_multiple_of(BLOCK_BYTES) && len > 0, "regions")?;
            holds(offset >= free_from && offset <= limit && len <= limit - offset, "regions")?;
            free_from = offset + len;
        }
        holds((LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&self.log.len), "log")?;
        holds(self.chunk_bytes.is_power_of_two() && self.chunk_bytes >= CHUNK_BYTES_MIN, "zone_bytes")?;
        holds(self.data.len.is_multiple_of(u64::from(shape.strip_bytes.max(self.chunk_bytes))), "data")?;
        holds(self.chunk_count == self.data.len / u64::from(self.chunk_bytes) * u64::from(shape.sets), "zone_count")?;
        holds(self.map.len / (MAP_SLOTS * BLOCK_BYTES) >= map_block_count(self.chunk_count), "map")?;
        let sums_needed = sum_block_count(self.data.len) * BLOCK_BYTES;
        holds(self.checksums.is_none_or(|region| region.len >= sums_needed), "checksums")?;
        let slots_of_blocks = self.catalogue.len.is_multiple_of(2 * BLOCK_BYTES);
        holds(slots_of_blocks && self.catalogue.len >= 2 * CATALOGUE_SLOT_BYTES_MIN, "catalogue")?;
        holds(self.catalogue.len <= 2 * CATALOGUE_SLOT_BYTES_MAX, "catalogue")
    }
}

/// Kind of a region in the superblock's table. The numbers are those on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum RegionKind {
    /// Allocation map.
    Map = 1,
    /// Write-hole log.
    Log = 2,
    /// Volumes and exports.
    Catalogue = 3,
    /// User data and parity.
    Data = 4,
    /// Checksums of the blocks of data.
    Checksums = 5,
}

/// The smallest power of two for which an allocation chunk holds [`CHUNK_DATA_BYTES_MIN`] of user
/// data, and for which the group has at most [`CHUNKS_MAX`] chunks.
fn chunk_bytes_for(shape: &Shape, member_bytes: u64) -> u32 {
    let data_per_set = shape.data_per_set() as u64;
    let for_data = CHUNK_DATA_BYTES_MIN.div_ceil(data_per_set).next_power_of_two();
    let for_count = (member_bytes.div_ceil(CHUNKS_MAX) * u64::from(shape.sets)).next_power_of_two();
    u32::try_from(for_data.max(for_count)).expect("at most 2^56 / 2^32 * 32").max(CHUNK_BYTES_MIN)
}

fn regions_before_data(shape: &Shape, member_bytes: u64, chunk_bytes: u32) -> (Region, Region, Region) {
    // Computed as if the whole member were data. This gives at most a few blocks too many, and
    // avoids a circular dependency between the region sizes.
    let chunks_at_most = member_bytes / u64::from(chunk_bytes) * u64::from(shape.sets);
    let map_blocks = chunks_at_most.div_ceil(CHUNKS_PER_MAP_BLOCK).max(1);
    let map = Region { offset: BLOCK_BYTES, len: map_blocks * MAP_SLOTS * BLOCK_BYTES };
    let log_len = (member_bytes / LOG_DIVISOR).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX) & !(BLOCK_BYTES - 1);
    let log = Region { offset: map.end(), len: log_len };
    let slot_len = (member_bytes / CATALOGUE_DIVISOR).clamp(CATALOGUE_SLOT_BYTES_MIN, CATALOGUE_SLOT_BYTES_MAX);
    let catalogue = Region { offset: log.end(), len: 2 * (slot_len & !(BLOCK_BYTES - 1)) };
    (map, log, catalogue)
}

/// The region for the checksums of the rest of a member: at most one block too large.
fn checksums_after(before: &Region, member_bytes: u64) -> Region {
    let left = member_bytes.saturating_sub(before.end());
    Region { offset: before.end(), len: (left / (SUMS_PER_BLOCK * BLOCK_BYTES) + 1) * BLOCK_BYTES }
}

/// Size of the smallest member with a layout: every region at its minimum, one unit of data, and
/// the tail.
fn smallest_member(shape: &Shape, chunk_bytes: u32, checksums: bool) -> u64 {
    let stripe_group = u64::from(shape.strip_bytes.max(chunk_bytes));
    let (_, _, catalogue) = regions_before_data(shape, 0, chunk_bytes);
    // A member this small has one block of checksums.
    let before = if checksums { checksums_after(&catalogue, 0) } else { catalogue };
    before.end().next_multiple_of(DATA_ALIGN_BYTES_SMALL) + stripe_group + BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Level;

    fn shapes() -> Vec<Shape> {
        let mut shapes = Vec::new();
        for strip in [4 << 10, 16 << 10, 64 << 10, 1 << 20] {
            for members in 2..=64 {
                for level in Level::ALL {
                    let parity = (level == Level::Nm).then_some(3);
                    shapes.extend(Shape::of(level, members).parity(parity).strip_bytes(strip).build());
                }
            }
        }
        shapes
    }

    #[test]
    fn the_allocation_map_takes_at_most_1_mib_of_memory_per_tib() {
        for shape in shapes() {
            let layout = Layout::plan(&shape, 4 << 40, true).unwrap();
            let map_bits_per_tib =
                u128::from(layout.chunk_count) * (1 << 40) / u128::from(layout.capacity_bytes(&shape));
            assert!(map_bits_per_tib / 8 <= 1 << 20, "{shape}");
            let half = u64::from(layout.chunk_bytes / 2) * shape.data_per_set() as u64;
            assert!(
                half < CHUNK_DATA_BYTES_MIN || layout.chunk_bytes == CHUNK_BYTES_MIN,
                "the chunk is not needlessly large"
            );
        }
    }

    #[test]
    fn the_largest_groups_have_larger_chunks_and_no_larger_map() {
        for shape in shapes() {
            for member_bytes in [16 << 40, 256 << 40, MEMBER_BYTES_MAX] {
                let layout = Layout::plan(&shape, member_bytes, true).unwrap();
                assert!(layout.chunk_count <= CHUNKS_MAX, "{shape}: {layout:?}");
                let half = u64::from(layout.chunk_bytes / 2) * shape.data_per_set() as u64;
                let is_needed = layout.chunk_count * 2 > CHUNKS_MAX / 2;
                assert!(half < CHUNK_DATA_BYTES_MIN || is_needed || layout.chunk_bytes == CHUNK_BYTES_MIN, "{shape}");
            }
        }
    }

    #[test]
    fn one_byte_less_than_the_needed_size_is_too_small_and_the_needed_size_works() {
        for (shape, sums) in shapes().into_iter().flat_map(|shape| [(shape, false), (shape, true)]) {
            let Err(LayoutError::TooSmall { need, have: 0 }) = Layout::plan(&shape, 0, sums) else { panic!("{shape}") };
            assert_eq!(Layout::plan(&shape, need - 1, sums), Err(LayoutError::TooSmall { need, have: need - 1 }));
            assert_eq!(Layout::plan(&shape, need, sums).unwrap().member_bytes, need);
        }
    }

    #[test]
    fn a_member_of_1_mib_with_strips_of_4_kib_works_at_every_level() {
        for shape in shapes().into_iter().filter(|shape| shape.strip_bytes == 4 << 10) {
            let layout = Layout::plan(&shape, 1 << 20, true).unwrap();
            assert!(layout.data.len >= 768 << 10, "{shape}: {layout:?}");
        }
    }

    #[test]
    fn layouts_of_all_shapes_and_sizes_keep_the_invariants() {
        let sizes =
            (20..=52).flat_map(|power| [(1u64 << power) - 1, 1 << power, (1 << power) + 12345, 3 << (power - 1)]);
        for size in sizes {
            for (index, shape) in shapes().into_iter().step_by(7).enumerate() {
                let Ok(layout) = Layout::plan(&shape, size, index % 2 == 0) else {
                    assert!(size < 4 << 20, "{shape} of {size} bytes");
                    continue;
                };
                assert!(layout.member_bytes <= size, "{shape}");
                if size >= LARGE_MEMBER_BYTES {
                    assert!(layout.data.offset.is_multiple_of(1 << 20), "{shape}");
                    assert!(layout.data.len >= size / 10 * 9, "{shape}: at most a tenth of {size} is not data");
                }
            }
        }
    }

    #[test]
    fn a_member_that_no_offset_could_address_is_refused() {
        let shape = shapes()[0];
        assert!(Layout::plan(&shape, MEMBER_BYTES_MAX, true).is_ok());
        assert_eq!(Layout::plan(&shape, u64::MAX, true), Err(LayoutError::TooLarge { have: u64::MAX }));
    }
}
