//! Get Features and Set Features: NVMe Base 2.0, clauses 5.15 and 5.27.

use super::controller::{Answer, Controller};
use super::identify::access_refusal;
use super::{ALL_NAMESPACES, Kind, QUEUES_MAX, SubsystemView};
use crate::{Command, Status};

/// Feature Identifiers: Base 2.0, figure 317.
mod fid {
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER_MANAGEMENT: u8 = 0x02;
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const WRITE_ATOMICITY: u8 = 0x0A;
    pub const ASYNCHRONOUS_EVENTS: u8 = 0x0B;
    pub const KEEP_ALIVE_TIMER: u8 = 0x0F;
    pub const HOST_BEHAVIOR: u8 = 0x16;
    pub const HOST_IDENTIFIER: u8 = 0x81;
    pub const RESERVATION_NOTIFICATION_MASK: u8 = 0x82;
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
}

/// All features of an I/O controller, for the log of supported features.
pub(super) const SUPPORTED: [u8; 13] = [
    fid::ARBITRATION,
    fid::POWER_MANAGEMENT,
    fid::TEMPERATURE_THRESHOLD,
    fid::ERROR_RECOVERY,
    fid::VOLATILE_WRITE_CACHE,
    fid::NUMBER_OF_QUEUES,
    fid::WRITE_ATOMICITY,
    fid::ASYNCHRONOUS_EVENTS,
    fid::KEEP_ALIVE_TIMER,
    fid::HOST_BEHAVIOR,
    fid::HOST_IDENTIFIER,
    fid::RESERVATION_NOTIFICATION_MASK,
    fid::RESERVATION_PERSISTENCE,
];

/// Whether each namespace has its own value of the feature.
pub(super) fn is_of_namespaces(feature: u8) -> bool {
    matches!(feature, fid::RESERVATION_NOTIFICATION_MASK | fid::RESERVATION_PERSISTENCE)
}

/// AB of Arbitration, bits 2:0: no limit. Queues are served in the order of arrival, without turns.
const NO_BURST_LIMIT: u32 = 0b111;

/// AB and the weights of the priorities; the bits between them are reserved.
const ARBITRATION: u32 = 0xFFFF_FF07;

/// Bytes of the data of Host Behavior Support.
const HOST_BEHAVIOR_BYTES: usize = 512;

/// Values that hosts set and that have no effect here, except the number of queues.
#[derive(Debug)]
pub(super) struct Features {
    temperature_threshold: u16,
    error_recovery: u32,
    write_atomicity: u32,
    power_management: u32,
    arbitration: u32,
    queues: u32,
    host_behavior: [u8; HOST_BEHAVIOR_BYTES],
}

impl Default for Features {
    fn default() -> Self {
        Features {
            temperature_threshold: super::identify::WARNING_KELVIN,
            error_recovery: 0,
            write_atomicity: 0,
            power_management: 0,
            arbitration: NO_BURST_LIMIT,
            queues: u32::from(QUEUES_MAX - 1) * 0x1_0001,
            host_behavior: [0; HOST_BEHAVIOR_BYTES],
        }
    }
}

impl Features {
    /// NSQA plus one.
    pub fn io_queues(&self) -> u16 {
        self.queues as u16 + 1
    }
}

impl Controller {
    /// A discovery controller has only these: Base 2.0, figure 324.
    fn has_feature(&self, feature: u8) -> bool {
        match self.kind() {
            Kind::Io => SUPPORTED.contains(&feature),
            Kind::Discovery => {
                matches!(feature, fid::ASYNCHRONOUS_EVENTS | fid::KEEP_ALIVE_TIMER | fid::HOST_IDENTIFIER)
            }
        }
    }

    pub(super) fn get_features<S: SubsystemView>(&mut self, command: &Command, view: &S) -> Answer {
        let feature = command.cdw(10) as u8;
        if !self.has_feature(feature) {
            return Answer::error(Status::INVALID_FIELD);
        }
        let nsid = command.nsid.get();
        // All namespaces together are refused, too: their values may differ.
        if is_of_namespaces(feature) && view.namespace(nsid).is_none() {
            return Answer::error(Status::INVALID_NAMESPACE);
        }
        if is_of_namespaces(feature)
            && let Some(refusal) = access_refusal(nsid, view)
        {
            return Answer::error(refusal);
        }
        let value = match feature {
            fid::ARBITRATION => self.features.arbitration,
            fid::POWER_MANAGEMENT => self.features.power_management,
            fid::TEMPERATURE_THRESHOLD => {
                // Only the composite temperature, over and under, is supported: there are no other
                // sensors.
                let (sensor, under) = (command.cdw(11) >> 16 & 0xF, command.cdw(11) >> 20 & 0b11);
                match (sensor, under) {
                    (0, 0) => u32::from(self.features.temperature_threshold),
                    (0, 1) => 0,
                    _ => return Answer::error(Status::INVALID_FIELD),
                }
            }
            fid::ERROR_RECOVERY => self.features.error_recovery,
            fid::VOLATILE_WRITE_CACHE => 1,
            fid::NUMBER_OF_QUEUES => self.features.queues,
            fid::WRITE_ATOMICITY => self.features.write_atomicity,
            fid::ASYNCHRONOUS_EVENTS => self.events.wanted,
            fid::KEEP_ALIVE_TIMER => self.keep_alive_ms,
            fid::HOST_BEHAVIOR => return Answer::Data(self.features.host_behavior.to_vec(), 0),
            fid::HOST_IDENTIFIER => {
                // Over fabrics a host identifier has 128 bits: EXHID, bit 0 of dword 11.
                if command.cdw(11) & 1 == 0 {
                    return Answer::error(Status::INVALID_FIELD);
                }
                return Answer::Data(self.host().id.to_vec(), 0);
            }
            fid::RESERVATION_NOTIFICATION_MASK => self.notices.mask(nsid),
            fid::RESERVATION_PERSISTENCE => view.reservations_persist(nsid).into(),
            _ => 0,
        };
        Answer::result(u64::from(value))
    }

    pub(super) fn set_features<S: SubsystemView>(&mut self, command: &Command, data: &[u8], view: &S) -> Answer {
        let (feature, value) = (command.cdw(10) as u8, command.cdw(11));
        if !self.has_feature(feature) {
            return Answer::error(Status::INVALID_FIELD);
        }
        // SV: no value survives a reset.
        if command.cdw(10) & 1 << 31 != 0 {
            return Answer::error(Status::FEATURE_NOT_SAVEABLE);
        }
        let nsids = match command.nsid.get() {
            _ if !is_of_namespaces(feature) => Vec::new(),
            ALL_NAMESPACES => view.namespaces_above(0),
            nsid if view.namespace(nsid).is_some() => vec![nsid],
            _ => return Answer::error(Status::INVALID_NAMESPACE),
        };
        // The command applies to all namespaces or to none.
        if let Some(refusal) = nsids.iter().find_map(|nsid| access_refusal(*nsid, view)) {
            return Answer::error(refusal);
        }
        match feature {
            fid::RESERVATION_NOTIFICATION_MASK => nsids.iter().for_each(|nsid| self.notices.set_mask(*nsid, value)),
            fid::RESERVATION_PERSISTENCE => return Answer::Persistence(nsids, value & 1 != 0),
            fid::ARBITRATION => self.features.arbitration = value & ARBITRATION,
            // There is one power state.
            fid::POWER_MANAGEMENT if value & 0x1F != 0 => return Answer::error(Status::INVALID_FIELD),
            fid::POWER_MANAGEMENT => self.features.power_management = value,
            fid::TEMPERATURE_THRESHOLD => {
                let (sensor, under) = (value >> 16 & 0xF, value >> 20 & 0b11);
                match (sensor, under) {
                    // 1111b: all sensors.
                    (0 | 0xF, 0) => self.features.temperature_threshold = value as u16,
                    (0 | 0xF, 1) => {}
                    _ => return Answer::error(Status::INVALID_FIELD),
                }
            }
            fid::ERROR_RECOVERY => self.features.error_recovery = value,
            // The host cannot switch off the drives' caches.
            fid::VOLATILE_WRITE_CACHE if value & 1 == 0 => return Answer::error(Status::FEATURE_NOT_CHANGEABLE),
            fid::VOLATILE_WRITE_CACHE => {}
            // "Only ... prior to creation of any of the I/O queues": Base 2.0, clause 5.27.1.5.
            fid::NUMBER_OF_QUEUES if self.busy => return Answer::error(Status::COMMAND_SEQUENCE_ERROR),
            fid::NUMBER_OF_QUEUES => {
                let (submission, completion) = (value & 0xFFFF, value >> 16);
                if submission == 0xFFFF || completion == 0xFFFF {
                    return Answer::error(Status::INVALID_FIELD);
                }
                // Over fabrics queues come in pairs.
                let queues = submission.max(completion).min(u32::from(QUEUES_MAX - 1));
                self.features.queues = queues * 0x1_0001;
                return Answer::result(u64::from(self.features.queues));
            }
            fid::WRITE_ATOMICITY => self.features.write_atomicity = value & 1,
            fid::ASYNCHRONOUS_EVENTS => self.events.wanted = value,
            fid::KEEP_ALIVE_TIMER => self.keep_alive_ms = value,
            fid::HOST_BEHAVIOR => match data.first_chunk::<HOST_BEHAVIOR_BYTES>() {
                Some(behavior) => self.features.host_behavior = *behavior,
                None => return Answer::error(Status::DATA_SGL_LENGTH_INVALID),
            },
            // Over fabrics Connect sets the host identifier.
            _ => return Answer::error(Status::COMMAND_SEQUENCE_ERROR),
        }
        Answer::result(0)
    }
}
