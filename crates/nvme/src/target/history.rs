//! The history of a subsystem, and the Persistent Event Log page that reports it: NVMe Base 2.0,
//! clause 5.16.1.14.
//!
//! Invariants:
//! 1. The log is never longer than PELS, and the memory for it is bounded. The newest events of
//!    each kind are kept, so events that hosts can cause displace only events of the same kind.
//! 2. A host sees a change of a namespace only if it was allowed to use the namespace at that time.

use std::collections::{BTreeSet, VecDeque};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, Unaligned};

use super::Subsystem;
use crate::Nqn;
use crate::identify::{ascii, blank};

/// PELS, in units of 64 KiB.
pub(super) const UNITS: u32 = 1;

/// Bytes of the header.
pub(super) const HEAD_BYTES: usize = 512;

/// Maximum number of events of each kind that are kept.
const POWER_ONS_MAX: usize = 128;
const RESETS_MAX: usize = 128;
const NAMESPACE_CHANGES_MAX: usize = 512;

/// Maximum number of host names that are kept with changes of namespaces, in total: a list of hosts
/// has no limit of its own.
const HOST_NAMES_MAX: usize = 16_384;

/// Maximum number of controller resets that are noted in [`RESETS_PERIOD_MS`], because hosts can
/// reset without limit. "If the same event is occurring at a frequency that exceeds a vendor
/// specific threshold then the vendor may suppress further entries".
const RESETS_PER_PERIOD: usize = 16;
const RESETS_PERIOD_MS: u64 = 60_000;

/// Event types of the subsystem: Base 2.0, figure 226.
const POWER_ON_OR_RESET: u8 = 0x04;
const CHANGE_NAMESPACE: u8 = 0x06;

/// Log Revision of Base 2.0, with the generation number and the reporting context information.
const LOG_REVISION: u8 = 2;

/// The event type revision of all events.
const EVENT_REVISION: u8 = 1;

/// EHAI: whether the event is associated with a port.
const OF_A_PORT: u8 = 0b01;
const OF_NO_PORT: u8 = 0b11;

/// CNTLID of an event without a controller: no controller has this number.
const NO_CONTROLLER: u16 = 0xFFFF;

/// RCI: a reporting context existed already.
const CONTEXT_EXISTS: u32 = 1 << 18;
/// RCI: the context was established through a port of the subsystem.
const CONTEXT_OF_A_PORT: u32 = 0b01 << 16;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened {
    /// The time in milliseconds since 1970 UTC.
    pub unix_ms: u64,
    /// FR, the firmware revision at that time.
    pub firmware: String,
    /// The kind of event with its details.
    pub what: Happening,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// Power on: the subsystem is exported from now on, after it was not.
    PowerOn,
    /// A host has reset its controller (CC.EN).
    ControllerReset {
        /// CNTLID.
        cntlid: u16,
        /// PORTID of the host's port, as in the discovery log.
        port: u16,
        /// Number of power cycles at that time.
        power_cycles: u32,
        /// Time since power on at that time, in milliseconds.
        power_on_ms: u64,
    },
    /// A namespace was created or deleted.
    NamespaceChange {
        /// Whether it was created rather than deleted.
        created: bool,
        /// Its number.
        nsid: u32,
        /// Its capacity in blocks.
        blocks: u64,
        /// Size of a block in bytes: 512 or 4096.
        block_bytes: u32,
        /// NQNs of the hosts that were allowed to use it; `None` for any host.
        hosts: Option<BTreeSet<String>>,
    },
}

impl Happening {
    /// Maximum number of events of this kind that are kept.
    fn kept_max(&self) -> usize {
        match self {
            Happening::PowerOn => POWER_ONS_MAX,
            Happening::ControllerReset { .. } => RESETS_MAX,
            Happening::NamespaceChange { .. } => NAMESPACE_CHANGES_MAX,
        }
    }

    /// The number of hosts that it names.
    fn host_names(&self) -> usize {
        match self {
            Happening::NamespaceChange { hosts: Some(hosts), .. } => hosts.len(),
            _ => 0,
        }
    }

    fn is_like(&self, other: &Happening) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// The recorded events of a subsystem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The newest first.
    happened: VecDeque<Happened>,
    /// Number of events noted since the subsystem was created, including those no longer kept.
    noted: u64,
}

impl History {
    /// Restores recorded events, the newest first. `noted`: see [`History::noted`]. Events beyond
    /// the limits are left out.
    pub fn restore(happened: impl DoubleEndedIterator<Item = Happened>, noted: u64) -> History {
        let mut history = History::default();
        happened.rev().for_each(|happened| history.keep(happened));
        history.noted = noted.max(history.happened.len() as u64);
        history
    }

    /// The kept events, the newest first.
    pub fn happened(&self) -> impl DoubleEndedIterator<Item = &Happened> {
        self.happened.iter()
    }

    /// Number of events noted since the subsystem was created. Every event increments it.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Notes an event. False if it was left out because events of its kind are too frequent.
    pub fn note(&mut self, happened: Happened) -> bool {
        if matches!(happened.what, Happening::ControllerReset { .. }) {
            let resets = self.happened.iter().filter(|known| known.what.is_like(&happened.what));
            // The clock may be set forward or back.
            let recent = resets.take_while(|known| known.unix_ms.abs_diff(happened.unix_ms) < RESETS_PERIOD_MS);
            if recent.count() >= RESETS_PER_PERIOD {
                return false;
            }
        }
        self.noted += 1;
        self.keep(happened);
        true
    }

    fn keep(&mut self, happened: Happened) {
        let alike = self.happened.iter().enumerate().filter(|(_, known)| known.what.is_like(&happened.what));
        if let Some((last, _)) = alike.enumerate().skip(happened.what.kept_max() - 1).map(|(_, found)| found).last() {
            self.happened.remove(last);
        }
        self.happened.push_front(happened);
        let mut names: usize = self.happened.iter().map(|known| known.what.host_names()).sum();
        while names > HOST_NAMES_MAX
            // The newest event stays, even if it names more hosts.
            && let Some(last) = self.happened.iter().rposition(|known| known.what.host_names() > 0).filter(|at| *at > 0)
        {
            names -= self.happened.remove(last).map_or(0, |gone| gone.what.host_names());
        }
    }
}

/// The history and state of a subsystem for a host that is connected through a port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// The recorded events.
    pub history: History,
    /// Number of power cycles.
    pub power_cycles: u64,
    /// Total time with power on, in seconds.
    pub power_on_s: u64,
    /// The current time in milliseconds since 1970 UTC.
    pub unix_ms: u64,
    /// PORTID of the host's port, as in the discovery log.
    pub port: u16,
}

/// The header of the log page: Base 2.0, figure 224.
#[derive(Debug, Clone, Copy, zerocopy::FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    log_page: u8,
    reserved1: [u8; 3],
    events: U32,
    len: U64,
    revision: u8,
    reserved17: u8,
    header_len: U16,
    timestamp: U64,
    power_on_hours: [U64; 2],
    power_cycles: U64,
    vendor: U16,
    subsystem_vendor: U16,
    sn: [u8; 20],
    mn: [u8; 40],
    subnqn: [u8; 256],
    generation: U16,
    context: U32,
    reserved378: [u8; 102],
    supported: [u8; 32],
}

/// The common start of every event: Base 2.0, figure 225.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct EventHead {
    kind: u8,
    revision: u8,
    header_len: u8,
    additional: u8,
    cntlid: U16,
    timestamp: U64,
    port: U16,
    reserved16: [u8; 4],
    vendor_len: U16,
    len: U16,
}

/// A controller in the event Power-on or Reset: Base 2.0, figure 232.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct ResetController {
    cntlid: U16,
    firmware_activation: u8,
    in_progress: u8,
    reserved4: [u8; 12],
    power_cycles: U32,
    power_on_ms: U64,
    timestamp: U64,
}

/// The data of the event Change Namespace: Base 2.0, clause 5.16.1.14.1.6.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct ChangedNamespace {
    /// Dword 10 of Namespace Management: create is 0, delete is 1.
    dword10: U32,
    reserved4: [u8; 4],
    nsze: U64,
    reserved16: [u8; 8],
    ncap: U64,
    flbas: u8,
    dps: u8,
    nmic: u8,
    reserved35: u8,
    anagrpid: U32,
    nvmsetid: U16,
    endgid: U16,
    nsid: U32,
}

/// The reporting context of a controller: a snapshot that a host reads in pieces while new events
/// occur.
#[derive(Debug)]
pub(super) struct Context {
    bytes: Vec<u8>,
    port: u16,
}

impl Context {
    /// Establishes a context for a host with this name.
    pub fn new(past: &Past, subsystem: &Subsystem, model: &str, host: &Nqn) -> Context {
        let visible = past.history.happened().filter(|happened| match &happened.what {
            Happening::NamespaceChange { hosts: Some(hosts), .. } => hosts.contains(host.as_str()),
            _ => true,
        });
        let (mut events, mut count) = (Vec::new(), 0_u32);
        for happened in visible {
            count += 1;
            happened.put(&mut events);
        }
        let mut head: Head = blank();
        head.log_page = 0x0D;
        head.events = count.into();
        head.len = ((HEAD_BYTES + events.len()) as u64).into();
        head.revision = LOG_REVISION;
        // The length of the part behind this field.
        head.header_len = ((HEAD_BYTES - 20) as u16).into();
        head.timestamp = timestamp(past.unix_ms);
        head.power_on_hours[0] = (past.power_on_s / 3600).into();
        head.power_cycles = past.power_cycles.into();
        head.sn = ascii(&subsystem.serial);
        head.mn = ascii(model);
        head.subnqn = subsystem.nqn.field();
        // The generation differs for other contents, also after a restart.
        head.generation = (past.history.noted() as u16).into();
        for kind in [POWER_ON_OR_RESET, CHANGE_NAMESPACE] {
            head.supported[usize::from(kind / 8)] |= 1 << (kind % 8);
        }
        Context { bytes: [head.as_bytes(), &events].concat(), port: past.port }
    }

    /// The page as it was when the context was established. `existed`: the context existed before
    /// the command that reads it.
    pub fn page(&self, existed: bool) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        if existed {
            let context = CONTEXT_EXISTS | CONTEXT_OF_A_PORT | u32::from(self.port);
            bytes[std::mem::offset_of!(Head, context)..][..4].copy_from_slice(&context.to_le_bytes());
        }
        bytes
    }
}

impl Happened {
    fn put(&self, bytes: &mut Vec<u8>) {
        let mut put = |kind: u8, port: Option<u16>, cntlid: u16, data: &[&[u8]]| {
            let head = EventHead {
                kind,
                revision: EVENT_REVISION,
                // The length of the part behind this field.
                header_len: (size_of::<EventHead>() - 3) as u8,
                additional: if port.is_some() { OF_A_PORT } else { OF_NO_PORT },
                cntlid: cntlid.into(),
                timestamp: timestamp(self.unix_ms),
                port: port.unwrap_or(0).into(),
                reserved16: [0; 4],
                vendor_len: U16::ZERO,
                len: (data.concat().len() as u16).into(),
            };
            bytes.extend_from_slice(head.as_bytes());
            data.iter().for_each(|part| bytes.extend_from_slice(part));
        };
        let firmware = ascii::<8>(&self.firmware);
        match &self.what {
            // No controller is involved.
            Happening::PowerOn => put(POWER_ON_OR_RESET, None, NO_CONTROLLER, &[&firmware]),
            Happening::ControllerReset { cntlid, port, power_cycles, power_on_ms } => {
                let controller = ResetController {
                    cntlid: (*cntlid).into(),
                    firmware_activation: 0,
                    in_progress: 0,
                    reserved4: [0; 12],
                    power_cycles: (*power_cycles).into(),
                    power_on_ms: (*power_on_ms).into(),
                    timestamp: timestamp(self.unix_ms),
                };
                put(POWER_ON_OR_RESET, Some(*port), *cntlid, &[&firmware, controller.as_bytes()]);
            }
            Happening::NamespaceChange { created, nsid, blocks, block_bytes, .. } => {
                let change = ChangedNamespace {
                    dword10: u32::from(!*created).into(),
                    reserved4: [0; 4],
                    nsze: (*blocks).into(),
                    reserved16: [0; 8],
                    ncap: (*blocks).into(),
                    // For a created namespace this is one of the formats that a host can choose
                    // from, for a deleted one its own format.
                    flbas: u8::from(*created && *block_bytes != 512),
                    dps: 0,
                    nmic: 1,
                    reserved35: 0,
                    anagrpid: (*nsid).into(),
                    nvmsetid: U16::ZERO,
                    endgid: U16::ZERO,
                    nsid: (*nsid).into(),
                };
                put(CHANGE_NAMESPACE, None, NO_CONTROLLER, &[change.as_bytes()]);
            }
        }
    }
}

/// The Timestamp structure: milliseconds since 1970 in 48 bits.
fn timestamp(unix_ms: u64) -> U64 {
    (unix_ms & ((1 << 48) - 1)).into()
}

const _: () = {
    assert!(size_of::<Head>() == HEAD_BYTES);
    assert!(size_of::<EventHead>() == 24);
    assert!(size_of::<ResetController>() == 36);
    assert!(size_of::<ChangedNamespace>() == 48);
    let event = size_of::<EventHead>();
    let power_ons = POWER_ONS_MAX * (event + 8);
    let resets = RESETS_MAX * (event + 8 + size_of::<ResetController>());
    let changes = NAMESPACE_CHANGES_MAX * (event + size_of::<ChangedNamespace>());
    assert!(HEAD_BYTES + power_ons + resets + changes <= (UNITS as usize) << 16);
};
