//! A model of a group, in memory. It promises to a thin store no more than a real group does.
//!
//! - A write to a free allocation chunk is there after a power cut as a whole, chunk by chunk, or
//!   not at all. It certainly is after a flush that began when it was done.
//! - A write to an allocated chunk may be there in part.
//! - Of the discards and frames since the last flush, any subset is there.
//! - Space of frames that were reclaimed may be overwritten at any time.
//!
//! Each operation has two events: it begins, and it is done. The group can stop at any event, as
//! when the power fails or the process is killed. Its [`Remains`] then tell which [`Image`]s a
//! recovery may find.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use drive::{BlockError, Buf, BufMut, Env, Sender};
use volume::thin::{Allocated, Backing};

use crate::{Rng, SimEnv};

/// Bytes of an allocation chunk.
pub(super) const CHUNK_BYTES: usize = 32 << 10;

/// Most bytes of a frame's body.
const FRAME_BYTES_MAX: usize = 48 << 10;

/// The log is filling with so many frames.
const FRAMES_FILLING: usize = 6;

/// Bytes of a chunk or of a frame.
struct Content {
    bytes: Vec<u8>,
    /// Stands for the bytes.
    hash: u64,
}

impl Content {
    fn new(bytes: Vec<u8>) -> Rc<Content> {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Rc::new(Content { hash: hasher.finish(), bytes })
    }
}

impl Hash for Content {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// The content of a group at one moment.
#[derive(Clone, Default, Hash)]
pub struct Image {
    /// Allocated chunks by their numbers.
    chunks: BTreeMap<u64, Rc<Content>>,
    /// Frames by generation and number.
    frames: BTreeMap<(u64, u64), Rc<Content>>,
}

/// A change that is not durable yet.
#[derive(Clone)]
struct Effect {
    /// The operation that it belongs to.
    operation: u64,
    is_done: bool,
    change: Change,
}

#[derive(Clone)]
enum Change {
    /// Bytes of a chunk, from an offset on.
    Write(u64, usize, Rc<Content>),
    Free(u64),
    Frame((u64, u64), Rc<Content>),
}

impl Image {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write(chunk, _, new) if new.bytes.len() == CHUNK_BYTES => {
                self.chunks.insert(*chunk, new.clone());
            }
            Change::Write(chunk, offset, new) => {
                let mut bytes = self.chunks.get(chunk).map_or(vec![0; CHUNK_BYTES], |old| old.bytes.clone());
                bytes[*offset..offset + new.bytes.len()].copy_from_slice(&new.bytes);
                self.chunks.insert(*chunk, Content::new(bytes));
            }
            Change::Free(chunk) => {
                self.chunks.remove(chunk);
            }
            Change::Frame(number, body) => {
                self.frames.insert(*number, body.clone());
            }
        }
    }

    /// Applies a change in part, if it can be: only a write to an allocated chunk.
    fn tear(&mut self, change: &Change) {
        if let Change::Write(chunk, offset, new) = change
            && self.chunks.contains_key(chunk)
        {
            let half = Content::new(new.bytes[..new.bytes.len() / 2].to_vec());
            self.apply(&Change::Write(*chunk, *offset, half));
        }
    }

    /// Stands for the content.
    fn hash_of(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn read(&self, address: u64, buf: &mut [u8]) {
        let mut at = 0;
        while at < buf.len() {
            let (chunk, offset) = place(address + at as u64);
            let len = (CHUNK_BYTES - offset).min(buf.len() - at);
            match self.chunks.get(&chunk) {
                Some(content) => buf[at..at + len].copy_from_slice(&content.bytes[offset..offset + len]),
                None => buf[at..at + len].fill(0),
            }
            at += len;
        }
    }
}

fn place(address: u64) -> (u64, usize) {
    (address / CHUNK_BYTES as u64, (address % CHUNK_BYTES as u64) as usize)
}

/// The states that a stopped group may leave behind.
#[derive(Clone)]
pub struct Remains {
    /// All that is durable.
    safe: Image,
    /// The content for the running process.
    now: Image,
    effects: Vec<Effect>,
    /// Frames of this generation below this number were reclaimed.
    reclaimed: (u64, u64),
    is_kill: bool,
}

/// Of each change that may be missing, whether it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Missing,
    There,
    Torn,
}

impl Remains {
    /// The images of a recovery: all of them if there are few, and otherwise a selection. After a
    /// kill only operations that were under way may be missing.
    pub fn images(&self, rng: &mut Rng) -> Vec<Image> {
        let open: Vec<usize> = (0..self.effects.len()).filter(|at| self.may_be_missing(*at)).collect();
        let count = open.len();
        let mut images = Vec::new();
        let all = |fate| vec![fate; count];
        if count <= 4 {
            for number in 0..3usize.pow(count as u32) {
                let fates =
                    (0..count).map(|at| [Fate::Missing, Fate::There, Fate::Torn][number / 3usize.pow(at as u32) % 3]);
                images.push(self.image(&open, &fates.collect::<Vec<_>>(), rng.chance(1, 2)));
            }
            return images;
        }
        for fate in [Fate::Missing, Fate::There] {
            let opposite = if fate == Fate::There { Fate::Missing } else { Fate::There };
            images.push(self.image(&open, &all(fate), rng.chance(1, 2)));
            for _ in 0..3 {
                let mut fates = all(fate);
                fates[rng.index(count)] = opposite;
                images.push(self.image(&open, &fates, rng.chance(1, 2)));
            }
        }
        for _ in 0..4 {
            let fates: Vec<Fate> = (0..count).map(|_| *rng.pick(&[Fate::Missing, Fate::There, Fate::Torn])).collect();
            images.push(self.image(&open, &fates, rng.chance(1, 2)));
        }
        images
    }

    /// Each image of a recovery, once.
    pub(super) fn every_image(&self) -> Vec<Image> {
        let mut images = vec![self.safe.clone()];
        for (at, effect) in self.effects.iter().enumerate() {
            let mut next = Vec::with_capacity(2 * images.len());
            for image in images {
                let mut there = image.clone();
                there.apply(&effect.change);
                next.push(there);
                if self.may_be_missing(at) {
                    let mut torn = image.clone();
                    torn.tear(&effect.change);
                    next.extend([torn, image]);
                }
            }
            images = each_once(next);
        }
        let without_reclaimed = images.iter().cloned().map(|mut image| {
            let reclaimed = (self.reclaimed.0, 0)..self.reclaimed;
            image.frames.retain(|number, _| !reclaimed.contains(number));
            image
        });
        each_once(images.iter().cloned().chain(without_reclaimed).collect())
    }

    fn may_be_missing(&self, at: usize) -> bool {
        !(self.is_kill && self.effects[at].is_done)
    }

    fn image(&self, open: &[usize], fates: &[Fate], are_reclaimed_there: bool) -> Image {
        let mut image = self.safe.clone();
        for (at, effect) in self.effects.iter().enumerate() {
            match open.iter().position(|other| *other == at).map_or(Fate::There, |index| fates[index]) {
                Fate::Missing => {}
                Fate::There => image.apply(&effect.change),
                Fate::Torn => image.tear(&effect.change),
            }
        }
        let (generation, below) = self.reclaimed;
        image
            .frames
            .retain(|number, _| are_reclaimed_there || *number < (generation, 0) || *number >= (generation, below));
        image
    }
}

fn each_once(images: Vec<Image>) -> Vec<Image> {
    let mut seen = HashSet::new();
    images.into_iter().filter(|image| seen.insert(image.hash_of())).collect()
}

struct State {
    image: Remains,
    operations: u64,
    events: u64,
    /// The group stops at this event.
    stop_at: u64,
    on_stop: Option<Sender<Remains>>,
    rng: Rng,
    generation: u64,
    next_frame: u64,
    is_first_frame: bool,
    has_slow_frames: bool,
}

/// How a group is to stop.
#[derive(Debug, Clone, Copy)]
pub struct StopAt {
    /// At this event.
    pub event: u64,
    /// The process is killed. Otherwise the power fails.
    pub is_kill: bool,
    /// Frames take long, so that they are overtaken by everything else.
    pub has_slow_frames: bool,
}

impl StopAt {
    /// The same, by a power cut.
    pub fn by_power_cut(self) -> StopAt {
        StopAt { is_kill: false, ..self }
    }
}

/// A group as a model. A handle.
#[derive(Clone)]
pub struct ModelGroup {
    env: SimEnv,
    state: Rc<RefCell<State>>,
}

impl ModelGroup {
    /// A group with this content. It stops at event `stop_at`, and then sends what is left of it.
    pub fn new(env: SimEnv, image: Image, rng: Rng, stop_at: StopAt, on_stop: Sender<Remains>) -> Self {
        let StopAt { event: stop_at, is_kill, has_slow_frames } = stop_at;
        let image = Remains { safe: image.clone(), now: image, effects: Vec::new(), reclaimed: (0, 0), is_kill };
        let state = State {
            image,
            operations: 0,
            events: 0,
            stop_at,
            on_stop: Some(on_stop),
            rng,
            generation: 0,
            next_frame: 0,
            is_first_frame: false,
            has_slow_frames,
        };
        ModelGroup { env, state: Rc::new(RefCell::new(state)) }
    }

    /// The content as the running process sees it.
    pub fn image(&self) -> Image {
        self.state.borrow().image.now.clone()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.state.borrow().events
    }

    /// An event. Never returns if the group has stopped, or stops at it.
    async fn event(&self) {
        let is_stopped = {
            let mut state = self.state.borrow_mut();
            state.events += 1;
            if state.events == state.stop_at
                && let Some(on_stop) = state.on_stop.take()
            {
                on_stop.send(state.image.clone());
            }
            state.events >= state.stop_at
        };
        if is_stopped {
            std::future::pending::<()>().await;
        }
    }

    async fn takes_time(&self, is_slow: bool) {
        let time = {
            let mut state = self.state.borrow_mut();
            let time = state.rng.range(1..40);
            // Some operations are overtaken by many others.
            if is_slow || state.rng.chance(1, 8) { 20 * time } else { time }
        };
        self.env.sleep(Duration::from_micros(time)).await;
    }

    /// Begins an operation with these changes. They are visible once it is done.
    async fn begin(&self, changes: Vec<Change>) -> u64 {
        let is_slow;
        let operation = {
            let mut state = self.state.borrow_mut();
            state.operations += 1;
            let operation = state.operations;
            is_slow = state.has_slow_frames && changes.iter().any(|change| matches!(change, Change::Frame(..)));
            let effects = changes.into_iter().map(|change| Effect { operation, is_done: false, change });
            state.image.effects.extend(effects);
            operation
        };
        self.event().await;
        self.takes_time(is_slow).await;
        operation
    }

    async fn end(&self, operation: u64, is_durable: bool) {
        {
            let Remains { safe, now, effects, .. } = &mut self.state.borrow_mut().image;
            for effect in effects.iter_mut().filter(|effect| effect.operation == operation) {
                effect.is_done = true;
                now.apply(&effect.change);
            }
            if is_durable {
                let mine = effects.extract_if(.., |effect| effect.operation == operation);
                mine.for_each(|effect| safe.apply(&effect.change));
            }
        }
        self.event().await;
    }

    /// Makes the changes durable that are done now, once this returns.
    async fn make_durable(&self, frames_only: bool) {
        let is_meant = |effect: &Effect| effect.is_done && (!frames_only || matches!(effect.change, Change::Frame(..)));
        let last = self.state.borrow().operations;
        let done: Vec<u64> = {
            let state = self.state.borrow();
            state.image.effects.iter().filter(|effect| is_meant(effect)).map(|effect| effect.operation).collect()
        };
        self.event().await;
        self.takes_time(false).await;
        {
            let Remains { safe, effects, .. } = &mut self.state.borrow_mut().image;
            let mine = effects.extract_if(.., |effect| effect.operation <= last && done.contains(&effect.operation));
            mine.for_each(|effect| safe.apply(&effect.change));
        }
        self.event().await;
    }
}

impl Backing for ModelGroup {
    type Env = SimEnv;

    fn env(&self) -> &SimEnv {
        &self.env
    }

    async fn read(&self, address: u64, mut buf: BufMut) -> Result<BufMut, BlockError> {
        self.takes_time(false).await;
        self.event().await;
        self.state.borrow().image.now.read(address, &mut buf);
        Ok(buf)
    }

    async fn write(&self, address: u64, data: Buf, fua: bool) -> Result<(), BlockError> {
        let mut changes = Vec::new();
        let mut at = 0;
        while at < data.len() {
            let (chunk, offset) = place(address + at as u64);
            let len = (CHUNK_BYTES - offset).min(data.len() - at);
            changes.push(Change::Write(chunk, offset, Content::new(data[at..at + len].to_vec())));
            at += len;
        }
        let operation = self.begin(changes).await;
        self.end(operation, fua).await;
        Ok(())
    }

    async fn discard(&self, address: u64, len: u64) -> Result<(), BlockError> {
        let chunks = address / CHUNK_BYTES as u64..(address + len) / CHUNK_BYTES as u64;
        let operation = self.begin(chunks.map(Change::Free).collect()).await;
        self.end(operation, false).await;
        Ok(())
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.make_durable(false).await;
        Ok(())
    }

    fn allocated(&self, address: u64, len: u64) -> Allocated {
        let state = self.state.borrow();
        let chunks = address / CHUNK_BYTES as u64..(address + len).div_ceil(CHUNK_BYTES as u64);
        let count = state.image.now.chunks.range(chunks.clone()).count() as u64;
        match count {
            0 => Allocated::Nothing,
            _ if count == chunks.end - chunks.start => Allocated::All,
            _ => Allocated::Some,
        }
    }

    fn is_degraded(&self) -> bool {
        false
    }

    fn client_request(&self) -> impl Sized {}

    fn rest_per_mille(&self) -> u64 {
        0
    }

    fn begin_intents(&self, generation: u64) -> Result<(), BlockError> {
        let mut state = self.state.borrow_mut();
        (state.generation, state.next_frame, state.is_first_frame) = (generation, 0, true);
        state.image.reclaimed = (generation, 0);
        Ok(())
    }

    fn intent_bytes_max(&self) -> usize {
        FRAME_BYTES_MAX
    }

    async fn append_intent(&self, meta: Vec<u8>, payload: Vec<Buf>, fua: bool) -> Result<u64, BlockError> {
        // The first content begins at a block of the frame, which has a head of its own.
        let mut body = meta;
        let head = format::intent_log::INTENT_HEAD_BYTES;
        if !payload.is_empty() {
            body.resize((head + body.len()).next_multiple_of(format::BLOCK) - head, 0);
        }
        payload.iter().for_each(|part| body.extend_from_slice(part));
        let number = {
            let mut state = self.state.borrow_mut();
            let generation = state.generation;
            if std::mem::take(&mut state.is_first_frame) {
                // It may be where frames of older generations are.
                let Remains { safe, now, effects, .. } = &mut state.image;
                safe.frames.retain(|(older, _), _| *older >= generation);
                now.frames.retain(|(older, _), _| *older >= generation);
                effects.retain(|effect| !matches!(&effect.change, Change::Frame((older, _), _) if *older < generation));
            }
            state.next_frame += 1;
            state.next_frame - 1
        };
        let generation = self.state.borrow().generation;
        let operation = self.begin(vec![Change::Frame((generation, number), Content::new(body))]).await;
        self.end(operation, fua).await;
        Ok(number)
    }

    fn next_intent(&self) -> u64 {
        self.state.borrow().next_frame
    }

    fn reclaim_intents(&self, below: u64) {
        let mut state = self.state.borrow_mut();
        let reclaimed = state.image.reclaimed.1.max(below);
        state.image.reclaimed.1 = reclaimed;
    }

    fn intents_are_filling(&self) -> bool {
        let state = self.state.borrow();
        (state.next_frame - state.image.reclaimed.1) as usize >= FRAMES_FILLING
    }

    async fn flush_intents(&self) -> Result<(), BlockError> {
        self.make_durable(true).await;
        Ok(())
    }

    async fn intents(&self, generation: u64) -> Result<Vec<Vec<u8>>, BlockError> {
        self.takes_time(false).await;
        self.event().await;
        let state = self.state.borrow();
        let frames = state.image.now.frames.range((generation, 0)..(generation + 1, 0));
        Ok(frames.map(|(_, body)| body.bytes.clone()).collect())
    }
}
