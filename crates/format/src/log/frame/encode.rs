//! Writing frames, and how long they are.

use std::mem::size_of;

use gf::crc32c_append;
use zerocopy::{FromZeros, IntoBytes};

use super::disk::{CRC_FIELD, DiskEntry, DiskHead, DiskPart, FLAG_WHOLE, MAGIC};
use super::{Entry, FRAME_VERSION, FrameHead, PartData};
use crate::BLOCK;
use crate::checksum::crc32c_without;
use crate::uuid::Uuid;

/// Bytes of the head and the parts, without padding.
fn meta_len(parts: &[PartData<'_>]) -> usize {
    let entry = |entry: &Entry| size_of::<DiskEntry>() + 4 * entry.checksums.len();
    let part = |part: &PartData<'_>| size_of::<DiskPart>() + part.entries.iter().map(entry).sum::<usize>();
    size_of::<DiskHead>() + parts.iter().map(part).sum::<usize>()
}

/// Bytes of a frame before the payloads: a multiple of [`BLOCK`].
pub fn frame_meta_len(parts: &[PartData<'_>]) -> usize {
    meta_len(parts).next_multiple_of(BLOCK)
}

/// Bytes of a frame with these parts: a multiple of [`BLOCK`].
pub fn frame_len(parts: &[PartData<'_>]) -> usize {
    let payload: usize = parts.iter().map(|part| part.payload.len()).sum();
    frame_meta_len(parts) + payload.next_multiple_of(BLOCK)
}

/// Most exceptions of a checkpoint record.
pub const EXCEPTIONS_MAX: usize = (BLOCK - size_of::<DiskHead>()) / 8;

/// Encodes a checkpoint record: a frame without parts. It says that nothing below the head's tail
/// needs recovery, except for `exceptions`.
///
/// # Panics
/// If there are more than [`EXCEPTIONS_MAX`] exceptions.
pub fn encode_checkpoint(array: &Uuid, head: &FrameHead, exceptions: &[u64]) -> [u8; BLOCK] {
    assert!(exceptions.len() <= EXCEPTIONS_MAX, "{} exceptions", exceptions.len());
    let mut out = [0; BLOCK];
    encode(array, head, exceptions, &[], &mut out);
    out
}

/// Writes a frame to `out`.
///
/// # Panics
/// If `out` is not [`frame_len`] bytes long.
pub fn encode_frame(array: &Uuid, head: &FrameHead, parts: &[PartData<'_>], out: &mut [u8]) {
    assert_eq!(out.len(), frame_len(parts), "a frame of {} parts", parts.len());
    let (meta, mut rest) = out.split_at_mut(frame_meta_len(parts));
    encode_frame_meta(array, head, parts, meta);
    for part in parts {
        let payload;
        (payload, rest) = rest.split_at_mut(part.payload.len());
        payload.copy_from_slice(part.payload);
    }
    rest.fill(0);
}

/// Writes the bytes before the payloads of a frame to `out`. The whole frame is these bytes, the
/// payloads in order, and zeroes up to [`frame_len`].
///
/// # Panics
/// If `out` is not [`frame_meta_len`] bytes long.
pub fn encode_frame_meta(array: &Uuid, head: &FrameHead, parts: &[PartData<'_>], out: &mut [u8]) {
    assert_eq!(out.len(), frame_meta_len(parts), "a frame of {} parts", parts.len());
    encode(array, head, &[], parts, out);
}

fn encode(array: &Uuid, head: &FrameHead, exceptions: &[u64], parts: &[PartData<'_>], out: &mut [u8]) {
    let meta = meta_len(parts) + 8 * exceptions.len();
    let mut payload_at = out.len();
    let payload_len: usize = parts.iter().map(|part| part.payload.len()).sum();
    let padding = payload_len.next_multiple_of(BLOCK) - payload_len;
    out[meta..].fill(0);
    let mut disk = disk_head(array, head);
    disk.parts = (parts.len() as u32).into();
    disk.meta_len = (meta as u32).into();
    disk.frame_len = ((out.len() + payload_len + padding) as u32).into();
    disk.exceptions = (exceptions.len() as u32).into();
    let mut at = 0;
    let mut put = |out: &mut [u8], bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(out, disk.as_bytes());
    for exception in exceptions {
        put(out, &exception.to_le_bytes());
    }
    for part in parts {
        put(out, disk_part(part, payload_at).as_bytes());
        for entry in part.entries {
            put(out, disk_entry(entry).as_bytes());
            for checksum in &entry.checksums {
                put(out, &checksum.to_le_bytes());
            }
        }
        payload_at += part.payload.len();
    }
    let checksum = crc32c_without(out, CRC_FIELD);
    let checksum = parts.iter().fold(checksum, |sum, part| crc32c_append(sum, part.payload));
    let checksum = crc32c_append(checksum, &[0; BLOCK][..padding]);
    out[CRC_FIELD..CRC_FIELD + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// The head, still without lengths, counts and the checksum.
fn disk_head(array: &Uuid, head: &FrameHead) -> DiskHead {
    let mut disk = DiskHead::new_zeroed();
    disk.magic = MAGIC;
    disk.version = FRAME_VERSION.into();
    disk.array = *array.as_bytes();
    disk.generation = head.generation.into();
    disk.offset = head.offset.into();
    disk.tail = head.tail.into();
    disk.stream = head.stream.into();
    disk.piece_bytes = head.piece_bytes.into();
    disk
}

/// A part whose payload lies at `payload_at` in the frame.
fn disk_part(part: &PartData<'_>, payload_at: usize) -> DiskPart {
    let mut disk = DiskPart::new_zeroed();
    disk.sequence = part.sequence.into();
    disk.stripe_group = part.stripe_group.into();
    disk.holders = part.holders.bits().into();
    disk.in_sync = part.in_sync.bits().into();
    disk.role = part.role.into();
    disk.entries = (part.entries.len() as u16).into();
    disk.payload_offset = (payload_at as u32).into();
    disk.payload_len = (part.payload.len() as u32).into();
    disk.flags = if part.whole { FLAG_WHOLE } else { 0 }.into();
    disk
}

fn disk_entry(entry: &Entry) -> DiskEntry {
    let mut disk = DiskEntry::new_zeroed();
    disk.offset = entry.offset.into();
    disk.len = entry.len.into();
    disk.checksums = (entry.checksums.len() as u32).into();
    disk.overwritten = entry.overwritten.bits().into();
    disk.in_parity = entry.in_parity.bits().into();
    disk
}
