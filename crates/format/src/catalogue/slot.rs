//! A catalogue as bytes: a header block, then the JSON document, padded with zeroes to a whole
//! block.
//!
//! Every member has two slots. A writer overwrites the slot that does not hold the newest copy. A
//! reader takes the valid copy with the highest sequence over all members.

use std::mem::{offset_of, size_of};

use gf::crc32c;
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{Catalogue, CatalogueError};
use crate::checksum::crc32c_without;
use crate::layout::Layout;
use crate::uuid::Uuid;
use crate::{BLOCK, COUNTER_MAX};

/// Slots of the catalogue on every member.
pub const CATALOGUE_SLOTS: u64 = 2;

/// Newest version of the catalogue format that this crate reads. It writes the oldest version that
/// can hold the content: see [`Catalogue::version`].
pub const CATALOGUE_VERSION: u32 = 3;

const MAGIC: [u8; 8] = *b"PurlinCT";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct DiskHeader {
    magic: [u8; 8],
    version: U32,
    crc32c: U32,
    array: [u8; 16],
    sequence: U64,
    payload_len: U32,
    payload_crc32c: U32,
    reserved: [u8; 4048],
}

const _: () = {
    assert!(size_of::<DiskHeader>() == BLOCK);
    assert!(offset_of!(DiskHeader, crc32c) == 12);
    assert!(offset_of!(DiskHeader, array) == 16);
    assert!(offset_of!(DiskHeader, sequence) == 32);
    assert!(offset_of!(DiskHeader, payload_len) == 40);
    assert!(offset_of!(DiskHeader, payload_crc32c) == 44);
    assert!(offset_of!(DiskHeader, reserved) == 48);
};

/// The catalogue does not fit a slot.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the catalogue needs {need} bytes, a slot has {have}")]
pub struct TooLarge {
    /// Bytes needed.
    pub need: u64,
    /// Bytes of a slot.
    pub have: u64,
}

/// Why a slot does not hold a catalogue of this array.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SlotError {
    /// The magic is missing, or there are fewer bytes than a header.
    #[error("not a catalogue")]
    NotACatalogue,
    /// The header or the document was damaged or written only in part.
    #[error("the checksum of the catalogue's {part} does not match")]
    Checksum {
        /// `header` or `document`.
        part: &'static str,
    },
    /// Written by another version of Purlin.
    #[error("catalogue of version {found}, this program reads versions 1 to {CATALOGUE_VERSION}")]
    UnknownVersion {
        /// The version found.
        found: u32,
    },
    /// Left behind by another array.
    #[error("catalogue of array {array}")]
    OtherArray {
        /// That array.
        array: Uuid,
    },
    /// A sequence above [`COUNTER_MAX`], which counting never reaches.
    #[error("the sequence {found} of the catalogue is invalid")]
    Sequence {
        /// The sequence found.
        found: u64,
    },
    /// The document is longer than the slot.
    #[error("a document of {len} bytes does not fit the slot")]
    Length {
        /// Length in the header, in bytes.
        len: u32,
    },
    /// The checksums are right, but the document is not a catalogue.
    #[error("the document is not a catalogue: {reason}")]
    Document {
        /// The parser's message: what is wrong, and where.
        reason: String,
    },
    /// The document breaks an invariant.
    #[error("the catalogue is invalid: {0}")]
    Invalid(CatalogueError),
}

impl SlotError {
    /// The copy is intact, but this program cannot read it, because a newer version wrote it. Such
    /// a copy must not count as absent: an older catalogue would be used, or none, and space that
    /// is in use would be allocated again.
    pub fn is_whole(&self) -> bool {
        matches!(self, SlotError::UnknownVersion { .. } | SlotError::Document { .. } | SlotError::Invalid(_))
    }
}

/// The bytes of a slot up to the end of the document, a whole number of blocks.
///
/// # Errors
/// [`TooLarge`] if they are more than `slot_bytes`.
///
/// # Panics
/// If the catalogue does not pass [`Catalogue::check`] even for a group of unlimited capacity.
pub fn encode_slot(catalogue: &Catalogue, array: &Uuid, sequence: u64, slot_bytes: u64) -> Result<Vec<u8>, TooLarge> {
    assert_eq!(catalogue.check(u64::MAX), Ok(()), "a catalogue is valid before it is written");
    let document = serde_json::to_vec(catalogue).expect("a catalogue has string keys only");
    let bytes_len = BLOCK + document.len().next_multiple_of(BLOCK);
    let payload_len = u32::try_from(document.len()).ok().filter(|_| bytes_len as u64 <= slot_bytes);
    let payload_len = payload_len.ok_or(TooLarge { need: bytes_len as u64, have: slot_bytes })?;
    let mut bytes = vec![0; bytes_len];
    bytes[BLOCK..BLOCK + document.len()].copy_from_slice(&document);
    let mut header = DiskHeader::new_zeroed();
    header.magic = MAGIC;
    header.version = catalogue.version().into();
    header.array = *array.as_bytes();
    header.sequence = sequence.into();
    header.payload_len = payload_len.into();
    header.payload_crc32c = crc32c(&bytes[BLOCK..]).into();
    header.crc32c = crc32c_without(header.as_bytes(), offset_of!(DiskHeader, crc32c)).into();
    bytes[..BLOCK].copy_from_slice(header.as_bytes());
    Ok(bytes)
}

/// Reads a slot: its sequence and the catalogue. Bytes after the document's last block are ignored.
///
/// Extents are not compared with the capacity of the group, which is unknown here; see
/// [`Catalogue::check`].
///
/// # Errors
/// [`SlotError`]: the copy counts as absent, unless it [is whole](SlotError::is_whole).
pub fn decode_slot(bytes: &[u8], array: &Uuid) -> Result<(u64, Catalogue), SlotError> {
    let (header, payload) = DiskHeader::ref_from_prefix(bytes).map_err(|_| SlotError::NotACatalogue)?;
    if header.magic != MAGIC {
        return Err(SlotError::NotACatalogue);
    }
    if header.crc32c.get() != crc32c_without(header.as_bytes(), offset_of!(DiskHeader, crc32c)) {
        return Err(SlotError::Checksum { part: "header" });
    }
    if !(1..=CATALOGUE_VERSION).contains(&header.version.get()) {
        return Err(SlotError::UnknownVersion { found: header.version.get() });
    }
    if header.array != *array.as_bytes() {
        return Err(SlotError::OtherArray { array: Uuid::from_bytes(header.array) });
    }
    let sequence = header.sequence.get();
    if sequence > COUNTER_MAX {
        return Err(SlotError::Sequence { found: sequence });
    }
    let len = header.payload_len.get();
    let filled_len = (len as usize).next_multiple_of(BLOCK);
    let filled = payload.get(..filled_len).ok_or(SlotError::Length { len })?;
    if header.payload_crc32c.get() != crc32c(filled) {
        return Err(SlotError::Checksum { part: "document" });
    }
    let catalogue: Catalogue = serde_json::from_slice(&filled[..len as usize])
        .map_err(|error| SlotError::Document { reason: error.to_string() })?;
    if catalogue.version() > header.version.get() {
        let reason = format!("fields of version {} in one of version {}", catalogue.version(), header.version.get());
        return Err(SlotError::Document { reason });
    }
    catalogue.check(u64::MAX).map_err(SlotError::Invalid)?;
    Ok((sequence, catalogue))
}

/// Bytes of one slot.
pub fn catalogue_slot_bytes(layout: &Layout) -> u64 {
    layout.catalogue.len / CATALOGUE_SLOTS
}

/// Where slot `slot` (0 or 1) lies on a member, in bytes.
///
/// # Panics
/// If there is no such slot.
pub fn catalogue_slot_offset(layout: &Layout, slot: u64) -> u64 {
    assert!(slot < CATALOGUE_SLOTS, "slot {slot} of the catalogue");
    layout.catalogue.offset + slot * catalogue_slot_bytes(layout)
}
