//! RAID 4, 5 and 6: which disks of a row hold P, Q and each data strip.

use std::fmt;

use smallvec::SmallVec;

use super::{GeometryError, Level};

/// The rotation of parity over the disks, and the order of data. The numbers are md's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParityLayout {
    /// 0: parity from the last disk downwards; data in the order of the disks.
    LeftAsymmetric,
    /// 1: parity from the first disk upwards; data in the order of the disks.
    RightAsymmetric,
    /// 2, the default: parity from the last disk downwards; data starts after it.
    LeftSymmetric,
    /// 3: parity from the first disk upwards; data starts after it.
    RightSymmetric,
    /// 4: parity on the first disks.
    ParityFirst,
    /// 5: parity on the last disks; also RAID 4.
    ParityLast,
    /// 8: as right-asymmetric, but with another order of data for Q.
    DdfZeroRestart,
    /// 9: as left-asymmetric one row further, but with another order of data for Q.
    DdfNRestart,
    /// 10: P from the last disk downwards with Q before it, and another order of data for Q.
    DdfNContinue,
    /// 16: RAID 5's left-asymmetric, with Q on a further disk.
    LeftAsymmetric6,
    /// 17: RAID 5's right-asymmetric, with Q on a further disk.
    RightAsymmetric6,
    /// 18: RAID 5's left-symmetric, with Q on a further disk.
    LeftSymmetric6,
    /// 19: RAID 5's right-symmetric, with Q on a further disk.
    RightSymmetric6,
    /// 20: P on the first disk, Q on the last.
    ParityFirst6,
}

use ParityLayout::*;

/// Number and mdadm name of each.
const LAYOUTS: [(ParityLayout, u32, &str); 14] = [
    (LeftAsymmetric, 0, "left-asymmetric"),
    (RightAsymmetric, 1, "right-asymmetric"),
    (LeftSymmetric, 2, "left-symmetric"),
    (RightSymmetric, 3, "right-symmetric"),
    (ParityFirst, 4, "parity-first"),
    (ParityLast, 5, "parity-last"),
    (DdfZeroRestart, 8, "ddf-zero-restart"),
    (DdfNRestart, 9, "ddf-N-restart"),
    (DdfNContinue, 10, "ddf-N-continue"),
    (LeftAsymmetric6, 16, "left-asymmetric-6"),
    (RightAsymmetric6, 17, "right-asymmetric-6"),
    (LeftSymmetric6, 18, "left-symmetric-6"),
    (RightSymmetric6, 19, "right-symmetric-6"),
    (ParityFirst6, 20, "parity-first-6"),
];

impl ParityLayout {
    /// The layout with this number, at this level.
    pub fn of_md(level: Level, number: u32) -> Option<ParityLayout> {
        if level == Level::Raid4 {
            return Some(ParityLast);
        }
        let known = LAYOUTS.iter().find(|(_, known, _)| *known == number)?.0;
        (level == Level::Raid6 || number <= 5).then_some(known)
    }

    /// Whether the layout is RAID 5 over all disks but the last, which holds Q.
    fn has_q_apart(self) -> bool {
        matches!(self, LeftAsymmetric6 | RightAsymmetric6 | LeftSymmetric6 | RightSymmetric6 | ParityFirst6)
    }

    /// Whether data starts after the parity and continues at the first disk.
    fn is_symmetric(self) -> bool {
        matches!(self, LeftSymmetric | RightSymmetric | LeftSymmetric6 | RightSymmetric6 | DdfNContinue)
    }

    /// Whether the powers in Q are the disk numbers. The disks of P and Q, and their powers, are
    /// left out.
    fn counts_disks(self) -> bool {
        matches!(self, DdfZeroRestart | DdfNRestart | DdfNContinue)
    }
}

impl fmt::Display for ParityLayout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = LAYOUTS.iter().find(|(layout, ..)| layout == self).map_or("", |(.., name)| name);
        formatter.write_str(name)
    }
}

/// RAID 4, 5 or 6 over `disks` disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parity {
    layout: ParityLayout,
    disks: usize,
    parity_disks: usize,
}

/// The disks of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The disk of each data strip, in the order of the array's bytes.
    pub data: SmallVec<[usize; 16]>,
    /// The disk of P.
    pub p: usize,
    /// The disk of Q.
    pub q: Option<usize>,
    /// The disk whose bytes are multiplied by this power of 2 in Q. `None` if the strip counts as
    /// zeroes.
    pub powers: SmallVec<[Option<usize>; 16]>,
}

impl Parity {
    pub(super) fn new(level: Level, layout: u32, disks: usize) -> Result<Parity, GeometryError> {
        let known = ParityLayout::of_md(level, layout).ok_or(GeometryError::Layout { level, layout })?;
        if level == Level::Raid6 && disks > gf::STRIPS_MAX - 2 {
            return Err(GeometryError::TooManyForQ { disks: disks as u32, max: gf::STRIPS_MAX - 2 });
        }
        Ok(Parity { layout: known, disks, parity_disks: if level == Level::Raid6 { 2 } else { 1 } })
    }

    /// The layout of data and parity.
    pub fn layout(&self) -> ParityLayout {
        self.layout
    }

    /// Data strips of a row.
    pub fn data_count(&self) -> usize {
        self.disks - self.parity_disks
    }

    /// Strips of a row that may be lost.
    pub fn survives(&self) -> usize {
        self.parity_disks
    }

    /// Number of powers that Q consists of: the length of [`Row::powers`].
    pub fn power_count(&self) -> usize {
        if self.layout.counts_disks() { self.disks } else { self.data_count() }
    }

    /// The disks of P and Q in a row.
    fn parity_disks(&self, row: u64) -> (usize, Option<usize>) {
        // Number of disks that P rotates over.
        let turn = if self.layout.has_q_apart() { self.disks - 1 } else { self.disks };
        let upwards = (row % turn as u64) as usize;
        let downwards = turn - 1 - upwards;
        let p = match self.layout {
            LeftAsymmetric | LeftSymmetric | LeftAsymmetric6 | LeftSymmetric6 | DdfNContinue => downwards,
            RightAsymmetric | RightSymmetric | RightAsymmetric6 | RightSymmetric6 | DdfZeroRestart => upwards,
            DdfNRestart => turn - 1 - ((row + 1) % turn as u64) as usize,
            ParityFirst | ParityFirst6 => 0,
            ParityLast => self.data_count(),
        };
        let q = match self.layout {
            _ if self.parity_disks == 1 => None,
            layout if layout.has_q_apart() => Some(self.disks - 1),
            DdfNContinue => Some((p + self.disks - 1) % self.disks),
            _ => Some((p + 1) % self.disks),
        };
        (p, q)
    }

    /// The disks of a row.
    pub fn row(&self, row: u64) -> Row {
        let (p, q) = self.parity_disks(row);
        let is_data = |disk: &usize| *disk != p && Some(*disk) != q;
        let from = |start: usize| (0..self.disks).map(move |step| (start + step) % self.disks);
        // Data starts after the parity: after Q, if Q directly follows P. If Q is apart, P rotates
        // over fewer disks, but Q is skipped anyway.
        let behind = match q {
            Some(q) if q == (p + 1) % self.disks => q + 1,
            _ => p + 1,
        };
        let data = if self.layout.is_symmetric() {
            from(behind).filter(is_data).collect()
        } else {
            from(0).filter(is_data).collect()
        };
        let powers = match q {
            None => SmallVec::new(),
            Some(_) if self.layout.counts_disks() => from(0).map(|disk| Some(disk).filter(is_data)).collect(),
            Some(q) => from(q + 1).filter(is_data).map(Some).collect(),
        };
        Row { data, p, q, powers }
    }
}
