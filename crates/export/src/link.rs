//! State that the tasks of one connection share: answers to be sent, and the memory that the
//! connection holds.
//!
//! Invariants:
//! 1. A request is counted, with every payload byte it holds, from its admission until its answer
//!    was sent or dropped. So the server stops reading from a client that does not read its
//!    answers.
//! 2. Answers are sent in the order in which they became ready. If only a few are ready when the
//!    receiving task has nothing left to do, it sends as much as the socket takes at once. All
//!    others are sent in one gathered send at the end of the turn.
//! 3. When a send has failed, answers are dropped. Requests in flight still run to their end.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use drive::{Buf, Env, Nanos, View};
use runtime::{Piece, SendsAtOnce, ShardEnv};
use smallvec::SmallVec;

use crate::budget::{Budget, Share};
use crate::limits::{
    AT_ONCE_MAX, GATHER_BYTES_MAX, HELD_BYTES_MAX, INLINE_BYTES_MAX, READS_TOGETHER_MAX, REQUESTS_MAX,
};
use crate::window::{Inside, NEXT_TURN, Window};
use crate::wire::WireWriter;

pub(crate) struct Link {
    pub env: ShardEnv,
    outbox: RefCell<Outbox>,
    /// Present if nothing is encrypted.
    at_once: Option<SendsAtOnce>,
    held_requests: Cell<u32>,
    held_bytes: Cell<u64>,
    /// The connection's share of memory and its service window, once its host is known.
    place: OnceCell<(Share, Window)>,
    reader: RefCell<Option<Waker>>,
    /// Requests that wait in [`Link::room`].
    crowd: RefCell<Vec<Waker>>,
    sender: RefCell<Option<Waker>>,
    /// A send is under way.
    sending: Cell<bool>,
}

/// Answers that are ready to be sent.
#[derive(Default)]
struct Outbox {
    /// Headers and short payloads, one after the other.
    heads: Vec<u8>,
    /// Longer payloads, each with the length of `heads` in front of it.
    bodies: Vec<(usize, Buf)>,
    /// Sum of the bodies' lengths.
    body_bytes: u64,
    /// Bytes from the start of the outbox that were already sent.
    sent: usize,
    requests: u32,
    bytes: u64,
    /// TLS has a message of its own to send.
    poked: bool,
    /// No further answer will come.
    finished: bool,
    /// A send has failed: answers are dropped.
    dead: bool,
}

impl Outbox {
    /// The bodies are gone. Returns the number of requests that were answered, and the bytes they
    /// hold.
    fn emptied(&mut self) -> (u32, u64) {
        self.heads.clear();
        self.body_bytes = 0;
        (std::mem::take(&mut self.requests), std::mem::take(&mut self.bytes))
    }
}

/// Pieces of a send that need no heap allocation.
const PIECES: usize = 2 * (READS_TOGETHER_MAX + AT_ONCE_MAX as usize) + 1;

/// Calls `each` for every part of the `heads` bytes, with the body that follows it, if there is
/// one.
fn in_order<B>(bodies: impl Iterator<Item = (usize, B)>, heads: usize, mut each: impl FnMut(Range<usize>, Option<B>)) {
    let mut from = 0;
    for (to, body) in bodies {
        each(from..to, Some(body));
        from = to;
    }
    if from < heads {
        each(from..heads, None);
    }
}

/// Removes the first `sent` bytes.
fn skip(segments: &mut Vec<Buf>, sent: usize) {
    let mut left = sent;
    while left > 0 {
        let first = &mut segments[0];
        if first.len() > left {
            *first = first.slice(left..first.len());
            return;
        }
        left -= first.len();
        segments.remove(0);
    }
}

/// One gathered send.
pub(crate) struct Batch {
    /// In order of sending.
    pub segments: Vec<Buf>,
    requests: u32,
    bytes: u64,
}

impl Link {
    /// `writer`: the one that [`send_answers`] will get.
    pub fn new(env: ShardEnv, writer: &WireWriter) -> Rc<Link> {
        Rc::new(Link {
            env,
            outbox: RefCell::default(),
            at_once: writer.at_once(),
            held_requests: Cell::new(0),
            held_bytes: Cell::new(0),
            place: OnceCell::new(),
            reader: RefCell::new(None),
            crowd: RefCell::default(),
            sender: RefCell::new(None),
            sending: Cell::new(false),
        })
    }

    /// Admits a request if the connection may hold it now.
    #[inline]
    pub fn admit(&self, bytes: u64) -> bool {
        let (requests, held) = (self.held_requests.get(), self.held_bytes.get());
        let ready = self.outbox.borrow().body_bytes;
        let fits = requests < REQUESTS_MAX && held + bytes <= HELD_BYTES_MAX && ready < GATHER_BYTES_MAX;
        if (fits || requests == 0) && self.is_in_budget(bytes) {
            self.hold();
            self.grow(bytes);
            return true;
        }
        false
    }

    /// The connection belongs to this host and takes its memory from this budget.
    pub fn belongs_to(&self, budget: &Arc<Budget>, host: &str) {
        let share = budget.enter(host);
        let window = Window::of(&share);
        // A connection belongs to one host.
        let _ = self.place.set((share, window));
    }

    /// The host's service window.
    ///
    /// # Panics
    /// Before [`Link::belongs_to`].
    #[inline]
    fn window(&self) -> &Window {
        &self.place.get().expect("requests of volumes come after the client has said who it is").1
    }

    /// A request of a volume came.
    #[inline]
    pub fn arrived(&self, now: Nanos) {
        self.window().arrived(now);
    }

    /// Lets a request into the service window, if there is room.
    #[inline]
    pub fn try_enter(&self, bytes: u64) -> Option<Inside> {
        self.window().try_enter(bytes)
    }

    /// Waits until a request may enter the service window. `None` if it is not to be served because
    /// the connection ends.
    pub async fn enter(&self, bytes: u64) -> Option<Inside> {
        let inside = self.window().enter(bytes).await;
        self.env.sleep(NEXT_TURN).await;
        inside
    }

    /// Requests that wait for the service window are not served any more.
    pub fn drop_waiting(&self) {
        if let Some((_, window)) = self.place.get() {
            window.end();
        }
    }

    /// Whether [`Link::drop_waiting`] was called: long requests end early.
    pub fn is_ending(&self) -> bool {
        self.window().is_ended()
    }

    fn is_in_budget(&self, bytes: u64) -> bool {
        self.place.get().is_none_or(|(share, _)| share.has_room(bytes))
    }

    /// Counts a request without a check of the limits.
    pub fn hold(&self) {
        self.held_requests.set(self.held_requests.get() + 1);
    }

    /// Admits a request and its bytes without a check of the limits.
    pub fn admit_anyway(&self, bytes: u64) {
        self.hold();
        self.grow(bytes);
    }

    /// Whether admitted requests may hold `bytes` more.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.held_bytes.get() + bytes <= HELD_BYTES_MAX && self.is_in_budget(bytes)
    }

    /// Admitted requests hold `bytes` more.
    #[inline]
    pub fn grow(&self, bytes: u64) {
        self.held_bytes.set(self.held_bytes.get() + bytes);
        if let Some((share, _)) = self.place.get() {
            share.grow(bytes);
        }
    }

    /// Waits for room, and then counts `bytes` more for an admitted request.
    pub async fn room(&self, bytes: u64) {
        poll_fn(|context| {
            // As in `admit`: a single request always fits.
            if self.has_room(bytes) || self.held_bytes.get() == 0 && self.is_in_budget(bytes) {
                self.grow(bytes);
                return Poll::Ready(());
            }
            self.wake_when_in_budget(context.waker());
            self.crowd.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Admitted requests hold `bytes` less.
    pub fn shrink(&self, bytes: u64) {
        self.release(0, bytes);
    }

    /// Admitted requests whose answer was not sent or dropped yet.
    pub fn held_requests(&self) -> u32 {
        self.held_requests.get()
    }

    /// Whether there are answers that the socket has not taken.
    pub fn has_unsent(&self) -> bool {
        self.sending.get() || self.outbox.borrow().requests > 0
    }

    /// An admitted request gets no answer: its client went before the request was complete.
    pub fn abandon(&self, bytes: u64) {
        self.release(1, bytes);
    }

    /// Registers the task to wake when the connection holds less, or when its ready answers are
    /// being sent. Call it only if needed: it costs a poll for every send.
    pub fn wake_when_released(&self, waker: &Waker) {
        let mut reader = self.reader.borrow_mut();
        if !reader.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *reader = Some(waker.clone());
        }
        self.wake_when_in_budget(waker);
    }

    fn wake_when_in_budget(&self, waker: &Waker) {
        if let Some((share, _)) = self.place.get() {
            share.listen(waker);
        }
    }

    fn release(&self, requests: u32, bytes: u64) {
        self.held_requests.set(self.held_requests.get() - requests);
        self.held_bytes.set(self.held_bytes.get() - bytes);
        if let Some((share, _)) = self.place.get() {
            share.shrink(bytes);
        }
        self.wake_reader();
        let crowd = if self.crowd.borrow().is_empty() { return } else { self.crowd.take() };
        crowd.into_iter().for_each(Waker::wake);
    }

    /// Sends the ready answers as far as the socket takes them at once, if they are few and no
    /// others are being sent. Callers call it when they have no more answers for now, since each
    /// call is a send of its own.
    pub fn send_at_once(&self) {
        let mut outbox = self.outbox.borrow_mut();
        if outbox.requests > 0 && self.sends_at_once(&outbox) {
            if !self.send_with(&mut outbox, &[]) {
                return;
            }
            let (requests, bytes) = outbox.emptied();
            drop(outbox);
            self.release(requests, bytes);
        }
    }

    /// Whether answers are sent at once now.
    #[inline]
    pub fn may_send_at_once(&self) -> bool {
        self.sends_at_once(&self.outbox.borrow())
    }

    fn sends_at_once(&self, outbox: &Outbox) -> bool {
        let is_free = outbox.sent == 0 && !outbox.dead && !self.sending.get();
        self.at_once.is_some() && outbox.requests <= AT_ONCE_MAX && is_free
    }

    /// Length of the heads: the position at which the next head or body is put.
    pub fn heads_len(&self) -> usize {
        self.outbox.borrow().heads.len()
    }

    /// The answers to `requests` requests, which were admitted with `bytes`, are complete with
    /// these bodies. Each body comes with its position in the heads. They are sent at once from
    /// where they are, together with all ready answers. Bytes that the socket does not take are
    /// copied.
    ///
    /// # Panics
    /// If answers are not sent at once now ([`Link::may_send_at_once`]).
    pub fn answered_with(&self, bodies: &[(usize, View<'_>)], requests: u32, bytes: u64) {
        let mut outbox = self.outbox.borrow_mut();
        outbox.requests += requests;
        outbox.bytes += bytes;
        if self.send_with(&mut outbox, bodies) {
            let (requests, bytes) = outbox.emptied();
            drop(outbox);
            return self.release(requests, bytes);
        }
        // Bytes of heads and bodies in front of each.
        let (mut passed, mut heads) = (outbox.body_bytes as usize, 0);
        for (at, body) in bodies {
            passed += at - heads;
            heads = *at;
            let mut copy = self.env.alloc(body.len());
            body.copy_behind(outbox.sent.saturating_sub(passed), &mut copy);
            passed += body.len();
            outbox.body_bytes += body.len() as u64;
            outbox.bodies.push((*at, copy.freeze()));
        }
        drop(outbox);
        self.wake_sender();
    }

    /// Sends the ready answers and the bodies in `more`, each with its position in the heads, as
    /// far as the socket takes them at once. Returns whether it took them all.
    fn send_with(&self, outbox: &mut Outbox, more: &[(usize, View<'_>)]) -> bool {
        let at_once = self.at_once.as_ref().expect("asked before");
        let mut pieces: SmallVec<[Piece<'_>; PIECES]> = SmallVec::new();
        let Outbox { heads, bodies, .. } = &*outbox;
        let bodies = bodies.iter().map(|(at, body)| (*at, View::from(&body[..])));
        in_order(bodies.chain(more.iter().copied()), heads.len(), |head, body| {
            pieces.push(heads[head].into());
            pieces.extend(body.map(Piece::from));
        });
        let all: usize = pieces.iter().map(Piece::len).sum();
        let sent = at_once.send(&pieces);
        drop(pieces);
        if sent == all {
            outbox.bodies.clear();
            return true;
        }
        outbox.sent = sent;
        false
    }

    /// Returns once the ready answers are being sent, or wait behind others that are. A client that
    /// sends one request at a time waits for its answer, so an earlier receive would find nothing.
    pub async fn answers_go_first(&self) {
        poll_fn(|context| {
            let outbox = self.outbox.borrow();
            if outbox.requests == 0 || outbox.dead || self.sending.get() {
                return Poll::Ready(());
            }
            drop(outbox);
            self.wake_when_released(context.waker());
            Poll::Pending
        })
        .await;
    }

    fn wake_reader(&self) {
        let reader = self.reader.borrow_mut().take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Puts one part of an answer in the outbox. The head and its body are put in one call, so that
    /// no part of another answer comes between them.
    #[inline]
    pub fn put(&self, head: &[u8], body: Option<Buf>) {
        let mut outbox = self.outbox.borrow_mut();
        if outbox.dead {
            return;
        }
        outbox.heads.extend_from_slice(head);
        match body {
            Some(body) if body.len() <= INLINE_BYTES_MAX => outbox.heads.extend_from_slice(&body),
            Some(body) => {
                let at = outbox.heads.len();
                outbox.body_bytes += body.len() as u64;
                outbox.bodies.push((at, body));
            }
            None => {}
        }
    }

    /// Puts a whole answer without payload buffers in the outbox.
    pub fn put_bytes(&self, bytes: &[u8]) {
        let mut outbox = self.outbox.borrow_mut();
        if !outbox.dead {
            outbox.heads.extend_from_slice(bytes);
        }
    }

    /// The answer to a request that was admitted with `bytes` is complete.
    #[inline]
    pub fn answered(&self, bytes: u64) {
        {
            let mut outbox = self.outbox.borrow_mut();
            if !outbox.dead {
                outbox.requests += 1;
                outbox.bytes += bytes;
                drop(outbox);
                return self.wake_sender();
            }
        }
        self.release(1, bytes);
    }

    /// TLS has a message of its own to send.
    pub fn poke(&self) {
        self.outbox.borrow_mut().poked = true;
        self.wake_sender();
    }

    /// No further answer will come: the sender ends once the outbox is empty.
    pub fn finish(&self) {
        self.outbox.borrow_mut().finished = true;
        self.wake_sender();
    }

    fn wake_sender(&self) {
        let sender = self.sender.borrow_mut().take();
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    /// Waits for something to send. False when nothing will come.
    async fn ready(&self) -> bool {
        poll_fn(|context| {
            let mut outbox = self.outbox.borrow_mut();
            if outbox.requests > 0 || outbox.poked {
                outbox.poked = false;
                return Poll::Ready(true);
            }
            if outbox.finished || outbox.dead {
                return Poll::Ready(false);
            }
            *self.sender.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn take(&self) -> Batch {
        let mut outbox = self.outbox.borrow_mut();
        let mut segments = Vec::with_capacity(outbox.bodies.len() * 2 + 1);
        let mut heads = self.env.alloc(outbox.heads.len());
        heads.copy_from_slice(&outbox.heads);
        let heads = heads.freeze();
        in_order(outbox.bodies.drain(..), heads.len(), |head, body| {
            segments.push(heads.slice(head));
            segments.extend(body);
        });
        let sent = std::mem::take(&mut outbox.sent);
        let (requests, bytes) = outbox.emptied();
        drop(outbox);
        skip(&mut segments, sent);
        // Requests that waited for the outbox to empty are served during this send.
        self.wake_reader();
        Batch { segments, requests, bytes }
    }

    /// Drops the answers that wait to be sent and all later ones.
    pub fn die(&self) {
        let (requests, bytes) = {
            let mut outbox = self.outbox.borrow_mut();
            outbox.dead = true;
            outbox.heads = Vec::new();
            outbox.bodies = Vec::new();
            outbox.body_bytes = 0;
            (std::mem::take(&mut outbox.requests), std::mem::take(&mut outbox.bytes))
        };
        self.release(requests, bytes);
        self.wake_sender();
    }
}

/// Returns when no request is in flight and every answer was sent or dropped.
pub(crate) async fn drained(link: &Link) {
    poll_fn(|context| {
        link.wake_when_released(context.waker());
        if link.held_requests() == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The sending task of a connection. It ends when the link is finished and everything was sent, or
/// when a send has failed.
pub(crate) async fn send_answers(link: Rc<Link>, mut writer: WireWriter) {
    while link.ready().await {
        // Answers that become ready later in this turn go along.
        link.env.turn_end().await;
        let batch = link.take();
        let (requests, bytes) = (batch.requests, batch.bytes);
        link.sending.set(true);
        let sent = writer.send(batch.segments).await;
        link.sending.set(false);
        link.release(requests, bytes);
        if sent.is_err() {
            // The receiving task waits for bytes that will not come.
            link.die();
            writer.closer().close();
            return;
        }
    }
    writer.goodbye().await;
}

/// A part of a long range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangePart {
    pub offset: u64,
    pub len: u64,
}

/// Splits a range into parts that end at multiples of `part_bytes`. The first and the last may be
/// shorter. An empty range has no parts.
pub(crate) fn parts_of(offset: u64, len: u64, part_bytes: u64) -> impl Iterator<Item = RangePart> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let part_end = ((at / part_bytes + 1) * part_bytes).min(end);
        let part = RangePart { offset: at, len: part_end - at };
        at = part_end;
        (part.len > 0).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_range_once_and_in_order() {
        for (offset, len) in [(0, 0), (7, 0), (0, 1), (3, 100), (64, 64), (60, 8), (0, 64)] {
            let parts: Vec<RangePart> = parts_of(offset, len, 64).collect();
            assert_eq!(parts.iter().map(|part| part.len).sum::<u64>(), len);
            let mut at = offset;
            for part in parts {
                assert!(part.offset == at && part.len <= 64);
                at += part.len;
            }
        }
        assert_eq!(parts_of(60, 8, 64).count(), 2);
    }
}
