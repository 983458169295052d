//! The host's side of a connection: reception.

use std::collections::VecDeque;

use super::controller::DIRECT_BYTES_MIN;
use super::frame::{Body, Frame, wrong_header};
use super::pdu::{
    self, CapsuleResp, Data, Digests, FLAG_LAST, FLAG_SUCCESS, Head, Initialize, Kind, ReadyToTransfer, Terminate,
    Writer,
};
use super::violation::Violation;
use crate::{Completion, Status};

/// The smallest MAXH2CDATA of a controller: TCP Transport 1.0, figure 18.
const PDU_DATA_BYTES_MIN: u32 = 4096;

/// The largest CPDA: TCP Transport 1.0, figure 18.
const ALIGNMENT_MAX: u8 = 31;

/// The host's parameters of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostLimits {
    /// Digests that the host requests. Each is used only if the controller agrees.
    pub digests: Digests,
    /// HPDA: the alignment of data in PDUs to the host, in dwords, minus one; up to 31.
    pub alignment: u8,
    /// R2Ts of one command at the same time, at least 1: MAXR2T plus one.
    pub requests_max: u32,
    /// Commands in flight: the entries of the queue.
    pub commands_max: u16,
}

/// The negotiated parameters of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// Digests in use.
    pub digests: Digests,
    /// CPDA: the alignment of data in PDUs to the controller, in dwords, minus one.
    pub alignment: u8,
    /// MAXH2CDATA: maximum data in one H2CData PDU, in bytes.
    pub pdu_data_bytes_max: u32,
}

/// Data that a command has outside of its capsule, and their direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// No data, or all of them are in the capsule.
    None,
    /// The controller sends this many bytes.
    ToHost(u32),
    /// The controller sends 1 to this many bytes: it decides how many.
    ToHostUpTo(u32),
    /// The controller requests this many bytes.
    ToController(u32),
}

/// A controller's request for data: R2T.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The command.
    pub cid: u16,
    /// TTAG.
    pub tag: u16,
    /// R2TO: offset in the data of the command.
    pub offset: u32,
    /// R2TL: number of bytes.
    pub len: u32,
}

/// A part of the requested data that fits into one PDU.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// The header, with the padding behind it. The data follow, then their digest if negotiated.
    pub head: Head,
    /// Offset in the data of the command.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// The PDUs that answer one R2T, in order.
#[derive(Debug, Clone, Copy)]
pub struct Pieces {
    writer: Writer,
    /// The part still to be sent.
    left: Request,
    pdu_data_bytes_max: u32,
}

impl Iterator for Pieces {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        let Request { cid, tag, offset, len: left } = self.left;
        if left == 0 {
            return None;
        }
        let len = left.min(self.pdu_data_bytes_max);
        self.left.offset += len;
        self.left.len -= len;
        let head = self.writer.data_to_controller(cid, tag, offset, len, len == left);
        Some(Piece { head, offset, len })
    }
}

/// The result of one step.
#[derive(Debug, Clone, Copy)]
pub enum HostStep {
    /// Nothing to do; continue.
    Continue,
    /// More input is needed.
    NeedMore,
    /// The connection is initialized: commands may be sent.
    Initialized(Agreement),
    /// The `len` bytes taken from the input are data.
    Data {
        /// The command that they belong to.
        cid: u16,
        /// Offset in the data of the command.
        offset: u32,
        /// Number of bytes.
        len: usize,
    },
    /// The input is empty, and `len` bytes of data come next. The caller may receive all or some of
    /// them directly into their destination and then call [`HostReceiver::received`]. Or it
    /// receives them into the input as usual.
    Receive {
        /// The command that they belong to.
        cid: u16,
        /// Offset in the data of the command.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// The controller requests data: send [`HostReceiver::pieces`].
    Requested(Request),
    /// A command has ended, and its identifier is free again. After a success all data for the host
    /// have been received.
    Completed {
        /// The completion. SQHD is [`Completion::NO_FLOW_CONTROL`] if the controller sent no
        /// response, but data with SUCCESS.
        completion: Completion,
        /// The digests of its data were right, if there were digests. If not, the data are invalid.
        /// The host may repeat the command (TCP Transport 1.0, clause 3.3.1.2).
        intact: bool,
    },
    /// The controller violated the protocol or ends the connection. Send [`HostReceiver::farewell`]
    /// and close.
    Close(Violation),
}

/// A command that was sent and not answered yet.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    transfer: Transfer,
    /// Bytes received from the controller, or requested by it. Both proceed in order.
    done: u32,
    /// R2Ts not answered yet.
    requests: u32,
    intact: bool,
}

/// The data of a PDU during reception.
#[derive(Debug, Clone, Copy)]
struct Arriving {
    cid: u16,
    offset: u32,
    body: Body,
    /// SUCCESS: these data complete the command.
    success: bool,
}

/// Splits a controller's byte stream into responses, data and requests for data, and checks that
/// they belong to commands in flight. It does no I/O and owns no buffer.
#[derive(Debug)]
pub struct HostReceiver {
    limits: HostLimits,
    /// Set once the connection is initialized.
    agreed: Option<(Agreement, Writer)>,
    arriving: Option<Arriving>,
    /// By command identifier.
    commands: Vec<Option<InFlight>>,
    /// Unused identifiers below the length of `commands`, the longest unused first. So a duplicate
    /// response is detected.
    free: VecDeque<u16>,
    /// The header that caused the last violation.
    wrong: Vec<u8>,
}

impl HostReceiver {
    /// A new connection. The host first sends [`HostReceiver::request`].
    pub fn new(limits: HostLimits) -> HostReceiver {
        let (commands, free, wrong) = (Vec::new(), VecDeque::new(), Vec::new());
        HostReceiver { limits, agreed: None, arriving: None, commands, free, wrong }
    }

    /// The ICReq.
    pub fn request(&self) -> Head {
        let HostLimits { digests, alignment, requests_max, .. } = self.limits;
        pdu::initialize(Kind::IcReq, alignment, digests, requests_max.saturating_sub(1))
    }

    /// The writer of PDUs to the controller. `None` before [`HostStep::Initialized`].
    pub fn writer(&self) -> Option<Writer> {
        self.agreed.map(|(_, writer)| writer)
    }

    /// The negotiated parameters. `None` before [`HostStep::Initialized`].
    pub fn agreement(&self) -> Option<Agreement> {
        self.agreed.map(|(agreement, _)| agreement)
    }

    /// The number of commands in flight.
    pub fn in_flight(&self) -> usize {
        self.commands.len() - self.free.len()
    }

    /// Registers a command that is about to be sent, and returns its identifier. `None` if the
    /// queue is full.
    #[inline]
    pub fn begin(&mut self, transfer: Transfer) -> Option<u16> {
        let command = Some(InFlight { transfer, done: 0, requests: 0, intact: true });
        if let Some(cid) = self.free.pop_front() {
            self.commands[usize::from(cid)] = command;
            return Some(cid);
        }
        if self.commands.len() >= usize::from(self.limits.commands_max) {
            return None;
        }
        self.commands.push(command);
        Some((self.commands.len() - 1) as u16)
    }

    /// The PDUs with the requested data. The caller sends them now: the request counts as answered.
    /// There are none before [`HostStep::Initialized`].
    pub fn pieces(&mut self, request: &Request) -> Pieces {
        let (agreed, writer, len) = match self.agreed {
            Some((agreed, writer)) => (agreed.pdu_data_bytes_max, writer, request.len),
            None => (PDU_DATA_BYTES_MIN, Writer::default(), 0),
        };
        if let Some(Some(command)) = self.commands.get_mut(usize::from(request.cid)) {
            command.requests = command.requests.saturating_sub(1);
        }
        Pieces { writer, left: Request { len, ..*request }, pdu_data_bytes_max: agreed }
    }

    /// Processes the input. Returns the number of bytes taken from it, and the result.
    #[inline]
    pub fn step(&mut self, input: &[u8]) -> (usize, HostStep) {
        if self.arriving.is_some() {
            return self.data(input);
        }
        match self.header(input) {
            Ok(done) => done,
            Err(violation) => {
                self.wrong = wrong_header(input, &violation);
                (0, HostStep::Close(violation))
            }
        }
    }

    /// Accounts for bytes received into the destination of [`HostStep::Receive`].
    ///
    /// # Panics
    /// If there are more bytes than announced.
    pub fn received(&mut self, data: &[u8]) {
        let Arriving { offset, body, .. } = self.arriving.as_mut().expect("data are arriving");
        assert!(data.len() <= body.left as usize, "{} bytes where {} were to come", data.len(), body.left);
        body.arrived(data);
        *offset += data.len() as u32;
    }

    /// The message to the controller before the connection is closed because of `violation`:
    /// H2CTermReq, or empty.
    pub fn farewell(&self, violation: &Violation) -> Vec<u8> {
        match violation.fatal_error() {
            Some((status, information)) => pdu::terminate(Kind::H2cTermReq, status, information, &self.wrong),
            None => Vec::new(),
        }
    }

    #[inline]
    fn data(&mut self, input: &[u8]) -> (usize, HostStep) {
        let Arriving { cid, offset, body, success } = self.arriving.as_mut().expect("looked at by the caller");
        let (cid, at) = (*cid, *offset);
        if body.left > 0 {
            if input.is_empty() {
                let len = body.left;
                let direct = len >= DIRECT_BYTES_MIN;
                return (0, if direct { HostStep::Receive { cid, offset: at, len } } else { HostStep::NeedMore });
            }
            let len = input.len().min(body.left as usize);
            body.arrived(&input[..len]);
            *offset += len as u32;
            return (len, HostStep::Data { cid, offset: at, len });
        }
        let Some((taken, intact)) = body.finish(input) else { return (0, HostStep::NeedMore) };
        let success = *success;
        self.arriving = None;
        let command = self.commands[usize::from(cid)].as_mut().expect("its data were arriving");
        command.done = at;
        command.intact &= intact;
        if !success {
            return (taken, HostStep::Continue);
        }
        let intact = command.intact;
        self.end(cid);
        let mut completion = Completion::new(cid, Status::SUCCESS, 0);
        completion.sq_head = Completion::NO_FLOW_CONTROL.into();
        (taken, HostStep::Completed { completion, intact })
    }

    /// Frees the identifier of an answered command.
    #[inline]
    fn end(&mut self, cid: u16) {
        self.commands[usize::from(cid)] = None;
        self.free.push_back(cid);
    }

    fn command(&mut self, cid: u16) -> Option<&mut InFlight> {
        self.commands.get_mut(usize::from(cid))?.as_mut()
    }

    #[inline]
    fn header(&mut self, input: &[u8]) -> Result<(usize, HostStep), Violation> {
        let Some((_, writer)) = self.agreed else { return self.initialize(input) };
        let expects = |kind| matches!(kind, Kind::CapsuleResp | Kind::C2hData | Kind::R2t | Kind::C2hTermReq);
        let Some(frame) = Frame::read(input, writer.digests(), expects)? else { return Ok((0, HostStep::NeedMore)) };
        let step = match frame.kind {
            Kind::CapsuleResp => self.response(&frame)?,
            Kind::C2hData => self.data_header(&frame)?,
            Kind::R2t => self.requested(&frame)?,
            _ => return Err(terminated(&frame)),
        };
        Ok((frame.head_bytes, step))
    }

    #[inline]
    fn response(&mut self, frame: &Frame) -> Result<HostStep, Violation> {
        let CapsuleResp { completion, .. } = frame.as_pdu();
        let cid = completion.cid.get();
        let command = *self.command(cid).ok_or(Violation::Response { cid })?;
        // A success without all data would expose the previous content of the buffer.
        let is_whole = match command.transfer {
            Transfer::ToHost(len) => command.done >= len,
            // The last data PDU tells the length and changes this to `ToHost`.
            Transfer::ToHostUpTo(_) => false,
            Transfer::None | Transfer::ToController(_) => true,
        };
        if completion.status().is_success() && !is_whole {
            return Err(Violation::Response { cid });
        }
        self.end(cid);
        Ok(HostStep::Completed { completion, intact: command.intact })
    }

    /// The header of data for the host. Data arrive in order.
    #[inline]
    fn data_header(&mut self, frame: &Frame) -> Result<HostStep, Violation> {
        let pdu: Data = frame.as_pdu();
        let (cid, offset, len) = (pdu.cid.get(), pdu.offset.get(), pdu.len.get());
        let wrong = Violation::Data { tag: pdu.tag.get(), cid, offset, len };
        let command = self.command(cid).ok_or(wrong)?;
        let (all, may_be_less) = match command.transfer {
            Transfer::ToHost(all) => (all, false),
            Transfer::ToHostUpTo(all) => (all, true),
            Transfer::None | Transfer::ToController(_) => return Err(wrong),
        };
        let end = u64::from(offset) + u64::from(len);
        let (is_last, success) = (frame.flags & FLAG_LAST != 0, frame.flags & FLAG_SUCCESS != 0);
        let fits = len > 0
            && len == frame.data_bytes
            && command.done == offset
            && end <= u64::from(all)
            && (is_last == (end == u64::from(all)) || may_be_less && is_last)
            && (is_last || !success);
        if !fits {
            return Err(wrong);
        }
        if is_last {
            command.transfer = Transfer::ToHost(end as u32);
        }
        self.arriving = Some(Arriving { cid, offset, body: Body::new(frame), success });
        Ok(HostStep::Continue)
    }

    /// A request for data. Requests arrive in order.
    fn requested(&mut self, frame: &Frame) -> Result<HostStep, Violation> {
        let pdu: ReadyToTransfer = frame.as_pdu();
        let request = Request { cid: pdu.cid.get(), tag: pdu.tag.get(), offset: pdu.offset.get(), len: pdu.len.get() };
        let Request { cid, tag, offset, len } = request;
        let wrong = Violation::Request { tag, cid, offset, len };
        let requests_max = self.limits.requests_max;
        let command = self.command(cid).ok_or(wrong)?;
        let Transfer::ToController(all) = command.transfer else { return Err(wrong) };
        let end = u64::from(offset) + u64::from(len);
        if len == 0 || command.done != offset || end > u64::from(all) {
            return Err(wrong);
        }
        if command.requests >= requests_max {
            return Err(Violation::RequestLimit(requests_max));
        }
        command.requests += 1;
        command.done = offset + len;
        Ok(HostStep::Requested(request))
    }

    fn initialize(&mut self, input: &[u8]) -> Result<(usize, HostStep), Violation> {
        let expects = |kind| matches!(kind, Kind::IcResp | Kind::C2hTermReq);
        let Some(frame) = Frame::read(input, Digests::default(), expects)? else { return Ok((0, HostStep::NeedMore)) };
        if frame.kind == Kind::C2hTermReq {
            return Err(terminated(&frame));
        }
        let response: Initialize = frame.as_pdu();
        if response.version.get() != 0 {
            return Err(Violation::Version(response.version.get()));
        }
        if response.alignment > ALIGNMENT_MAX {
            return Err(Violation::Alignment(response.alignment));
        }
        let (digests, asked) = (Digests::from_bits(response.digests), self.limits.digests);
        if digests.header && !asked.header || digests.data && !asked.data {
            return Err(Violation::Digests(response.digests));
        }
        let pdu_data_bytes_max = response.maximum.get();
        if pdu_data_bytes_max < PDU_DATA_BYTES_MIN || !pdu_data_bytes_max.is_multiple_of(4) {
            return Err(Violation::DataMaximum(pdu_data_bytes_max));
        }
        let agreement = Agreement { digests, alignment: response.alignment, pdu_data_bytes_max };
        self.agreed = Some((agreement, Writer::new(digests, response.alignment)));
        Ok((frame.head_bytes, HostStep::Initialized(agreement)))
    }
}

/// The controller ends the connection.
fn terminated(frame: &Frame) -> Violation {
    let Terminate { status, information, .. } = frame.as_pdu();
    Violation::Terminated { status: status.get(), information: information.get() }
}
