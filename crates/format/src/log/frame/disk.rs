//! The structures that a frame consists of on the drives.

use std::mem::size_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a frame.
pub(super) const MAGIC: [u8; 8] = *b"PurlinLG";

/// Offset of the checksum in the head.
pub(super) const CRC_FIELD: usize = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DiskHead {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    pub(super) crc32c: U32,
    pub(super) array: [u8; 16],
    pub(super) generation: U64,
    pub(super) offset: U64,
    pub(super) tail: U64,
    pub(super) stream: U32,
    pub(super) parts: U32,
    pub(super) meta_len: U32,
    pub(super) frame_len: U32,
    pub(super) piece_bytes: U32,
    pub(super) exceptions: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DiskPart {
    pub(super) sequence: U64,
    pub(super) stripe_group: U64,
    pub(super) holders: U64,
    pub(super) in_sync: U64,
    pub(super) role: U16,
    pub(super) entries: U16,
    pub(super) payload_offset: U32,
    pub(super) payload_len: U32,
    pub(super) flags: U32,
}

/// The payload is the new content.
pub(super) const FLAG_WHOLE: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DiskEntry {
    pub(super) offset: U64,
    pub(super) len: U32,
    pub(super) checksums: U32,
    pub(super) overwritten: U64,
    pub(super) in_parity: U64,
}

const _: () = {
    assert!(size_of::<DiskHead>() == 80 && size_of::<DiskPart>() == 48 && size_of::<DiskEntry>() == 32);
};
