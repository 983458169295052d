//! Reads whose data is in memory: sent from its place there.
//!
//! Reads that came together wait until there is nothing else to serve. They are answered by one
//! send, up to some length. Each read's view is taken inside the closure of the previous one, so
//! that all data stays in place until all is sent.

use std::rc::Rc;

use drive::{Block, Env, View};
use nvme::Status;
use nvme::target::Io;

use super::Receiving;
use crate::limits::{GATHER_BYTES_MAX, READS_TOGETHER_MAX};
use crate::nvme_server::io::{self, Handle, held_bytes};
use crate::nvme_server::queue::Queue;

/// A read that was admitted and not begun.
pub(super) struct Read<B> {
    handle: Rc<Handle<B>>,
    cid: u16,
    io: Io,
}

impl<B: Block + 'static> Receiving<B> {
    /// Takes a command that has no data and need not wait for a rate limit. A read may wait for
    /// others; other commands begin at once.
    #[inline]
    pub(super) fn take(&mut self, handle: Rc<Handle<B>>, cid: u16, io: Io) {
        let read = Read { handle, cid, io };
        let Io::Read { len, fua: false, .. } = read.io else { return self.serve(read) };
        self.reads.push(read);
        self.reads_bytes += u64::from(len);
        if self.reads.len() == READS_TOGETHER_MAX || self.reads_bytes >= GATHER_BYTES_MAX {
            self.begin_reads();
        }
    }

    /// Begins the reads that wait. To be called before waiting for anything else.
    #[inline]
    pub(super) fn begin_reads(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let mut reads = std::mem::take(&mut self.reads);
        self.reads_bytes = 0;
        let answered = if self.queue.may_deliver_from_memory() {
            deliver(&self.queue, &reads, Vec::with_capacity(reads.len()))
        } else {
            0
        };
        let took = self.env.now().saturating_sub(self.arrived);
        for (number, read) in reads.drain(..).enumerate() {
            if number < answered {
                read.handle.answered(&read.io, took, Status::SUCCESS);
                read.handle.ended(&self.alarm);
            } else {
                self.serve(read);
            }
        }
        self.reads = reads;
    }

    /// Serves a command up to the point where it waits. From there on it is a task of its own.
    #[inline]
    fn serve(&self, Read { handle, cid, io }: Read<B>) {
        match io::serve_now(&self.queue, &handle, cid, &io, self.arrived, &self.alarm) {
            Ok(()) => {}
            Err(buf) => {
                let (queue, alarm) = (self.queue.clone(), self.alarm.clone());
                self.env.spawn_now(io::serve(queue, handle, cid, io, buf, self.arrived, alarm));
            }
        }
    }
}

/// Sends the data of reads as far as it is in memory, after the parts in `seen`, each with the
/// number of its read. The function calls itself inside the view of the previous read. Returns how
/// many reads were answered.
fn deliver<B: Block>(queue: &Queue, reads: &[Read<B>], seen: Vec<(usize, View<'_>)>) -> usize {
    let number = seen.last().map_or(0, |(number, _)| number + 1);
    let mut seen = Some(seen);
    let looked = reads.get(number).and_then(|read| {
        read.handle.view_now(&read.io, |views| {
            let mut seen: Vec<(usize, View<'_>)> = seen.take().expect("it is called once");
            seen.extend(views.iter().map(|view| (number, *view)));
            deliver(queue, reads, seen)
        })
    });
    looked.unwrap_or_else(|| {
        let seen = seen.expect("nobody took it");
        let of_each = reads.iter().zip(seen.chunk_by(|(one, _), (other, _)| one == other));
        if number > 0 {
            queue.deliver_from_memory(of_each.map(|(read, data)| (read.cid, data, held_bytes(&read.io))));
        }
        number
    })
}
