//! What waits to be sent: headers and short data together, long data where they lie.

use drive::{Buf, Segments, Tasks};

/// Data up to this length are copied behind their header: a segment more costs the kernel as much
/// as that.
const INLINE_BYTES_MAX: usize = 1024;

/// PDUs in order.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Headers and short data, one after the other.
    heads: Vec<u8>,
    /// Longer data, each with the length of `heads` in front of it.
    bodies: Vec<(usize, Buf)>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// A header, or a digest.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.heads.extend_from_slice(bytes);
    }

    /// Data behind a header.
    pub fn put_body(&mut self, body: Buf) {
        match body.len() {
            ..=INLINE_BYTES_MAX => self.heads.extend_from_slice(&body),
            _ => self.bodies.push((self.heads.len(), body)),
        }
    }

    /// Everything, to be sent.
    pub fn take(&mut self, tasks: &impl Tasks) -> Segments {
        let mut segments = Segments::with_capacity(self.bodies.len() * 2 + 1);
        let mut heads = tasks.alloc(self.heads.len());
        heads.copy_from_slice(&self.heads);
        self.heads.clear();
        let heads = heads.freeze();
        let mut from = 0;
        for (to, body) in self.bodies.drain(..) {
            // Data in several segments have nothing between them.
            if from < to {
                segments.push(heads.slice(from..to));
            }
            segments.push(body);
            from = to;
        }
        if from < heads.len() {
            segments.push(heads.slice(from..heads.len()));
        }
        segments
    }
}
