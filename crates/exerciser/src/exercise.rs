//! The operations, and the copy in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;

use crate::target::{Aligned, DIRECT_ALIGN, Target, Zeroing};

/// Most bytes of one operation.
const LEN_MAX: u64 = 256 << 10;

/// An operation that was done, for the message of a failure.
pub struct Done {
    number: u64,
    what: &'static str,
    range: Range<u64>,
}

impl fmt::Display for Done {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        write!(formatter, "{:6} {} {start}+{}", self.number, self.what, end - start)
    }
}

/// A target, and its expected content.
pub struct Exercise {
    target: Target,
    /// The expected content, as long as the file.
    model: Vec<u8>,
    state: u64,
    history: Vec<Done>,
}

impl Exercise {
    /// Starts with an empty file, or a device of zeroes.
    pub fn new(target: Target, seed: u64) -> Exercise {
        let len = if target.is_device { target.capacity } else { 0 };
        let state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Exercise { model: vec![0; len as usize], target, state, history: Vec::new() }
    }

    /// The operations so far, in order.
    pub fn history(&self) -> &[Done] {
        &self.history
    }

    /// How often each operation was done.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        self.history.iter().for_each(|done| *counts.entry(done.what).or_default() += 1);
        counts.iter().map(|(what, count)| format!("{count} x {what}")).collect::<Vec<_>>().join(", ")
    }

    /// The random number generator of Marsaglia, "Xorshift RNGs" (2003).
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random() % limit.max(1)
    }

    /// A random range below `end`, aligned to `align`. Short ranges are as frequent as long ones.
    fn range(&mut self, end: u64, align: u64) -> Option<Range<u64>> {
        let places = end / align;
        if places == 0 {
            return None;
        }
        let start = self.below(places);
        let longest = (places - start).min(LEN_MAX / align).max(1);
        let scale = self.below(64 - u64::from(longest.leading_zeros()));
        let len = (1 + self.below(2 << scale)).min(longest);
        Some(start * align..(start + len) * align)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.random().to_ne_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    /// Runs one operation.
    ///
    /// # Errors
    /// A sentence about the difference or error.
    pub fn step(&mut self) -> Result<(), String> {
        let (what, range, result) = self.choose();
        self.history.push(Done { number: self.history.len() as u64 + 1, what, range });
        result
    }

    fn choose(&mut self) -> (&'static str, Range<u64>, Result<(), String>) {
        let (end, capacity) = (self.model.len() as u64, self.target.capacity);
        let direct = DIRECT_ALIGN;
        // Devices only zero whole blocks.
        let zero_align = if self.target.is_device { direct } else { 1 };
        let picked = self.below(100);
        let wanted = match picked {
            0..20 => ("write", self.range(capacity, 1)),
            20..35 => ("write past the cache", self.range(capacity, direct)),
            35..45 => ("write by map", self.range(end, 1)),
            45..60 => ("read", self.range(end, 1)),
            60..72 => ("read past the cache", self.range(end, direct)),
            72..77 => ("read by map", self.range(end, 1)),
            77..83 => ("punch", self.range(end, zero_align)),
            83..88 => ("zero", self.range(end, zero_align)),
            88..91 if !self.target.is_device => ("truncate", Some(0..self.below(capacity))),
            91..95 => ("sync", Some(0..end)),
            95..97 => ("sync data", Some(0..end)),
            _ => ("forget the cache", Some(0..end)),
        };
        let (what, range) = (wanted.0, wanted.1.unwrap_or(0..0));
        if range.is_empty() && !matches!(what, "truncate" | "sync" | "sync data" | "forget the cache") {
            return ("nothing", range, Ok(()));
        }
        let done = self.perform(what, range.clone());
        (what, range, done)
    }

    fn perform(&mut self, what: &'static str, range: Range<u64>) -> Result<(), String> {
        let (at, len) = (range.start, (range.end - range.start) as usize);
        let io: io::Result<()> = match what {
            "write" => {
                let mut bytes = vec![0; len];
                self.fill(&mut bytes);
                self.put(&range, &bytes);
                self.target.write(at, &bytes)
            }
            "write past the cache" => {
                let mut bytes = Aligned::new(len);
                self.fill(&mut bytes);
                self.put(&range, &bytes);
                self.target.write_direct(at, &bytes)
            }
            "write by map" => {
                let mut bytes = vec![0; len];
                self.fill(&mut bytes);
                self.put(&range, &bytes);
                let page = at / DIRECT_ALIGN * DIRECT_ALIGN;
                let (skip, sync) = ((at - page) as usize, self.below(2) == 0);
                self.target.map(page, skip + len, |mapped| {
                    mapped[skip..].copy_from_slice(&bytes);
                    sync
                })
            }
            "read" => {
                let mut bytes = vec![0; len];
                let read = self.target.read(at, &mut bytes);
                read.and_then(|()| self.compare(at, &bytes))
            }
            "read past the cache" => {
                let mut bytes = Aligned::new(len);
                let read = self.target.read_direct(at, &mut bytes);
                read.and_then(|()| self.compare(at, &bytes))
            }
            "read by map" => {
                let page = at / DIRECT_ALIGN * DIRECT_ALIGN;
                let skip = (at - page) as usize;
                let mut bytes = vec![0; len];
                let mapped = self.target.map(page, skip + len, |mapped| {
                    bytes.copy_from_slice(&mapped[skip..]);
                    false
                });
                mapped.and_then(|()| self.compare(at, &bytes))
            }
            "punch" | "zero" => {
                let how = if what == "punch" { Zeroing::Punch } else { Zeroing::Zero };
                match self.target.zero(range.clone(), how) {
                    // Not every file system supports both.
                    Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
                    done => {
                        self.model[at as usize..range.end as usize].fill(0);
                        done
                    }
                }
            }
            "truncate" => {
                self.model.resize(len, 0);
                self.target.truncate(range.end)
            }
            "sync" => self.target.sync(true),
            "sync data" => self.target.sync(false),
            _ => self.target.forget_cache(0, 0),
        };
        io.map_err(|error| format!("{what} {at}+{len}: {error}"))
    }

    fn put(&mut self, range: &Range<u64>, bytes: &[u8]) {
        let end = range.end as usize;
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[range.start as usize..end].copy_from_slice(bytes);
    }

    fn compare(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let expected = &self.model[at as usize..at as usize + bytes.len()];
        let Some(first) = expected.iter().zip(bytes).position(|(expected, found)| expected != found) else {
            return Ok(());
        };
        let wrong = expected.iter().zip(bytes).filter(|(expected, found)| expected != found).count();
        Err(io::Error::other(format!(
            "byte {} is {:#04x} and should be {:#04x}; {wrong} of {} bytes are wrong",
            at + first as u64,
            bytes[first],
            expected[first],
            bytes.len()
        )))
    }

    /// Reads everything, through the page cache and past it, and compares it.
    ///
    /// # Errors
    /// A sentence about the difference or error.
    pub fn verify(&mut self) -> Result<(), String> {
        self.perform("sync", 0..0)?;
        self.perform("forget the cache", 0..0)?;
        let end = self.model.len() as u64;
        let mut at = 0;
        while at < end {
            let next = (at + LEN_MAX).min(end);
            self.perform("read", at..next)?;
            let whole = (next - at) / DIRECT_ALIGN * DIRECT_ALIGN;
            if whole > 0 {
                self.perform("read past the cache", at..at + whole)?;
            }
            at = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn exercised(folder: &tempfile::TempDir, seed: u64) -> (Exercise, std::path::PathBuf) {
        let path = folder.path().join("file");
        let mut exercise = Exercise::new(Target::open(&path, 1 << 20).expect("a file can be made"), seed);
        for _ in 0..400 {
            exercise.step().expect("a file system of this machine is right");
        }
        (exercise, path)
    }

    #[test]
    fn a_good_file_system_passes_and_every_operation_was_done() {
        let folder = tempfile::tempdir().expect("a folder");
        for seed in 1..5 {
            let (mut exercise, _) = exercised(&folder, seed);
            assert_eq!(exercise.verify(), Ok(()));
            let summary = exercise.summary();
            for what in ["write", "past the cache", "write by map", "read by map", "punch", "zero", "truncate", "sync"]
            {
                assert!(summary.contains(what), "{what}: {summary}");
            }
        }
    }

    #[test]
    fn one_wrong_bit_is_found_and_its_place_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut exercise, path) = exercised(&folder, 9);
        exercise.perform("write", 5000..9000).expect("it can be written");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("it is there");
        let mut byte = [0];
        file.read_exact_at(&mut byte, 7777).expect("it is long enough");
        file.write_all_at(&[byte[0] ^ 4], 7777).expect("it can be written");
        let problem = exercise.verify().expect_err("a bit is wrong");
        assert!(problem.contains("byte 7777"), "{problem}");
    }
}
