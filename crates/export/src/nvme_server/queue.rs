//! The answers of one queue.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;

use drive::{Buf, View};
use nvme::target::Named;
use nvme::tcp::Writer;
use nvme::{Completion, Status};
use smallvec::SmallVec;

use super::abort::Waiting;
use super::association::Association;
use crate::limits::READS_TOGETHER_MAX;
use crate::link::Link;

/// A queue, as far as its answers go.
pub(super) struct Queue {
    pub link: Rc<Link>,
    writer: Writer,
    /// Entries; those that Connect asked for.
    entries: Cell<u16>,
    /// SQHD is not told.
    no_flow_control: Cell<bool>,
    /// SQHD: commands that were taken, modulo the entries.
    head: Cell<u16>,
    /// Commands that were taken and not answered.
    in_flight: Cell<u16>,
    /// Answers in a row that did not tell SQHD.
    untold: Cell<u16>,
    /// Commands that may still be aborted.
    pub waiting: Waiting,
    /// Of an I/O queue: whose it is, and its number.
    owner: OnceCell<(Arc<Association>, u16)>,
}

/// Entries of a queue until Connect has said how many there are.
const FIRST_ENTRIES: u16 = 2;

impl Queue {
    pub fn new(link: Rc<Link>, writer: Writer) -> Rc<Queue> {
        Rc::new(Queue {
            link,
            writer,
            entries: Cell::new(FIRST_ENTRIES),
            no_flow_control: Cell::new(false),
            head: Cell::new(0),
            in_flight: Cell::new(0),
            untold: Cell::new(0),
            waiting: Waiting::default(),
            owner: OnceCell::new(),
        })
    }

    /// What Connect said of the queue.
    pub fn connected(&self, entries: u16, no_flow_control: bool) {
        self.entries.set(entries);
        self.no_flow_control.set(no_flow_control);
    }

    /// It is an I/O queue from now on: what fails is for the error log of its controller.
    pub fn serves(&self, association: Arc<Association>, number: u16) {
        // A queue is connected once.
        let _ = self.owner.set((association, number));
    }

    pub fn entries(&self) -> u16 {
        self.entries.get()
    }

    /// A command was taken. False if there are more of them than entries: "the host shall not"
    /// (Base 2.0, clause 3.3.1).
    #[inline]
    pub fn took(&self) -> bool {
        self.head.set((self.head.get() + 1) % self.entries.get());
        self.in_flight.set(self.in_flight.get() + 1);
        // A queue is full when one entry is free; a host may see an answer before we know that it
        // was sent.
        self.in_flight.get() <= self.entries.get()
    }

    /// A command waits for something that nobody knows when it happens: it occupies no place.
    pub fn deferred(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
        self.link.abandon(0);
    }

    /// Puts the completion of a command that was admitted with `bytes` in the outbox.
    #[inline]
    pub fn complete(&self, cid: u16, status: Status, result: u64, bytes: u64) {
        self.respond(Completion::new(cid, status, result));
        self.in_flight.set(self.in_flight.get() - 1);
        self.link.answered(bytes);
    }

    /// Puts the completion of a command of a namespace in the outbox that has failed. It was
    /// admitted with `bytes`.
    #[cold]
    pub fn fail(&self, command: Named, status: Status, bytes: u64) {
        if let Some((association, number)) = self.owner.get() {
            association.note_failed(*number, command, status);
        }
        self.complete(command.cid, status, 0, bytes);
    }

    /// Puts a completion in the outbox of a command that was [`Queue::deferred`].
    pub fn complete_deferred(&self, completion: Completion) {
        self.link.hold();
        self.respond(completion);
        self.link.answered(0);
    }

    /// Puts data for the host in the outbox, and the completion. The command was admitted with
    /// `bytes`.
    #[inline]
    pub fn deliver(&self, cid: u16, data: Buf, result: u64, bytes: u64) {
        let succeeds = result == 0 && self.may_leave_out_response();
        let digest = self.writer.digests().data.then(|| gf::crc32c(&data));
        self.link.put(&self.writer.data_to_host(cid, 0, data.len() as u32, true, succeeds), Some(data));
        if let Some(digest) = digest {
            self.link.put_bytes(&digest.to_le_bytes());
        }
        if !succeeds {
            self.respond(Completion::new(cid, Status::SUCCESS, result));
        }
        self.in_flight.set(self.in_flight.get() - 1);
        self.link.answered(bytes);
    }

    /// Whether data for the host may be sent from where they are.
    #[inline]
    pub fn may_deliver_from_memory(&self) -> bool {
        !self.writer.digests().data && self.link.may_send_at_once()
    }

    /// Sends data for the host from where they are, and completions: of each command its
    /// identifier, the parts of its data, and with how many bytes it was admitted.
    ///
    /// # Panics
    /// If that may not be ([`Queue::may_deliver_from_memory`]).
    pub fn deliver_from_memory<'a>(&self, answers: impl Iterator<Item = (u16, &'a [(usize, View<'a>)], u64)>) {
        let mut bodies: SmallVec<[(usize, View<'_>); READS_TOGETHER_MAX]> = SmallVec::new();
        let (mut commands, mut held) = (0, 0);
        for (cid, data, bytes) in answers {
            let len = data.iter().map(|(_, view)| view.len()).sum::<usize>();
            let succeeds = self.may_leave_out_response();
            self.link.put(&self.writer.data_to_host(cid, 0, len as u32, true, succeeds), None);
            let at = self.link.heads_len();
            bodies.extend(data.iter().map(|(_, view)| (at, *view)));
            if !succeeds {
                self.respond(Completion::new(cid, Status::SUCCESS, 0));
            }
            commands += 1;
            held += bytes;
        }
        self.in_flight.set(self.in_flight.get() - commands);
        self.link.answered_with(&bodies, commands.into(), held);
    }

    /// Whether SUCCESS in the last PDU of data may stand for the response capsule, which tells
    /// SQHD. Where flow control is used the host has to hear SQHD now and then; no host is known
    /// that counts on it, but one that does must not starve.
    #[inline]
    fn may_leave_out_response(&self) -> bool {
        if self.no_flow_control.get() {
            return true;
        }
        let untold = self.untold.get() + 1;
        self.untold.set(untold);
        untold < self.entries.get() / 4
    }

    fn respond(&self, mut completion: Completion) {
        self.untold.set(0);
        let head = if self.no_flow_control.get() { Completion::NO_FLOW_CONTROL } else { self.head.get() };
        completion.sq_head = head.into();
        self.link.put_bytes(&self.writer.response(completion));
    }

    /// Sends bytes that are no answer.
    pub fn say(&self, bytes: &[u8]) {
        self.link.hold();
        self.link.put_bytes(bytes);
        self.link.answered(0);
    }
}
