//! Recovers the content of a stripe that was being written when the group stopped:
//! docs/format/log.md, step 4 of "Recovery". Works in memory only; the drives stay unchanged.

use std::ops::Range;

use gf::Code;

use crate::log::Live;

/// Reads the bytes of a strip from its member, if that member is present, in sync and can read
/// them.
pub(crate) type Give<'g> = &'g dyn Fn(usize, Range<u64>) -> Option<Vec<u8>>;

/// Computes data strip `wanted` in `range`, which lies in the live member offsets. `give` reads
/// strips, numbered data first. `None` if the content is unknown.
pub(crate) fn recover(code: &Code, live: &Live, wanted: usize, range: Range<u64>, give: Give<'_>) -> Option<Vec<u8>> {
    let from = (range.start - live.start) / live.piece * live.piece;
    let mut out = Vec::with_capacity((range.end - range.start) as usize);
    for start in (from..range.end - live.start).step_by(live.piece as usize) {
        let end = u64::from(live.entry.len).min(start + live.piece);
        let piece = Piece::read(code, live, start..end, give).data_strip(wanted)?;
        let cut = |at: u64| at.clamp(live.start + start, live.start + end) - live.start - start;
        out.extend_from_slice(&piece[cut(range.start) as usize..cut(range.end) as usize]);
    }
    Some(out)
}

/// The member offsets of one checksum, with all that is known about them.
struct Piece<'a> {
    code: &'a Code,
    live: &'a Live,
    ranges: Range<u64>,
    strips: Vec<Option<Vec<u8>>>,
}

impl<'a> Piece<'a> {
    fn read(code: &'a Code, live: &'a Live, ranges: Range<u64>, give: Give<'_>) -> Self {
        let range = live.start + ranges.start..live.start + ranges.end;
        let strips = (0..code.strip_count()).map(|strip| give(strip, range.clone())).collect();
        Piece { code, live, ranges, strips }
    }

    fn is_overwritten(&self, strip: usize) -> bool {
        self.live.entry.overwritten.contains(strip)
    }

    fn is_in_parity(&self, strip: usize) -> bool {
        self.live.entry.in_parity.contains(strip)
    }

    fn len(&self) -> usize {
        (self.ranges.end - self.ranges.start) as usize
    }

    fn data_strip(&self, wanted: usize) -> Option<Vec<u8>> {
        if self.live.whole {
            return self.by_payloads(wanted);
        }
        if !self.is_in_parity(wanted)
            && let Some(bytes) = &self.strips[wanted]
        {
            return Some(bytes.clone());
        }
        if !self.is_overwritten(wanted) {
            return self.untouched(wanted);
        }
        let entry = &self.live.entry;
        let is_alone = entry.overwritten.len() == 1 && entry.in_parity.is_empty();
        if is_alone { self.alone(wanted) } else { self.rolled_forward(wanted) }
    }

    /// Any strip of a whole record. Overwritten strips and parity are taken from their payloads.
    fn by_payloads(&self, wanted: usize) -> Option<Vec<u8>> {
        let known = |strip: usize| {
            if strip >= self.code.data_count() || self.is_overwritten(strip) {
                return self.payload(strip).map(<[u8]>::to_vec);
            }
            self.strips[strip].clone().filter(|_| !self.is_in_parity(strip))
        };
        known(wanted).or_else(|| self.solve(wanted, known))
    }

    /// A strip that is lost or carried in parity, and not overwritten. It is computed from the
    /// partial parity, in which the overwritten strips are zeroes.
    fn untouched(&self, wanted: usize) -> Option<Vec<u8>> {
        let known = |strip: usize| match strip.checked_sub(self.code.data_count()) {
            Some(parity_strip) => self.base(parity_strip).map(<[u8]>::to_vec),
            None if self.is_overwritten(strip) => Some(vec![0; self.len()]),
            None if self.is_in_parity(strip) => None,
            None => self.strips[strip].clone(),
        };
        self.solve(wanted, known)
    }

    /// The only strip that is overwritten. It is the difference between a parity strip and its
    /// partial parity, and is old or new as that parity strip is.
    fn alone(&self, wanted: usize) -> Option<Vec<u8>> {
        let data_count = self.code.data_count();
        (0..self.code.parity_count()).find_map(|parity_strip| {
            let mut rest = self.strips[data_count + parity_strip].clone()?;
            gf::xor_into(&mut rest, self.base(parity_strip)?);
            let known = |strip: usize| match strip {
                strip if strip == wanted => None,
                strip if strip == data_count + parity_strip => Some(rest.clone()),
                strip if strip >= data_count => None,
                // The contribution of the other strips is in the partial parity.
                _ => Some(vec![0; self.len()]),
            };
            self.solve(wanted, known)
        })
    }

    /// One of several lost strips, if all strips that are present are new.
    fn rolled_forward(&self, wanted: usize) -> Option<Vec<u8>> {
        let data_count = self.code.data_count();
        let overwritten: Vec<usize> = (0..data_count).filter(|&strip| self.is_overwritten(strip)).collect();
        let sums_each = overwritten.len() + self.code.parity_count();
        let sums = &self.live.entry.checksums;
        let sums = sums.get((self.ranges.start / self.live.piece) as usize * sums_each..)?.get(..sums_each)?;
        let matches = |strip: usize, sum: u32| self.strips[strip].as_ref().filter(|bytes| gf::crc32c(bytes) == sum);
        if overwritten
            .iter()
            .zip(sums)
            .any(|(&strip, &sum)| self.strips[strip].is_some() && matches(strip, sum).is_none())
        {
            return None;
        }
        let known = |strip: usize| match strip.checked_sub(data_count) {
            Some(parity_strip) => matches(strip, sums[overwritten.len() + parity_strip]).cloned(),
            None if self.is_overwritten(strip) => self.strips[strip].clone(),
            None if self.is_in_parity(strip) || self.strips[strip].is_none() => self.untouched(strip),
            None => self.strips[strip].clone(),
        };
        self.solve(wanted, known)
    }

    /// The partial parity of a parity strip in these member offsets.
    fn base(&self, parity_strip: usize) -> Option<&[u8]> {
        self.payload(self.code.data_count() + parity_strip)
    }

    /// The payload of a strip in these member offsets.
    fn payload(&self, strip: usize) -> Option<&[u8]> {
        let payload = self.live.payloads.get(&strip)?;
        Some(&payload[self.ranges.start as usize..self.ranges.end as usize])
    }

    /// Computes a strip from the known ones.
    fn solve(&self, wanted: usize, known: impl Fn(usize) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        let strips: Vec<Option<Vec<u8>>> = (0..self.code.strip_count()).map(known).collect();
        let lost: Vec<usize> = (0..strips.len()).filter(|&strip| strips[strip].is_none()).collect();
        let decoder = self.code.decoder_for(&lost, &[wanted]).ok()?;
        let sources: Vec<&[u8]> = decoder.sources().iter().filter_map(|&source| strips[source].as_deref()).collect();
        let mut out = vec![0; self.len()];
        decoder.reconstruct(&sources, &mut [&mut out]);
        Some(out)
    }
}
