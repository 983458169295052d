//! Reservation notifications of one controller: NVMe Base 2.0, clause 8.19.1.

use std::collections::{BTreeMap, VecDeque};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes, Unaligned};

use super::Notice;

/// Maximum number of unread notifications, as many as NALP can count. Beyond that the newest are
/// lost, and the host notices the gap in their numbers.
const NOTICES_MAX: usize = 256;

/// REGPRE, RESREL and RESPRE of the feature Reservation Notification Mask.
const MASK: u32 = 0b1110;

/// The Reservation Notification log page: Base 2.0, clause 5.16.1, log page 80h.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Page {
    count: U64,
    kind: u8,
    available: u8,
    reserved10: [u8; 2],
    nsid: U32,
    reserved16: [u8; 48],
}

/// Unread notifications of a controller's host, and those it has masked.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Masked kinds of notifications by namespace, as in the feature.
    masks: BTreeMap<u32, u32>,
    /// The oldest first, with their numbers.
    waiting: VecDeque<(u64, u32, Notice)>,
    /// LPC of the newest notification.
    count: u64,
}

impl Notices {
    /// The feature Reservation Notification Mask of a namespace.
    pub fn mask(&self, nsid: u32) -> u32 {
        self.masks.get(&nsid).copied().unwrap_or(0)
    }

    pub fn set_mask(&mut self, nsid: u32, mask: u32) {
        match mask & MASK {
            0 => self.masks.remove(&nsid),
            mask => self.masks.insert(nsid, mask),
        };
    }

    /// Adds a notification. Returns whether the host wants it.
    pub fn happened(&mut self, nsid: u32, notice: Notice) -> bool {
        // The mask has the bit number of the kind.
        if self.mask(nsid) & 1 << notice as u8 != 0 {
            return false;
        }
        self.count += 1;
        if self.waiting.len() < NOTICES_MAX {
            self.waiting.push_back((self.count, nsid, notice));
        }
        true
    }

    /// The log page: the oldest notification, or an empty one.
    pub fn page(&self) -> Vec<u8> {
        let (count, nsid, kind) =
            self.waiting.front().map_or((0, 0, 0), |(count, nsid, notice)| (*count, *nsid, *notice as u8));
        let page = Page {
            count: count.into(),
            kind,
            available: self.waiting.len().saturating_sub(1) as u8,
            reserved10: [0; 2],
            nsid: nsid.into(),
            reserved16: [0; 48],
        };
        page.as_bytes().to_vec()
    }

    /// The host has read the oldest notification. Returns whether there is another.
    pub fn read(&mut self) -> bool {
        self.waiting.pop_front();
        !self.waiting.is_empty()
    }

    /// The controller was reset: the host's masks are cleared.
    pub fn reset(&mut self) {
        self.masks.clear();
    }
}

const _: () = assert!(size_of::<Page>() == 64);
