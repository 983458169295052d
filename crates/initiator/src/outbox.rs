//! PDUs that wait to be sent: headers and short data are copied together, long data stay in place.

use drive::{Buf, Segments, Tasks};

/// Data up to this length are copied behind their header: one more segment costs the kernel as much
/// as the copy.
const INLINE_BYTES_MAX: usize = 1024;

/// PDUs in order.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Headers and short data, one after the other.
    heads: Vec<u8>,
    /// Longer data, each with the length of `heads` before it.
    bodies: Vec<(usize, Buf)>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Adds a header or a digest.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.heads.extend_from_slice(bytes);
    }

    /// Adds data after a header.
    pub fn put_body(&mut self, body: Buf) {
        match body.len() {
            ..=INLINE_BYTES_MAX => self.heads.extend_from_slice(&body),
            _ => self.bodies.push((self.heads.len(), body)),
        }
    }

    /// Takes all PDUs for sending.
    pub fn take(&mut self, tasks: &impl Tasks) -> Segments {
        let mut segments = Segments::with_capacity(self.bodies.len() * 2 + 1);
        let mut heads = tasks.alloc(self.heads.len());
        heads.copy_from_slice(&self.heads);
        self.heads.clear();
        let heads = heads.freeze();
        let mut from = 0;
        for (to, body) in self.bodies.drain(..) {
            // Data in several segments have no header between them.
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
