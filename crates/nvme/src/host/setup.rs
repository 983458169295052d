//! From a connection to a ready controller: NVMe Base 2.0, clauses 3.5.2 and 6.3.

use zerocopy::{FromBytes, IntoBytes};

use super::{Dialogue, HostError, Next, Submission, admin, succeeded};
use crate::auth::{SECURE_CHANNEL_REQUIRED, TRANSACTION_REQUIRED};
use crate::fabrics_data::{ANY_CONTROLLER, CONNECT_DATA_BYTES, Connect, ConnectData, property};
use crate::identify::{IdentifyController, cns};
use crate::target::Host;
use crate::{Completion, Nqn, Status};

/// CC of an enabled controller: EN, the NVM command set, pages of 4 KiB, entries of 2^6 and 2^4
/// bytes.
pub(super) const ENABLED: u32 = 1 | 6 << 16 | 4 << 20;

/// Time before CSTS is read again, in milliseconds.
pub(super) const POLL_MS: u32 = 100;

/// Parameters of a host for a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The host.
    pub host: Host,
    /// The subsystem, or [`crate::DISCOVERY_NQN`].
    pub subsystem: Nqn,
    /// Entries of the admin queue, at least 32 (Base 2.0, figure 385).
    pub queue_entries: u16,
    /// KATO in milliseconds; 0 disables keep-alive.
    pub keep_alive_ms: u32,
    /// I/O queues for an I/O controller. The controller may grant fewer.
    pub queues: u16,
    /// Events to be reported, as bits of the feature Asynchronous Event Configuration. The host
    /// does not request events that the controller does not support.
    pub events: u32,
}

/// A controller that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Established {
    /// CNTLID, for the Connect of I/O queues.
    pub cntlid: u16,
    /// CAP.MQES plus one: maximum number of entries of an I/O queue.
    pub queue_entries_max: u32,
    /// VS.
    pub version: u32,
    /// Its answer to Identify Controller.
    pub info: ControllerInfo,
    /// I/O queues granted; 0 from a discovery controller.
    pub queues: u16,
}

/// The fields of Identify Controller that this host uses: Base 2.0, figure 275.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerInfo {
    /// SN, without the spaces at its end.
    pub serial: String,
    /// MN.
    pub model: String,
    /// FR.
    pub firmware: String,
    /// SUBNQN.
    pub subsystem: Nqn,
    /// A discovery controller, by CNTRLTYPE.
    pub is_discovery: bool,
    /// MDTS: maximum data of one command, in bytes. `None` without a limit.
    pub transfer_bytes_max: Option<u64>,
    /// Maximum data in a capsule of an I/O queue, in bytes: IOCCSZ.
    pub capsule_data_bytes: u32,
    /// MAXCMD: maximum number of commands in flight on a queue; 0 if it is not reported.
    pub commands_max: u16,
    /// NN: the highest namespace number.
    pub namespaces_max: u32,
    /// OAES.
    pub events: u32,
    /// AERL plus one: maximum number of event requests that may wait.
    pub event_requests_max: u16,
    /// VWC bit 0: there is a write cache that has to be flushed.
    pub has_write_cache: bool,
    /// ONCS.
    pub optional_commands: u16,
    /// CMIC bit 3: the controller reports ANA states.
    pub has_access_states: bool,
    /// CTRATT bit 6 (TBKAS): any command resets the keep-alive timer, not Keep Alive alone.
    pub has_traffic_based_keep_alive: bool,
}

/// ONCS bit of Compare: Base 2.0, figure 275. The other commands follow.
const COMPARE: u16 = 1;
const DATASET_MANAGEMENT: u16 = 1 << 2;
const WRITE_ZEROES: u16 = 1 << 3;
const VERIFY: u16 = 1 << 7;

impl ControllerInfo {
    /// Reads the structure. `page_bytes` is the unit of MDTS, 2^(12 + CAP.MPSMIN).
    ///
    /// # Errors
    /// [`HostError::Malformed`], [`HostError::Unsupported`].
    pub fn of(data: &IdentifyController, page_bytes: u64) -> Result<ControllerInfo, HostError> {
        let subsystem = Nqn::from_field(&data.subnqn)
            .map_err(|_| HostError::Malformed("the controller says no name of its subsystem"))?;
        let is_discovery = data.cntrltype == 2;
        let capsule_bytes = u64::from(data.ioccsz.get()) * 16;
        if !is_discovery {
            let entries = (data.sqes & 0xF, data.cqes & 0xF);
            if entries.0 > 6 || entries.1 > 4 {
                return Err(HostError::Unsupported("the controller wants other queue entries than 64 and 16 bytes"));
            }
            if capsule_bytes < 64 {
                return Err(HostError::Malformed("the controller's command capsules hold no command"));
            }
            if data.icdoff.get() != 0 {
                return Err(HostError::Unsupported("the controller wants a gap in front of data in capsules"));
            }
        }
        Ok(ControllerInfo {
            serial: text(&data.sn),
            model: text(&data.mn),
            firmware: text(&data.fr),
            subsystem,
            is_discovery,
            transfer_bytes_max: match data.mdts {
                0 => None,
                power => page_bytes.checked_shl(power.into()).filter(|bytes| *bytes >= page_bytes),
            },
            capsule_data_bytes: u32::try_from(capsule_bytes.saturating_sub(64)).unwrap_or(u32::MAX),
            commands_max: data.maxcmd.get(),
            namespaces_max: data.nn.get(),
            events: data.oaes.get(),
            event_requests_max: u16::from(data.aerl) + 1,
            has_write_cache: data.vwc & 1 != 0,
            optional_commands: data.oncs.get(),
            has_access_states: data.cmic & 1 << 3 != 0,
            has_traffic_based_keep_alive: data.ctratt.get() & 1 << 6 != 0,
        })
    }

    /// Whether the controller supports Compare.
    pub fn has_compare(&self) -> bool {
        self.optional_commands & COMPARE != 0
    }

    /// Whether it supports Dataset Management.
    pub fn has_dataset_management(&self) -> bool {
        self.optional_commands & DATASET_MANAGEMENT != 0
    }

    /// Whether it supports Write Zeroes.
    pub fn has_write_zeroes(&self) -> bool {
        self.optional_commands & WRITE_ZEROES != 0
    }

    /// Whether it supports Verify.
    pub fn has_verify(&self) -> bool {
        self.optional_commands & VERIFY != 0
    }
}

/// An ASCII field without the spaces and zeroes at its end; other characters become question marks.
pub(super) fn text(field: &[u8]) -> String {
    let end = field.iter().rposition(|byte| !matches!(byte, b' ' | 0)).map_or(0, |last| last + 1);
    field[..end].iter().map(|byte| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '?' }).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connect,
    Capabilities,
    Version,
    Enable,
    /// CSTS is being read.
    Status,
    /// The host waits before it reads CSTS again.
    Pause,
    Identify,
    Queues,
    Events,
    Done,
}

/// Sets up a controller over an admin queue that is not connected yet.
#[derive(Debug)]
pub struct Setup {
    wish: Wish,
    stage: Stage,
    cntlid: u16,
    capabilities: u64,
    version: u32,
    waited_ms: u32,
    info: Option<ControllerInfo>,
    queues: u16,
}

impl Setup {
    /// Begins with Connect.
    pub fn new(wish: Wish) -> Setup {
        let (stage, info) = (Stage::Connect, None);
        Setup { wish, stage, cntlid: 0, capabilities: 0, version: 0, waited_ms: 0, info, queues: 0 }
    }

    /// Continues on an admin queue that was connected with [`connect_admin`], and has authenticated
    /// if the controller requires it.
    pub fn of_connected(wish: Wish, connected: Connected) -> Setup {
        Setup { stage: Stage::Capabilities, cntlid: connected.cntlid, ..Setup::new(wish) }
    }

    /// CAP.TO in milliseconds.
    fn ready_within_ms(&self) -> u32 {
        (self.capabilities >> 24 & 0xFF) as u32 * 500
    }

    /// Events that the host wants and the controller supports.
    fn events(&self) -> u32 {
        self.wish.events & self.info.as_ref().map_or(0, |info| info.events)
    }

    fn after_queues(&self) -> Stage {
        if self.events() == 0 { Stage::Done } else { Stage::Events }
    }
}

impl Dialogue for Setup {
    type Outcome = Box<Established>;

    fn next(&mut self) -> Next<Self::Outcome> {
        Next::Send(match self.stage {
            Stage::Connect => connect_admin(&self.wish),
            Stage::Capabilities => admin::property_get(property::CAP, true),
            Stage::Version => admin::property_get(property::VS, false),
            Stage::Enable => admin::property_set(property::CC, ENABLED),
            Stage::Status => admin::property_get(property::CSTS, false),
            Stage::Pause => {
                self.stage = Stage::Status;
                self.waited_ms += POLL_MS;
                return Next::Wait(POLL_MS);
            }
            Stage::Identify => admin::identify(cns::CONTROLLER, 0),
            Stage::Queues => {
                let queues = u32::from(self.wish.queues.max(1) - 1);
                admin::set_features(admin::NUMBER_OF_QUEUES, queues << 16 | queues)
            }
            Stage::Events => admin::set_features(admin::ASYNCHRONOUS_EVENTS, self.events()),
            Stage::Done => {
                return Next::Done(Box::new(Established {
                    cntlid: self.cntlid,
                    queue_entries_max: (self.capabilities & 0xFFFF) as u32 + 1,
                    version: self.version,
                    info: self.info.clone().expect("the last stage comes after Identify"),
                    queues: self.queues,
                }));
            }
        })
    }

    fn answer(&mut self, completion: &Completion, data: &[u8]) -> Result<(), HostError> {
        let result = completion.result.get();
        self.stage = match self.stage {
            Stage::Connect => {
                self.cntlid = connected(completion)?;
                Stage::Capabilities
            }
            Stage::Capabilities => {
                succeeded("Property Get", completion)?;
                self.capabilities = result;
                // CSS: the controller supports the NVM command set. MPSMIN: it supports pages of 4
                // KiB.
                if result >> 37 & 1 == 0 {
                    return Err(HostError::Unsupported("the controller does not have the NVM command set"));
                }
                if result >> 48 & 0xF != 0 {
                    return Err(HostError::Unsupported("the controller wants pages above 4 KiB"));
                }
                Stage::Version
            }
            Stage::Version => {
                succeeded("Property Get", completion)?;
                self.version = result as u32;
                Stage::Enable
            }
            Stage::Enable => {
                succeeded("Property Set", completion)?;
                Stage::Status
            }
            Stage::Status => {
                succeeded("Property Get", completion)?;
                // RDY in bit 0, CFS in bit 1.
                if result & 0b10 != 0 {
                    return Err(HostError::Fatal);
                }
                match result & 1 != 0 {
                    true => Stage::Identify,
                    false if self.waited_ms >= self.ready_within_ms() => {
                        let what = "the controller did not become ready";
                        return Err(HostError::Timeout { what, ms: self.waited_ms });
                    }
                    false => Stage::Pause,
                }
            }
            Stage::Identify => {
                succeeded("Identify", completion)?;
                let data = IdentifyController::read_from_bytes(data)
                    .map_err(|_| HostError::Short { command: "Identify", len: data.len() })?;
                let info = ControllerInfo::of(&data, 4096)?;
                let wants_queues = self.wish.queues > 0 && !info.is_discovery;
                self.info = Some(info);
                if wants_queues { Stage::Queues } else { self.after_queues() }
            }
            Stage::Queues => {
                succeeded("Set Features", completion)?;
                // Submission queues in bits 15:0, completion queues above, each number minus one.
                let granted = (result & 0xFFFF).min(result >> 16 & 0xFFFF) as u16;
                self.queues = granted.saturating_add(1).min(self.wish.queues);
                self.after_queues()
            }
            Stage::Events => {
                succeeded("Set Features", completion)?;
                Stage::Done
            }
            Stage::Pause | Stage::Done => return Err(HostError::Malformed("an answer to nothing")),
        };
        Ok(())
    }
}

fn connect_with(connect: &Connect, host: &Host, subsystem: &Nqn, cntlid: u16) -> Submission {
    let mut data = ConnectData::read_from_bytes(&[0; CONNECT_DATA_BYTES]).expect("as many bytes");
    data.host_id = host.id;
    data.cntlid = cntlid.into();
    data.subnqn = subsystem.field();
    data.hostnqn = host.nqn.field();
    Submission { command: connect.command(0), data: data.as_bytes().to_vec(), reply_bytes: 0 }
}

/// Connect of an admin queue.
pub fn connect_admin(wish: &Wish) -> Submission {
    let Wish { host, subsystem, queue_entries, keep_alive_ms, .. } = wish;
    let size = queue_entries.saturating_sub(1);
    let connect = Connect { format: 0, queue: 0, size, no_flow_control: true, keep_alive_ms: *keep_alive_ms };
    connect_with(&connect, host, subsystem, ANY_CONTROLLER)
}

/// Connect of the I/O queue `queue`, 1 or more, to a controller that is ready. `queue_entries` is
/// its size. Submission queue flow control is disabled.
pub fn connect_io(host: &Host, subsystem: &Nqn, cntlid: u16, queue: u16, queue_entries: u16) -> Submission {
    let size = queue_entries.saturating_sub(1);
    let connect = Connect { format: 0, queue, size, no_flow_control: true, keep_alive_ms: 0 };
    connect_with(&connect, host, subsystem, cntlid)
}

/// The controller's answer to Connect: Base 2.0, figure 388.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    /// CNTLID.
    pub cntlid: u16,
    /// AUTHREQ: the queue accepts no other commands before authentication.
    pub must_authenticate: bool,
}

impl Connected {
    /// Reads the answer.
    ///
    /// # Errors
    /// Why Connect was refused, or [`HostError::SecureChannel`] if the controller requires TLS.
    pub fn of(completion: &Completion) -> Result<Connected, HostError> {
        let result = completion.result.get();
        let same = |status: Status| completion.status().0 & 0x7FF == status.0 & 0x7FF;
        if same(Status::CONNECT_INVALID_PARAMETERS) {
            // IATTR bit 0 says whether the wrong parameter is in the data.
            let parameter = match (result >> 16 & 1, result as u16) {
                (0, 42) => "the number of the queue, or it is connected already",
                (0, 44) => "the size of the queue",
                (0, 48) => "the keep alive timeout",
                (1, 0) => "this host's identifier",
                (1, 16) => "the controller's number",
                (1, 256) => "the name of the subsystem: there is none that this host may see",
                (1, 512) => "this host's name",
                _ => "a parameter that it does not name",
            };
            return Err(HostError::Parameter { parameter });
        }
        succeeded("Connect", completion)?;
        if result & SECURE_CHANNEL_REQUIRED != 0 {
            return Err(HostError::SecureChannel);
        }
        Ok(Connected { cntlid: result as u16, must_authenticate: result & TRANSACTION_REQUIRED != 0 })
    }
}

/// CNTLID from the answer to Connect, for a host without secrets.
///
/// # Errors
/// Those of [`Connected::of`]; [`HostError::Authentication`].
pub fn connected(completion: &Completion) -> Result<u16, HostError> {
    let connected = Connected::of(completion)?;
    if connected.must_authenticate { Err(HostError::Authentication) } else { Ok(connected.cntlid) }
}
