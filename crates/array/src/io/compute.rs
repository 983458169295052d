//! The bytes of a write: computes the new content of every strip that changes, from patches and
//! reads.
//!
//! Guarantees:
//! 1. Parity fits the data strips that are written with it: `P = D0 + D1 + ...`, `Q = D0 + 2*D1 +
//!    ...` over the field of `docs/format/parity.md`.
//! 2. The buffers of the client are written as they are. Bytes are copied only where buffers meet
//!    inside a sector.
//! 3. A strip that could not be read is written whole, so the write heals it.
//!
//! Example: the first byte of each strip of a 4+2 stripe; `44` is written to D1, over `02`. All
//! ways lead to the same parity:
//!
//! ```text
//!                      D0    D1    D2    D3    P     Q
//! before               01    02    80    ff    7c    94
//! reconstruct-write    01    44    80    ff    01+44+80+ff = 3a, 01+2*44+4*80+8*ff = 18
//! read-modify-write          44                7c+02+44 = 3a,    94+2*02+2*44 = 18
//! restore (D2 unreadable: from D0, D1, D3, P)  D2 = 7c+01+02+ff = 80, then as reconstruct-write
//! ```
//!
//! Tests: [`crate::io::plan`] has those of the choice; `gf` those of the arithmetic;
//! `sim/tests/engine/levels.rs` and `counts.rs` compare content and operations for every level;
//! random programs (`sim/tests/programs`) compare with a model that knows every byte.

use drive::{Buf, BufMut, Env, Segments};
use format::RoleSet;
use smallvec::{SmallVec, smallvec};

use crate::array::ArrayShard;
use crate::geometry::Role;
use crate::geometry::ranges::{Range, Ranges};
use crate::io::overlay::{Content, Overlay};
use crate::io::plan::Strip;
use crate::io::types::{Bases, RowView, Run, Runs, StripWrite};

/// One item per strip of a stripe. Most stripes need no memory on the heap.
type Strips<T> = SmallVec<[T; 12]>;

pub(super) type Reads = Vec<(Role, Range, BufMut)>;

/// All parity of an offset range, or its partial parity.
pub(crate) type Parity = SmallVec<[BufMut; 4]>;

impl<E: Env> ArrayShard<E> {
    /// First write to an allocation chunk: all strips are written, with zeroes where there is no
    /// data.
    pub fn compute_fresh(&self, overlay: &Overlay, offsets: Range, view: &RowView<E::Drive>) -> Vec<StripWrite> {
        let geometry = &self.shared.geometry;
        let mut content = Vec::with_capacity(geometry.data);
        let mut all_zero = true;
        for role in 0..geometry.data {
            let mut runs = self.whole_sectors(overlay, role, offsets);
            all_zero &= overlay.is_zero(role, offsets, true);
            let touched = overlay.touched(role, offsets, geometry);
            let full = overlay.full(role, offsets, geometry);
            for range in touched.iter().flat_map(|range| full.gaps(range).iter().collect::<Vec<_>>()) {
                let mut edge = self.env.alloc(range.len() as usize);
                edge.fill(0);
                overlay.apply(role, range.start, &mut edge);
                runs.push((range.start, edge.freeze()));
            }
            for gap in touched.gaps(offsets).iter() {
                runs.push((gap.start, Buf::zeroes(gap.len() as usize)));
            }
            runs.sort_by_key(|(start, _)| *start);
            content.push(runs);
        }
        let mut everything = Ranges::new();
        everything.add(offsets);
        let mut writes = Vec::with_capacity(geometry.strips());
        for (role, runs) in content.iter().enumerate() {
            if view.0[role].drive.is_some() {
                push_runs(&mut writes, role, runs, &everything);
            }
        }
        let takes = |role: Role| view.0[role].drive.is_some();
        if all_zero {
            for role in (geometry.data..geometry.strips()).filter(|&role| takes(role)) {
                let zeroes = Buf::zeroes(offsets.len() as usize);
                writes.push(StripWrite { role, offset: offsets.start, data: smallvec![zeroes] });
            }
        } else {
            self.push_whole(&mut writes, &content, offsets, takes);
        }
        writes
    }

    /// Reconstruct-write: the data strips are known over all member offsets, from patches and
    /// reads. Returns the writes of data strips, and the content from which
    /// [`ArrayShard::push_whole`] computes the parity.
    pub fn compute_whole(
        &self,
        overlay: &Overlay,
        offsets: Range,
        view: &RowView<E::Drive>,
        touched: &[Ranges],
        reads: Reads,
    ) -> (Vec<StripWrite>, Vec<Runs>) {
        let content = self.merge(overlay, offsets, reads);
        let mut writes = Vec::with_capacity(view.0.len());
        for (role, runs) in content.iter().enumerate() {
            if view.0[role].strip != Strip::Lost {
                push_runs(&mut writes, role, runs, &touched[role]);
            }
        }
        (writes, content)
    }

    /// Writes data only, because no parity can be written. Sectors at the edges are completed from
    /// what was read.
    pub fn compute_plain(
        &self,
        overlay: &Overlay,
        offsets: Range,
        touched: &[Ranges],
        reads: Reads,
    ) -> Vec<StripWrite> {
        let mut writes = Vec::with_capacity(touched.len());
        for (role, runs) in self.merge(overlay, offsets, reads).iter().enumerate() {
            push_runs(&mut writes, role, runs, &touched[role]);
        }
        writes
    }

    /// Read-modify-write: parity changes by the difference of old and new data. Returns the writes
    /// of data strips, and either the new parity or the partial parity, which
    /// [`ArrayShard::push_completed`] turns into the new parity.
    pub fn compute_modified(
        &self,
        overlay: &Overlay,
        offsets: Range,
        view: &RowView<E::Drive>,
        mut reads: Reads,
        wants_bases: bool,
    ) -> (Vec<StripWrite>, Parity) {
        let geometry = &self.shared.geometry;
        let mut parity = Parity::new();
        for role in geometry.data..geometry.strips() {
            match reads.iter().position(|(read, ..)| *read == role) {
                Some(index) => parity.push(reads.swap_remove(index).2),
                // This strip cannot be read, so it is not written either. The result in this buffer
                // is dropped.
                None => parity.push(self.env.alloc(offsets.len() as usize)),
            }
        }
        let mut writes = Vec::with_capacity(view.0.len());
        for (role, range, old) in reads {
            let mut runs = self.whole_sectors(overlay, role, range);
            for edge in overlay.full(role, range, geometry).gaps(range).iter() {
                let mut buf = self.env.alloc(edge.len() as usize);
                buf.copy_from_slice(&old[edge.relative(range.start)]);
                overlay.apply(role, edge.start, &mut buf);
                runs.push((edge.start, buf.freeze()));
            }
            runs.sort_by_key(|(start, _)| *start);
            for (start, new) in &runs {
                let part = Range::new(*start, *start + new.len() as u64);
                let mut targets: Strips<&mut [u8]> =
                    parity.iter_mut().map(|parity_strip| &mut parity_strip[part.relative(offsets.start)]).collect();
                let old = &old[part.relative(range.start)];
                match wants_bases {
                    true => self.shared.code.accumulate(role, old, &mut targets),
                    false => self.shared.code.update(role, old, new, &mut targets),
                }
            }
            let data = runs.into_iter().map(|(_, buf)| buf).collect();
            writes.push(StripWrite { role, offset: range.start, data });
        }
        (writes, parity)
    }

    /// Restore: lost strips are computed from `k` good strips. Unreadable strips are written back
    /// whole.
    pub fn compute_restored(
        &self,
        overlay: &Overlay,
        offsets: Range,
        view: &RowView<E::Drive>,
        touched: &[Ranges],
        reads: Reads,
    ) -> Vec<StripWrite> {
        let geometry = &self.shared.geometry;
        let mut data = self.restore_data(offsets, view, reads);
        for (role, strip) in data.iter_mut().enumerate() {
            overlay.apply(role, offsets.start, strip);
        }
        let content: Vec<Runs> = data.into_iter().map(|strip| smallvec![(offsets.start, strip.freeze())]).collect();
        let mut everything = Ranges::new();
        everything.add(offsets);
        let mut writes = Vec::with_capacity(view.0.len());
        for role in 0..geometry.data {
            match view.0[role].strip {
                Strip::Good => push_runs(&mut writes, role, &content[role], &touched[role]),
                Strip::Unreadable => push_runs(&mut writes, role, &content[role], &everything),
                Strip::Lost => {}
            }
        }
        self.push_whole(&mut writes, &content, offsets, |role| view.0[role].strip != Strip::Lost);
        writes
    }

    /// All data strips of an offset range, from `k` good strips.
    pub fn restore_data(&self, offsets: Range, view: &RowView<E::Drive>, reads: Reads) -> Vec<BufMut> {
        let lost: Vec<Role> = (0..view.0.len()).filter(|&role| view.0[role].strip != Strip::Good).collect();
        let decoder = self.decoder(&lost);
        let sources: Vec<&[u8]> = decoder.sources().iter().map(|&role| strip_of(&reads, role)).collect();
        let mut restored: Vec<BufMut> = lost.iter().map(|_| self.env.alloc(offsets.len() as usize)).collect();
        decoder.reconstruct(&sources, &mut restored.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
        drop(sources);
        let mut data: Vec<Option<BufMut>> = (0..self.shared.geometry.data).map(|_| None).collect();
        let restored = lost.into_iter().zip(restored);
        for (role, buf) in reads.into_iter().map(|(role, _, buf)| (role, buf)).chain(restored) {
            if let Some(strip) = data.get_mut(role) {
                *strip = Some(buf);
            }
        }
        data.into_iter().map(|strip| strip.expect("a data strip is a source or restored")).collect()
    }

    /// The decoder for some lost strips. It is made once, and kept.
    pub fn decoder(&self, lost: &[Role]) -> std::rc::Rc<gf::Decoder> {
        let key: RoleSet = lost.iter().copied().collect();
        let make = || {
            std::rc::Rc::new(
                self.shared.code.decoder(lost).expect("no more strips are lost than there are parity strips"),
            )
        };
        self.decoders.borrow_mut().entry(key).or_insert_with(make).clone()
    }

    /// The sectors that patches cover completely, in order, in the buffers of the patches.
    fn whole_sectors(&self, overlay: &Overlay, role: Role, offsets: Range) -> Runs {
        let geometry = &self.shared.geometry;
        let mut runs = Runs::new();
        for range in overlay.full(role, offsets, geometry).iter() {
            let first = runs.len();
            for patch in overlay.patches(role, range) {
                let buf = match patch.content {
                    Content::Data(data) => data,
                    Content::Zero { .. } => Buf::zeroes(patch.range.len() as usize),
                };
                runs.push((patch.range.start, buf));
            }
            // A drive takes whole sectors from each buffer. So buffers that meet inside a sector
            // are copied into one.
            let meets_inside = runs[first..].iter().any(|(start, _)| !start.is_multiple_of(geometry.sector_bytes));
            if meets_inside {
                runs.truncate(first);
                let mut buf = self.env.alloc(range.len() as usize);
                overlay.apply(role, range.start, &mut buf);
                runs.push((range.start, buf.freeze()));
            }
        }
        runs
    }

    /// Patches and reads of every data strip as runs in order. Where patches cover a sector in
    /// part, they are laid over what was read there.
    fn merge(&self, overlay: &Overlay, offsets: Range, reads: Reads) -> Vec<Runs> {
        let data = self.shared.geometry.data;
        let mut content: Vec<Runs> = (0..data).map(|role| self.whole_sectors(overlay, role, offsets)).collect();
        for (role, range, mut buf) in reads {
            overlay.apply(role, range.start, &mut buf);
            content[role].push((range.start, buf.freeze()));
        }
        for runs in &mut content {
            runs.sort_by_key(|(start, _)| *start);
        }
        content
    }

    /// Computes the parity of data strips that are known over all member offsets, for the members
    /// that take it.
    pub fn push_whole(
        &self,
        writes: &mut Vec<StripWrite>,
        content: &[Runs],
        offsets: Range,
        takes: impl Fn(Role) -> bool,
    ) {
        let mut roles = self.shared.geometry.data..self.shared.geometry.strips();
        if self.shared.geometry.data == 1 {
            // The parity strips of a mirror are copies of its one data strip: the same memory goes
            // to every member.
            let mut everything = Ranges::new();
            everything.add(offsets);
            for role in roles.filter(|&role| takes(role)) {
                push_runs(writes, role, &content[0], &everything);
            }
        } else if roles.any(&takes) {
            self.push_parity(writes, self.encode(content, offsets), offsets, takes);
        }
    }

    /// Turns the partial parity of a record with one strip into the new parity, for the members
    /// that take it. The log is done with these buffers.
    pub fn push_completed(
        &self,
        writes: &mut Vec<StripWrite>,
        role: Role,
        bases: Bases,
        offsets: Range,
        takes: impl Fn(Role) -> bool,
    ) {
        let mut parity: Parity = bases.into_iter().map(|base| self.thaw(base)).collect();
        let new = writes.iter().find(|write| write.role == role).expect("the strip that changes is written");
        let mut start = 0;
        for new in &new.data {
            let part = start..start + new.len();
            let mut targets: Strips<&mut [u8]> =
                parity.iter_mut().map(|parity_strip| &mut parity_strip[part.clone()]).collect();
            self.shared.code.accumulate(role, new, &mut targets);
            start = part.end;
        }
        self.push_parity(writes, parity, offsets, takes);
    }

    /// Makes the bytes writable. Copies them if another owner still uses the buffer.
    fn thaw(&self, buf: Buf) -> BufMut {
        let alone = match self.env.buggify("what was logged is looked at") {
            true => Err(buf),
            false => buf.try_into_mut(),
        };
        alone.unwrap_or_else(|shared| {
            let mut copy = self.env.alloc(shared.len());
            copy.copy_from_slice(&shared);
            copy
        })
    }

    /// Adds writes of all parity strips of an offset range, for the members that take them.
    pub fn push_parity(
        &self,
        writes: &mut Vec<StripWrite>,
        parity: Parity,
        offsets: Range,
        takes: impl Fn(Role) -> bool,
    ) {
        for (role, parity_strip) in (self.shared.geometry.data..).zip(parity).filter(|(role, _)| takes(*role)) {
            writes.push(StripWrite { role, offset: offsets.start, data: smallvec![parity_strip.freeze()] });
        }
    }

    /// The parity of data strips that are known over all member offsets.
    pub fn encode(&self, content: &[Runs], offsets: Range) -> Parity {
        let len = offsets.len() as usize;
        let mut parity: Parity = (0..self.shared.geometry.parity_count).map(|_| self.env.alloc(len)).collect();
        let mut next: Strips<usize> = smallvec![0; content.len()];
        let mut at = offsets.start;
        while at < offsets.end {
            // Up to the first place where one of the strips continues in another buffer.
            let end_of = |role: usize| content[role][next[role]].0 + content[role][next[role]].1.len() as u64;
            let end = (0..content.len()).map(end_of).min().expect("a stripe has data strips");
            let slice = |role: usize| {
                let (start, buf) = &content[role][next[role]];
                &buf[Range::new(at, end).relative(*start)]
            };
            let data: Strips<&[u8]> = (0..content.len()).map(slice).collect();
            let part = Range::new(at, end).relative(offsets.start);
            let mut targets: Strips<&mut [u8]> =
                parity.iter_mut().map(|parity_strip| &mut parity_strip[part.clone()]).collect();
            self.shared.code.encode(&data, &mut targets);
            for (next, runs) in next.iter_mut().zip(content) {
                let (start, buf) = &runs[*next];
                *next += usize::from(start + buf.len() as u64 == end);
            }
            at = end;
        }
        parity
    }
}

fn strip_of(reads: &Reads, role: Role) -> &[u8] {
    let read = reads.iter().find(|(read, ..)| *read == role);
    &read.expect("the plan reads every source of its decoder").2
}

/// Adds a write for each of `ranges`, from the runs that cover it.
fn push_runs(writes: &mut Vec<StripWrite>, role: Role, runs: &[Run], ranges: &Ranges) {
    for range in ranges.iter() {
        let mut data = Segments::new();
        for (start, buf) in runs {
            let part = Range::new(*start, *start + buf.len() as u64).intersect(range);
            if !part.is_empty() {
                data.push(buf.slice(part.relative(*start)));
            }
        }
        writes.push(StripWrite { role, offset: range.start, data });
    }
}
