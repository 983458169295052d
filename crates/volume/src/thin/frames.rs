//! Frames of the intent log that may still be needed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// A frame. It is needed until all of its parts are in segments, durably.
pub(super) struct Frame {
    /// Its number in the log, or the lowest that it can get.
    number: Cell<u64>,
    /// Parts that are not durable elsewhere.
    parts: Cell<usize>,
}

impl Frame {
    /// The log has appended the frame.
    pub fn appended(&self, number: u64) {
        self.number.set(number);
    }

    /// A part was divided.
    pub fn add_part(&self) {
        self.parts.set(self.parts.get() + 1);
    }

    /// A part is durable in a segment.
    pub fn part_is_durable(&self) {
        self.parts.set(self.parts.get() - 1);
    }
}

/// All frames that are needed, in the order in which they were begun.
#[derive(Default)]
pub(super) struct Frames(RefCell<VecDeque<Rc<Frame>>>);

impl Frames {
    /// Begins a frame with so many parts. `lowest`: the lowest number that it can get.
    pub fn begin(&self, lowest: u64, parts: usize) -> Rc<Frame> {
        let frame = Rc::new(Frame { number: Cell::new(lowest), parts: Cell::new(parts) });
        self.0.borrow_mut().push_back(frame.clone());
        frame
    }

    /// The lowest number of a frame that is needed, or `next` if none is.
    pub fn lowest_needed(&self, next: u64) -> u64 {
        let mut frames = self.0.borrow_mut();
        frames.retain(|frame| frame.parts.get() > 0);
        frames.iter().map(|frame| frame.number.get()).min().unwrap_or(next)
    }
}
