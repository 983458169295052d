//! Extracts the bytes of a volume.

use format::thin::entry::LEAF_BLOCKS;
use format::{BLOCK, ThinPoolRecord, VolumeKind, VolumeRecord};
use serde::{Deserialize, Serialize};

use crate::Progress;
use crate::catalogue::Volumes;
use crate::error::RescueError;
use crate::group::Group;
use crate::log::Log;
use crate::lost::{Lost, LostRange};
use crate::map::Map;
use crate::stripe::StripeReader;
use crate::sums::DamagedRange;
use crate::survey::{Survey, SurveyedDrive};
use crate::target::Target;
use crate::thin::{Content, ThinQuery, ThinStore, VolumeMap};
use crate::walk::Walk;

/// Bytes that are passed to the target at once.
const WRITE_BYTES: usize = 1 << 20;

/// Said of a loss at which an extraction ended.
const NOT_ALL_READ: &str = ", and the rest was not read";

/// The result of an extraction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtractReport {
    /// The volume, GROUP/VOLUME.
    pub volume: String,
    /// Where it was written.
    pub target: String,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Bytes that were read or computed.
    pub data_bytes: u64,
    /// How many of these were computed, because their member is missing, could not read them, or
    /// returned other bytes than were written.
    pub computed_bytes: u64,
    /// Bytes that were never written and read as zeroes.
    pub hole_bytes: u64,
    /// Bytes that are lost. The target has zeroes there.
    pub lost_bytes: u64,
    /// How many of these may never have been written: the map of a thin volume cannot be read
    /// there, nor rebuilt.
    pub unknown_bytes: u64,
    /// The first 1000 lost ranges.
    pub lost: Vec<LostRange>,
    /// Blocks that were read but do not fit their checksums. None of their content was used.
    /// Counted up to a million.
    pub damaged_count: u64,
    /// The first 1000 ranges of damaged blocks.
    pub damaged: Vec<DamagedRange>,
    /// Bytes of a thin volume whose map could not be read and was rebuilt from segments. Blocks
    /// there that were discarded or zeroed may have old content.
    pub rebuilt_bytes: u64,
    /// Bytes of segments of thin volumes that cannot be read, and may have newer content of some
    /// blocks.
    pub unread_bytes: u64,
    /// Sentences for people.
    pub warnings: Vec<String>,
}

/// A volume that is about to be extracted.
pub struct Extraction<'a> {
    group: &'a Group,
    drives: &'a [SurveyedDrive],
    map: Map,
    log: Log,
    volume: VolumeRecord,
    /// The pool of a thin volume.
    pool: Option<ThinPoolRecord>,
    partial: bool,
    from_segments: bool,
    warnings: Vec<String>,
}

impl<'a> Extraction<'a> {
    /// Finds a volume and checks that enough members are present for all of it. `group` is a name
    /// or a UUID. With `partial`, a part of the volume is enough.
    ///
    /// # Errors
    /// [`RescueError`]; [`RescueError::Lost`] if too many members are missing and `partial` is not
    /// set.
    pub fn new(survey: &'a Survey, group: &str, volume: &str, partial: bool) -> Result<Extraction<'a>, RescueError> {
        let group = survey.group(group)?;
        let drives = &survey.drives[..];
        group.check_one_truth(drives)?;
        let volumes = Volumes::read(group, drives, &mut Vec::new());
        if let Some(why) = volumes.unknown {
            return Err(RescueError::Catalogue { why });
        }
        let known = volumes.catalogue.volumes.iter().map(|record| record.name.clone()).collect();
        let pool = volumes.catalogue.thin;
        let record = volumes.catalogue.volumes.into_iter().find(|record| record.name == volume);
        let record = record.ok_or_else(|| RescueError::NoVolume { name: volume.to_owned(), known })?;
        let map = Map::read(group, drives, &mut Vec::new());
        let log = Log::read(group, drives, &mut Vec::new());
        let mut warnings = group.warnings(drives);
        if map.torn > 0 {
            let torn = map.torn;
            warnings
                .push(format!("{torn} blocks of the allocation map have damaged copies only: taken as never written"));
        }
        let pool = pool.filter(|_| record.kind == VolumeKind::Thin);
        let from_segments = false;
        let extraction = Extraction { group, drives, map, log, volume: record, pool, partial, from_segments, warnings };
        let lost = extraction.lost_to_missing_members();
        if !partial && !lost.is_empty() {
            let why = extraction.why_lost(&lost, "", 0);
            return Err(RescueError::Lost { why, lost: lost.ranges });
        }
        Ok(extraction)
    }

    /// Uses neither the anchors nor the map of a thin volume: its map is rebuilt from segments.
    #[must_use]
    pub fn from_segments(mut self) -> Extraction<'a> {
        self.from_segments = true;
        if self.pool.is_none() {
            self.warnings.push("the volume is not thin: it has no map that could be rebuilt".to_owned());
        }
        self
    }

    /// Size of the volume.
    pub fn size_bytes(&self) -> u64 {
        self.volume.size_bytes
    }

    /// Facts to consider before trusting the extracted bytes.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Reads, computes and writes the whole volume.
    ///
    /// # Errors
    /// [`RescueError::Write`]; [`RescueError::Lost`] unless `partial` is set: with all ranges
    /// that are lost because members are missing, or at the first range that cannot be read.
    pub fn run(&self, target: &mut dyn Target, progress: Progress<'_>) -> Result<ExtractReport, RescueError> {
        if let Some(pool) = &self.pool {
            return self.run_thin(pool, target, progress);
        }
        let mut reader = StripeReader::new(self.group, self.drives, &self.log);
        let mut lost = Lost::default();
        let mut writer = Writer { target, start: 0, bytes: Vec::with_capacity(WRITE_BYTES) };
        let (mut hole_bytes, mut shown) = (0, 0);
        for piece in Walk::new(self.group, &self.map, &self.log.lost, &self.volume) {
            if piece.start - shown >= WRITE_BYTES as u64 {
                progress(piece.start, self.volume.size_bytes);
                shown = piece.start;
            }
            match piece.written {
                Some(false) => {
                    hole_bytes += piece.len;
                    writer.hole(piece.start, piece.len)?;
                    continue;
                }
                None => {
                    lost.push(piece.start, piece.len);
                    writer.hole(piece.start, piece.len)?;
                }
                Some(true) => {
                    let buf = writer.room(piece.start, piece.len as usize)?;
                    let mut hear = |from: usize, len: usize| lost.push(piece.start + from as u64, len as u64);
                    reader.read(piece.at, piece.strip, buf, &mut hear);
                }
            }
            if !self.partial && !lost.is_empty() {
                let why = self.why_lost(&lost, NOT_ALL_READ, reader.sums.damaged_count());
                return Err(RescueError::Lost { why, lost: lost.ranges });
            }
        }
        writer.end()?;
        progress(self.volume.size_bytes, self.volume.size_bytes);
        Ok(self.report(writer.target.name(), hole_bytes, lost, &reader))
    }

    fn report(&self, target: &str, hole_bytes: u64, lost: Lost, reader: &StripeReader<'_>) -> ExtractReport {
        ExtractReport {
            volume: format!("{}/{}", self.group.name(), self.volume.name),
            target: target.to_owned(),
            size_bytes: self.volume.size_bytes,
            data_bytes: self.volume.size_bytes - hole_bytes - lost.bytes,
            computed_bytes: reader.computed_bytes,
            hole_bytes,
            lost_bytes: lost.bytes,
            unknown_bytes: lost.unknown_bytes,
            lost: lost.ranges,
            damaged_count: reader.sums.damaged_count(),
            damaged: reader.sums.damaged_ranges(),
            rebuilt_bytes: 0,
            unread_bytes: 0,
            warnings: self.warnings.clone(),
        }
    }

    /// As [`Extraction::run`], for a thin volume: leaf by leaf of its map.
    fn run_thin(
        &self,
        pool: &ThinPoolRecord,
        target: &mut dyn Target,
        progress: Progress<'_>,
    ) -> Result<ExtractReport, RescueError> {
        let (line, size) = (self.volume.id as u32, self.volume.size_bytes);
        let store = pool.store(self.volume.thin.store).ok_or_else(|| RescueError::Thin {
            why: format!("the pool of {} has no store {}", self.group.name(), self.volume.thin.store),
        })?;
        let query = ThinQuery::new(pool, store, std::slice::from_ref(&self.volume));
        let query = ThinQuery { from_segments: self.from_segments, ..query };
        let store = ThinStore::open(self.group, self.drives, (&self.map, &self.log), query);
        let mut store = store.map_err(|why| RescueError::Thin { why })?;
        if !self.partial {
            self.check_nothing_lost(&store.lost(line, size), "", &store)?;
        }
        let mut map = store.volume_map(line);
        let mut copy = ThinCopy {
            writer: Writer { target, start: 0, bytes: Vec::with_capacity(WRITE_BYTES) },
            at: 0,
            hole_bytes: 0,
            lost: Lost::default(),
        };
        let leaf_bytes = LEAF_BLOCKS * BLOCK as u64;
        for leaf in store.used_leaves(line, &map) {
            let start = leaf * leaf_bytes;
            if start >= size {
                break;
            }
            for (number, content) in (0..).zip(store.leaf(line, leaf, &mut map)) {
                let at = start + number * BLOCK as u64;
                if let Some(content) = content.filter(|_| at < size) {
                    copy.gap_until(&map, at)?;
                    copy.block(&mut store, &content, size.min(at + BLOCK as u64))?;
                }
            }
            if !self.partial {
                self.check_nothing_lost(&copy.lost, NOT_ALL_READ, &store)?;
            }
            progress(copy.at, size);
        }
        copy.gap_until(&map, size)?;
        if !self.partial {
            self.check_nothing_lost(&copy.lost, "", &store)?;
        }
        copy.writer.end()?;
        progress(size, size);
        let mut report = self.report(copy.writer.target.name(), copy.hole_bytes, copy.lost, store.reader());
        (report.rebuilt_bytes, report.unread_bytes) = (map.rebuilt_bytes(size), store.unread_bytes());
        report.warnings.extend(store.messages());
        let parts = store.map_messages(&map).into_iter();
        report.warnings.extend(parts.map(|message| format!("thin volume {}: {message}", self.volume.name)));
        Ok(report)
    }

    /// Refuses a thin volume if a part of it is lost, or may be. `more` is said of the loss.
    fn check_nothing_lost(&self, lost: &Lost, more: &str, store: &ThinStore<'_>) -> Result<(), RescueError> {
        let why = || self.why_lost(lost, more, store.reader().sums.damaged_count());
        let unread = store.unread_bytes();
        let unread = (unread > 0).then(|| format!("{unread} bytes of segments of {} cannot be read", store.name()));
        let why = match (lost.is_empty(), unread) {
            (true, None) => return Ok(()),
            (true, Some(unread)) => format!("{unread}, and may have newer content"),
            (false, None) => why(),
            (false, Some(unread)) => format!("{}; {unread}", why()),
        };
        Err(RescueError::Lost { why, lost: lost.ranges.clone() })
    }

    /// Ranges that no present member can provide, neither directly nor by computation.
    fn lost_to_missing_members(&self) -> Lost {
        let mut lost = Lost::default();
        for piece in Walk::new(self.group, &self.map, &self.log.lost, &self.volume) {
            if piece.is_lost(self.group) {
                lost.push(piece.start, piece.len);
            }
        }
        lost
    }

    /// Explains the loss. `more` is said of it, and `damaged` is the number of blocks read so far
    /// that do not fit their checksums.
    fn why_lost(&self, lost: &Lost, more: &str, damaged: u64) -> String {
        let shape = &self.group.superblock.shape;
        let missing: Vec<String> = (0..self.group.members.len())
            .filter(|&slot| self.group.members[slot].is_none())
            .map(|slot| slot.to_string())
            .collect();
        let missing = match missing.len() {
            0 => "no member is missing".to_owned(),
            1 => format!("slot {} is missing", missing[0]),
            _ => format!("slots {} are missing", missing.join(", ")),
        };
        let damaged = match damaged {
            0 => String::new(),
            1 => ", 1 block read so far does not fit its checksum".to_owned(),
            count => format!(", {count} blocks read so far do not fit their checksums"),
        };
        let listed = match self.log.lost.len() {
            0 => String::new(),
            count => format!("; {count} ranges of the group were lost in a crash before"),
        };
        let lost = lost.sentence(&format!("{}/{}", self.group.name(), self.volume.name));
        format!("{lost}{more}: {missing}{damaged}, and {} survives {}{listed}", shape.level, shape.survives())
    }
}

/// A thin volume that is being written to a target.
struct ThinCopy<'t> {
    writer: Writer<'t>,
    /// The next byte.
    at: u64,
    hole_bytes: u64,
    lost: Lost,
}

impl ThinCopy<'_> {
    /// Bytes without content, and bytes that may have had some.
    fn gap_until(&mut self, map: &VolumeMap, end: u64) -> Result<(), RescueError> {
        for gap in map.gaps(self.at..end) {
            let len = gap.end - self.at;
            self.writer.hole(self.at, len)?;
            if gap.is_unknown {
                self.lost.push_unknown(self.at, len);
            } else {
                self.hole_bytes += len;
            }
            self.at = gap.end;
        }
        Ok(())
    }

    /// The next block, or less of it at the end of the volume.
    fn block(&mut self, store: &mut ThinStore<'_>, content: &Content, end: u64) -> Result<(), RescueError> {
        let mut block = vec![0; (end - self.at) as usize];
        if store.read_block(content, &mut block) {
            self.writer.room(self.at, block.len())?.copy_from_slice(&block);
        } else {
            self.writer.hole(self.at, end - self.at)?;
            self.lost.push(self.at, end - self.at);
        }
        self.at = end;
        Ok(())
    }
}

/// Gathers consecutive bytes into larger writes.
struct Writer<'t> {
    target: &'t mut dyn Target,
    start: u64,
    bytes: Vec<u8>,
}

impl Writer<'_> {
    /// Zeroed space for the next bytes, which begin at `start`.
    fn room(&mut self, start: u64, len: usize) -> Result<&mut [u8], RescueError> {
        if self.bytes.len() + len > WRITE_BYTES {
            self.end()?;
        }
        if self.bytes.is_empty() {
            self.start = start;
        }
        let from = self.bytes.len();
        self.bytes.resize(from + len, 0);
        Ok(&mut self.bytes[from..])
    }

    fn hole(&mut self, start: u64, len: u64) -> Result<(), RescueError> {
        self.end()?;
        let result = self.target.skip(start, len);
        self.failed(result)
    }

    fn end(&mut self) -> Result<(), RescueError> {
        let result = if self.bytes.is_empty() { Ok(()) } else { self.target.write(self.start, &self.bytes) };
        self.bytes.clear();
        self.failed(result)
    }

    fn failed(&self, result: std::io::Result<()>) -> Result<(), RescueError> {
        result.map_err(|source| RescueError::Write { name: self.target.name().to_owned(), source })
    }
}
