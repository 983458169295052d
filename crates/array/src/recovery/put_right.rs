//! Makes one stripe right after a crash, from a record of the log.
//!
//! Guarantees:
//! 1. Afterwards the strips of the stripe agree: parity fits the data, and checksums fit both.
//! 2. A strip that the record does not name has the content from before, even if its member is
//!    lost.
//! 3. A strip that the record names has its old or its new content, block by block.
//! 4. Content that nothing tells is zero, and listed as lost before the parity says so.
//! 5. Every step can be repeated. The record stays until all of it is durable.
//!
//! Example: the write of `44` over `02` in strip D1 of a 4+2 stripe ([`crate::io::component`]) is
//! cut off by a crash after D1 was written, and before P and Q.
//!
//! ```text
//!                   D0    D1    D2    D3    P     Q
//! on the drives     01    44    80    ff    7c    94
//! record                                    7e    90    P' and Q', without D1
//! what D1 may be          44                02    02    D1; P - P' = 7c+7e; (Q - Q') / 2 = 04/2
//! majority                02                            two of three: the write is undone
//! written           01    02    80    ff    7c    94    no client was told that it was done
//! ```
//!
//! With the members of D2 and P lost as well, D1 = `44` and (Q - Q') / 2 = `02` are a tie, in which
//! the strip on the drive counts: D1 = `44`. D2 is computed from Q' and the strips that the record
//! does not name: `90 = 01 + 4*D2 + 8*ff`, so D2 = `80` as before, with either D1. That is the
//! write hole that the log closes: from Q and D1 alone, D2 would have been computed wrongly.
//!
//! Tests: `sim/tests/exhaustive.rs` tries every crash and every loss of members of small programs;
//! `sim/tests/engine/records.rs`, `overwritten.rs` and `unknown.rs` have the cases one by one.

use drive::{BlockError, BufMut, Env};
use format::log::Entry;

use crate::geometry::ranges::Range;
use crate::geometry::{Role, StripeGroup};
use crate::recovery::replay::{Replay, Replayed};
use crate::recovery::replay_log::Record;
use crate::recovery::row::Row;

impl<E: Env> Replay<'_, E> {
    /// Makes the strips of a stripe agree over some member offsets of an entry. `offset`: of the
    /// entry in the payloads.
    pub(super) async fn put_right(
        &self,
        record: &Record,
        entry: &Entry,
        offset: usize,
        offsets: Range,
        done: &mut Replayed,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        if record.whole {
            return self.roll_forward(record, entry, offset, offsets, done).await;
        }
        let mut row = self.read_row(record.stripe_group, offsets, entry, record.completed).await?;
        if record.completed {
            self.fill(&mut row, offsets);
        }
        let overwritten = |role: Role| entry.overwritten.contains(role);
        let within = offsets.relative(entry.offset);
        let bases: Vec<Option<&[u8]>> = (data..strips)
            .map(|role| record.parts.get(&role).filter(|_| entry.has_base(data)))
            .map(|payload| payload.map(|payload| &payload[offset + within.start..offset + within.end]))
            .collect();

        let mut unknown: Vec<Role> = Vec::new();
        let solve: Vec<Role> = (0..data).filter(|&role| !overwritten(role) && row.strips[role].is_none()).collect();
        if !solve.is_empty() {
            if let Some(solved) = self.by_bases(&row, &solve, overwritten, &bases, offsets) {
                for (role, strip) in solve.into_iter().zip(solved) {
                    row.strips[role] = Some(strip);
                }
            } else {
                unknown = row.take_suspect(solve);
            }
        }
        if let Some(role) = entry.overwritten.only().filter(|_| entry.in_parity.is_empty()) {
            self.vote(&mut row, record.stripe_group, role, &bases, offsets).await?;
        } else if unknown.is_empty() {
            self.complete(&mut row, entry, record.piece_bytes, offsets);
        }
        unknown.extend((0..data).filter(|&role| overwritten(role) && row.strips[role].is_none()));
        self.call_lost(record.stripe_group, &mut row, unknown, offsets, done).await?;
        self.write_row(record.stripe_group, offsets, row).await
    }

    /// The content of these strips is unknown: they become zeroes, and are listed as lost.
    async fn call_lost(
        &self,
        stripe_group: StripeGroup,
        row: &mut Row,
        unknown: Vec<Role>,
        offsets: Range,
        done: &mut Replayed,
    ) -> Result<(), BlockError> {
        if unknown.is_empty() {
            return Ok(());
        }
        let range = |&role: &Role| (self.shared.geometry.offset(stripe_group, role, offsets.start), offsets.len());
        let ranges: Vec<(u64, u64)> = unknown.iter().map(range).collect();
        done.lost += ranges.iter().map(|(_, len)| len).sum::<u64>();
        // Before the parity says that these strips are zero.
        self.list_lost(ranges).await?;
        for role in unknown {
            let mut zeroes = self.env.alloc(offsets.len() as usize);
            zeroes.fill(0);
            row.strips[role] = Some(zeroes);
        }
        Ok(())
    }

    /// Writes the new content of a whole record, and the parity and lost strips computed from it.
    async fn roll_forward(
        &self,
        record: &Record,
        entry: &Entry,
        offset: usize,
        offsets: Range,
        done: &mut Replayed,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        let mut row = self.read_row(record.stripe_group, offsets, entry, false).await?;
        let within = offsets.relative(entry.offset);
        for role in entry.overwritten.iter().chain(data..strips) {
            row.suspect[role] = row.strips[role].take();
            row.strips[role] = record.parts.get(&role).map(|payload| {
                let mut new = self.env.alloc(within.len());
                new.copy_from_slice(&payload[offset + within.start..offset + within.end]);
                new
            });
        }
        let missing: Vec<Role> = (0..data).filter(|&role| row.strips[role].is_none()).collect();
        if !missing.is_empty() {
            let source = |role: Role| row.strips[role].as_deref();
            if let Some(solved) = self.solve(&missing, source, offsets.len() as usize) {
                for (role, strip) in missing.into_iter().zip(solved) {
                    row.strips[role] = Some(strip);
                }
            } else {
                let unknown = row.take_suspect(missing);
                self.call_lost(record.stripe_group, &mut row, unknown, offsets, done).await?;
            }
        }
        // The parity as it is on the drives, not as it should be.
        for role in data..strips {
            row.strips[role] = row.suspect[role].take();
        }
        self.write_row(record.stripe_group, offsets, row).await
    }

    /// Computes overwritten strips that are missing or do not match the record, from the strips and
    /// parity that match. Leaves the stripe as it is if those are too few.
    fn complete(&self, row: &mut Row, entry: &Entry, piece_bytes: u64, offsets: Range) {
        let data = self.shared.geometry.data;
        let right = self.as_announced(row, entry, piece_bytes, offsets);
        let wrong: Vec<Role> = entry.overwritten.iter().filter(|&role| !right[role]).collect();
        let parity: Vec<Role> = (data..right.len()).filter(|&role| right[role]).collect();
        if wrong.is_empty() || parity.is_empty() {
            return;
        }
        let before: Vec<Option<BufMut>> = wrong.iter().map(|&role| row.strips[role].take()).collect();
        let solved = self.by_parity(row, &wrong, &parity, offsets);
        match solved {
            Some(solved) => {
                for ((role, strip), before) in wrong.into_iter().zip(solved).zip(before) {
                    row.strips[role] = Some(strip);
                    row.suspect[role] = before;
                }
            }
            None => wrong.into_iter().zip(before).for_each(|(role, before)| row.strips[role] = before),
        }
    }

    /// Which overwritten strips and parity strips match the checksums of an entry, so that they are
    /// new. None if the entry has no checksums.
    fn as_announced(&self, row: &Row, entry: &Entry, piece_bytes: u64, offsets: Range) -> Vec<bool> {
        let geometry = &self.shared.geometry;
        let (data, strips) = (geometry.data, geometry.strips());
        let named: Vec<Role> = entry.overwritten.iter().chain(data..strips).collect();
        let mut right = vec![!entry.checksums.is_empty(); strips];
        for (index, sums) in entry.checksums.chunks_exact(named.len()).enumerate() {
            let start = entry.offset + index as u64 * piece_bytes;
            let piece = Range::new(start, (start + piece_bytes).min(entry.offset + u64::from(entry.len)));
            if piece.intersect(offsets).is_empty() {
                continue;
            }
            let whole = offsets.contains(piece);
            for (&role, &sum) in named.iter().zip(sums) {
                let matches = |strip: &BufMut| whole && gf::crc32c(&strip[piece.relative(offsets.start)]) == sum;
                right[role] &= row.strips[role].as_ref().is_some_and(matches);
            }
        }
        right
    }
}
