//! The controller's side of a connection: reception.

use super::frame::{Body, Frame, wrong_header};
use super::pdu::{self, CapsuleCmd, Data, Digests, FLAG_LAST, Head, Initialize, Kind, Terminate, Writer};
use super::violation::Violation;
use crate::Command;

/// The controller's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum data in a command capsule, in bytes.
    pub capsule_data_bytes_max: u32,
    /// MAXH2CDATA: maximum data in one PDU, in bytes; a multiple of 4, at least 4096.
    pub pdu_data_bytes_max: u32,
    /// Commands with a data transfer in progress.
    pub transfers_max: u16,
    /// Digests that a host may use.
    pub digests: Digests,
}

/// Data of this length or more, in bytes, are received directly into their destination if none of
/// them has arrived yet.
pub(super) const DIRECT_BYTES_MIN: u32 = 16 << 10;

/// The destination of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// The command of the last [`Step::Command`].
    Capsule,
    /// The transfer with this tag.
    Transfer(u16),
}

/// The result of one step.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Nothing to do; continue.
    Continue,
    /// More input is needed.
    NeedMore,
    /// The connection is initialized: send this.
    Initialized(Head),
    /// A command. Its `data_bytes` of data in the capsule follow, then [`Step::Received`]. Without
    /// data neither follows.
    Command {
        /// The command.
        command: Command,
        /// Bytes of data in the capsule.
        data_bytes: u32,
    },
    /// The `len` bytes taken from the input are data.
    Data {
        /// Their destination.
        to: To,
        /// Offset in the data of the command or capsule.
        offset: u32,
        /// Number of bytes.
        len: usize,
    },
    /// The input is empty, and `len` bytes of data come next. The caller may receive all or some of
    /// them directly into their destination and then call [`Receiver::received`]. Or it receives
    /// them into the input as usual.
    Receive {
        /// Their destination.
        to: To,
        /// Offset in the data of the command or capsule.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// All data have arrived. The tag is free again.
    Received {
        /// Their destination.
        to: To,
        /// Whether their digests are right, if there are digests.
        intact: bool,
    },
    /// The host violated the protocol or ends the connection. Send [`Receiver::farewell`] and
    /// close.
    Close(Violation),
}

/// A requested transfer.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    cid: u16,
    len: u32,
    received: u32,
    intact: bool,
}

/// Splits a host's byte stream into commands and data. It does no I/O and owns no buffer.
#[derive(Debug)]
pub struct Receiver {
    limits: Limits,
    /// Set once the connection is initialized.
    writer: Option<Writer>,
    body: Option<(To, u32, Body)>,
    transfers: Vec<Option<Transfer>>,
    /// The header that caused the last violation.
    wrong: Vec<u8>,
}

impl Receiver {
    /// A newly accepted connection.
    pub fn new(limits: Limits) -> Receiver {
        Receiver { limits, writer: None, body: None, transfers: Vec::new(), wrong: Vec::new() }
    }

    /// The writer of PDUs to the host. `None` before [`Step::Initialized`].
    pub fn writer(&self) -> Option<Writer> {
        self.writer
    }

    /// Processes the input. Returns the number of bytes taken from it, and the result.
    #[inline]
    pub fn step(&mut self, input: &[u8]) -> (usize, Step) {
        if self.body.is_some() {
            return self.data(input);
        }
        match self.header(input) {
            Ok(done) => done,
            Err(violation) => {
                self.wrong = wrong_header(input, &violation);
                (0, Step::Close(violation))
            }
        }
    }

    /// Requests the data of a command. Returns the tag and the PDU to send. `None` if too many
    /// transfers are in progress.
    pub fn ask(&mut self, cid: u16, len: u32) -> Option<(u16, Head)> {
        let writer = self.writer?;
        let free = self.transfers.iter().position(Option::is_none).unwrap_or(self.transfers.len());
        if free >= usize::from(self.limits.transfers_max) {
            return None;
        }
        if free == self.transfers.len() {
            self.transfers.push(None);
        }
        self.transfers[free] = Some(Transfer { cid, len, received: 0, intact: true });
        Some((free as u16, writer.ready_to_transfer(cid, free as u16, 0, len)))
    }

    /// Accounts for bytes received into the destination of [`Step::Receive`].
    ///
    /// # Panics
    /// If there are more bytes than announced.
    pub fn received(&mut self, data: &[u8]) {
        let (_, offset, body) = self.body.as_mut().expect("data are arriving");
        assert!(data.len() <= body.left as usize, "{} bytes where {} were to come", data.len(), body.left);
        body.arrived(data);
        *offset += data.len() as u32;
    }

    /// The message to the host before the connection is closed because of `violation`: C2HTermReq,
    /// or empty.
    pub fn farewell(&self, violation: &Violation) -> Vec<u8> {
        match violation.fatal_error() {
            Some((status, information)) => pdu::terminate(Kind::C2hTermReq, status, information, &self.wrong),
            None => Vec::new(),
        }
    }

    #[inline]
    fn data(&mut self, input: &[u8]) -> (usize, Step) {
        let (to, offset, body) = self.body.as_mut().expect("looked at by the caller");
        if body.left > 0 {
            let at = *offset;
            if input.is_empty() {
                let direct = body.left >= DIRECT_BYTES_MIN;
                let (to, len) = (*to, body.left);
                return (0, if direct { Step::Receive { to, offset: at, len } } else { Step::NeedMore });
            }
            let len = input.len().min(body.left as usize);
            body.arrived(&input[..len]);
            *offset += len as u32;
            return (len, Step::Data { to: *to, offset: at, len });
        }
        let Some((taken, intact)) = body.finish(input) else { return (0, Step::NeedMore) };
        let (to, end) = (*to, *offset);
        self.body = None;
        let To::Transfer(tag) = to else { return (taken, Step::Received { to, intact }) };
        let slot = &mut self.transfers[usize::from(tag)];
        let transfer = slot.as_mut().expect("its data were arriving");
        transfer.received = end;
        transfer.intact &= intact;
        if transfer.received < transfer.len {
            return (taken, Step::Continue);
        }
        let intact = transfer.intact;
        *slot = None;
        (taken, Step::Received { to, intact })
    }

    #[inline]
    fn header(&mut self, input: &[u8]) -> Result<(usize, Step), Violation> {
        let Some(writer) = self.writer else { return self.initialize(input) };
        let expects = |kind| matches!(kind, Kind::CapsuleCmd | Kind::H2cData | Kind::H2cTermReq);
        let Some(frame) = Frame::read(input, writer.digests(), expects)? else { return Ok((0, Step::NeedMore)) };
        match frame.kind {
            Kind::CapsuleCmd => {
                let CapsuleCmd { command, .. } = frame.as_pdu();
                if frame.data_bytes > self.limits.capsule_data_bytes_max {
                    let max = self.limits.capsule_data_bytes_max;
                    return Err(Violation::DataLimit { len: frame.data_bytes, max });
                }
                if frame.data_bytes > 0 {
                    self.body = Some((To::Capsule, 0, Body::new(&frame)));
                }
                Ok((frame.head_bytes, Step::Command { command, data_bytes: frame.data_bytes }))
            }
            Kind::H2cData => {
                self.transfer(&frame)?;
                Ok((frame.head_bytes, Step::Continue))
            }
            _ => {
                let Terminate { status, information, .. } = frame.as_pdu();
                Err(Violation::Terminated { status: status.get(), information: information.get() })
            }
        }
    }

    /// The header of requested data.
    fn transfer(&mut self, frame: &Frame) -> Result<(), Violation> {
        let pdu: Data = frame.as_pdu();
        let (tag, cid, offset, len) = (pdu.tag.get(), pdu.cid.get(), pdu.offset.get(), pdu.len.get());
        let wrong = Violation::Data { tag, cid, offset, len };
        if len > self.limits.pdu_data_bytes_max {
            return Err(Violation::DataLimit { len, max: self.limits.pdu_data_bytes_max });
        }
        let transfer = self.transfers.get(usize::from(tag)).copied().flatten().ok_or(wrong)?;
        let end = u64::from(offset) + u64::from(len);
        let is_last = frame.flags & FLAG_LAST != 0;
        let fits = transfer.cid == cid
            && transfer.received == offset
            && len == frame.data_bytes
            && end <= u64::from(transfer.len)
            && is_last == (end == u64::from(transfer.len));
        if !fits {
            return Err(wrong);
        }
        self.body = Some((To::Transfer(tag), offset, Body::new(frame)));
        Ok(())
    }

    fn initialize(&mut self, input: &[u8]) -> Result<(usize, Step), Violation> {
        let expects = |kind| matches!(kind, Kind::IcReq | Kind::H2cTermReq);
        let Some(frame) = Frame::read(input, Digests::default(), expects)? else { return Ok((0, Step::NeedMore)) };
        if frame.kind == Kind::H2cTermReq {
            let Terminate { status, information, .. } = frame.as_pdu();
            return Err(Violation::Terminated { status: status.get(), information: information.get() });
        }
        let request: Initialize = frame.as_pdu();
        if request.version.get() != 0 {
            return Err(Violation::Version(request.version.get()));
        }
        // "0's based value in units of dwords in the range 0 to 31".
        if request.alignment > 31 {
            return Err(Violation::Alignment(request.alignment));
        }
        let asked = Digests::from_bits(request.digests);
        let digests = Digests {
            header: asked.header && self.limits.digests.header,
            data: asked.data && self.limits.digests.data,
        };
        // MAXR2T does not matter: a command has at most one request for data.
        self.writer = Some(Writer::new(digests, request.alignment));
        let response = pdu::initialize(Kind::IcResp, 0, digests, self.limits.pdu_data_bytes_max);
        Ok((frame.head_bytes, Step::Initialized(response)))
    }
}
