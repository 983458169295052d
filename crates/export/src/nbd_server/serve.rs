//! Serves one request: from the volume to its answer.

use std::rc::Rc;

use drive::{Block, BlockError, Buf, BufMut, Env, Nanos, WriteZeroes, join_all};
use nbd::{Command, Descriptor, Request};

use super::connection::Client;
use super::error::errno;
use crate::counters::Kind;
use crate::limit::Cost;
use crate::limits::{HOLE_READ_BYTES_MIN, RANGE_BYTES, RANGE_PART_BYTES, READ_PARTS_MAX, ZEROES_PART_BYTES};
use crate::link::{Link, parts_of};

/// The result of a volume.
enum Answer {
    Done,
    Data(Buf),
    /// A read in parts: offset, length, and the data unless it is a hole.
    Parts(Vec<(u64, u32, Option<Buf>)>),
    Status(Vec<Descriptor>),
}

/// The kind of a request, for its counters.
pub(crate) fn kind(command: &Command) -> Kind {
    match command {
        Command::Read { .. } => Kind::Read,
        Command::Write { .. } => Kind::Write,
        Command::Flush => Kind::Flush,
        Command::Trim { .. } => Kind::Trim,
        Command::Cache { .. } => Kind::Cache,
        Command::WriteZeroes { .. } => Kind::WriteZeroes,
        Command::BlockStatus { .. } => Kind::BlockStatus,
    }
}

/// Payload bytes that a request holds while it is served and answered.
pub(crate) fn held_bytes(command: &Command) -> u64 {
    match command {
        Command::Read { len, .. } | Command::Write { len, .. } => u64::from(*len),
        Command::BlockStatus { .. } => nbd::STATUS_DESCRIPTORS_MAX as u64 * 8,
        Command::Trim { .. } | Command::WriteZeroes { .. } => RANGE_BYTES,
        Command::Flush | Command::Cache { .. } => 0,
    }
}

/// Bytes of the service window that a request takes. Discards and zeroes take none: the engine
/// bounds how much of them it works on, and a client's reads must not wait for them.
fn window_bytes(command: &Command) -> u64 {
    match command {
        Command::Read { len, .. } | Command::Write { len, .. } => u64::from(*len),
        _ => 0,
    }
}

/// The cost of a request; `None` if no rate limit applies to it.
fn cost(command: &Command) -> Option<Cost> {
    let bytes = match command {
        Command::Read { len, .. } | Command::Write { len, .. } => u64::from(*len),
        // Zeroes that keep their space are written to the drives.
        Command::WriteZeroes { len, keep_allocated: true, .. } => u64::from(*len),
        Command::Trim { .. } | Command::WriteZeroes { .. } => 0,
        Command::Flush | Command::Cache { .. } | Command::BlockStatus { .. } => return None,
    };
    Some(Cost { requests: 1, bytes })
}

/// A request is not served because its client is gone.
fn drop_request(client: &Client, request: &Request, arrived: Nanos) {
    let took = client.link.env.now().saturating_sub(arrived);
    client.state.counters.answered(kind(&request.command), took, true);
    client.link.abandon(held_bytes(&request.command));
}

/// As [`serve`], for a request that may have to wait for a rate limit.
pub(crate) async fn serve_limited<B: Block>(
    client: Rc<Client>,
    block: Rc<B>,
    request: Request,
    data: Option<BufMut>,
    arrived: Nanos,
) {
    if let Some(cost) = cost(&request.command)
        && !client.state.limits.pass(&client.link.env, cost).await
    {
        return drop_request(&client, &request, arrived);
    }
    serve(client, block, request, data, arrived).await;
}

/// Serves a request that the link has admitted, and puts its answer in the outbox. `data` holds the
/// data of a write, or is the buffer for a read.
pub(crate) async fn serve<B: Block>(
    client: Rc<Client>,
    block: Rc<B>,
    request: Request,
    data: Option<BufMut>,
    arrived: Nanos,
) {
    let bytes = window_bytes(&request.command);
    let inside = match client.link.try_enter(bytes) {
        Some(inside) => Some(inside),
        // On the heap, so that requests that need not wait do not pay for it.
        None => Box::pin(client.link.enter(bytes)).await,
    };
    let Some(inside) = inside else { return drop_request(&client, &request, arrived) };
    let answered = execute(&client, &*block, request.command, data).await;
    drop(inside);
    answer(&client, &request, answered, arrived);
}

/// Serves an admitted read at once, if it need not wait, and puts its answer in the outbox. This
/// saves a task, which costs a good part of a read from memory. Otherwise returns a buffer that the
/// read may use.
///
/// # Errors
/// The read has to wait, or it fails, which [`serve`] will report.
#[inline]
pub(crate) fn serve_now<B: Block>(
    client: &Client,
    block: &B,
    request: &Request,
    arrived: Nanos,
) -> Result<(), Option<BufMut>> {
    let Command::Read { offset, len, .. } = request.command else { return Err(None) };
    // Longer reads ask for holes first.
    if !(1..HOLE_READ_BYTES_MIN).contains(&len) {
        return Err(None);
    }
    let mut buf = client.link.env.alloc(len as usize);
    if !block.read_now(offset, &mut buf) {
        return Err(Some(buf));
    }
    answer(client, request, Ok(Answer::Data(buf.freeze())), arrived);
    Ok(())
}

/// Puts the answer to a request in the outbox.
#[inline]
fn answer(client: &Client, request: &Request, answer: Result<Answer, BlockError>, arrived: Nanos) {
    let Request { cookie, command } = *request;
    let counters = &client.state.counters;
    let kind = kind(&command);
    counters.answered(kind, client.link.env.now().saturating_sub(arrived), answer.is_err());
    match answer {
        Ok(Answer::Done) => {
            if let Command::Write { len, .. } = command {
                counters.written(u64::from(len));
            }
            client.link.put(&client.replies.done(cookie, kind == Kind::Read), None);
        }
        Ok(Answer::Data(data)) => {
            let Command::Read { offset, len, .. } = command else { unreachable!("only a read gives data") };
            counters.read(u64::from(len));
            client.link.put(&client.replies.data(cookie, offset, len), Some(data));
        }
        Ok(Answer::Parts(parts)) => {
            let count = parts.len();
            for (index, (offset, len, data)) in parts.into_iter().enumerate() {
                let last = index + 1 == count;
                counters.read(u64::from(len));
                let head = match data {
                    Some(_) => client.replies.data_chunk(cookie, offset, len, last),
                    None => client.replies.hole_chunk(cookie, offset, len, last),
                };
                client.link.put(&head, data);
            }
        }
        Ok(Answer::Status(descriptors)) => client.link.put_bytes(&client.replies.block_status(cookie, descriptors)),
        Err(error) => {
            let changes = matches!(kind, Kind::Write | Kind::WriteZeroes);
            client.put_error(cookie, errno(&error, changes), &error.to_string());
        }
    }
    client.link.answered(held_bytes(&command));
}

async fn execute<B: Block>(
    client: &Client,
    block: &B,
    command: Command,
    data: Option<BufMut>,
) -> Result<Answer, BlockError> {
    match command {
        Command::Read { len: 0, .. } | Command::Write { len: 0, .. } => Ok(Answer::Done),
        Command::Read { offset, len, unfragmented } => {
            if len >= HOLE_READ_BYTES_MIN && client.replies.structured() {
                let holes = holes(block, offset, len, unfragmented).await?;
                if !holes.is_empty() {
                    return parts(&client.link, block, holes).await;
                }
            }
            let buf = data.unwrap_or_else(|| client.link.env.alloc(len as usize));
            Ok(Answer::Data(block.read(offset, buf).await?.freeze()))
        }
        Command::Write { offset, fua, .. } => {
            let data = data.expect("a write was admitted with its data");
            block.write(offset, data.freeze(), fua).await?;
            Ok(Answer::Done)
        }
        Command::Flush => {
            block.flush().await?;
            Ok(Answer::Done)
        }
        Command::Trim { offset, len, fua } => {
            for part in parts_of(offset, len.into(), RANGE_PART_BYTES).take_while(|_| !client.link.is_ending()) {
                block.discard(part.offset, part.len).await?;
            }
            if fua {
                block.flush().await?;
            }
            Ok(Answer::Done)
        }
        // "When no command flags are in use, the server MAY send a reply prior to the requested
        // area being fully cached", and need not cache at all.
        Command::Cache { .. } => Ok(Answer::Done),
        Command::WriteZeroes { len: 0, .. } => Ok(Answer::Done),
        Command::WriteZeroes { offset, len, fua, keep_allocated, only_fast } => {
            let how = WriteZeroes { fua, keep_allocated, only_fast };
            let part_bytes = if keep_allocated { ZEROES_PART_BYTES } else { RANGE_PART_BYTES };
            for part in parts_of(offset, len.into(), part_bytes).take_while(|_| !client.link.is_ending()) {
                block.write_zeroes(part.offset, part.len, how).await?;
            }
            Ok(Answer::Done)
        }
        Command::BlockStatus { offset, len, one } => {
            let extents = block.extents(offset, u64::from(len)).await?;
            let count = if one { 1 } else { usize::MAX };
            let descriptors = extents.iter().take(count).map(|extent| Descriptor {
                len: u32::try_from(extent.len).expect("extents lie within the length that was asked for"),
                allocated: extent.allocated,
            });
            Ok(Answer::Status(descriptors.collect()))
        }
    }
}

/// The parts of a read that is worth answering in parts: offset, length, allocated. The result is
/// empty if there is no hole, if there are too many parts, if the answer does not cover the range,
/// or if there are data and holes where only one chunk is allowed.
async fn holes<B: Block>(
    block: &B,
    offset: u64,
    len: u32,
    unfragmented: bool,
) -> Result<Vec<(u64, u32, bool)>, BlockError> {
    let extents = block.extents(offset, u64::from(len)).await?;
    let covers = extents.iter().map(|extent| extent.len).sum::<u64>() == u64::from(len);
    let sparse = extents.iter().any(|extent| !extent.allocated);
    let parts_max = if unfragmented { 1 } else { READ_PARTS_MAX };
    if !sparse || !covers || extents.len() > parts_max {
        return Ok(Vec::new());
    }
    let mut at = offset;
    let part = |extent: &drive::Extent| {
        let start = at;
        at += extent.len;
        (start, extent.len as u32, extent.allocated)
    };
    Ok(extents.iter().map(part).collect())
}

async fn parts<B: Block>(link: &Link, block: &B, parts: Vec<(u64, u32, bool)>) -> Result<Answer, BlockError> {
    let reads = parts.into_iter().map(|(offset, len, allocated)| async move {
        if !allocated {
            return Ok((offset, len, None));
        }
        let buf = link.env.alloc(len as usize);
        Ok((offset, len, Some(block.read(offset, buf).await?.freeze())))
    });
    Ok(Answer::Parts(join_all(reads).await.into_iter().collect::<Result<_, BlockError>>()?))
}
