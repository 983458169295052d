//! An array on one shard, for reading.

use std::rc::Rc;

use drive::{Block, BlockError, Buf, BufMut, Drive, Env, Extent, WriteZeroes, join_all};
use gf::Code;

use crate::SECTOR;
use crate::assess::Assembly;
use crate::examine::read_bytes;
use crate::geometry::{Geometry, Parity, SectorPlace};

/// If a part cannot be read, it is tried again in blocks of this many bytes: each may be readable
/// on another member.
const BLOCK_BYTES: usize = 4096;

/// The longest part of a request that is read at once, in bytes.
const PART_BYTES_MAX: u64 = 1 << 20;

/// Parts of a request that are read at the same time.
const PARTS_AT_ONCE: usize = 32;

/// The answer to all writes.
const READ_ONLY: BlockError = BlockError::ReadOnly { reason: "an md array is imported for reading" };

/// An md array as a read-only block device. A handle: clones are the same array.
///
/// A block that cannot be read from its member is read from another copy, or computed from the rest
/// of its row.
pub struct Array<E: Env>(Rc<MdArray<E>>);

impl<E: Env> Clone for Array<E> {
    fn clone(&self) -> Self {
        Array(self.0.clone())
    }
}

struct MdArray<E: Env> {
    env: E,
    geometry: Geometry,
    members: Vec<Option<Member<E::Drive>>>,
    /// Bytes of each member's data up to which parity fits the data.
    trusted_bytes: u64,
    /// The code of RAID 6; none for other levels.
    code: Option<Code>,
}

struct Member<D> {
    drive: D,
    /// First byte of the data on the drive.
    data_start: u64,
    /// Unreadable ranges of the drive in bytes: start, and end (exclusive).
    bad: Vec<(u64, u64)>,
}

impl<D: Drive> Member<D> {
    /// Fills `buf` from byte `at` of the data. `None` if the range cannot be read.
    async fn read(&self, at: u64, buf: BufMut) -> Option<BufMut> {
        let (start, end) = (self.data_start + at, self.data_start + at + buf.len() as u64);
        if self.bad.iter().any(|&(first, behind)| first < end && start < behind) {
            return None;
        }
        read_bytes(&self.drive, start, buf).await.ok()
    }
}

/// A contiguous part of a request.
struct Part {
    place: SectorPlace,
    /// Bytes from the start of the sector that `place` refers to.
    skip: u64,
    len: usize,
}

impl<E: Env> Array<E> {
    /// The array of an assembly. `drive` returns the drive of a candidate.
    pub fn new(env: E, assembly: &Assembly, drive: impl Fn(usize) -> E::Drive) -> Self {
        let geometry = assembly.geometry.clone();
        let members = assembly.members.iter().map(|place| {
            let place = place.as_ref()?;
            let bytes = |sector: u64| sector.saturating_mul(SECTOR);
            Some(Member {
                drive: drive(place.candidate),
                data_start: place.data_offset * SECTOR,
                bad: place.bad.iter().map(|range| (bytes(range.start), bytes(range.end))).collect(),
            })
        });
        let code = geometry.parity().filter(|parity| parity.survives() == 2).map(|parity| {
            Code::new(parity.power_count(), 2).expect("the geometry is of no more disks than there are powers")
        });
        let trusted_bytes = assembly.trusted_sectors.saturating_mul(SECTOR);
        Array(Rc::new(MdArray { env, members: members.collect(), geometry, trusted_bytes, code }))
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        let size = self.size_bytes();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(BlockError::OutOfRange { offset, len, size }),
        }
    }
}

impl<E: Env> MdArray<E> {
    fn parts(&self, offset: u64, len: usize) -> Vec<Part> {
        let (mut parts, mut at) = (Vec::new(), offset);
        let end = offset + len as u64;
        while at < end {
            let (place, skip) = (self.geometry.locate(at / SECTOR), at % SECTOR);
            let (SectorPlace::Copies { sectors, .. } | SectorPlace::Strip { sectors, .. }) = &place;
            let together = (sectors * SECTOR - skip).min(end - at).min(PART_BYTES_MAX);
            parts.push(Part { place, skip, len: together as usize });
            at += together;
        }
        parts
    }

    /// Fills `buf` with a part. The second value says whether the result is another buffer, because
    /// the first one was lost.
    async fn part(&self, part: &Part, buf: BufMut) -> Result<(BufMut, bool), BlockError> {
        if let Some(buf) = self.first(part, buf).await {
            return Ok((buf, false));
        }
        match self.elsewhere(part, 0, part.len).await {
            Ok(buf) => return Ok((buf, true)),
            Err(lost) if self.block_end(part, 0) >= part.len => return Err(lost),
            Err(_) => {}
        }
        let (mut found, mut at) = (self.env.alloc(part.len), 0);
        while at < part.len {
            let len = self.block_end(part, at).min(part.len) - at;
            let block = match self.own(part, at, len).await {
                Some(block) => block,
                None => self.elsewhere(part, at, len).await?,
            };
            found[at..at + len].copy_from_slice(&block);
            at += len;
        }
        Ok((found, true))
    }

    /// Reads a part from its member, or from the member with its first copy.
    async fn first(&self, part: &Part, buf: BufMut) -> Option<BufMut> {
        let (member, sector) = self.home(&part.place)?;
        member.read(sector * SECTOR + part.skip, buf).await
    }

    /// The member that a place is read from, and the sector in its data. `None` if that member is
    /// missing.
    fn home(&self, place: &SectorPlace) -> Option<(&Member<E::Drive>, u64)> {
        let (disk, sector) = match place {
            // The first present copy. It is always the same one, so copies that differ after a
            // crash are read consistently.
            SectorPlace::Copies { at, .. } => *at.iter().find(|(disk, _)| self.members[*disk].is_some())?,
            SectorPlace::Strip { row, index, sector, .. } => {
                (self.geometry.parity().expect("strips have parity").row(*row).data[*index], *sector)
            }
        };
        Some((self.members[disk].as_ref()?, sector))
    }

    /// End of the block, on the part's first member, that contains byte `at` of the part. It is an
    /// offset in the part. Pieces that end there lose at most one block.
    fn block_end(&self, part: &Part, at: usize) -> usize {
        let byte = match self.home(&part.place) {
            Some((member, sector)) => member.data_start + sector * SECTOR + part.skip + at as u64,
            None => at as u64,
        };
        at + BLOCK_BYTES - (byte % BLOCK_BYTES as u64) as usize
    }

    /// As `first`, for a range of the part.
    async fn own(&self, part: &Part, at: usize, len: usize) -> Option<BufMut> {
        let range = Part { place: part.place.clone(), skip: part.skip + at as u64, len };
        self.first(&range, self.env.alloc(len)).await
    }

    /// Reads a range of a part that its first member cannot provide: from another copy, or by
    /// computation.
    async fn elsewhere(&self, part: &Part, at: usize, len: usize) -> Result<BufMut, BlockError> {
        let byte = |sector: u64| sector * SECTOR + part.skip + at as u64;
        match &part.place {
            SectorPlace::Copies { at, .. } => {
                let there = at.iter().filter_map(|(disk, sector)| Some((self.members[*disk].as_ref()?, *sector)));
                // The first of them was tried already.
                for (member, sector) in there.skip(1) {
                    if let Some(buf) = member.read(byte(sector), self.env.alloc(len)).await {
                        return Ok(buf);
                    }
                }
                Err(BlockError::Lost { lost: at.len(), survives: at.len() - 1 })
            }
            SectorPlace::Strip { row, index, sector, .. } => {
                let parity = self.geometry.parity().expect("strips have parity");
                let byte = byte(*sector);
                if byte + len as u64 > self.trusted_bytes {
                    return Err(BlockError::Lost { lost: 1, survives: 0 });
                }
                match &self.code {
                    None => self.by_p(parity, *row, *index, byte, len).await,
                    Some(code) => self.by_p_and_q(code, parity, *row, *index, byte, len).await,
                }
            }
        }
    }

    /// Reads a range of one member's data. `None` if it cannot be read or the member is missing.
    async fn strip(&self, disk: usize, byte: u64, len: usize) -> Option<BufMut> {
        self.members[disk].as_ref()?.read(byte, self.env.alloc(len)).await
    }

    /// Computes a range of a data strip as the sum of all others in its row.
    async fn by_p(&self, parity: &Parity, row: u64, index: usize, byte: u64, len: usize) -> Result<BufMut, BlockError> {
        let lost = parity.row(row).data[index];
        let others = (0..self.members.len()).filter(|&disk| disk != lost);
        let strips = join_all(others.map(|disk| self.strip(disk, byte, len))).await;
        let unreadable = strips.iter().filter(|strip| strip.is_none()).count();
        let mut strips = strips.into_iter().flatten();
        match strips.next() {
            Some(mut sum) if unreadable == 0 => {
                strips.for_each(|strip| gf::xor_into(&mut sum, &strip));
                Ok(sum)
            }
            _ => Err(BlockError::Lost { lost: 1 + unreadable, survives: 1 }),
        }
    }

    /// Computes a range of a data strip from as many others as needed, including P and Q.
    async fn by_p_and_q(
        &self,
        code: &Code,
        parity: &Parity,
        row: u64,
        index: usize,
        byte: u64,
        len: usize,
    ) -> Result<BufMut, BlockError> {
        let row = parity.row(row);
        // Strips in the code's numbering: by their powers, then P and Q. A strip without a disk is
        // all zeroes.
        let parity_disks = [Some(row.p), row.q];
        let disks: Vec<Option<usize>> = row.powers.iter().copied().chain(parity_disks).collect();
        let wanted = disks.iter().position(|disk| *disk == Some(row.data[index])).expect("each data strip has a power");
        let is_gone = |disk: &Option<usize>| disk.is_some_and(|disk| self.members[disk].is_none());
        let mut lost: Vec<usize> =
            (0..disks.len()).filter(|&strip| strip == wanted || is_gone(&disks[strip])).collect();
        loop {
            let decoder = code
                .decoder_for(&lost, &[wanted])
                .map_err(|_| BlockError::Lost { lost: lost.len(), survives: code.parity_count() })?;
            let sources = join_all(decoder.sources().iter().map(|&strip| self.source(disks[strip], byte, len))).await;
            let strips = decoder.sources().iter().zip(&sources);
            let unreadable: Vec<usize> =
                strips.filter(|(_, source)| source.is_none()).map(|(strip, _)| *strip).collect();
            if !unreadable.is_empty() {
                lost.extend(unreadable);
                continue;
            }
            let sources: Vec<&[u8]> = sources.iter().flatten().map(|source| &source[..]).collect();
            let mut out = self.env.alloc(len);
            decoder.reconstruct(&sources, &mut [&mut out]);
            return Ok(out);
        }
    }

    /// As `strip`, and zeroes if there is no disk.
    async fn source(&self, disk: Option<usize>, byte: u64, len: usize) -> Option<BufMut> {
        match disk {
            Some(disk) => self.strip(disk, byte, len).await,
            None => Some(BufMut::zeroed(len)),
        }
    }
}

impl<E: Env> Block for Array<E> {
    fn size_bytes(&self) -> u64 {
        self.0.geometry.sectors() * SECTOR
    }

    fn optimal_io_bytes(&self) -> u32 {
        u32::try_from(self.0.geometry.stripe_sectors() * SECTOR).unwrap_or(u32::MAX)
    }

    async fn read(&self, offset: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        let len = buf.len();
        self.check(offset, len as u64)?;
        let parts = self.0.parts(offset, len);
        let (mut rest, mut done, mut moved) = (Some(buf), Vec::with_capacity(parts.len()), false);
        for parts in parts.chunks(PARTS_AT_ONCE) {
            let mut reads = Vec::with_capacity(parts.len());
            for part in parts {
                let mut first = rest.take().expect("the parts are as long as the buffer");
                rest = Some(first.split_off(part.len));
                reads.push(self.0.part(part, first));
            }
            for read in join_all(reads).await {
                let (buf, is_other) = read?;
                moved |= is_other;
                done.push(buf);
            }
        }
        if moved {
            let (mut whole, mut at) = (self.0.env.alloc(len), 0);
            for buf in done {
                whole[at..at + buf.len()].copy_from_slice(&buf);
                at += buf.len();
            }
            return Ok(whole);
        }
        let mut all = done.into_iter().chain(rest);
        let mut whole = all.next().expect("what is behind the parts is there, if empty");
        for buf in all {
            whole.unsplit(buf).expect("the parts are those of one buffer, in their order");
        }
        Ok(whole)
    }

    async fn write(&self, _: u64, _: Buf, _: bool) -> Result<(), BlockError> {
        Err(READ_ONLY)
    }

    async fn write_zeroes(&self, _: u64, _: u64, _: WriteZeroes) -> Result<(), BlockError> {
        Err(READ_ONLY)
    }

    async fn discard(&self, _: u64, _: u64) -> Result<(), BlockError> {
        Err(READ_ONLY)
    }

    fn is_degraded(&self) -> bool {
        self.0.members.iter().any(Option::is_none)
    }

    /// Nothing is ever written, so there is nothing to make durable.
    async fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }

    async fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>, BlockError> {
        self.check(offset, len)?;
        Ok(vec![Extent { len, allocated: true }])
    }
}
