//! Commands of I/O queues.

use std::rc::Rc;

use ::drive::{BufMut, Drive, DriveError, Env, Segments, Turn, join_all};
use nvme::target::{Io, Namespace, SubsystemView as _, ranges};
use nvme::{Command, Status};

use super::{Slot, TargetState};

/// A command that has arrived with its data, and has its place among overlapping ones.
pub(super) struct Arrived {
    slot: Slot,
    namespace: Namespace,
    io: Io,
    data: Vec<u8>,
    turns: Vec<Turn>,
}

impl Arrived {
    /// Checks a command whose data have arrived.
    ///
    /// # Errors
    /// The status that the host gets.
    pub fn new(inner: &Rc<TargetState>, command: &Command, data: Vec<u8>) -> Result<Arrived, Status> {
        let nsid = command.nsid.get();
        let namespace = inner.namespace(nsid).ok_or(Status::INVALID_NAMESPACE)?;
        let slot = inner.slots.borrow()[nsid as usize - 1].clone();
        let io = Io::of(command, &namespace)?;
        let changes = match io {
            Io::Write { offset, len, .. } | Io::WriteZeroes { offset, len, .. } => vec![(offset, u64::from(len))],
            Io::Deallocate { .. } => {
                let ranges = ranges(&data[..io.data_bytes() as usize], &namespace)?;
                ranges.iter().map(|range| (range.offset, range.len)).collect()
            }
            _ => Vec::new(),
        };
        let turns = changes.into_iter().map(|(offset, len)| slot.order.enter(offset, len));
        let turns = if inner.keeps_order.get() { turns.collect() } else { Vec::new() };
        Ok(Arrived { slot, namespace, io, data, turns })
    }

    /// Executes it. Gives the data for the host.
    ///
    /// # Errors
    /// The status that the host gets.
    pub async fn execute(self, inner: &TargetState) -> Result<Option<BufMut>, Status> {
        let Arrived { slot: Slot { drive, .. }, namespace, io, data, turns } = self;
        for turn in &turns {
            turn.come().await;
        }
        let done = match io {
            Io::Read { offset, len, fua } => {
                if fua {
                    drive.flush().await.map_err(|error| status(&error, false))?;
                }
                let read = drive.read(offset, Env::alloc(&inner.env, len as usize)).await;
                return read.map(Some).map_err(|error| status(&error, false));
            }
            Io::Write { offset, fua, .. } => {
                let data = BufMut::copy_of(&data).freeze();
                drive.write(offset, Segments::from_iter([data]), fua).await
            }
            Io::WriteZeroes { offset, len, fua, .. } => match drive.write_zeroes(offset, len.into()).await {
                Ok(()) if fua => drive.flush().await,
                done => done,
            },
            Io::Deallocate { .. } => {
                let ranges = ranges(&data[..io.data_bytes() as usize], &namespace)?;
                let discards = ranges.iter().map(|range| drive.discard(range.offset, range.len));
                join_all(discards).await.into_iter().collect()
            }
            Io::Flush => drive.flush().await,
            // An array sends no other commands.
            _ => return Err(Status::INVALID_OPCODE),
        };
        done.map(|()| None).map_err(|error| status(&error, true))
    }
}

fn status(error: &DriveError, changes: bool) -> Status {
    match error {
        DriveError::NoSpace => Status::CAPACITY_EXCEEDED,
        DriveError::ReadOnly => Status::WRITE_PROTECTED,
        DriveError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE,
        _ if changes => Status::WRITE_FAULT,
        _ => Status::UNRECOVERED_READ_ERROR,
    }
}
