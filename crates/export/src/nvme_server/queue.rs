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

/// The answering side of a queue.
pub(super) struct Queue {
    pub link: Rc<Link>,
    writer: Writer,
    /// Number of entries, as Connect has set it.
    entries: Cell<u16>,
    /// SQHD is not reported.
    no_flow_control: Cell<bool>,
    /// SQHD: the number of accepted commands, modulo the entries.
    head: Cell<u16>,
    /// Commands that were accepted and not answered.
    in_flight: Cell<u16>,
    /// Consecutive answers that did not report SQHD.
    untold: Cell<u16>,
    /// Commands that may still be aborted.
    pub waiting: Waiting,
    /// For an I/O queue: its association and its number.
    owner: OnceCell<(Arc<Association>, u16)>,
}

/// Entries of a queue until Connect has set the number.
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

    /// Sets the attributes of the queue from Connect.
    pub fn connected(&self, entries: u16, no_flow_control: bool) {
        self.entries.set(entries);
        self.no_flow_control.set(no_flow_control);
    }

    /// The queue is an I/O queue from now on: failed commands go to the error log of its
    /// controller.
    pub fn serves(&self, association: Arc<Association>, number: u16) {
        // A queue is connected once.
        let _ = self.owner.set((association, number));
    }

    pub fn entries(&self) -> u16 {
        self.entries.get()
    }

    /// A command was accepted. Returns false if there are more commands than entries: "the host
    /// shall not" (Base 2.0, clause 3.3.1).
    #[inline]
    pub fn took(&self) -> bool {
        self.head.set((self.head.get() + 1) % self.entries.get());
        self.in_flight.set(self.in_flight.get() + 1);
        // A queue is full when one entry is free, but a host may see an answer before we know that
        // it was sent.
        self.in_flight.get() <= self.entries.get()
    }

    /// A command waits for an event that may never happen, so it does not count as in flight.
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

    /// Puts the completion of a failed namespace command in the outbox. The command was admitted
    /// with `bytes`.
    #[cold]
    pub fn fail(&self, command: Named, status: Status, bytes: u64) {
        if let Some((association, number)) = self.owner.get() {
            association.note_failed(*number, command, status);
        }
        self.complete(command.cid, status, 0, bytes);
    }

    /// Puts the completion of a command that was [`Queue::deferred`] in the outbox.
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

    /// Whether data for the host may be sent from its place in memory.
    #[inline]
    pub fn may_deliver_from_memory(&self) -> bool {
        !self.writer.digests().data && self.link.may_send_at_once()
    }

    /// Sends data for the host from its place in memory, and completions. Each command comes with
    /// its identifier, the parts of its data, and the bytes with which it was admitted.
    ///
    /// # Panics
    /// If that is not allowed now ([`Queue::may_deliver_from_memory`]).
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

    /// Whether SUCCESS in the last data PDU may replace the response capsule, which reports SQHD.
    /// With flow control the host has to get SQHD now and then. No known host depends on it, but
    /// one that does must not starve.
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

    /// Sends bytes that are not an answer.
    pub fn say(&self, bytes: &[u8]) {
        self.link.hold();
        self.link.put_bytes(bytes);
        self.link.answered(0);
    }
}
