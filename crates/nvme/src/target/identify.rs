//! Answers to Identify: NVMe Base 2.0, clause 5.17.

use zerocopy::IntoBytes;

use super::controller::{ABORTS_MAX, Answer, Controller, ENTRY_SIZES};
use super::events::{EVENT_REQUESTS_MAX, Event};
use super::io::{COPY_BYTES_MAX, COPY_RANGES_MAX};
use super::{
    ALL_NAMESPACES, Kind, NAMESPACE_MAX, NAMESPACES_MAX, Namespace, QUEUE_ENTRIES_MAX, SubsystemView,
    TRANSFER_BYTES_MAX, VERSION, history,
};
use crate::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, IndependentNamespace, ascii, blank, cns,
    namespace_descriptors, namespace_list,
};
use crate::{Command, Status};

/// WCTEMP: a typical value of drives; there is no sensor.
pub(super) const WARNING_KELVIN: u16 = 343;

/// MN.
pub(super) const MODEL: &str = "Purlin";

/// KAS: the keep-alive timer has steps of 1 s, in units of 100 ms.
const KEEP_ALIVE_STEPS: u16 = 10;

/// RESCAP: reservations can survive a power loss; all six types; "ignore existing key" as since
/// version 1.3.
const RESERVATIONS: u8 = 1 | 0b11_1111 << 1 | 1 << 7;

/// A multiple of the block sizes of all drives, in bytes.
const GRAIN_BYTES: u32 = 4096;

impl Controller {
    pub(super) fn identify<S: SubsystemView>(&self, command: &Command, view: &S) -> Answer {
        let (cns, nsid) = (command.cdw(10) as u8, command.nsid.get());
        if self.kind() == Kind::Discovery && cns != cns::CONTROLLER {
            return Answer::error(Status::INVALID_FIELD);
        }
        // CSI: only the NVM command set is supported.
        let is_nvm = command.cdw(11) >> 24 == 0;
        let data = match cns {
            cns::CONTROLLER => self.identify_controller(view).as_bytes().to_vec(),
            cns::ACTIVE_NAMESPACES => match active(nsid, view) {
                Some(list) => list,
                None => return Answer::error(Status::INVALID_NAMESPACE),
            },
            cns::COMMAND_SET_ACTIVE_NAMESPACES if is_nvm => match active(nsid, view) {
                Some(list) => list,
                None => return Answer::error(Status::INVALID_NAMESPACE),
            },
            // No more than "write zeroes and all that are as long as other commands".
            cns::COMMAND_SET_CONTROLLER if is_nvm => limits(),
            cns::COMMAND_SETS => {
                let mut sets = vec![0; IDENTIFY_BYTES];
                sets[0] = 1;
                sets
            }
            cns::NAMESPACE | cns::NAMESPACE_DESCRIPTORS | cns::COMMAND_SET_NAMESPACE | cns::INDEPENDENT_NAMESPACE => {
                let Some(namespace) = view.namespace(nsid) else {
                    // For an unused but valid number the structure is all zeroes.
                    let could_be = (1..=NAMESPACE_MAX).contains(&nsid);
                    return match cns {
                        cns::NAMESPACE if could_be => Answer::Data(vec![0; IDENTIFY_BYTES], 0),
                        _ => Answer::error(Status::INVALID_NAMESPACE),
                    };
                };
                match cns {
                    cns::NAMESPACE => {
                        let mut data = identify_namespace(&namespace);
                        // NUSE: "cleared to 0h" if the namespace is inaccessible.
                        if access_refusal(nsid, view).is_some() {
                            data.nuse = 0.into();
                        }
                        data.as_bytes().to_vec()
                    }
                    cns::NAMESPACE_DESCRIPTORS => namespace_descriptors(&namespace.uuid, &namespace.uuid),
                    cns::INDEPENDENT_NAMESPACE => independent(&namespace).as_bytes().to_vec(),
                    // For the NVM command set: no protection information.
                    _ if is_nvm => vec![0; IDENTIFY_BYTES],
                    _ => return Answer::error(Status::INVALID_FIELD),
                }
            }
            _ => return Answer::error(Status::INVALID_FIELD),
        };
        Answer::Data(data, 0)
    }

    fn identify_controller<S: SubsystemView>(&self, view: &S) -> IdentifyController {
        let subsystem = view.subsystem();
        let mut data: IdentifyController = blank();
        data.sn = ascii(&subsystem.serial);
        data.mn = ascii(MODEL);
        data.fr = ascii(&subsystem.firmware);
        // 2^8 pages of 4 KiB.
        data.mdts = (TRANSFER_BYTES_MAX / 4096).trailing_zeros() as u8;
        data.cntlid = self.cntlid().into();
        data.ver = VERSION.into();
        // Bit 0: host identifiers of 128 bits.
        data.ctratt = 1.into();
        data.aerl = (EVENT_REQUESTS_MAX - 1) as u8;
        // Bit 2: Get Log Page with offsets and long lengths. Bit 5 is clear: the lists of logs and
        // features exist, but the bit promises two things more. Linux warns of one, the scope of
        // each command ("unusual effects"). The other, the log of NVMe-MI commands, is not there.
        data.lpa = 1 << 2;
        data.elpe = (super::log::ERRORS_MAX - 1) as u8;
        data.kas = KEEP_ALIVE_STEPS.into();
        data.maxcmd = QUEUE_ENTRIES_MAX.into();
        // Bits 1:0: SGLs, any alignment. Bit 20: offsets in capsules. Bit 21: transport
        // descriptors.
        data.sgls = (1 | 1 << 20 | 1 << 21).into();
        data.subnqn = subsystem.nqn.field();
        if self.kind() == Kind::Discovery {
            data.cntrltype = 2;
            data.oaes = Event::DiscoveryChanged.bit().into();
            return data;
        }
        data.cntrltype = 1;
        // Several ports, several controllers, and ANA.
        data.cmic = 1 | 1 << 1 | 1 << 3;
        data.oaes = (Event::NamespaceChanged.bit() | Event::AccessChanged.bit()).into();
        data.acl = ABORTS_MAX - 1;
        // One slot, read only.
        data.frmw = 1 | 1 << 1;
        data.wctemp = WARNING_KELVIN.into();
        data.cctemp = (WARNING_KELVIN + 10).into();
        // Bit 1: the log of commands and their effects. Bit 4: the Persistent Event Log.
        data.lpa |= 1 << 1 | 1 << 4;
        data.pels = history::UNITS.into();
        // No transition takes time. A host that waits for one waits for at most this many seconds.
        data.anatt = 10;
        // Optimized, non-optimized, inaccessible; bit 6: the group of a namespace does not change.
        data.anacap = 1 | 1 << 1 | 1 << 2 | 1 << 6;
        // Each namespace is a group of its own, with the same number.
        data.anagrpmax = NAMESPACE_MAX.into();
        data.nanagrpid = NAMESPACES_MAX.into();
        // The minimum and the maximum.
        (data.sqes, data.cqes) = (ENTRY_SIZES.0 as u8 * 0x11, ENTRY_SIZES.1 as u8 * 0x11);
        data.nn = NAMESPACE_MAX.into();
        data.mnan = NAMESPACES_MAX.into();
        // Compare, Dataset Management, Write Zeroes, reservations, Verify, Copy.
        data.oncs = (1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 7 | 1 << 8).into();
        // Copy with descriptors of format 0.
        data.ocfs = 1.into();
        // Compare and Write, of one block (ACWU is 0).
        data.fuses = 1.into();
        // A cache that a host can flush, also for a single namespace.
        data.vwc = 1 | 0b10 << 1;
        data.ioccsz = ((64 + self.capsule_data_bytes()) / 16).into();
        data.iorcsz = 1.into();
        data.msdbd = 1;
        data
    }
}

/// The status of commands for a namespace that is not reachable through this controller.
pub(super) fn access_refusal<S: SubsystemView>(nsid: u32, view: &S) -> Option<Status> {
    view.access(nsid).and_then(|access| access.state.refusal())
}

fn active<S: SubsystemView>(nsid: u32, view: &S) -> Option<Vec<u8>> {
    // "FFFFFFFEh or FFFFFFFFh".
    (nsid < ALL_NAMESPACES - 1).then(|| namespace_list(view.namespaces_above(nsid).into_iter()))
}

/// Identify Controller of the NVM command set: NVM Command Set 1.0, figure 118. 0 means "no limit".
fn limits() -> Vec<u8> {
    let mut data = vec![0; IDENTIFY_BYTES];
    // VSL: a Verify reads at most as much as a Read. In powers of two of 4 KiB, as MDTS.
    data[0] = (TRANSFER_BYTES_MAX / 4096).trailing_zeros() as u8;
    data
}

fn identify_namespace(namespace: &Namespace) -> IdentifyNamespace {
    let mut data: IdentifyNamespace = blank();
    data.nsze = namespace.blocks.into();
    let (capacity, used) = namespace.thin_blocks.unwrap_or((namespace.blocks, namespace.blocks));
    data.ncap = capacity.min(namespace.blocks).into();
    data.nuse = used.min(capacity).min(namespace.blocks).into();
    // Bit 0, THINP: the capacity may be less than the size. Bit 4: NPWG, NPWA, NPDG, NPDA and NOWS
    // are valid.
    data.nsfeat = u8::from(namespace.thin_blocks.is_some()) | 1 << 4;
    // Controllers share the namespace.
    data.nmic = 1;
    data.rescap = RESERVATIONS;
    // Bits 2:0: deallocated blocks read as zeroes, or their content is undefined. Bit 3: Write
    // Zeroes may deallocate.
    data.dlfeat = u8::from(namespace.deallocated_reads_zeroes) | 1 << 3;
    let blocks = |bytes: u32| {
        let blocks = (bytes / namespace.block_bytes).max(1) - 1;
        u16::try_from(blocks).unwrap_or(u16::MAX)
    };
    let grain = blocks(GRAIN_BYTES);
    data.npwg = grain.into();
    data.npwa = grain.into();
    data.npdg = grain.into();
    data.npda = grain.into();
    data.nows = blocks(namespace.optimal_write_bytes).into();
    // Copy: as much as one command transfers, from one or several ranges.
    let copied = COPY_BYTES_MAX / namespace.block_bytes;
    data.mssrl = u16::try_from(copied).unwrap_or(u16::MAX).into();
    data.mcl = copied.into();
    data.msrc = (COPY_RANGES_MAX - 1) as u8;
    data.anagrpid = namespace.nsid.into();
    data.nsattr = u8::from(namespace.read_only);
    data.nguid = namespace.uuid;
    data.lbaf[0].lbads = namespace.block_bytes.trailing_zeros() as u8;
    data
}

fn independent(namespace: &Namespace) -> IndependentNamespace {
    let mut data: IndependentNamespace = blank();
    data.nmic = 1;
    data.rescap = RESERVATIONS;
    data.anagrpid = namespace.nsid.into();
    data.nsattr = u8::from(namespace.read_only);
    // Ready.
    data.nstat = 1;
    data
}
