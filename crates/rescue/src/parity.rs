//! Checks whether checksums and parity fit the data: docs/format/checksums.md, "Reading", and
//! docs/format/parity.md, "Finding the strip that is wrong".

use std::collections::BTreeMap;

use format::{BLOCK, VolumeRecord};
use gf::Decoder;
use serde::{Deserialize, Serialize};

use crate::Progress;
use crate::finding::{Finding, Structure};
use crate::group::Group;
use crate::log::Log;
use crate::map::Map;
use crate::stripe::{MemberRange, StripeReader};
use crate::survey::SurveyedDrive;

/// Findings about stripes that are kept per group. Bytes of further ones are still counted.
const FINDINGS_MAX: usize = 1000;

/// Text for a block that does not fit its checksum.
const DAMAGED: &str = "damaged: not what was written there";

/// The smallest range that is checked on its own.
const SECTOR: usize = 512;

/// Results of a comparison, in bytes of one member: a stripe of strips of 64 KiB counts as 64 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ParityCount {
    /// Compared, whether right or wrong.
    pub compared_bytes: u64,
    /// Readable, but without redundancy left: as many members are missing or wrong as the level
    /// survives, or the level has none. Only checksums could be compared.
    pub unchecked_bytes: u64,
    /// In a write when the group stopped, and recovered from the log.
    pub in_log_bytes: u64,
    /// Data and parity do not fit each other, although the strips that count fit their checksums.
    pub mismatch_bytes: u64,
    /// Some member returned data that does not fit its checksum.
    pub damaged_bytes: u64,
    /// More members are missing, damaged or unreadable than the level survives.
    pub lost_bytes: u64,
}

/// Compares all data that was written in a group.
pub(crate) struct ParityCheck<'a> {
    group: &'a Group,
    drives: &'a [SurveyedDrive],
    volumes: &'a [VolumeRecord],
    log: &'a Log,
    reader: StripeReader<'a>,
    decoders: BTreeMap<Vec<usize>, Decoder>,
    count: ParityCount,
    findings: Vec<Finding>,
    /// Index in `findings` of the last finding of each kind, so that adjacent ones are merged.
    last: BTreeMap<(u64, Option<usize>, String), usize>,
}

impl<'a> ParityCheck<'a> {
    pub(crate) fn new(
        group: &'a Group,
        drives: &'a [SurveyedDrive],
        log: &'a Log,
        volumes: &'a [VolumeRecord],
    ) -> Self {
        ParityCheck {
            group,
            drives,
            volumes,
            reader: StripeReader::new(group, drives, log),
            log,
            decoders: BTreeMap::new(),
            count: ParityCount::default(),
            findings: Vec::new(),
            last: BTreeMap::new(),
        }
    }

    /// Reads every allocation chunk that was written.
    pub(crate) fn run(mut self, map: &Map, progress: Progress<'_>) -> (ParityCount, Vec<Finding>) {
        let geometry = self.group.geometry;
        let piece = geometry.strip.min(geometry.chunk);
        let data_len = self.group.data_bytes;
        let total = data_len * geometry.sets;
        for set in 0..geometry.sets {
            let mut offset = 0;
            while offset < data_len {
                let chunk_end = (offset / geometry.chunk + 1) * geometry.chunk;
                if let Some(chunk) = map.unwritten_up_to(geometry.chunk_of(set, offset)) {
                    // The chunks of a set are every `sets`-th chunk of the map.
                    offset = chunk_end.max((chunk.saturating_sub(set)).div_ceil(geometry.sets) * geometry.chunk);
                    continue;
                }
                if map.is_written(geometry.chunk_of(set, offset)) != Some(true) {
                    offset = chunk_end;
                    continue;
                }
                while offset < chunk_end {
                    self.compare(MemberRange { set, offset }, piece as usize);
                    offset += piece;
                }
                progress((set * data_len + offset).min(total), total);
            }
        }
        progress(total, total);
        (self.count, self.findings)
    }

    /// Compares `len` bytes of every member of a set, all within one row. If data is unreadable or
    /// does not fit, it is compared again in smaller ranges.
    fn compare(&mut self, at: MemberRange, len: usize) {
        match self.log.at(at.set, at.offset, len as u64) {
            (same, None) if same == len as u64 => {}
            // Ranges in the log need not fit; the log says how they are recovered.
            (same, Some(_)) if same == len as u64 => return self.count.in_log_bytes += same,
            (same, _) => {
                self.compare(at, same as usize);
                return self.compare(MemberRange { offset: at.offset + same, ..at }, len - same as usize);
            }
        }
        let missing = self.group.lost_strips(at.set, at.offset);
        let mut strips = vec![vec![0; len]; self.reader.code.strip_count()];
        let (mut unreadable, mut wrong) = (Vec::new(), Vec::new());
        for (strip, bytes) in strips.iter_mut().enumerate().filter(|(strip, _)| !missing.contains(strip)) {
            match self.reader.read_member(at, strip, bytes) {
                Err(_) => unreadable.push(strip),
                Ok(()) if !self.reader.fits_sums(at, strip, bytes) => wrong.push(strip),
                Ok(()) => {}
            }
        }
        if len > BLOCK && !(unreadable.is_empty() && wrong.is_empty()) {
            return self.look_closer(at, len, BLOCK);
        }
        let mut lost = [&missing[..], &unreadable, &wrong].concat();
        lost.sort_unstable();
        let is_too_much = lost.len() > self.reader.code.parity_count();
        // A checksum covers a whole block, so sectors cannot tell whether it is wrong.
        if len > SECTOR && !unreadable.is_empty() && (wrong.is_empty() || is_too_much) {
            return self.look_closer(at, len, SECTOR);
        }
        for &strip in &unreadable {
            self.note_unreadable(at, len, strip);
        }
        self.vote(at, &mut strips, &lost, &wrong);
    }

    /// Judges the strips of a stripe. `lost` are the lost ones, and `wrong` those among them that
    /// are readable but do not fit their checksums.
    fn vote(&mut self, at: MemberRange, strips: &mut [Vec<u8>], lost: &[usize], wrong: &[usize]) {
        let len = strips[0].len();
        self.count.damaged_bytes += if wrong.is_empty() { 0 } else { len as u64 };
        let Some(spare) = self.reader.code.parity_count().checked_sub(lost.len()) else {
            for &strip in wrong {
                self.note(at, len, Some(strip), DAMAGED);
            }
            self.count.lost_bytes += len as u64;
            return self.note(at, len, None, "more is missing, damaged or unreadable than the level survives");
        };
        if spare > 0 || !wrong.is_empty() {
            let read: Vec<Vec<u8>> = wrong.iter().map(|&strip| strips[strip].clone()).collect();
            let fits = self.fits(strips, lost);
            if !fits && len > BLOCK {
                return self.look_closer(at, len, BLOCK);
            }
            for (&strip, read) in wrong.iter().zip(&read) {
                let is_right = fits && len == BLOCK && *read == strips[strip];
                if is_right { self.note_sum(at, strip) } else { self.note(at, len, Some(strip), DAMAGED) }
            }
            if !fits {
                self.count.mismatch_bytes += len as u64;
                self.blame(at, strips, lost, spare);
            }
        }
        let count = if spare > 0 { &mut self.count.compared_bytes } else { &mut self.count.unchecked_bytes };
        *count += len as u64;
    }

    /// Reports the unreadable sectors of a strip.
    fn note_unreadable(&mut self, at: MemberRange, len: usize, strip: usize) {
        for start in (0..len).step_by(SECTOR) {
            let at = MemberRange { offset: at.offset + start as u64, ..at };
            let mut sector = vec![0; SECTOR.min(len - start)];
            if self.reader.read_member(at, strip, &mut sector).is_err() {
                self.note(at, sector.len(), Some(strip), "cannot be read");
            }
        }
    }

    fn look_closer(&mut self, at: MemberRange, len: usize, part: usize) {
        for start in (0..len).step_by(part) {
            self.compare(MemberRange { offset: at.offset + start as u64, ..at }, part.min(len - start));
        }
    }

    /// Whether the strips fit each other, after the lost ones are computed.
    fn fits(&mut self, strips: &mut [Vec<u8>], lost: &[usize]) -> bool {
        let code = &self.reader.code;
        if !lost.is_empty() {
            let decoder = self.decoders.entry(lost.to_vec()).or_insert_with(|| {
                code.decoder(lost).expect("no more strips are lost than the code has parity strips")
            });
            let mut computed = vec![vec![0; strips[0].len()]; lost.len()];
            let sources: Vec<&[u8]> = decoder.sources().iter().map(|&source| &*strips[source]).collect();
            let mut out: Vec<&mut [u8]> = computed.iter_mut().map(|bytes| &mut **bytes).collect();
            decoder.reconstruct(&sources, &mut out);
            for (&strip, bytes) in lost.iter().zip(computed) {
                strips[strip] = bytes;
            }
        }
        let all: Vec<&[u8]> = strips.iter().map(|bytes| &**bytes).collect();
        let (data, parity_count) = all.split_at(code.data_count());
        code.check(data, parity_count)
    }

    /// Reports the one strip without which the others fit, if at least two parity strips are left
    /// over to tell.
    fn blame(&mut self, at: MemberRange, strips: &mut [Vec<u8>], lost: &[usize], spare: usize) {
        let len = strips[0].len();
        let mut suspects = Vec::new();
        if spare >= 2 {
            for suspect in (0..strips.len()).filter(|strip| !lost.contains(strip)) {
                let mut without = lost.to_vec();
                without.push(suspect);
                without.sort_unstable();
                let kept = strips[suspect].clone();
                if self.fits(strips, &without) {
                    suspects.push(suspect);
                }
                strips[suspect] = kept;
            }
        }
        match suspects[..] {
            [one] => self.note(at, len, Some(one), "wrong bytes: all other members agree without them"),
            _ => {
                self.note(at, len, None, "data and parity do not fit each other; which of them is wrong cannot be told")
            }
        }
    }

    /// Keeps a finding about a strip, or about a whole member offset.
    fn note(&mut self, at: MemberRange, len: usize, strip: Option<usize>, what: &str) {
        let offset = self.group.geometry.data_offset + at.offset;
        self.keep(at, strip, (Structure::Stripe, offset, len as u64), what);
    }

    /// Keeps a finding about the wrong checksum of a correct block.
    fn note_sum(&mut self, at: MemberRange, strip: usize) {
        let place = self.reader.sums.place(at.offset).expect("what does not fit a checksum has one");
        let what = "wrong checksum: what the member holds there fits its stripe";
        self.keep(at, Some(strip), (Structure::Checksum, place, 4), what);
    }

    fn keep(
        &mut self,
        at: MemberRange,
        strip: Option<usize>,
        (structure, offset, len): (Structure, u64, u64),
        what: &str,
    ) {
        let slot = strip.map(|strip| self.group.geometry.slot_of(at.set, at.offset, strip));
        let message = format!("{what}{}", self.whose(at));
        let key = (at.set, slot, message);
        if let Some(&last) = self.last.get(&key) {
            let last = &mut self.findings[last];
            let end = last.offset_bytes.zip(last.len_bytes).map(|(offset, len)| offset + len);
            if end == Some(offset) {
                last.len_bytes = last.len_bytes.map(|before| before + len);
                return;
            }
        }
        if self.findings.len() >= FINDINGS_MAX {
            return;
        }
        let message = match slot {
            None if self.group.geometry.sets > 1 => format!("set {}: {}", at.set, key.2),
            _ => key.2.clone(),
        };
        let finding = match slot {
            Some(slot) => Finding::member(self.group, self.drives, slot, structure, message),
            None => Finding::group(self.group, structure, message),
        };
        self.last.insert(key, self.findings.len());
        self.findings.push(finding.at(offset, len));
    }

    /// The volumes that have bytes in the stripe of a member offset.
    fn whose(&self, at: MemberRange) -> String {
        let geometry = &self.group.geometry;
        let start = geometry.stripe_start(at.set, at.offset);
        let end = start + geometry.data_count as u64 * geometry.strip;
        let is_in = |volume: &&VolumeRecord| {
            volume.extents.iter().any(|extent| extent.start_byte < end && start < extent.start_byte + extent.len_bytes)
        };
        let names: Vec<&str> = self.volumes.iter().filter(is_in).map(|volume| volume.name.as_str()).collect();
        if names.is_empty() { String::new() } else { format!(" (volume {})", names.join(", ")) }
    }
}
