//! Where a byte of the group is: sets, stripe groups, rows, strips, members. Pure arithmetic.
//!
//! ```text
//! group bytes ── stripes, dealt to the sets in turn
//! a stripe: k data strips and m parity strips on n = k + m members
//!
//! members of one set:  | stripe group 0    | stripe group 1    | ...
//!                      | row 0   | row 1   | row 0   | row 1   |  a row is the place of one stripe
//!                      | chunk   | chunk   | ...                  a chunk has one bit in the map
//! ```
//!
//! A *stripe group* (`stripe_group`) is what one lock covers: one stripe, or as many stripes of a
//! set as one allocation chunk (`chunk`) spans. So it holds whole stripes and whole chunks. The
//! *member offset* `offset` (member offset) counts the bytes from the start of the stripe group on
//! each member.

pub(crate) mod ranges;

use format::{BLOCK, Layout, RoleSet, Shape};

use crate::geometry::ranges::Range;

/// A member's slot in the group, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberIndex(pub u16);

/// A stripe group: the stripes under one lock. The sets take turns: `band * sets + set`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StripeGroup(pub u64);

/// A strip's place in its stripe: data strips are `0..k`, parity strips are `k..k + m`. It is an
/// index of what there is for each strip, which is why it is a number. Sets are [`RoleSet`].
pub type Role = usize;

/// A run of group bytes within one strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripPlace {
    /// The stripe group.
    pub stripe_group: StripeGroup,
    /// The data strip.
    pub role: Role,
    /// The member offset in the stripe group.
    pub offset: u64,
    /// Bytes from here to the end of the strip.
    pub left: u64,
}

/// The arithmetic of one group.
#[derive(Debug, Clone)]
pub struct Geometry {
    /// Data strips of a stripe, `k`. 1 for mirrors.
    pub data: usize,
    /// Parity strips of a stripe, `m`. For mirrors the number of copies less one.
    pub parity_count: usize,
    /// Sets of members. A stripe lies in one of them.
    pub sets: u64,
    /// Bytes of a strip.
    pub strip_bytes: u64,
    /// Bytes of a stripe group on each member: those of a strip or of an allocation chunk, the
    /// larger.
    pub stripe_group_bytes: u64,
    /// Bytes of an allocation chunk on each member.
    pub chunk_bytes: u64,
    /// Smallest range a member reads or writes: the largest logical block size of the members, or a
    /// whole block if blocks have checksums.
    pub sector_bytes: u64,
    /// Where the data region starts on each member.
    pub data_start: u64,
    /// Stripe groups of one set.
    pub bands: u64,
    strip_shift: u32,
    chunk_shift: u32,
    /// A stripe group has `1 << rows_shift` rows.
    rows_shift: u32,
    stripe_data_bytes: u64,
    capacity: u64,
}

impl Geometry {
    /// The arithmetic for a shape that lies on its members as `layout` says. `sector_bytes` is the
    /// largest logical block size among the members.
    pub fn new(shape: &Shape, layout: &Layout, sector_bytes: u32) -> Self {
        let strip_bytes = u64::from(shape.strip_bytes);
        let chunk_bytes = u64::from(layout.chunk_bytes);
        let stripe_group_bytes = strip_bytes.max(chunk_bytes);
        assert!(
            strip_bytes.is_power_of_two() && chunk_bytes.is_power_of_two(),
            "sizes were checked when they were decoded"
        );
        let sector_bytes = if layout.checksums.is_some() { BLOCK as u64 } else { u64::from(sector_bytes) };
        assert!(sector_bytes <= strip_bytes.min(chunk_bytes), "a strip holds whole sectors");
        let data = shape.data_per_set();
        let (sets, bands, stripe_data_bytes) =
            (u64::from(shape.sets), layout.data.len / stripe_group_bytes, strip_bytes * data as u64);
        Geometry {
            data,
            parity_count: shape.members_per_set() - data,
            sets,
            strip_bytes,
            stripe_group_bytes,
            chunk_bytes,
            sector_bytes,
            data_start: layout.data.offset,
            bands,
            strip_shift: strip_bytes.trailing_zeros(),
            chunk_shift: chunk_bytes.trailing_zeros(),
            rows_shift: (stripe_group_bytes / strip_bytes).trailing_zeros(),
            stripe_data_bytes,
            capacity: bands * (stripe_group_bytes / strip_bytes) * sets * stripe_data_bytes,
        }
    }

    /// Strips of a stripe, `n = k + m`: members of one set.
    pub fn strips(&self) -> usize {
        self.data + self.parity_count
    }

    /// The data strips of a row.
    pub(crate) fn data_strips(&self) -> RoleSet {
        RoleSet::below(self.data)
    }

    /// Members of the group.
    pub fn members(&self) -> usize {
        self.strips() * self.sets as usize
    }

    /// User bytes of the group.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// User bytes of one stripe.
    pub fn stripe_data_bytes(&self) -> u64 {
        self.stripe_data_bytes
    }

    /// User bytes of a band: one stripe group of every set.
    pub fn band_bytes(&self) -> u64 {
        self.stripe_data_bytes * self.rows() * self.sets
    }

    /// Smallest aligned write that covers whole stripes and whole allocation chunks. In free chunks
    /// it needs no read and no log record.
    pub fn whole_write_bytes(&self) -> u64 {
        if self.rows() == 1 { self.stripe_data_bytes } else { self.band_bytes() }
    }

    /// Stripe groups of the drive group.
    pub fn stripe_group_count(&self) -> u64 {
        self.bands * self.sets
    }

    /// Allocation chunks of the drive group.
    pub fn chunk_count(&self) -> u64 {
        self.stripe_group_count() * self.chunks_per_stripe_group()
    }

    /// Rows (stripes) of a stripe group.
    pub fn rows(&self) -> u64 {
        1 << self.rows_shift
    }

    /// Allocation chunks of a stripe group.
    pub fn chunks_per_stripe_group(&self) -> u64 {
        self.stripe_group_bytes >> self.chunk_shift
    }

    /// The place of a group byte.
    #[inline]
    pub fn place(&self, offset: u64) -> StripPlace {
        let stripe = offset / self.stripe_data_bytes;
        let within = offset - stripe * self.stripe_data_bytes;
        let role = (within >> self.strip_shift) as usize;
        let in_strip = within & (self.strip_bytes - 1);
        let (row, set) = if self.sets == 1 { (stripe, 0) } else { (stripe / self.sets, stripe % self.sets) };
        let (band, row_in_stripe_group) = (row >> self.rows_shift, row & (self.rows() - 1));
        StripPlace {
            stripe_group: StripeGroup(band * self.sets + set),
            role,
            offset: (row_in_stripe_group << self.strip_shift) + in_strip,
            left: self.strip_bytes - in_strip,
        }
    }

    /// The group byte at a member offset of a data strip: the inverse of [`Geometry::place`].
    pub fn offset(&self, stripe_group: StripeGroup, role: Role, offset: u64) -> u64 {
        assert!(role < self.data, "only data strips have group bytes");
        let (band, set) = (stripe_group.0 / self.sets, stripe_group.0 % self.sets);
        let row = (band << self.rows_shift) + (offset >> self.strip_shift);
        (row * self.sets + set) * self.stripe_data_bytes + role as u64 * self.strip_bytes + offset % self.strip_bytes
    }

    /// The set of a stripe group.
    pub fn set(&self, stripe_group: StripeGroup) -> u64 {
        stripe_group.0 % self.sets
    }

    /// The member that holds a strip, in the row of member offset `offset`.
    ///
    /// Parity rotates as in Linux md's left-symmetric layout: P of row `r` is on member
    /// `n - 1 - r mod n` of the set. The other parity strips and then the data strips follow on the
    /// next members, with wraparound. Without parity nothing rotates.
    #[inline]
    pub fn member(&self, stripe_group: StripeGroup, offset: u64, role: Role) -> MemberIndex {
        let strips = self.strips() as u64;
        let (band, set) =
            if self.sets == 1 { (stripe_group.0, 0) } else { (stripe_group.0 / self.sets, stripe_group.0 % self.sets) };
        let row = (band << self.rows_shift) + (offset >> self.strip_shift);
        let local = if self.parity_count == 0 {
            role as u64
        } else {
            let parity = strips - 1 - row % strips;
            let step = if role < self.data { self.parity_count + role } else { role - self.data } as u64;
            let local = parity + step;
            if local >= strips { local - strips } else { local }
        };
        MemberIndex((set * strips + local) as u16)
    }

    /// The strip that a member holds in the row of member offset `offset`, or `None` if the stripe
    /// group lies in another set.
    pub fn role(&self, stripe_group: StripeGroup, offset: u64, member: MemberIndex) -> Option<Role> {
        (0..self.strips()).find(|&role| self.member(stripe_group, offset, role) == member)
    }

    /// The byte on each member at member offset `offset` of a stripe group.
    #[inline]
    pub fn drive_offset(&self, stripe_group: StripeGroup, offset: u64) -> u64 {
        let band = if self.sets == 1 { stripe_group.0 } else { stripe_group.0 / self.sets };
        self.data_start + band * self.stripe_group_bytes + offset
    }

    /// The allocation chunk at member offset `offset` of a stripe group.
    #[inline]
    pub fn chunk_index(&self, stripe_group: StripeGroup, offset: u64) -> u64 {
        if self.stripe_group_bytes == self.chunk_bytes {
            return stripe_group.0;
        }
        let (band, set) =
            if self.sets == 1 { (stripe_group.0, 0) } else { (stripe_group.0 / self.sets, stripe_group.0 % self.sets) };
        (band * self.chunks_per_stripe_group() + (offset >> self.chunk_shift)) * self.sets + set
    }

    /// The stripe group and the member offsets of a chunk: the inverse of
    /// [`Geometry::chunk_index`].
    pub fn chunk_place(&self, index: u64) -> (StripeGroup, Range) {
        let (row, set) = (index / self.sets, index % self.sets);
        let (band, chunk) = (row / self.chunks_per_stripe_group(), row % self.chunks_per_stripe_group());
        (StripeGroup(band * self.sets + set), Range::new(chunk * self.chunk_bytes, (chunk + 1) * self.chunk_bytes))
    }

    /// The member offsets of the allocation chunks of a stripe group, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Range> + use<> {
        let chunk = self.chunk_bytes;
        (0..self.chunks_per_stripe_group()).map(move |index| Range::new(index * chunk, (index + 1) * chunk))
    }

    /// The member offsets of the row at member offset `offset` of a stripe group.
    pub fn row_of(&self, offset: u64) -> Range {
        let start = offset - offset % self.strip_bytes;
        Range::new(start, start + self.strip_bytes)
    }

    /// The member offsets of the rows of a stripe group, in order.
    pub fn row_ranges(&self) -> impl Iterator<Item = Range> + use<> {
        let strip = self.strip_bytes;
        (0..self.rows()).map(move |row| Range::new(row * strip, (row + 1) * strip))
    }

    /// The range with its ends moved outward to sectors.
    pub fn outward(&self, range: Range) -> Range {
        Range::new(range.start & !(self.sector_bytes - 1), range.end.next_multiple_of(self.sector_bytes))
    }

    /// The whole sectors within the range. Empty if there are none.
    pub fn inward(&self, range: Range) -> Range {
        let start = range.start.next_multiple_of(self.sector_bytes);
        Range::new(start, (range.end & !(self.sector_bytes - 1)).max(start))
    }
}
