//! Executes the commands of an I/O queue on the volume of their namespace.

use drive::{Block, BlockError, Buf, BufMut, Env, WriteZeroes, join_all};
use nvme::Status;
use nvme::target::{Io, Range, copied, ranges};

use super::io::Handle;
use super::queue::Queue;
use crate::limits::{RANGE_PART_BYTES, RANGES_AT_ONCE, ZEROES_PART_BYTES};
use crate::link::{RangePart, parts_of};

/// Executes a command that is admitted. Returns the data of a read.
pub(super) async fn execute<B: Block>(
    queue: &Queue,
    handle: &Handle<B>,
    io: Io,
    data: Option<BufMut>,
) -> Result<Option<Buf>, Status> {
    let (block, env, used) = (handle.block(), &queue.link.env, handle.used());
    // Checked again: the command may have waited for its data, or for a rate limit.
    handle.reach()?;
    let brought = |data: Option<BufMut>| data.ok_or(Status::DATA_SGL_LENGTH_INVALID);
    let _inside = match io {
        // Not counted as running: it may itself wait until the running commands have ended.
        Io::Reserve(_) => None,
        Io::Write { offset, len, .. } | Io::WriteZeroes { offset, len, .. } => {
            Some(used.begin_change(&[Range { offset, len: len.into() }]).await?)
        }
        // Its ranges are known only further below.
        Io::Deallocate { .. } | Io::Copy { .. } => None,
        _ => Some(used.begin(io.group())?),
    };
    // The data that they check has to be durable first: NVM Command Set 1.0, FUA of Read, Compare
    // and Verify.
    if let Io::Read { fua: true, .. } | Io::Compare { fua: true, .. } | Io::Verify { fua: true, .. } = io {
        block.flush().await.map_err(|error| status(&error, false))?;
    }
    let done = match io {
        Io::Flush => block.flush().await,
        Io::Read { offset, len, .. } => {
            let buf = data.unwrap_or_else(|| env.alloc(len as usize));
            let read = block.read(offset, buf).await.map_err(|error| status(&error, false))?;
            return Ok(Some(read.freeze()));
        }
        Io::Write { offset, fua, .. } => block.write(offset, brought(data)?.freeze(), fua).await,
        Io::Compare { offset, len, .. } => {
            let range = Range { offset, len: len.into() };
            return compare(queue, handle, range, &brought(data)?).await.map(|()| None);
        }
        Io::WriteZeroes { offset, len, fua, deallocate } => {
            let how = WriteZeroes { fua, keep_allocated: !deallocate, only_fast: false };
            let part_bytes = if deallocate { RANGE_PART_BYTES } else { ZEROES_PART_BYTES };
            write_zeroes(queue, block, parts_of(offset, len.into(), part_bytes), how).await
        }
        // Bytes after the ranges have no meaning.
        Io::Deallocate { .. } => {
            let brought = brought(data)?;
            return deallocate(queue, handle, &brought[..io.data_bytes() as usize]).await.map(|()| None);
        }
        Io::Copy { offset, fua, .. } => {
            let brought = brought(data)?;
            return copy(queue, handle, &brought[..io.data_bytes() as usize], offset, fua).await.map(|()| None);
        }
        Io::Hint { .. } => Ok(()),
        Io::Reserve(reserve) => {
            let request = reserve.request(&brought(data)?)?;
            return used.shared().change(used.host(), &request).await.map(|()| None);
        }
        Io::Report { len } => {
            let mut report = used.shared().reservations().report();
            report.resize(len as usize, 0);
            return Ok(Some(BufMut::copy_of(&report).freeze()));
        }
        Io::Verify { offset, len, .. } => {
            block.read(offset, env.alloc(len as usize)).await.map_err(|error| status(&error, false))?;
            Ok(())
        }
    };
    done.map(|()| None).map_err(|error| status(&error, true))
}

/// Compares a range of the volume with the host's data.
async fn compare<B: Block>(queue: &Queue, handle: &Handle<B>, range: Range, brought: &[u8]) -> Result<(), Status> {
    let buf = queue.link.env.alloc(range.len as usize);
    let read = handle.block().read(range.offset, buf).await.map_err(|error| status(&error, false))?;
    if read[..] == *brought { Ok(()) } else { Err(Status::COMPARE_FAILURE) }
}

/// Discards the ranges that `data` lists.
async fn deallocate<B: Block>(queue: &Queue, handle: &Handle<B>, data: &[u8]) -> Result<(), Status> {
    let ranges = ranges(data, &handle.namespace())?;
    let _inside = handle.used().begin_change(&ranges).await?;
    discard(queue, handle.block(), &ranges).await.map_err(|error| status(&error, true))
}

/// Copies the ranges that `data` lists to `offset`.
async fn copy<B: Block>(queue: &Queue, handle: &Handle<B>, data: &[u8], offset: u64, fua: bool) -> Result<(), Status> {
    let (block, env) = (handle.block(), &queue.link.env);
    let (sources, to) = copied(data, offset, &handle.namespace())?;
    let _inside = handle.used().begin_change(&[to]).await?;
    handle.charge(to.len);
    // All data is read before any is written: source and destination may overlap.
    let reads = sources.iter().map(|source| block.read(source.offset, env.alloc(source.len as usize)));
    let parts: Result<Vec<BufMut>, BlockError> = join_all(reads).await.into_iter().collect();
    let (mut all, mut at) = (env.alloc(to.len as usize), 0);
    for part in parts.map_err(|error| status(&error, false))? {
        all[at..at + part.len()].copy_from_slice(&part);
        at += part.len();
    }
    block.write(to.offset, all.freeze(), fua).await.map_err(|error| status(&error, true))
}

/// Writes zeroes, unless the queue ends.
async fn write_zeroes<B: Block>(
    queue: &Queue,
    block: &B,
    parts: impl Iterator<Item = RangePart>,
    how: WriteZeroes,
) -> Result<(), BlockError> {
    for part in parts.take_while(|_| !queue.link.is_ending()) {
        block.write_zeroes(part.offset, part.len, how).await?;
    }
    Ok(())
}

/// Discards ranges, a few at a time, unless the queue ends.
async fn discard<B: Block>(queue: &Queue, block: &B, ranges: &[Range]) -> Result<(), BlockError> {
    let parts = ranges.iter().flat_map(|range| parts_of(range.offset, range.len, RANGE_PART_BYTES));
    let mut parts = parts.take_while(|_| !queue.link.is_ending());
    loop {
        let discards: Vec<_> =
            parts.by_ref().take(RANGES_AT_ONCE).map(|part| block.discard(part.offset, part.len)).collect();
        if discards.is_empty() {
            return Ok(());
        }
        join_all(discards).await.into_iter().collect::<Result<(), BlockError>>()?;
    }
}

/// The status for a volume's error. `changes`: the command writes.
pub(super) fn status(error: &BlockError, changes: bool) -> Status {
    match error {
        BlockError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE,
        BlockError::ReadOnly { .. } => Status::WRITE_PROTECTED,
        BlockError::Lost { .. } | BlockError::Unknown { .. } if changes => Status::WRITE_FAULT,
        BlockError::Lost { .. } | BlockError::Unknown { .. } => Status::UNRECOVERED_READ_ERROR,
        BlockError::NoSpace => Status::CAPACITY_EXCEEDED,
        BlockError::NotFast => Status::INTERNAL_ERROR,
        BlockError::Stopped => Status::NAMESPACE_NOT_READY,
    }
}
