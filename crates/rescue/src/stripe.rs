//! Reads strips, and computes those that cannot be read: docs/format/parity.md.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use format::BLOCK;
use gf::{Code, Decoder};

use crate::group::Group;
use crate::log::{Live, Log};
use crate::recover::recover;
use crate::sums::Sums;
use crate::survey::SurveyedDrive;

/// The smallest range that a drive may fail to read: a sector of 512 bytes. Drives with larger
/// sectors are read more often than necessary.
const SECTOR: usize = 512;

/// Reads the strips of a group.
pub(crate) struct StripeReader<'a> {
    group: &'a Group,
    drives: &'a [SurveyedDrive],
    log: &'a Log,
    pub sums: Sums<'a>,
    pub code: Code,
    decoders: BTreeMap<(Vec<usize>, usize), Decoder>,
    /// Bytes that were computed because their member could not provide them.
    pub computed_bytes: u64,
}

/// A range of bytes on all members of a set, within one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemberRange {
    pub set: u64,
    /// Offset from the start of the data region.
    pub offset: u64,
}

/// The member's bytes do not fit their checksum, or could not be read.
#[derive(Debug)]
pub(crate) struct Unusable;

/// More strips are missing than the code survives.
#[derive(Debug)]
pub(crate) struct TooMuchLost;

impl<'a> StripeReader<'a> {
    pub(crate) fn new(group: &'a Group, drives: &'a [SurveyedDrive], log: &'a Log) -> Self {
        let geometry = &group.geometry;
        // A mirror is a code with one data strip: its first three parity strips are copies
        // (docs/format/parity.md: g^0 is 1).
        let code = Code::new(geometry.data_count, geometry.parity_count).expect("a valid shape has a code");
        let sums = Sums::new(group, drives);
        StripeReader { group, drives, log, sums, code, decoders: BTreeMap::new(), computed_bytes: 0 }
    }

    /// Fills `buf` with the bytes of a data strip. Lost ranges are filled with zeroes and reported
    /// to `lost`: start in `buf`, length.
    pub(crate) fn read(&mut self, at: MemberRange, strip: usize, buf: &mut [u8], lost: &mut dyn FnMut(usize, usize)) {
        let mut done = 0;
        while done < buf.len() {
            let offset = at.offset + done as u64;
            let (len, live) = self.log.at(at.set, offset, (buf.len() - done) as u64);
            let part = &mut buf[done..done + len as usize];
            let at = MemberRange { offset, ..at };
            match live {
                None => self.read_stable(at, strip, part, &mut |from, len| lost(done + from, len)),
                Some(live) if self.read_live(at, strip, live, part).is_none() => {
                    part.fill(0);
                    lost(done, part.len());
                }
                Some(_) => {}
            }
            done += len as usize;
        }
    }

    /// Reads a strip in a range that was being written when the group stopped.
    fn read_live(&mut self, at: MemberRange, strip: usize, live: &Live, buf: &mut [u8]) -> Option<()> {
        let geometry = &self.group.geometry;
        let is_there = self.group.is_in_sync(geometry.slot_of(at.set, at.offset, strip));
        let give = |strip: usize, range: Range<u64>| {
            if !self.group.is_in_sync(geometry.slot_of(at.set, range.start, strip)) {
                return None;
            }
            let mut bytes = vec![0; (range.end - range.start) as usize];
            let at = MemberRange { offset: range.start, ..at };
            // Checksums of strips that the record changes may be older or newer than the data.
            let is_changed =
                strip >= geometry.data_count || (live.entry.overwritten | live.entry.in_parity).contains(strip);
            let read = match is_changed {
                true => self.read_member(at, strip, &mut bytes).map_err(|_| Unusable),
                false => self.read_verified(at, strip, &mut bytes),
            };
            read.ok().map(|()| bytes)
        };
        let bytes = recover(&self.code, live, strip, at.offset..at.offset + buf.len() as u64, &give)?;
        buf.copy_from_slice(&bytes);
        self.computed_bytes += if is_there { 0 } else { buf.len() as u64 };
        Some(())
    }

    /// Reads a strip of a consistent stripe.
    fn read_stable(&mut self, at: MemberRange, strip: usize, buf: &mut [u8], lost: &mut dyn FnMut(usize, usize)) {
        let missing = self.group.lost_strips(at.set, at.offset);
        let is_there = !missing.contains(&strip);
        if is_there && self.read_verified(at, strip, buf).is_ok() {
            return;
        }
        if self.compute(at, strip, &missing, buf).is_ok() {
            self.computed_bytes += buf.len() as u64;
            return;
        }
        let Some(part) = [BLOCK, SECTOR].into_iter().find(|&part| part < buf.len()) else {
            buf.fill(0);
            return lost(0, buf.len());
        };
        if missing.len() > self.code.parity_count() && !is_there {
            // Smaller ranges would not help.
            buf.fill(0);
            return lost(0, buf.len());
        }
        let mut is_lost = false;
        for (index, piece) in buf.chunks_mut(part).enumerate() {
            let start = index * part;
            let at = MemberRange { offset: at.offset + start as u64, ..at };
            self.read_stable(at, strip, piece, &mut |from, len| {
                is_lost = true;
                lost(start + from, len);
            });
        }
        // Put together from sectors that were not verified one by one: the checksum of the block
        // verifies them.
        let is_block = buf.len() == BLOCK && at.offset.is_multiple_of(BLOCK as u64);
        let slot = self.group.geometry.slot_of(at.set, at.offset, strip);
        if is_block && is_there && !is_lost && !self.sums.fit(slot, at.offset, buf) {
            buf.fill(0);
            lost(0, buf.len());
        }
    }

    /// Reads a strip from its member, and refuses data that does not fit its checksums. A block
    /// that is only partly readable cannot be verified, so its readable parts are accepted.
    fn read_verified(&self, at: MemberRange, strip: usize, buf: &mut [u8]) -> Result<(), Unusable> {
        self.read_member(at, strip, buf).map_err(|_| Unusable)?;
        if self.fits_sums(at, strip, buf) { Ok(()) } else { Err(Unusable) }
    }

    /// Whether a member's data fits its checksums, as far as there are any.
    pub(crate) fn fits_sums(&self, at: MemberRange, strip: usize, bytes: &[u8]) -> bool {
        let slot = self.group.geometry.slot_of(at.set, at.offset, strip);
        let (start, end) = (at.offset / BLOCK as u64 * BLOCK as u64, at.offset + bytes.len() as u64);
        if self.sums.place(start).is_none() {
            return true;
        }
        let end_of_block = end.next_multiple_of(BLOCK as u64);
        if (start, end_of_block) == (at.offset, end) {
            return self.sums.fit(slot, start, bytes);
        }
        let mut blocks = vec![0; (end_of_block - start) as usize];
        match self.read_member(MemberRange { offset: start, ..at }, strip, &mut blocks) {
            Ok(()) => self.sums.fit(slot, start, &blocks),
            // A range of a block or more must be checked in smaller parts.
            Err(_) => bytes.len() < BLOCK,
        }
    }

    /// Reads a strip from its member, without regard to checksums.
    pub(crate) fn read_member(&self, at: MemberRange, strip: usize, buf: &mut [u8]) -> io::Result<()> {
        let geometry = &self.group.geometry;
        let slot = geometry.slot_of(at.set, at.offset, strip);
        self.group.read(self.drives, slot, geometry.data_offset + at.offset, buf)
    }

    /// Computes a strip from the others. A strip that cannot be read counts as lost too, for this
    /// whole range.
    fn compute(&mut self, at: MemberRange, strip: usize, missing: &[usize], buf: &mut [u8]) -> Result<(), TooMuchLost> {
        let mut lost = missing.to_vec();
        if !lost.contains(&strip) {
            lost.push(strip);
            lost.sort_unstable();
        }
        let mut read: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        'again: loop {
            let sources = self.decoder(&lost, strip)?.sources().to_vec();
            for source in sources {
                if read.contains_key(&source) {
                    continue;
                }
                let mut bytes = vec![0; buf.len()];
                if self.read_verified(at, source, &mut bytes).is_err() {
                    lost.push(source);
                    lost.sort_unstable();
                    continue 'again;
                }
                read.insert(source, bytes);
            }
            let decoder = self.decoder(&lost, strip)?;
            let sources: Vec<&[u8]> = decoder.sources().iter().map(|source| &*read[source]).collect();
            decoder.reconstruct(&sources, &mut [buf]);
            return Ok(());
        }
    }

    /// A decoder that computes `wanted`, which is among `lost`.
    pub(crate) fn decoder(&mut self, lost: &[usize], wanted: usize) -> Result<&Decoder, TooMuchLost> {
        let code = &self.code;
        match self.decoders.entry((lost.to_vec(), wanted)) {
            std::collections::btree_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::btree_map::Entry::Vacant(free) => {
                let decoder = code.decoder_for(lost, &[wanted]).map_err(|_| TooMuchLost)?;
                Ok(free.insert(decoder))
            }
        }
    }
}
