//! The receive buffer of a connection.

use crate::buf::BufMut;

/// Bytes that have arrived but were not parsed yet, at `start..end` of a buffer.
#[derive(Debug)]
pub struct Input {
    /// `None` while it is lent.
    buf: Option<BufMut>,
    start: usize,
    end: usize,
}

impl Input {
    /// An empty input.
    pub fn new(buf: BufMut) -> Input {
        Input { buf: Some(buf), start: 0, end: 0 }
    }

    /// The bytes that were not parsed yet. Empty while the buffer is lent.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.buf {
            Some(buf) => &buf[self.start..self.end],
            None => &[],
        }
    }

    /// Drops parsed bytes.
    ///
    /// # Panics
    /// If fewer bytes have arrived.
    #[inline]
    pub fn take(&mut self, len: usize) {
        self.start += len;
        assert!(self.start <= self.end, "parsed {len} bytes more than have arrived");
    }

    /// Continues in another buffer, into which the bytes that were not parsed yet are copied.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn move_to(&mut self, mut buf: BufMut) {
        let len = self.end - self.start;
        buf[..len].copy_from_slice(self.bytes());
        (self.buf, self.start, self.end) = (Some(buf), 0, len);
    }

    /// Lends the buffer for a receive, after moving the remaining bytes to the front. Also returns
    /// the index from which it is free. [`Input::give_back`] must follow.
    ///
    /// # Panics
    /// If it is full: a message that is parsed as a whole fits into it.
    pub fn lend(&mut self) -> (BufMut, usize) {
        let mut buf = self.buf.take().expect("the buffer was given back");
        buf.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        assert!(self.end < buf.len(), "a message of {} bytes is not parsed", self.end);
        (buf, self.end)
    }

    /// Takes the buffer back, with `received` more bytes in it.
    pub fn give_back(&mut self, buf: BufMut, received: usize) {
        self.end += received;
        self.buf = Some(buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_moves_to_the_front_and_more_follows() {
        let mut input = Input::new(BufMut::zeroed(8));
        let (mut lent, free) = input.lend();
        lent[free..].copy_from_slice(b"abcdefgh");
        input.give_back(lent, 6);
        input.take(4);
        assert_eq!(input.bytes(), b"ef");
        let (mut lent, free) = input.lend();
        assert_eq!(free, 2);
        lent[free..free + 2].copy_from_slice(b"xy");
        input.give_back(lent, 2);
        assert_eq!(input.bytes(), b"efxy");
        input.take(1);
        input.move_to(BufMut::zeroed(16));
        assert_eq!(input.bytes(), b"fxy");
        assert_eq!(input.lend().0.len(), 16);
    }
}
