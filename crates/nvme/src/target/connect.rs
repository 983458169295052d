//! Connect: NVMe Base 2.0, clause 6.3.

use zerocopy::FromBytes;

use super::{Host, Kind, QUEUE_ENTRIES_MAX, QUEUES_MAX};
use crate::fabrics_data::{ANY_CONTROLLER, Connect, ConnectData};
use crate::{Command, DISCOVERY_NQN, Nqn, Status};

/// A Connect command that makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The command's dwords.
    pub connect: Connect,
    /// Who asks.
    pub host: Host,
    /// What it wants to reach.
    pub subsystem: Nqn,
    /// The controller of an I/O queue.
    pub cntlid: u16,
}

/// A Connect command that was refused: its status and result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(pub Status, pub u64);

impl Refused {
    /// A parameter is wrong: the byte where it begins, in the command or, with `in_data`, in its data. Base 2.0, figure 387.
    pub fn parameter(offset: u16, in_data: bool) -> Refused {
        Refused(Status::CONNECT_INVALID_PARAMETERS, u64::from(offset) | u64::from(in_data) << 16)
    }

    /// There is no such subsystem.
    pub const SUBSYSTEM: fn() -> Refused = || Refused::parameter(256, true);
    /// There is no such controller.
    pub const CONTROLLER: fn() -> Refused = || Refused::parameter(16, true);
    /// The queue does not exist, or is connected.
    pub const QUEUE: fn() -> Refused = || Refused::parameter(42, false);
}

impl Admission {
    /// Reads the command and its data.
    ///
    /// # Errors
    /// [`Refused`], for the host.
    pub fn of(command: &Command, data: &[u8]) -> Result<Admission, Refused> {
        let connect = Connect::of(command);
        if connect.format != 0 {
            return Err(Refused(Status::CONNECT_INCOMPATIBLE_FORMAT, 0));
        }
        let Ok((data, _)) = ConnectData::read_from_prefix(data) else {
            return Err(Refused(Status::DATA_SGL_LENGTH_INVALID, 0));
        };
        // "If the value is 0h or larger than the controller supports".
        if connect.size == 0 || connect.size >= QUEUE_ENTRIES_MAX {
            return Err(Refused::parameter(44, false));
        }
        if connect.queue > QUEUES_MAX {
            return Err(Refused::QUEUE());
        }
        let subsystem = Nqn::from_field(&data.subnqn).map_err(|_| Refused::SUBSYSTEM())?;
        let nqn = Nqn::from_field(&data.hostnqn).map_err(|_| Refused::parameter(512, true))?;
        let cntlid = data.cntlid.get();
        // An admin queue takes the controller that it is given.
        if connect.queue == 0 && cntlid != ANY_CONTROLLER {
            return Err(Refused::CONTROLLER());
        }
        Ok(Admission { connect, host: Host { nqn, id: data.host_id }, subsystem, cntlid })
    }

    /// What kind of controller is asked for.
    pub fn kind(&self) -> Kind {
        if self.subsystem.as_str() == DISCOVERY_NQN { Kind::Discovery } else { Kind::Io }
    }
}
