//! Every limit of the server, with the reason for its number.

use std::time::Duration;

/// Receive buffer of a connection in bytes: a queue of 32 writes of 4 KiB arrives in one receive.
pub(crate) const INPUT_BYTES: usize = 160 << 10;

/// Data of a command, in bytes, from which on others like it are expected.
pub(crate) const LONG_DATA_BYTES: usize = 64 << 10;

/// Bytes that are received at most behind long data: the next command is in them, and of its data
/// only what is not received into its place.
pub(crate) const BEFORE_DATA_BYTES: usize = 4 << 10;

/// Requests of one connection that may wait for their answer to be sent. Clients use 16 to 256.
pub(crate) const REQUESTS_MAX: u32 = 1024;

/// Payload bytes that the requests and unsent answers of one connection may hold: two of the
/// largest requests, so that one is served while the next arrives. One request is always let in.
pub(crate) const HELD_BYTES_MAX: u64 = 2 * nbd::PAYLOAD_BYTES_MAX as u64;

/// Size in bytes of the budget of a server that was given none: four of the largest requests of one
/// connection.
pub(crate) const BUDGET_BYTES: u64 = 4 * HELD_BYTES_MAX;

/// Bytes that a request holds which has no payload, but changes a range: the state of its task.
pub(crate) const RANGE_BYTES: u64 = 16 << 10;

/// A request that discards, or writes zeroes over, more bytes than this is done in parts of this
/// length. It ends between two parts when its connection has ended.
pub(crate) const RANGE_PART_BYTES: u64 = 1 << 30;

/// The same, where zeroes are written to the drives.
pub(crate) const ZEROES_PART_BYTES: u64 = 64 << 20;

/// Ranges of a Dataset Management command that are deallocated at the same time.
pub(crate) const RANGES_AT_ONCE: usize = 8;

/// Payload bytes of ready answers above which no further request is taken in until they are on
/// their way: a full socket buffer is filled at once, and the client works on the first of it while
/// the rest is copied. With 256 KiB, 128 KiB reads at depth 8 had 0.8 of the rate. NVMe/TCP sends
/// so much of what reads find in memory together, too: with 256 KiB at a time that was 0.83, with
/// 512 KiB 0.91, with 2 MiB the same.
pub(crate) const GATHER_BYTES_MAX: u64 = 1 << 20;

/// Answers that are sent as soon as there is nothing else to do, without an operation of the ring.
/// One at a time, that is 1.04 to 1.07 times as fast; with more than some 8 it is slower, up to
/// 0.88 with no bound and 128 reads of 4 KiB in flight.
pub(crate) const AT_ONCE_MAX: u32 = 8;

/// Reads that are sent together from the memory of their drives at most: as many as one poll of a
/// task may look at. Those behind them would have a send of their own.
pub(crate) const READS_TOGETHER_MAX: usize = runtime::READY_OPS_PER_POLL as usize;

/// Shortest read, in bytes, that asks the volume where its holes are. Below it the question costs
/// more than sending zeroes.
pub(crate) const HOLE_READ_BYTES_MIN: u32 = 64 << 10;

/// Most parts that a read is answered in; a read that falls into more is answered whole. Each part
/// costs a chunk header and a segment of the gathered send.
pub(crate) const READ_PARTS_MAX: usize = 64;

/// Payload up to this length is copied behind its header, in bytes: a copy of this size is cheaper
/// than a segment of its own.
pub(crate) const INLINE_BYTES_MAX: usize = 512;

/// Longest time from a connection's start to its choice of an export. Haggling takes milliseconds;
/// what takes longer only holds memory.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(30);

/// Longest time that an ending connection waits for its client to take the last answers.
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(10);

/// Payload bytes that are encrypted and handed to the socket at a time: bounds the ciphertext in
/// memory.
pub(crate) const TLS_SEND_BYTES: usize = 256 << 10;

/// The same, of TLS with pre-shared keys: with what each record and each segment adds, its
/// ciphertext takes a block of 256 KiB.
pub(crate) const PSK_SEND_BYTES: usize = 240 << 10;

/// Data in a command capsule of an NVMe/TCP I/O queue, in bytes: writes up to this length need no
/// round trip to be asked for. Hosts hold no memory for it, and neither does a queue that gets
/// none.
pub(crate) const NVME_CAPSULE_DATA_BYTES: u32 = 128 << 10;

/// MAXH2CDATA: data in one PDU from an NVMe host at most, in bytes; the longest write has one PDU.
pub(crate) const NVME_PDU_DATA_BYTES: u32 = nvme::target::TRANSFER_BYTES_MAX;

/// Data of writes that an NVMe host was asked for and that have not all arrived, in bytes for each
/// queue. A write is always let in where there is no other.
pub(crate) const NVME_ASKED_BYTES_MAX: u64 = 16 << 20;

/// Receive buffer in bytes of an NVMe/TCP connection that is no queue yet: strangers hold little.
pub(crate) const NVME_FIRST_INPUT_BYTES: usize = 8 << 10;

/// Data of an admin command at most, in bytes. Connect has 1024, the longest feature 512.
pub(crate) const NVME_ADMIN_DATA_BYTES_MAX: u32 = 8 << 10;
