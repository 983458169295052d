//! Reads a region of a drive from its start to its end, such as a log: a part of it is in memory at
//! a time.

use drive::{BufMut, Drive, Env};
use format::{BLOCK, Region};

/// Most bytes that one operation reads.
pub(crate) const WINDOW_BYTES_MAX: u64 = 1 << 20;

/// A part of a drive that is read from its start to its end.
pub(crate) struct Window<'a, E: Env, D: Drive> {
    env: &'a E,
    drive: &'a D,
    region: Region,
    /// Bytes of one read.
    pub step: u64,
    held: Vec<u8>,
    /// Offset on the drive of the first byte that is held.
    start: u64,
    /// Whether all of it could be read so far.
    pub readable: bool,
    /// Buffer of the last read, for reuse.
    buffer: Option<BufMut>,
}

impl<'a, E: Env, D: Drive> Window<'a, E, D> {
    pub fn new(env: &'a E, drive: &'a D, region: Region) -> Self {
        // Small logs in several steps too, so that frames across two windows are common.
        let step = (region.len / 8 / BLOCK as u64 * BLOCK as u64).clamp(BLOCK as u64, WINDOW_BYTES_MAX);
        Window { env, drive, region, step, held: Vec::new(), start: region.offset, readable: true, buffer: None }
    }

    /// Returns `len` bytes from `offset` on, which lie in the region. Releases earlier bytes. Bytes
    /// that cannot be read are zero.
    pub async fn bytes(&mut self, offset: u64, len: u64) -> &[u8] {
        let passed = (offset - self.start).min(self.held.len() as u64);
        if offset + len > self.start + self.held.len() as u64 {
            self.held.drain(..passed as usize);
            self.start += passed;
        }
        while offset + len > self.start + self.held.len() as u64 {
            let next = self.start + self.held.len() as u64;
            let step = self.step.min(self.region.end() - next);
            self.read(next, step as usize).await;
        }
        &self.held[(offset - self.start) as usize..][..len as usize]
    }

    async fn read(&mut self, offset: u64, len: usize) {
        let buffer = self.buffer.take().filter(|buffer| buffer.len() == len);
        if let Ok(read) = self.drive.read(offset, buffer.unwrap_or_else(|| self.env.alloc(len))).await {
            self.held.extend_from_slice(&read);
            self.buffer = Some(read);
            return;
        }
        for block in (0..len).step_by(BLOCK) {
            match self.drive.read(offset + block as u64, self.env.alloc(BLOCK)).await {
                Ok(read) => self.held.extend_from_slice(&read),
                Err(_) => {
                    self.held.extend_from_slice(&[0; BLOCK]);
                    self.readable = false;
                }
            }
        }
    }
}
