//! Commands of a namespace: sent on the best path, and sent again if that is correct.

use std::rc::Rc;
use std::time::Duration;

use drive::{BufMut, Segments, race, within};
use nvme::host::{Blocks, io};
use nvme::{Access, Command, Status};
use smallvec::smallvec;

use crate::IoError;
use crate::controller::Controller;
use crate::namespace::NamespaceState;
use crate::network::Network;
use crate::path::Path;
use crate::queue::{Call, Payload};

/// Most retries of a command that a controller did not execute, but may execute later.
const RETRIES_MAX: u32 = 5;

/// The delay before the first retry. Each later delay is longer by the same time.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A command that is not built yet, because its form depends on the controller.
pub(crate) enum Op {
    Read { blocks: Blocks, len: u32 },
    Write { blocks: Blocks, len: u32, data: Segments, fua: bool },
    Compare { blocks: Blocks, len: u32, data: Segments },
    WriteZeroes { blocks: Blocks, fua: bool, deallocate: bool },
    Deallocate { nsid: u32, first: u64, count: u32 },
    Flush { nsid: u32 },
}

impl Op {
    fn changes(&self) -> bool {
        matches!(self, Op::Write { .. } | Op::WriteZeroes { .. } | Op::Deallocate { .. })
    }

    /// Builds the command. `reply` is the buffer for the data of a read.
    fn call(&self, capsule_bytes: u32, reply: Option<BufMut>) -> Call {
        let with = |command: Command, data: &Segments| (command, Payload::ToController(data.clone()));
        let (command, payload) = match self {
            Op::Read { blocks, len } => {
                (io::read(*blocks, *len), Payload::ToHost(reply.expect("a read brings its buffer")))
            }
            Op::Write { blocks, len, data, fua } => with(io::write(*blocks, *len, *len <= capsule_bytes, *fua), data),
            Op::Compare { blocks, len, data } => with(io::compare(*blocks, *len, *len <= capsule_bytes), data),
            Op::WriteZeroes { blocks, fua, deallocate } => {
                (io::write_zeroes(*blocks, *fua, *deallocate), Payload::None)
            }
            Op::Deallocate { nsid, first, count } => {
                // One range of 16 bytes.
                let (command, data) = io::deallocate(*nsid, &[(*first, *count)], capsule_bytes >= 16);
                (command, Payload::ToController(smallvec![data.into()]))
            }
            Op::Flush { nsid } => (io::flush(*nsid), Payload::None),
        };
        Call { command, payload, is_patient: false }
    }
}

/// The reaction to a status.
enum Verdict {
    Done,
    Fail(IoError),
    /// Send it again after a delay.
    Again,
    /// Send it again on another path.
    Elsewhere(Access),
}

fn verdict(status: Status) -> Verdict {
    const KIND: u16 = 0x7 << 8;
    const MEDIA: u16 = 2 << 8;
    let same = |other: Status| status.0 & 0x7FF == other.0 & 0x7FF;
    if status.is_success() {
        return Verdict::Done;
    }
    if let Some(access) = Access::of_refusal(status) {
        return Verdict::Elsewhere(access);
    }
    if same(Status::COMPARE_FAILURE) {
        return Verdict::Fail(IoError::Differs);
    }
    if same(Status::CAPACITY_EXCEEDED) {
        return Verdict::Fail(IoError::NoSpace);
    }
    if same(Status::WRITE_PROTECTED) {
        return Verdict::Fail(IoError::ReadOnly);
    }
    if same(Status::RESERVATION_CONFLICT) {
        return Verdict::Fail(IoError::Reserved);
    }
    if status.0 & KIND == MEDIA {
        return Verdict::Fail(IoError::Media(status));
    }
    if status.do_not_retry() { Verdict::Fail(IoError::Failed(status)) } else { Verdict::Again }
}

impl<N: Network> NamespaceState<N> {
    /// The best path. `None` if no path is usable at present.
    fn choose(&self) -> Option<(Rc<Path<N>>, Controller<N>)> {
        let count = self.paths.len();
        let first = (self.turn.get() + 1) % count;
        self.turn.set(first);
        let around = (0..count).map(|step| &self.paths[(first + step) % count]);
        let usable = around.filter_map(|path| {
            let (controller, access) = path.live()?;
            (access.is_usable() && controller.lost().is_none()).then_some((path, controller, access))
        });
        usable.min_by_key(|(.., access)| *access).map(|(path, controller, _)| (path.clone(), controller))
    }

    /// Waits for the best path.
    async fn path(&self) -> Result<(Rc<Path<N>>, Controller<N>), IoError> {
        let shared = &*self.shared;
        let waiting = async {
            loop {
                if let Some(lost) = shared.end.lost() {
                    return Err(IoError::Gone(lost.to_string()));
                }
                if let Some(found) = self.choose() {
                    return Ok(found);
                }
                if self.paths.iter().all(|path| path.is_lost()) {
                    return Err(self.gone());
                }
                let change = shared.changes.next();
                // The end of the namespace sends no change notification, so wait for both.
                let _ = race(change, shared.end.ended()).await;
            }
        };
        match shared.options.loss_timeout {
            None => waiting.await,
            Some(limit) => match within(&self.env, limit, waiting).await {
                Some(found) => found,
                None => Err(self.gone()),
            },
        }
    }

    fn gone(&self) -> IoError {
        let errors = self.paths.iter().filter_map(|path| path.status().last_error);
        IoError::Gone(errors.collect::<Vec<_>>().join("; "))
    }

    /// Executes a command with all necessary retries. `reply` is the buffer of a read, which is
    /// returned full.
    pub(crate) async fn perform(&self, op: &Op, mut reply: Option<BufMut>) -> Result<Option<BufMut>, IoError> {
        let reply_bytes = reply.as_ref().map(|buf| buf.len());
        let mut tries = 0;
        loop {
            let (path, controller) = self.path().await?;
            // A connection that ended may have kept the buffer.
            let buf = reply_bytes.map(|len| reply.take().unwrap_or_else(|| self.env.alloc(len)));
            let call = op.call(controller.established().info.capsule_data_bytes, buf);
            let answer = match controller.execute(call).await {
                Ok(answer) => answer,
                Err(lost) => {
                    tracing::debug!(address = %path.address, reason = %lost, "a command is sent again");
                    if op.changes() {
                        // The first copy must not be executed after commands that follow the answer
                        // to the second copy.
                        let _ = race(controller.settled(), self.shared.end.ended()).await;
                    }
                    continue;
                }
            };
            // Handle damaged data like a controller that reports them: the command is sent again.
            let damaged = Status::TRANSIENT_TRANSPORT_ERROR;
            let status = if answer.is_intact { answer.completion.status() } else { damaged };
            reply = answer.data;
            match verdict(status) {
                Verdict::Done => return Ok(reply),
                Verdict::Fail(error) => return Err(error),
                Verdict::Elsewhere(access) => path.met(&controller, access),
                Verdict::Again if tries == RETRIES_MAX => return Err(IoError::Failed(status)),
                Verdict::Again => {
                    tries += 1;
                    self.env.sleep(RETRY_DELAY * tries).await;
                }
            }
        }
    }
}
