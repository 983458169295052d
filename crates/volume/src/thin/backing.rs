//! The group as a thin store uses it.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use array::{Array, IntentLog};
use drive::{BlockError, Buf, BufMut, Env};
use format::intent_log::INTENT_HEAD_BYTES;

/// A group as a thin store needs it. [`Array`] has it, and so can a model for exhaustive checks.
pub trait Backing: 'static {
    /// Time and tasks.
    type Env: Env;

    /// The environment of the shard.
    fn env(&self) -> &Self::Env;

    /// Fills `buf` from `address` on.
    fn read(&self, address: u64, buf: BufMut) -> impl Future<Output = Result<BufMut, BlockError>>;

    /// Writes `data` at `address`. With `fua` it is durable when this returns.
    fn write(&self, address: u64, data: Buf, fua: bool) -> impl Future<Output = Result<(), BlockError>>;

    /// Frees a range of whole bands. This is durable after the next flush.
    fn discard(&self, address: u64, len: u64) -> impl Future<Output = Result<(), BlockError>>;

    /// Makes all writes and discards durable that completed before, and the frames as well.
    fn flush(&self) -> impl Future<Output = Result<(), BlockError>>;

    /// How much of a range is allocated.
    fn allocated(&self, address: u64, len: u64) -> Allocated;

    /// Whether the redundancy is reduced.
    fn is_degraded(&self) -> bool;

    /// Counts a request of a client of the store, as long as the result lives. Background work of
    /// the group makes room for it.
    fn client_request(&self) -> impl Sized;

    /// How long background work should rest beside clients: thousandths of the time that it works.
    fn rest_per_mille(&self) -> u64;

    /// Begins frames of a new generation.
    ///
    /// # Errors
    /// [`BlockError::NoSpace`] if the group has no room for the intent log.
    fn begin_intents(&self, generation: u64) -> Result<(), BlockError>;

    /// Most bytes of a frame's body.
    fn intent_bytes_max(&self) -> usize;

    /// Appends a frame, see [`IntentLog::append`].
    fn append_intent(
        &self,
        meta: Vec<u8>,
        payload: Vec<Buf>,
        fua: bool,
    ) -> impl Future<Output = Result<u64, BlockError>>;

    /// The sequence of the next frame.
    fn next_intent(&self) -> u64;

    /// Frees the space of the frames below `below`.
    fn reclaim_intents(&self, below: u64);

    /// Whether frames should be reclaimed soon.
    fn intents_are_filling(&self) -> bool;

    /// Makes the frames durable that were appended before.
    fn flush_intents(&self) -> impl Future<Output = Result<(), BlockError>>;

    /// The bodies of the frames of a generation.
    fn intents(&self, generation: u64) -> impl Future<Output = Result<Vec<Vec<u8>>, BlockError>>;
}

/// Bytes of a frame before its body.
pub(super) const INTENT_BASE: usize = INTENT_HEAD_BYTES;

/// How much of a range is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocated {
    /// Nothing: it reads as zeroes.
    Nothing,
    /// Some of its allocation chunks.
    Some,
    /// All of it: all that was written there is durable.
    All,
}

/// A real group.
pub struct ArrayBacking<E: Env> {
    env: E,
    array: Array<E>,
    /// The store's stream of the intent log, and how many there are.
    stream: (usize, usize),
    intents: RefCell<Option<Rc<IntentLog<E>>>>,
}

impl<E: Env> ArrayBacking<E> {
    /// The group that `array` is a handle of. The store uses one stream of the intent log: the
    /// number `stream.0` of `stream.1`. No other store of the group may use it.
    pub fn new(env: E, array: Array<E>, stream: (usize, usize)) -> Self {
        ArrayBacking { env, array: array.for_layer(), stream, intents: RefCell::default() }
    }

    fn log(&self) -> Rc<IntentLog<E>> {
        self.intents.borrow().clone().expect("the intent log was begun")
    }
}

impl<E: Env> Backing for ArrayBacking<E> {
    type Env = E;

    fn env(&self) -> &E {
        &self.env
    }

    async fn read(&self, address: u64, buf: BufMut) -> Result<BufMut, BlockError> {
        self.array.read(address, buf).await
    }

    async fn write(&self, address: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        self.array.write(address, data, fua).await
    }

    async fn discard(&self, address: u64, len: u64) -> Result<(), BlockError> {
        self.array.discard(address, len).await
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.array.flush().await
    }

    fn allocated(&self, address: u64, len: u64) -> Allocated {
        let (mut at, end) = (address, address + len);
        let (mut some, mut all) = (false, true);
        while at < end {
            let Ok(extents) = self.array.extents(at, end - at) else { return Allocated::Nothing };
            some |= extents.iter().any(|extent| extent.allocated);
            all &= extents.iter().all(|extent| extent.allocated);
            at += extents.iter().map(|extent| extent.len).sum::<u64>();
        }
        match (some, all) {
            (true, true) => Allocated::All,
            (true, false) => Allocated::Some,
            (false, _) => Allocated::Nothing,
        }
    }

    fn is_degraded(&self) -> bool {
        self.array.is_degraded()
    }

    #[inline]
    fn client_request(&self) -> impl Sized {
        self.array.client_request()
    }

    fn rest_per_mille(&self) -> u64 {
        self.array.rest_per_mille()
    }

    fn begin_intents(&self, generation: u64) -> Result<(), BlockError> {
        let log = self.array.intent_log(generation, self.stream, 1).ok_or(BlockError::NoSpace)?;
        self.intents.replace(Some(log));
        Ok(())
    }

    fn intent_bytes_max(&self) -> usize {
        self.log().body_bytes_max()
    }

    async fn append_intent(&self, meta: Vec<u8>, payload: Vec<Buf>, fua: bool) -> Result<u64, BlockError> {
        self.log().append(meta, payload, fua).await
    }

    fn next_intent(&self) -> u64 {
        self.log().next()
    }

    fn reclaim_intents(&self, below: u64) {
        self.log().reclaim(below);
    }

    fn intents_are_filling(&self) -> bool {
        self.log().is_filling()
    }

    async fn flush_intents(&self) -> Result<(), BlockError> {
        self.log().flush().await
    }

    async fn intents(&self, generation: u64) -> Result<Vec<Vec<u8>>, BlockError> {
        let mut bodies = Vec::new();
        for frame in self.array.intent_frames(generation).await? {
            bodies.push(self.array.intent_body(generation, &frame).await?);
        }
        Ok(bodies)
    }
}
