//! Connect: NVMe Base 2.0, clause 6.3.

use std::fmt;

use zerocopy::FromBytes;

use super::{Host, Kind, QUEUE_ENTRIES_MAX, QUEUES_MAX};
use crate::fabrics_data::{ANY_CONTROLLER, Connect, ConnectData};
use crate::{Command, DISCOVERY_NQN, Nqn, Status};

/// A valid Connect command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The command's dwords.
    pub connect: Connect,
    /// The host.
    pub host: Host,
    /// The subsystem that it asks for.
    pub subsystem: Nqn,
    /// The controller of an I/O queue.
    pub cntlid: u16,
}

/// A Connect command that was refused: its status and result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(pub Status, pub u64);

impl Refused {
    /// A parameter is wrong. `offset` is its first byte in the command or, with `in_data`, in the
    /// data. Base 2.0, figure 387.
    pub fn parameter(offset: u16, in_data: bool) -> Refused {
        Refused(Status::CONNECT_INVALID_PARAMETERS, u64::from(offset) | u64::from(in_data) << 16)
    }

    /// There is no such subsystem.
    pub const SUBSYSTEM: fn() -> Refused = || Refused::parameter(256, true);
    /// There is no such controller.
    pub const CONTROLLER: fn() -> Refused = || Refused::parameter(16, true);
    /// The queue does not exist, or is connected already.
    pub const QUEUE: fn() -> Refused = || Refused::parameter(42, false);
}

impl fmt::Display for Refused {
    /// The status, and the wrong parameter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused(status, result) = self;
        write!(f, "{status}")?;
        let field = match (*status, result >> 16 == 1, *result as u16) {
            (Status::CONNECT_INVALID_PARAMETERS, false, 42) => "QID",
            (Status::CONNECT_INVALID_PARAMETERS, false, 44) => "SQSIZE",
            (Status::CONNECT_INVALID_PARAMETERS, true, 16) => "CNTLID",
            (Status::CONNECT_INVALID_PARAMETERS, true, 256) => "SUBNQN",
            (Status::CONNECT_INVALID_PARAMETERS, true, 512) => "HOSTNQN",
            _ => return Ok(()),
        };
        write!(f, ": {field}")
    }
}

/// Identifies a host. A host may send no name, as SPDK's tools do without configuration. Then its
/// name is made of its identifier, as for hosts without a name of their own (Base 2.0, clause 4.5).
/// Such a name is trusted no more and no less than any other.
fn host(data: &ConnectData) -> Result<Host, Refused> {
    let is_named = data.hostnqn[0] != 0 || data.host_id == [0; 16];
    let nqn = match is_named {
        true => Nqn::from_field(&data.hostnqn).map_err(|_| Refused::parameter(512, true))?,
        false => Nqn::of_uuid(&data.host_id),
    };
    Ok(Host { nqn, id: data.host_id })
}

impl Admission {
    /// Reads the command and its data.
    ///
    /// # Errors
    /// [`Refused`]: the answer to the host.
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
        let host = host(&data)?;
        let cntlid = data.cntlid.get();
        // A host cannot choose the controller of an admin queue.
        if connect.queue == 0 && cntlid != ANY_CONTROLLER {
            return Err(Refused::CONTROLLER());
        }
        Ok(Admission { connect, host, subsystem, cntlid })
    }

    /// The type of controller that the host asks for.
    pub fn kind(&self) -> Kind {
        if self.subsystem.as_str() == DISCOVERY_NQN { Kind::Discovery } else { Kind::Io }
    }
}
