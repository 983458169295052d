//! Get Log Page: NVMe Base 2.0, clause 5.16.

use std::collections::VecDeque;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, Unaligned};

use super::controller::{Answer, Controller};
use super::events::Event;
use super::history::{self, Context, Past};
use super::identify::MODEL;
use super::{ALL_NAMESPACES, Kind, NAMESPACES_MAX, SubsystemView, TRANSFER_BYTES_MAX, features};
use crate::fabrics_data::DiscoveryHead;
use crate::identify::{ascii, blank, namespace_list};
use crate::{Command, FABRICS, Status, admin, nvm};

/// Log Page Identifiers: Base 2.0, figure 202.
mod lid {
    pub const SUPPORTED: u8 = 0x00;
    pub const ERRORS: u8 = 0x01;
    pub const HEALTH: u8 = 0x02;
    pub const FIRMWARE: u8 = 0x03;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const EFFECTS: u8 = 0x05;
    pub const ACCESS: u8 = 0x0C;
    pub const PERSISTENT_EVENTS: u8 = 0x0D;
    pub const FEATURES: u8 = 0x12;
    pub const DISCOVERY: u8 = 0x70;
    pub const RESERVATIONS: u8 = 0x80;
}

/// Maximum number of entries of a controller's error log: ELPE plus one.
pub const ERRORS_MAX: usize = 64;

/// Maximum number of entries of the changed namespace list. More are "FFFFFFFFh", all of them.
const CHANGED_MAX: usize = 1024;

/// Length of the longest ANA log in bytes: Base 2.0, figures 219 and 220.
const ACCESS_BYTES_MAX: usize = 16 + NAMESPACES_MAX as usize * (32 + 4);

/// The action of a command that reads the Persistent Event Log: Base 2.0, figure 223.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PersistentEvents {
    Read,
    Establish,
    Release,
    /// Establishes a context if there is none.
    Head,
}

impl PersistentEvents {
    fn of(dword10: u32) -> PersistentEvents {
        match dword10 >> 8 & 0b11 {
            0b00 => PersistentEvents::Read,
            0b01 => PersistentEvents::Establish,
            0b10 => PersistentEvents::Release,
            _ => PersistentEvents::Head,
        }
    }
}

/// An entry of the error log: Base 2.0, figure 206.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct ErrorEntry {
    count: U64,
    queue: U16,
    cid: U16,
    status: U16,
    location: U16,
    lba: U64,
    nsid: U32,
    vendor: u8,
    transport: u8,
    reserved30: [u8; 2],
    specific: U64,
    transport_specific: U16,
    reserved42: [u8; 22],
}

/// The SMART / Health Information log: Base 2.0, figure 207.
#[derive(Debug, Clone, Copy, zerocopy::FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Health {
    critical_warning: u8,
    temperature: U16,
    spare: u8,
    spare_threshold: u8,
    used: u8,
    endurance_warning: u8,
    reserved7: [u8; 25],
    units_read: [U64; 2],
    units_written: [U64; 2],
    reads: [U64; 2],
    writes: [U64; 2],
    busy_minutes: [U64; 2],
    power_cycles: [U64; 2],
    power_on_hours: [U64; 2],
    unsafe_shutdowns: [U64; 2],
    media_errors: [U64; 2],
    error_entries: [U64; 2],
    rest: [u8; 320],
}

/// Log contents that belong to this controller.
#[derive(Debug, Default)]
pub(super) struct Logs {
    /// The newest first.
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
    changed: Vec<u32>,
    /// Number of changes of the ANA log: a state changed, or a namespace was added or removed.
    access_changes: u64,
    /// The reporting context of the Persistent Event Log.
    context: Option<Context>,
}

/// Identifies a command in the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// CID.
    pub cid: u16,
    /// NSID.
    pub nsid: u32,
    /// LBA: first block of the command. 0 if it has none.
    pub lba: u64,
}

impl Named {
    /// Takes the values of a command of an I/O queue.
    pub fn of(command: &Command) -> Named {
        let has_place = matches!(
            command.opcode,
            nvm::READ | nvm::WRITE | nvm::COMPARE | nvm::WRITE_ZEROES | nvm::VERIFY | nvm::COPY
        );
        let lba = if has_place { command.slba() } else { 0 };
        // Fabrics commands have their type in this field.
        let nsid = if command.opcode == FABRICS { 0 } else { command.nsid.get() };
        Named { cid: command.cid.get(), nsid, lba }
    }
}

impl Logs {
    /// Counts failed commands without details.
    pub fn failed_before(&mut self, count: u64) {
        self.error_count += count;
    }

    /// Adds a failed command.
    pub fn failed(&mut self, queue: u16, command: &Named, status: Status) {
        self.error_count += 1;
        self.errors.truncate(ERRORS_MAX - 1);
        self.errors.push_front(ErrorEntry {
            count: self.error_count.into(),
            queue: queue.into(),
            cid: command.cid.into(),
            status: (status.0 << 1).into(),
            // The wrong byte is unknown.
            location: U16::new(0xFFFF),
            lba: command.lba.into(),
            nsid: command.nsid.into(),
            vendor: 0,
            // TCP.
            transport: 3,
            reserved30: [0; 2],
            specific: U64::ZERO,
            transport_specific: U16::ZERO,
            reserved42: [0; 22],
        });
    }

    /// A namespace was added, removed or resized.
    pub fn namespace_changed(&mut self, nsid: u32) {
        self.access_changed();
        if let Err(at) = self.changed.binary_search(&nsid) {
            self.changed.insert(at, nsid);
        }
    }

    /// The ANA state of a namespace changed.
    pub fn access_changed(&mut self) {
        self.access_changes += 1;
    }

    /// The controller was reset.
    pub fn reset(&mut self) {
        self.context = None;
    }

    fn error_list(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.errors.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
        bytes.resize(ERRORS_MAX * size_of::<ErrorEntry>(), 0);
        bytes
    }

    fn changed_list(&self) -> Vec<u8> {
        let all = [ALL_NAMESPACES];
        let list: &[u32] = if self.changed.len() > CHANGED_MAX { &all } else { &self.changed };
        namespace_list(list.iter().copied())
    }
}

impl Controller {
    fn has_log(&self, page: u8) -> bool {
        match self.kind() {
            Kind::Discovery => matches!(page, lid::SUPPORTED | lid::ERRORS | lid::DISCOVERY),
            Kind::Io => {
                matches!(
                    page,
                    lid::SUPPORTED..=lid::EFFECTS
                        | lid::ACCESS..=lid::PERSISTENT_EVENTS
                        | lid::FEATURES
                        | lid::RESERVATIONS
                )
            }
        }
    }

    pub(super) fn get_log_page<S: SubsystemView>(&mut self, command: &Command, view: &S) -> Answer {
        let (dword10, dword11) = (command.cdw(10), command.cdw(11));
        let page = dword10 as u8;
        if !self.has_log(page) {
            return Answer::error(Status::INVALID_LOG_PAGE);
        }
        let dwords = (u64::from(dword11 & 0xFFFF) << 16 | u64::from(dword10 >> 16)) + 1;
        let mut offset = u64::from(command.cdw(13)) << 32 | u64::from(command.cdw(12));
        // OT, bit 23 of dword 14: an index instead of an offset.
        let by_index = command.cdw(14) & 1 << 23 != 0;
        let len = dwords * 4;
        if by_index || offset % 4 != 0 || len > u64::from(TRANSFER_BYTES_MAX) {
            return Answer::error(Status::INVALID_FIELD);
        }
        let bytes = if page == lid::PERSISTENT_EVENTS {
            let action = PersistentEvents::of(dword10);
            if action == PersistentEvents::Head {
                // An offset in the command is ignored.
                offset = 0;
            }
            match self.persistent_events(action, view) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => return Answer::result(0),
                Err(refusal) => return Answer::error(refusal),
            }
        } else {
            self.log_page(page, command, view)
        };
        let Some(rest) = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)) else {
            return Answer::error(Status::INVALID_FIELD);
        };
        let mut data = rest[..rest.len().min(len as usize)].to_vec();
        data.resize(len as usize, 0);
        // RAE, bit 15: if it is set, the event is not reported again until a read without it.
        if dword10 & 1 << 15 == 0 {
            self.looked_up(page, offset + len >= bytes.len() as u64);
        }
        Answer::Data(data, 0)
    }

    /// The whole content of a log page other than the Persistent Event Log.
    fn log_page<S: SubsystemView>(&self, page: u8, command: &Command, view: &S) -> Vec<u8> {
        match page {
            lid::SUPPORTED => self.supported_logs(),
            lid::ERRORS => self.logs.error_list(),
            lid::HEALTH => self.health(view),
            lid::FIRMWARE => firmware(view),
            lid::CHANGED_NAMESPACES => self.logs.changed_list(),
            lid::EFFECTS => effects(),
            // A count of 0 would mean that changes are not counted.
            lid::ACCESS => access(command, view, self.logs.access_changes + 1),
            lid::FEATURES => supported_features(),
            lid::RESERVATIONS => self.notices.page(),
            _ => discovery(view),
        }
    }

    /// A log page was read, and its event may be reported again. `to_its_end`: nothing of the page
    /// is left to read.
    fn looked_up(&mut self, page: u8, to_its_end: bool) {
        self.events.looked_up(page);
        if page == lid::CHANGED_NAMESPACES {
            self.logs.changed.clear();
        }
        // The oldest notification was read completely, so the next one takes its place.
        if page == lid::RESERVATIONS && to_its_end && self.notices.read() {
            self.events.happened(Event::ReservationNotice);
        }
    }

    /// The Persistent Event Log. `None` if the command released its context.
    fn persistent_events<S: SubsystemView>(
        &mut self,
        action: PersistentEvents,
        view: &S,
    ) -> Result<Option<Vec<u8>>, Status> {
        let existed = self.logs.context.is_some();
        match action {
            PersistentEvents::Release => {
                // Release succeeds with or without a context.
                self.logs.context = None;
                return Ok(None);
            }
            PersistentEvents::Read if !existed => return Err(Status::COMMAND_SEQUENCE_ERROR),
            PersistentEvents::Establish if existed => return Err(Status::COMMAND_SEQUENCE_ERROR),
            PersistentEvents::Read | PersistentEvents::Establish | PersistentEvents::Head => {}
        }
        let context = match self.logs.context.take() {
            Some(known) => known,
            None => Context::new(&view.past(), view.subsystem(), MODEL, &self.host().nqn),
        };
        let mut bytes = self.logs.context.insert(context).page(existed);
        if action == PersistentEvents::Head {
            bytes.truncate(history::HEAD_BYTES);
        }
        Ok(Some(bytes))
    }

    fn supported_logs(&self) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        for page in (0..=u8::MAX).filter(|page| self.has_log(*page)) {
            // LSUPP.
            bytes[usize::from(page) * 4] = 1;
        }
        if self.has_log(lid::PERSISTENT_EVENTS) {
            // ECRH in the page-specific field: the action "Establish Context and Read 512 Bytes of
            // Header" is supported.
            bytes[usize::from(lid::PERSISTENT_EVENTS) * 4 + 2] = 1;
        }
        bytes
    }

    fn health<S: SubsystemView>(&self, view: &S) -> Vec<u8> {
        let activity = view.activity();
        let Past { power_cycles, power_on_s, .. } = view.past();
        let long = |value: u64| [U64::new(value), U64::ZERO];
        // "In thousands (i.e., a value of 1 corresponds to 1,000 units of 512 bytes) ... rounded
        // up".
        let units = |bytes: u64| long(bytes.div_ceil(512_000));
        let mut health: Health = blank();
        // Bit 2: "reliability has been degraded". The other bits stay clear: spare drives are not
        // spare blocks, and a namespace that is not exported is not read-only.
        health.critical_warning = u8::from(activity.degraded) << 2;
        // There is no sensor: the value is 25 degrees.
        health.temperature = U16::new(298);
        health.spare = 100;
        health.spare_threshold = 10;
        health.units_read = units(activity.read_bytes);
        health.units_written = units(activity.written_bytes);
        health.reads = long(activity.reads);
        health.writes = long(activity.writes);
        health.power_cycles = long(power_cycles);
        health.power_on_hours = long(power_on_s / 3600);
        health.media_errors = long(activity.media_errors);
        health.error_entries = long(self.logs.error_count);
        health.as_bytes().to_vec()
    }
}

/// Firmware Slot Information.
fn firmware<S: SubsystemView>(view: &S) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    // The first slot is active.
    bytes[0] = 1;
    bytes[8..16].copy_from_slice(&ascii::<8>(&view.subsystem().firmware));
    bytes
}

/// Feature Identifiers Supported and Effects.
fn supported_features() -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    for feature in features::SUPPORTED {
        // FSUPP; then in FSP, bits 31:20, the first bit is "Namespace Scope", the second
        // "Controller Scope".
        bytes[usize::from(feature) * 4] = 1;
        bytes[usize::from(feature) * 4 + 2] = if features::is_of_namespaces(feature) { 1 << 4 } else { 1 << 5 };
    }
    bytes
}

/// The discovery log.
fn discovery<S: SubsystemView>(view: &S) -> Vec<u8> {
    let (generation, entries) = view.discovery();
    let mut head: DiscoveryHead = blank();
    head.genctr = generation.into();
    head.numrec = (entries.len() as u64).into();
    let mut bytes = head.as_bytes().to_vec();
    entries.iter().for_each(|entry| bytes.extend_from_slice(entry.as_bytes()));
    bytes
}

/// Commands Supported and Effects: Base 2.0, figure 210.
fn effects() -> Vec<u8> {
    const SUPPORTED: u8 = 1;
    // LBCC: the command may change the content of blocks.
    const CHANGES: u8 = 1 << 1;
    let mut bytes = vec![0; 4096];
    for opcode in [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
    ] {
        bytes[usize::from(opcode) * 4] = SUPPORTED;
    }
    for opcode in [
        nvm::FLUSH,
        nvm::READ,
        nvm::COMPARE,
        nvm::VERIFY,
        nvm::RESERVATION_REGISTER,
        nvm::RESERVATION_REPORT,
        nvm::RESERVATION_ACQUIRE,
        nvm::RESERVATION_RELEASE,
    ] {
        bytes[1024 + usize::from(opcode) * 4] = SUPPORTED;
    }
    for opcode in [nvm::WRITE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT, nvm::COPY] {
        bytes[1024 + usize::from(opcode) * 4] = SUPPORTED | CHANGES;
    }
    bytes
}

/// Asymmetric Namespace Access: Base 2.0, figures 219 and 220. `count` is the change count of the
/// whole log.
fn access<S: SubsystemView>(command: &Command, view: &S, count: u64) -> Vec<u8> {
    // RGO, bit 0 of LSP: groups only.
    let groups_only = command.cdw(10) >> 8 & 1 != 0;
    let nsids = view.namespaces_above(0);
    let mut bytes = Vec::with_capacity(16 + nsids.len() * 36);
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.resize(16, 0);
    let mut groups = 0_u16;
    for nsid in nsids {
        // The namespace was just removed.
        let Some(access) = view.access(nsid) else { continue };
        groups += 1;
        // The group, its namespaces, its change count, its state.
        bytes.extend_from_slice(&nsid.to_le_bytes());
        bytes.extend_from_slice(&u32::from(!groups_only).to_le_bytes());
        bytes.extend_from_slice(&access.count.to_le_bytes());
        bytes.push(access.state.code());
        bytes.resize(bytes.len() + 15, 0);
        if !groups_only {
            bytes.extend_from_slice(&nsid.to_le_bytes());
        }
    }
    bytes[8..10].copy_from_slice(&groups.to_le_bytes());
    // Hosts expect the log in its maximum length, and nvme-cli reads that in pieces: it is padded
    // with zeroes.
    bytes.resize(bytes.len().max(ACCESS_BYTES_MAX), 0);
    bytes
}

const _: () = {
    assert!(size_of::<ErrorEntry>() == 64);
    assert!(size_of::<Health>() == 512);
};
