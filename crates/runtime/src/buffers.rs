//! Pieces of the arena that one ring has registered. For a registered buffer the kernel does not
//! have to look up and pin the pages with every operation.
//!
//! A piece is registered when the first operation uses a buffer in it, because registered memory is
//! pinned, and so resident, whether it is used or not.

use std::cell::{Cell, RefCell};

use io_uring::Submitter;

use crate::arena::Arena;
use crate::ring::Ring;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    Unused,
    Registered,
    /// The kernel refused to register it.
    Refused,
}

/// Which pieces are registered.
pub(crate) struct BufferTable {
    arena: &'static Arena,
    /// Empty if the kernel refused the table.
    pieces: Box<[Cell<Piece>]>,
}

impl BufferTable {
    /// A table of all pieces. None is registered yet.
    pub(crate) fn new(submitter: &Submitter<'_>, arena: &'static Arena) -> BufferTable {
        let count = arena.piece_count();
        let table = submitter.register_buffers_sparse(u32::from(count));
        if let Err(error) = &table {
            tracing::warn!(%error, "no table of registered buffers; I/O costs a little more");
        }
        let pieces = (0..count).take_while(|_| table.is_ok()).map(|_| Cell::new(Piece::Unused)).collect();
        BufferTable { arena, pieces }
    }

    /// The number of the piece that contains a whole range, if it is registered or can be
    /// registered now.
    #[inline]
    pub(crate) fn index(&self, start: *const u8, len: usize, ring: &RefCell<Ring>) -> Option<u16> {
        let index = self.arena.piece_of(start, len)?;
        match self.pieces.get(usize::from(index))?.get() {
            Piece::Registered => Some(index),
            Piece::Unused => self.register(index, &ring.borrow().submitter()),
            Piece::Refused => None,
        }
    }

    #[cold]
    fn register(&self, index: u16, submitter: &Submitter<'_>) -> Option<u16> {
        let piece = [self.arena.piece(index)];
        // SAFETY: the arena's memory is never unmapped (it is 'static), and is only handed out as
        // `BufMut`.
        match unsafe { submitter.register_buffers_update(u32::from(index), &piece, None) } {
            Ok(()) => {
                self.pieces[usize::from(index)].set(Piece::Registered);
                Some(index)
            }
            Err(error) => {
                tracing::warn!(%error, "no more buffers are registered with the ring (RLIMIT_MEMLOCK?); I/O costs a little more");
                let unused = self.pieces.iter().filter(|piece| piece.get() == Piece::Unused);
                unused.for_each(|piece| piece.set(Piece::Refused));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_registered_when_it_is_first_used() {
        let arena: &'static Arena = Box::leak(Box::new(Arena::map(8 << 20).expect("8 MiB can be mapped")));
        let ring = RefCell::new(Ring::new(8, false).expect("a ring"));
        let table = BufferTable::new(&ring.borrow().submitter(), arena);
        let states = || table.pieces.iter().map(Cell::get).collect::<Vec<Piece>>();
        assert_eq!(states(), [Piece::Unused; 2]);
        let (first, second) = (arena.alloc(4 << 20), arena.alloc(4096));
        let index = |buf: &[u8]| table.index(buf.as_ptr(), buf.len(), &ring);
        assert_eq!((index(&second), states()), (Some(1), vec![Piece::Unused, Piece::Registered]));
        assert_eq!((index(&first), states()), (Some(0), vec![Piece::Registered; 2]));
        assert_eq!((index(&first), index(&second)), (Some(0), Some(1)));
        assert_eq!(index(&[0; 512]), None);
    }

    #[test]
    fn where_the_kernel_takes_no_buffer_the_others_are_not_tried() {
        let arena: &'static Arena = Box::leak(Box::new(Arena::map(8 << 20).expect("8 MiB can be mapped")));
        let [ring, other] = [(); 2].map(|()| RefCell::new(Ring::new(8, false).expect("a ring")));
        let table = BufferTable::new(&other.borrow().submitter(), arena);
        let buf = arena.alloc(4096);
        // This ring has no table.
        assert_eq!(table.index(buf.as_ptr(), buf.len(), &ring), None);
        assert!(table.pieces.iter().all(|piece| piece.get() == Piece::Refused));
        assert_eq!(table.index(buf.as_ptr(), buf.len(), &other), None);
    }
}
