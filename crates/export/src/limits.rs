//! Every limit of the server, with the reason for its number.

use std::time::Duration;

/// Receive buffer of a connection in bytes: a queue of 32 writes of 4 KiB arrives in one receive.
pub(crate) const INPUT_BYTES: usize = 160 << 10;

/// A command with at least this many bytes of data is long: the next one is expected to be, too.
pub(crate) const LONG_DATA_BYTES: usize = 64 << 10;

/// Most bytes of the receive that follows long data. They contain the next command. The rest of its
/// data is received directly into its final buffer.
pub(crate) const BEFORE_DATA_BYTES: usize = 4 << 10;

/// Requests of one connection that may wait for their answer to be sent. Clients use 16 to 256.
pub(crate) const REQUESTS_MAX: u32 = 1024;

/// Payload bytes that the requests and unsent answers of one connection may hold: two of the
/// largest requests, so that one is served while the next arrives. One request is always admitted.
pub(crate) const HELD_BYTES_MAX: u64 = 2 * nbd::PAYLOAD_BYTES_MAX as u64;

/// Size in bytes of the budget of a server that was given none: four times the limit of one
/// connection.
pub(crate) const BUDGET_BYTES: u64 = 4 * HELD_BYTES_MAX;

/// Bytes held by a request that changes a range but has no payload: the state of its task.
pub(crate) const RANGE_BYTES: u64 = 16 << 10;

/// A request that discards or zeroes more bytes than this is done in parts of this length. It ends
/// between two parts if its connection has ended.
pub(crate) const RANGE_PART_BYTES: u64 = 1 << 30;

/// The same, if zeroes are written to the drives.
pub(crate) const ZEROES_PART_BYTES: u64 = 64 << 20;

/// Ranges of a Dataset Management command that are deallocated at the same time.
pub(crate) const RANGES_AT_ONCE: usize = 8;

/// Payload bytes of ready answers above which no further request is admitted until they are being
/// sent. A full socket buffer is filled at once, and the client works on the first answers while
/// the rest is copied. With 256 KiB, 128 KiB reads at depth 8 had 0.8 of the rate. NVMe/TCP uses
/// the same limit for reads whose data is already in memory, which it sends together: with 256 KiB
/// at a time that was 0.83, with 512 KiB 0.91, with 2 MiB the same.
pub(crate) const GATHER_BYTES_MAX: u64 = 1 << 20;

/// Answers that are sent as soon as there is nothing else to do, without an operation of the ring.
/// With one answer at a time, that is 1.04 to 1.07 times as fast. With more than about 8 it is
/// slower: down to 0.88 without a bound and with 128 reads of 4 KiB in flight.
pub(crate) const AT_ONCE_MAX: u32 = 8;

/// Reads that are sent together from the memory of their drives at most: as many as one poll of a
/// task may look at. Further reads would need a send of their own.
pub(crate) const READS_TOGETHER_MAX: usize = runtime::READY_OPS_PER_POLL as usize;

/// Shortest read, in bytes, for which the volume is asked for its holes. For shorter reads the
/// query costs more than sending zeroes.
pub(crate) const HOLE_READ_BYTES_MIN: u32 = 64 << 10;

/// Most parts in which a read is answered; a read with more parts is answered whole. Each part
/// costs a chunk header and a segment of the gathered send.
pub(crate) const READ_PARTS_MAX: usize = 64;

/// Payload up to this length, in bytes, is copied behind its header: a copy of this size is cheaper
/// than a segment of its own.
pub(crate) const INLINE_BYTES_MAX: usize = 512;

/// Longest time from a connection's start to its choice of an export. The negotiation takes
/// milliseconds; a connection that takes longer only holds memory.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(30);

/// Longest time that an ending connection waits for its client to take the last answers.
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(10);

/// Payload bytes that are encrypted and handed to the socket at a time. This bounds the ciphertext
/// in memory.
pub(crate) const TLS_SEND_BYTES: usize = 256 << 10;

/// The same for TLS with pre-shared keys. With the overhead of each record and segment, its
/// ciphertext fits a block of 256 KiB.
pub(crate) const PSK_SEND_BYTES: usize = 240 << 10;

/// Data in a command capsule of an NVMe/TCP I/O queue, in bytes. Writes up to this length need no
/// round trip for a ready-to-transfer PDU. Hosts reserve no memory for it, and neither does a queue
/// that receives none.
pub(crate) const NVME_CAPSULE_DATA_BYTES: u32 = 128 << 10;

/// MAXH2CDATA: most data in one PDU from an NVMe host, in bytes; the longest write has one PDU.
pub(crate) const NVME_PDU_DATA_BYTES: u32 = nvme::target::TRANSFER_BYTES_MAX;

/// Data of writes that was requested from an NVMe host and has not arrived yet, in bytes per queue.
/// A write is always admitted if there is no other.
pub(crate) const NVME_ASKED_BYTES_MAX: u64 = 16 << 20;

/// Receive buffer in bytes of an NVMe/TCP connection without a queue yet: unknown peers hold
/// little.
pub(crate) const NVME_FIRST_INPUT_BYTES: usize = 8 << 10;

/// Most data of an admin command, in bytes. Connect has 1024, the longest feature 512.
pub(crate) const NVME_ADMIN_DATA_BYTES_MAX: u32 = 8 << 10;
