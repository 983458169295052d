//! A controller: its properties, and the commands of its admin queue.

use super::events::{Event, Events};
use super::features::Features;
use super::log::{Logs, Named};
use super::notices::Notices;
use super::{Host, Kind, Notice, QUEUE_ENTRIES_MAX, SubsystemView, VERSION};
use crate::fabrics_data::{Configuration, property};
use crate::{Command, Completion, FABRICS, Status, admin, fabrics};

/// CAP.TO: the longest time until a controller is ready, in units of 500 ms.
const READY_TIMEOUT: u64 = 20;

/// ACL plus one: maximum number of Abort commands that may run at the same time.
pub const ABORTS_MAX: u8 = 4;

/// Sizes of entries of submission and completion queues in bytes, as powers of two.
pub(super) const ENTRY_SIZES: (u32, u32) = (6, 4);

/// CSTS.RDY.
const READY: u32 = 1;

/// CSTS.SHST, "Shutdown processing occurring" and "Shutdown processing complete".
const SHUTTING_DOWN: u32 = 0b01 << 2;
const SHUT_DOWN: u32 = 0b10 << 2;

/// The answer to a command of the admin queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A completion with this status and result.
    Done(Status, u64),
    /// Data for the host, then a completion with this result. The caller sends no more data than
    /// the host has room for.
    Data(Vec<u8>, u64),
    /// The command is answered later by [`Controller::event`].
    Later,
    /// The caller sets whether reservations of these namespaces survive a power loss. It answers
    /// the command when this is done, or with the error.
    Persistence(Vec<u32>, bool),
    /// The caller aborts the command with this identifier on this I/O queue, if it has not begun.
    /// It answers that command with "Command Abort Requested", then the Abort with bit 0 of the
    /// result clear. Otherwise it sets bit 0. At most [`ABORTS_MAX`] Aborts run at a time; the
    /// caller answers others with "Abort Command Limit Exceeded".
    Abort(u16, u16),
}

/// An effect of a command that its caller has to handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// No effect.
    None,
    /// The controller was shut down: its I/O queues end.
    QueuesGone,
    /// The controller was reset (disabled): its I/O queues end. The caller notes it in the
    /// subsystem's [`super::History`].
    Reset,
}

impl Answer {
    pub(super) fn error(status: Status) -> Answer {
        Answer::Done(status, 0)
    }

    pub(super) fn result(result: u64) -> Answer {
        Answer::Done(Status::SUCCESS, result)
    }
}

/// A controller. The connection of its admin queue owns it.
#[derive(Debug)]
pub struct Controller {
    kind: Kind,
    cntlid: u16,
    host: Host,
    /// Maximum data in a capsule of an I/O queue, in bytes.
    capsule_data_bytes: u32,
    configuration: Configuration,
    /// CSTS.RDY.
    ready: bool,
    /// A shutdown was requested and is complete.
    shut_down: bool,
    /// See [`Controller::set_busy`].
    pub(super) busy: bool,
    /// KATO in ms; 0 disables keep-alive.
    pub(super) keep_alive_ms: u32,
    pub(super) features: Features,
    pub(super) events: Events,
    pub(super) logs: Logs,
    pub(super) notices: Notices,
    /// Completions of event requests that were aborted.
    aborted: Vec<Completion>,
}

impl Controller {
    /// A controller after Connect. `capsule_data_bytes` is the maximum data in a capsule of an I/O
    /// queue.
    pub fn new(kind: Kind, cntlid: u16, host: Host, keep_alive_ms: u32, capsule_data_bytes: u32) -> Controller {
        Controller {
            kind,
            cntlid,
            host,
            capsule_data_bytes,
            configuration: Configuration::default(),
            ready: false,
            shut_down: false,
            busy: false,
            keep_alive_ms,
            features: Features::default(),
            events: Events::default(),
            logs: Logs::default(),
            notices: Notices::default(),
            aborted: Vec::new(),
        }
    }

    /// Its type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// CNTLID.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// The host that it belongs to.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// KATO in ms: after this time without a command the host counts as gone. 0 disables it.
    pub fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms
    }

    /// Whether I/O queues may be connected: the controller is enabled and not shut down.
    pub fn is_ready(&self) -> bool {
        self.ready && self.configuration.enabled() && !self.configuration.shutdown()
    }

    /// The caller says before each command whether commands of I/O queues are in flight, including
    /// those of queues that were ended. While there are any, a controller that was disabled or shut
    /// down does not report completion, and one that was enabled again is not ready: Base 2.0,
    /// clauses 3.5 and 3.6.
    pub fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
        self.settle();
    }

    /// Completes a requested enable, disable or shutdown, unless commands are in flight.
    fn settle(&mut self) {
        if !self.busy {
            self.ready = self.configuration.enabled();
            self.shut_down = self.configuration.shutdown();
        }
    }

    /// CSTS.
    fn status(&self) -> u32 {
        let shutdown = match (self.configuration.shutdown(), self.shut_down) {
            (false, _) => 0,
            (true, false) => SHUTTING_DOWN,
            (true, true) => SHUT_DOWN,
        };
        shutdown | if self.ready { READY } else { 0 }
    }

    /// I/O queues that the host was granted: the feature Number of Queues.
    pub fn io_queues(&self) -> u16 {
        self.features.io_queues()
    }

    pub(super) fn capsule_data_bytes(&self) -> u32 {
        self.capsule_data_bytes
    }

    /// Executes a command other than Connect. `data` are its data.
    pub fn execute<S: SubsystemView>(&mut self, command: &Command, data: &[u8], view: &S) -> (Answer, Effect) {
        let (answer, effect) = self.dispatch(command, data, view);
        if let Answer::Done(status, _) = answer
            && !status.is_success()
        {
            let named = Named { cid: command.cid.get(), nsid: command.nsid.get(), lba: 0 };
            self.logs.failed(0, &named, status);
        }
        (answer, effect)
    }

    fn dispatch<S: SubsystemView>(&mut self, command: &Command, data: &[u8], view: &S) -> (Answer, Effect) {
        if command.opcode == FABRICS {
            return self.fabrics(command);
        }
        // "If the controller is not enabled ... Command Sequence Error".
        if !self.is_ready() {
            return (Answer::error(Status::COMMAND_SEQUENCE_ERROR), Effect::None);
        }
        let answer = match (command.opcode, self.kind) {
            (admin::IDENTIFY, _) => self.identify(command, view),
            (admin::GET_LOG_PAGE, _) => self.get_log_page(command, view),
            (admin::GET_FEATURES, _) => self.get_features(command, view),
            (admin::SET_FEATURES, _) => self.set_features(command, data, view),
            (admin::KEEP_ALIVE, _) => Answer::result(0),
            (admin::ASYNC_EVENT_REQUEST, _) => match self.events.request(command.cid.get()) {
                true => Answer::Later,
                false => Answer::error(Status::EVENT_REQUESTS_EXCEEDED),
            },
            (admin::ABORT, Kind::Io) => self.abort(command),
            _ => Answer::error(Status::INVALID_OPCODE),
        };
        (answer, Effect::None)
    }

    /// Abort: Base 2.0, clause 5.1. On the admin queue only event requests can be pending. Bit 0 of
    /// the result: "not aborted".
    fn abort(&mut self, command: &Command) -> Answer {
        let (queue, cid) = (command.cdw(10) as u16, (command.cdw(10) >> 16) as u16);
        if queue != 0 {
            return Answer::Abort(queue, cid);
        }
        let aborted = self.events.abort(cid);
        if aborted {
            self.aborted.push(Completion::new(cid, Status::ABORT_REQUESTED, 0));
        }
        Answer::result(u64::from(!aborted))
    }

    fn fabrics(&mut self, command: &Command) -> (Answer, Effect) {
        let offset = command.cdw(11);
        // ATTRIB, dword 10: 0 is four bytes, 1 is eight.
        let size = command.cdw(10) & 0b111;
        match command.fabrics_type() {
            fabrics::PROPERTY_GET => {
                let value = match (offset, size) {
                    (property::CAP, 1) => capabilities(),
                    (property::VS, 0) => u64::from(VERSION),
                    (property::CC, 0) => u64::from(self.configuration.0),
                    (property::CSTS, 0) => u64::from(self.status()),
                    // Not supported: the property reads as zeroes.
                    (property::NSSR, 0) => 0,
                    // CRWMT: all media are ready as soon as the controller is.
                    (property::CRTO, 0) => READY_TIMEOUT,
                    _ => return (Answer::error(Status::INVALID_FIELD), Effect::None),
                };
                (Answer::result(value), Effect::None)
            }
            fabrics::PROPERTY_SET => match (offset, size) {
                (property::CC, 0) => self.configure(Configuration(command.cdw(12))),
                _ => (Answer::error(Status::INVALID_FIELD), Effect::None),
            },
            // A second Connect on a connected queue.
            fabrics::CONNECT => (Answer::error(Status::COMMAND_SEQUENCE_ERROR), Effect::None),
            _ => (Answer::error(Status::INVALID_OPCODE), Effect::None),
        }
    }

    /// Base 2.0, clauses 3.5 and 3.6.
    fn configure(&mut self, to: Configuration) -> (Answer, Effect) {
        let from = std::mem::replace(&mut self.configuration, to);
        let mut effect = Effect::None;
        if to.enabled() && !from.enabled() {
            // The controller offers no other command set alone, no larger pages and no weighted
            // arbitration. Entries have the sizes of SQES and CQES. A discovery controller has no
            // I/O queues.
            let has_sizes = (to.submission_entry_size(), to.completion_entry_size()) == ENTRY_SIZES;
            // CSS 110b selects all supported command sets: only this one.
            let is_offered = matches!(to.command_set(), 0 | 0b110) && to.page_size() == 0 && to.arbitration() == 0;
            if !is_offered || self.kind == Kind::Io && !has_sizes {
                self.configuration = from;
                return (Answer::error(Status::INVALID_FIELD), Effect::None);
            }
            // A host that did not wait for the end of a reset has to wait for it now.
            self.ready = false;
        }
        if !to.enabled() && from.enabled() {
            self.events.reset();
            self.aborted.clear();
            self.features = Features::default();
            self.notices.reset();
            self.logs.reset();
            effect = Effect::Reset;
        }
        if to.shutdown() && !from.shutdown() {
            effect = if effect == Effect::None { Effect::QueuesGone } else { effect };
        }
        self.settle();
        (Answer::result(0), effect)
    }

    /// The next completion that is due: of an event request, or of an aborted one.
    pub fn event(&mut self) -> Option<Completion> {
        self.aborted.pop().or_else(|| self.events.take())
    }

    /// Adds failed commands of I/O queues to the error log, each with its queue, the oldest first.
    /// `lost` is the number of earlier failures without details.
    pub fn io_failed(&mut self, failed: impl IntoIterator<Item = (u16, Named, Status)>, lost: u64) {
        self.logs.failed_before(lost);
        failed.into_iter().for_each(|(queue, named, status)| self.logs.failed(queue, &named, status));
    }

    /// A namespace was added, removed or resized.
    pub fn namespace_changed(&mut self, nsid: u32) {
        self.logs.namespace_changed(nsid);
        self.events.happened(Event::NamespaceChanged);
    }

    /// The ANA state of a namespace changed: Base 2.0, clause 8.1.
    pub fn access_changed(&mut self) {
        self.logs.access_changed();
        self.events.happened(Event::AccessChanged);
    }

    /// Another host changed a reservation of a namespace in a way that concerns this host.
    pub fn reservation_changed(&mut self, nsid: u32, notice: Notice) {
        if self.notices.happened(nsid, notice) {
            self.events.happened(Event::ReservationNotice);
        }
    }

    /// Another event occurred.
    pub fn happened(&mut self, event: Event) {
        self.events.happened(event);
    }
}

/// CAP: Base 2.0, figure 36.
fn capabilities() -> u64 {
    let entries = u64::from(QUEUE_ENTRIES_MAX - 1);
    // CQR: queues are contiguous. CSS, bit 37: the NVM command set. CRMS, bit 59: when the
    // controller is ready, its media are ready.
    entries | 1 << 16 | READY_TIMEOUT << 24 | 1 << 37 | 1 << 59
}
