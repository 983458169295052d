//! The host's side of a connection: what comes in.

use std::collections::VecDeque;

use super::controller::DIRECT_BYTES_MIN;
use super::frame::{Body, Frame, wrong_header};
use super::pdu::{
    self, CapsuleResp, Data, Digests, FLAG_LAST, FLAG_SUCCESS, Head, Initialize, Kind, ReadyToTransfer, Terminate,
    Writer,
};
use super::violation::Violation;
use crate::{Completion, Status};

/// The least MAXH2CDATA that a controller may have: TCP Transport 1.0, figure 18.
const PDU_DATA_BYTES_MIN: u32 = 4096;

/// The greatest CPDA: TCP Transport 1.0, figure 18.
const ALIGNMENT_MAX: u8 = 31;

/// What a host wants of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostLimits {
    /// Digests that are asked for. Those that the controller does not want are not used.
    pub digests: Digests,
    /// HPDA: the alignment of data in PDUs to the host, in dwords, one less; up to 31.
    pub alignment: u8,
    /// R2Ts that a command may have at the same time, at least 1: MAXR2T and one.
    pub requests_max: u32,
    /// Commands in flight at the same time: the entries of the queue.
    pub commands_max: u16,
}

/// What both sides have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// Digests that are used.
    pub digests: Digests,
    /// CPDA: the alignment of data in PDUs to the controller, in dwords, one less.
    pub alignment: u8,
    /// MAXH2CDATA: data in one H2CData PDU at most, in bytes.
    pub pdu_data_bytes_max: u32,
}

/// Data that a command has outside of its capsule, and which way they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// None, or all of them are in the capsule.
    None,
    /// So many bytes come from the controller.
    ToHost(u32),
    /// So many come at most, and one at least: the controller decides.
    ToHostUpTo(u32),
    /// The controller asks for so many bytes.
    ToController(u32),
}

/// Data that a controller asks for: R2T.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The command.
    pub cid: u16,
    /// TTAG.
    pub tag: u16,
    /// R2TO: where in the data of the command they begin.
    pub offset: u32,
    /// R2TL: their number.
    pub len: u32,
}

/// A part of the data that were asked for, as long as one PDU may be.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// The header, with the padding behind it. The data follow, and then their digest, if that was
    /// agreed on.
    pub head: Head,
    /// Where in the data of the command they begin.
    pub offset: u32,
    /// Their number.
    pub len: u32,
}

/// The PDUs that answer one R2T, in order.
#[derive(Debug, Clone, Copy)]
pub struct Pieces {
    writer: Writer,
    /// What is still to be sent.
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

/// What comes next.
#[derive(Debug, Clone, Copy)]
pub enum HostStep {
    /// Nothing to do; go on.
    Continue,
    /// More input is needed.
    NeedMore,
    /// The connection is initialized: commands may be sent.
    Initialized(Agreement),
    /// The `len` bytes that were taken from the input are data.
    Data {
        /// Of this command.
        cid: u16,
        /// Where in the data of the command they begin.
        offset: u32,
        /// Their number.
        len: usize,
    },
    /// The input is empty, and `len` bytes of data come next. They may be received straight into
    /// place, all or some: then [`HostReceiver::received`] has to be told. Or into the input as
    /// ever.
    Receive {
        /// Of this command.
        cid: u16,
        /// Where in the data of the command they begin.
        offset: u32,
        /// Their number.
        len: u32,
    },
    /// The controller asks for data: send [`HostReceiver::pieces`].
    Requested(Request),
    /// A command has ended; its identifier is free again. After a success all data for the host
    /// have been there.
    Completed {
        /// How it ended. SQHD is [`Completion::NO_FLOW_CONTROL`] where no response was sent, but
        /// data with SUCCESS.
        completion: Completion,
        /// The digests of its data were right, if there were digests. If not, nothing of them is to
        /// be believed: a command that is repeated may succeed (TCP Transport 1.0, clause 3.3.1.2).
        intact: bool,
    },
    /// The controller broke the protocol or ends it. Send [`HostReceiver::farewell`] and close.
    Close(Violation),
}

/// A command that was sent and not answered.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    transfer: Transfer,
    /// Bytes that came from the controller, or that it has asked for. Both go in order.
    done: u32,
    /// R2Ts that were not answered yet.
    requests: u32,
    intact: bool,
}

/// The data of a PDU while they arrive.
#[derive(Debug, Clone, Copy)]
struct Arriving {
    cid: u16,
    offset: u32,
    body: Body,
    /// SUCCESS: the command ends with these.
    success: bool,
}

/// Cuts what a controller sends into responses, data and requests for data, and checks that they
/// belong to commands in flight. A pure machine: it owns no buffer.
#[derive(Debug)]
pub struct HostReceiver {
    limits: HostLimits,
    /// Once the connection is initialized.
    agreed: Option<(Agreement, Writer)>,
    arriving: Option<Arriving>,
    /// By command identifier.
    commands: Vec<Option<InFlight>>,
    /// Identifiers below the length of `commands` that are not in use, the one that was for the
    /// longest time first: so a response that comes twice is noticed.
    free: VecDeque<u16>,
    /// The header that the last violation was in.
    wrong: Vec<u8>,
}

impl HostReceiver {
    /// A connection that was just made. [`HostReceiver::request`] is the first thing to send.
    pub fn new(limits: HostLimits) -> HostReceiver {
        let (commands, free, wrong) = (Vec::new(), VecDeque::new(), Vec::new());
        HostReceiver { limits, agreed: None, arriving: None, commands, free, wrong }
    }

    /// The ICReq.
    pub fn request(&self) -> Head {
        let HostLimits { digests, alignment, requests_max, .. } = self.limits;
        pdu::initialize(Kind::IcReq, alignment, digests, requests_max.saturating_sub(1))
    }

    /// What writes the PDUs to the controller. `None` before [`HostStep::Initialized`].
    pub fn writer(&self) -> Option<Writer> {
        self.agreed.map(|(_, writer)| writer)
    }

    /// What was agreed on. `None` before [`HostStep::Initialized`].
    pub fn agreement(&self) -> Option<Agreement> {
        self.agreed.map(|(agreement, _)| agreement)
    }

    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.commands.len() - self.free.len()
    }

    /// Takes a command up that is about to be sent, and gives its identifier; `None` if so many are
    /// in flight.
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

    /// The PDUs that carry the data which were asked for. They are to be sent now: the request
    /// counts as answered. There are none before [`HostStep::Initialized`].
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

    /// Looks at the input. Returns how many bytes of it were taken, and what comes next.
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

    /// These bytes were received into the place that [`HostStep::Receive`] named.
    ///
    /// # Panics
    /// If there are more of them than it named.
    pub fn received(&mut self, data: &[u8]) {
        let Arriving { offset, body, .. } = self.arriving.as_mut().expect("data are arriving");
        assert!(data.len() <= body.left as usize, "{} bytes where {} were to come", data.len(), body.left);
        body.arrived(data);
        *offset += data.len() as u32;
    }

    /// What to say to the controller before the connection is closed for `violation`: H2CTermReq,
    /// or nothing.
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

    /// A command is answered.
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
        // A success without the data would hand out whatever was in their place.
        let is_whole = match command.transfer {
            Transfer::ToHost(len) => command.done >= len,
            // With the last of them it is known how many there are.
            Transfer::ToHostUpTo(_) => false,
            Transfer::None | Transfer::ToController(_) => true,
        };
        if completion.status().is_success() && !is_whole {
            return Err(Violation::Response { cid });
        }
        self.end(cid);
        Ok(HostStep::Completed { completion, intact: command.intact })
    }

    /// The header of data for the host, which come in order.
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

    /// A request for data, which are asked for in order.
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
