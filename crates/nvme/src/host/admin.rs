//! Commands of admin queues: NVMe Base 2.0, clauses 5 and 6.

use super::Submission;
use crate::identify::IDENTIFY_BYTES;
use crate::{Command, FABRICS, Sgl, admin, fabrics};

/// The feature Number of Queues: Base 2.0, figure 317.
pub const NUMBER_OF_QUEUES: u8 = 0x07;

/// The feature Asynchronous Event Configuration.
pub const ASYNCHRONOUS_EVENTS: u8 = 0x0B;

/// The feature Keep Alive Timer.
pub const KEEP_ALIVE_TIMER: u8 = 0x0F;

fn without_data(command: Command) -> Submission {
    Submission { command, data: Vec::new(), reply_bytes: 0 }
}

fn with_reply(mut command: Command, reply_bytes: u32) -> Submission {
    command.dptr = Sgl::transport(reply_bytes);
    Submission { command, data: Vec::new(), reply_bytes }
}

/// Property Get (clause 6.5) of four bytes or, with `eight`, of eight. The value is the
/// completion's result.
pub fn property_get(offset: u32, eight: bool) -> Submission {
    let mut command = Command::new(FABRICS, 0, fabrics::PROPERTY_GET.into());
    command.set_cdw(10, eight.into());
    command.set_cdw(11, offset);
    without_data(command)
}

/// Property Set (clause 6.6) of four bytes.
pub fn property_set(offset: u32, value: u32) -> Submission {
    let mut command = Command::new(FABRICS, 0, fabrics::PROPERTY_SET.into());
    command.set_cdw(11, offset);
    command.set_cdw(12, value);
    without_data(command)
}

/// Identify (clause 5.17): the structure `cns`, of [`crate::identify::cns`].
pub fn identify(cns: u8, nsid: u32) -> Submission {
    let mut command = Command::new(admin::IDENTIFY, 0, nsid);
    command.set_cdw(10, cns.into());
    with_reply(command, IDENTIFY_BYTES as u32)
}

/// Get Log Page (clause 5.16): `len` bytes from byte `offset` on, both multiples of four. With
/// `retain` (RAE) the controller does not report the event of this log again.
///
/// # Panics
/// If `len` is 0.
pub fn get_log_page(page: u8, offset: u64, len: u32, retain: bool) -> Submission {
    assert!(len > 0, "a log page is read in dwords");
    let mut command = Command::new(admin::GET_LOG_PAGE, 0, crate::target::ALL_NAMESPACES);
    let dwords = len / 4 - 1;
    command.set_cdw(10, u32::from(page) | u32::from(retain) << 15 | dwords << 16);
    command.set_cdw(11, dwords >> 16);
    command.set_cdw(12, offset as u32);
    command.set_cdw(13, (offset >> 32) as u32);
    with_reply(command, len)
}

/// Set Features (clause 5.27) without data.
pub fn set_features(feature: u8, value: u32) -> Submission {
    let mut command = Command::new(admin::SET_FEATURES, 0, 0);
    command.set_cdw(10, feature.into());
    command.set_cdw(11, value);
    without_data(command)
}

/// Get Features (clause 5.15) without data: the current value is the completion's result.
pub fn get_features(feature: u8) -> Submission {
    let mut command = Command::new(admin::GET_FEATURES, 0, 0);
    command.set_cdw(10, feature.into());
    without_data(command)
}

/// Keep Alive (clause 5.18). The host sends it at least twice in the time that Connect sets.
pub fn keep_alive() -> Submission {
    without_data(Command::new(admin::KEEP_ALIVE, 0, 0))
}

/// Asynchronous Event Request (clause 5.2). The controller answers it when an event occurs, see
/// [`super::AsyncEvent`].
pub fn event_request() -> Submission {
    without_data(Command::new(admin::ASYNC_EVENT_REQUEST, 0, 0))
}

/// Abort (clause 5.1) of the command `cid` of `queue`. Bit 0 of the result set: it was not aborted.
pub fn abort(queue: u16, cid: u16) -> Submission {
    let mut command = Command::new(admin::ABORT, 0, 0);
    command.set_cdw(10, u32::from(queue) | u32::from(cid) << 16);
    without_data(command)
}
