//! NVMe/TCP connections as scripts: an input selects the PDUs of a host, so that most of them are
//! well formed.

use nvme::fabrics_data::{ANY_CONTROLLER, Connect};
use nvme::{Command, DISCOVERY_NQN, Sgl, admin, nvm};

use super::nvme_host::Session;
use super::nvme_target::{self, BLOCKS, LIMITS, SUBSYSTEM, Way};
use crate::target::{Memory, Seed, Target};

/// Most PDUs of one connection.
const PDUS_MAX: usize = 64;

pub(super) const TARGET: Target = Target {
    name: "nvme-script",
    checks: "well-formed NVMe/TCP connections of up to 64 PDUs: the same promises as nvme-stream, deeper inside",
    run,
    seeds: || {
        vec![
            Seed::new("admin", [3, 1, 1, 1, 2, 4, 0, 1, 4, 0, 1, 1, 5, 2, 0, 9, 6, 7, 0, 3, 7, 8, 8, 1, 8].as_slice()),
            Seed::new("discovery", [1, 0, 1, 3, 2, 4, 0, 1, 5, 9, 0, 200, 5, 9, 0, 7, 7, 6, 11].as_slice()),
            Seed::new(
                "io",
                [7, 9, 1, 0, 9, 1, 0, 3, 9, 1, 0, 9, 12, 0, 200, 12, 1, 255, 12, 0, 255, 10, 1, 2, 0, 5, 10, 0]
                    .as_slice(),
            ),
            // Ranges just past the end of the namespace, and past the largest number.
            Seed::new(
                "edges",
                [
                    2, 1, 1, 0, 10, 2, 0, 2, 16, 10, 8, 16, 2, 17, 10, 12, 0, 3, 0, 10, 2, 3, 2, 16, 13, 0, 4, 0, 1, 2,
                    16,
                ]
                .as_slice(),
            ),
            // Register, acquire, a release with data of another length, report; preempt and abort,
            // release, clear; a registration that persists, whose keys are requested.
            Seed::new(
                "reservations",
                [
                    &[3, 1, 1, 0][..],
                    &[16, 0, 0, 0, 0, 0, 7],
                    &[16, 2, 0, 0, 1, 7, 0],
                    &[16, 1, 4, 0, 1, 7, 0],
                    &[16, 3, 0, 15, 0],
                    &[16, 2, 0, 2, 3, 7, 7],
                    &[16, 1, 0, 0, 3, 7, 0, 16, 1, 0, 1, 0, 7, 0],
                    &[16, 0, 1, 0xC8, 0, 7, 9, 12, 0, 255],
                ]
                .concat(),
            ),
            // One range; two with FUA; destination and source past the end; too many blocks; ranges
            // that are requested; another descriptor format; a read-only namespace.
            Seed::new(
                "copy",
                [
                    &[2, 4, 1, 0][..],
                    &[17, 0, 0, 5, 0, 0, 3],
                    &[17, 10, 0, 9, 0, 8, 3, 0, 10, 7],
                    &[17, 0, 2, 17, 0, 0, 3, 17, 0, 0, 0, 2, 17, 3],
                    &[17, 8, 0, 0, 0, 0, 255, 0, 0, 255],
                    &[17, 1, 0, 0, 0, 0, 0, 12, 0, 255],
                    &[17, 4, 0, 0, 0, 0, 0, 17, 64, 0, 0, 0, 0, 0],
                ]
                .concat(),
            ),
            // A pair; different lengths; two blocks; past the end; a first command alone, a second
            // one alone, and an invalid value of FUSE.
            Seed::new(
                "fused",
                [
                    &[3, 7, 1, 0][..],
                    &[18, 1, 0, 0, 5, 9, 18, 2, 0, 0, 5, 8],
                    &[18, 1, 0, 0, 7, 1, 18, 2, 16, 0, 7, 1],
                    &[18, 1, 16, 0, 7, 1, 18, 2, 16, 0, 7, 1],
                    &[18, 1, 0, 2, 16, 2, 18, 2, 0, 2, 16, 2],
                    &[18, 1, 0, 0, 1, 1, 10, 0, 0, 0, 0, 18, 2, 10, 0, 7, 3, 18, 3, 0, 0, 7, 3],
                ]
                .concat(),
            ),
            Seed::new("ranges", [0, 5, 1, 0, 13, 4, 3, 0, 9, 2, 1, 0, 3, 13, 0, 1, 3, 0, 1, 14, 2, 15, 9].as_slice()),
        ]
    },
    stored: Vec::new,
    dictionary: &[
        &[1, 0],
        &[1, 1, 2],
        &[9, 1, 0, 3],
        &[12, 0, 255],
        &[10, 1, 2, 2, 0],
        &[16, 0, 0, 0, 0, 0, 7],
        &[16, 2, 0, 0, 1, 7, 0],
        &[17, 0, 0, 5, 0, 0, 0, 3],
        &[18, 1, 0, 0, 5, 9, 18, 2, 0, 0, 5, 8],
    ],
    input_bytes_max: 512,
    // The stream that the script makes, with data of up to 64 KiB, twice.
    memory: Memory { base_bytes: 48 << 20, per_input_byte: 0 },
};

/// Takes numbers off the front; zeroes when nothing is left.
struct Script<'a> {
    bytes: &'a [u8],
    cid: u16,
    /// By tag: command, total bytes, bytes sent.
    transfers: Vec<Option<(u16, u32, u32)>>,
}

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        first
    }

    fn number(&mut self) -> u64 {
        // Small, near the end of the namespace, near the largest number, or anything.
        let (form, value) = (self.byte(), u64::from(self.byte()));
        match form % 5 {
            0 => value,
            1 => value << 8,
            2 => (BLOCKS + 16).wrapping_sub(value),
            3 => u64::MAX - value,
            _ => value << (form / 5),
        }
    }

    /// A command of an I/O queue for 1 to 16 blocks, with the length of its data.
    fn io(&mut self, opcode: u8) -> (Command, u32) {
        self.cid += 1;
        let (how, slba) = (self.byte(), self.number());
        let nsid = [1, 1, 1, 3, 2][usize::from(how) % 5];
        let mut command = Command::new(opcode, self.cid, nsid);
        let blocks = u32::from(how / 16) + 1;
        command.set_slba(slba);
        // With FUA, too.
        command.set_cdw(12, (blocks - 1) | u32::from(how & 8) << 27);
        let block_bytes = if nsid == 3 { 512 } else { 4096 };
        (command, blocks * block_bytes)
    }

    /// Sends a command with data in its capsule, or with data to be requested: [`Script::send`]
    /// makes that data later.
    fn bring(&mut self, session: &mut Session, mut command: Command, data: &[u8], in_capsule: bool) {
        let len = data.len() as u32;
        if in_capsule {
            command.dptr = Sgl::in_capsule(len);
            session.command(command, data);
            return;
        }
        command.dptr = Sgl::transport(len);
        self.expect(len);
        session.command(command, &[]);
    }

    /// Expects that the data of the command that was made last is requested.
    fn expect(&mut self, len: u32) {
        if let Some(free) = self.transfers.iter_mut().find(|transfer| transfer.is_none()) {
            *free = Some((self.cid, len, 0));
        }
    }

    /// Reservation Register, Report, Acquire or Release: `[command, how, number, first key, second
    /// key]`.
    fn reserve(&mut self, session: &mut Session) {
        self.cid += 1;
        let opcodes =
            [nvm::RESERVATION_REGISTER, nvm::RESERVATION_RELEASE, nvm::RESERVATION_ACQUIRE, nvm::RESERVATION_REPORT];
        let (opcode, how) = (opcodes[usize::from(self.byte()) % 4], self.byte());
        let mut command = Command::new(opcode, self.cid, if how & 8 == 0 { 1 } else { 3 });
        // RREGA, RACQA or RRELA with IEKEY; RTYPE; CPTPL.
        let (action, kind) = (self.byte(), self.byte());
        command.set_cdw(10, u32::from(action & 0xF) | u32::from(kind % 8) << 8 | u32::from(action >> 6) << 30);
        if opcode == nvm::RESERVATION_REPORT {
            // NUMD, and EDS.
            command.set_cdw(10, action.into());
            command.set_cdw(11, u32::from(kind & 1 == 0));
            command.dptr = Sgl::transport((u32::from(action) + 1) * 4);
            session.command(command, &[]);
            return;
        }
        let keys = [u64::from(self.byte()), u64::from(self.byte())].map(u64::to_le_bytes).concat();
        // Sometimes the data has the length that another command needs.
        let is_short = (opcode == nvm::RESERVATION_RELEASE) != (how & 4 != 0);
        self.bring(session, command, if is_short { &keys[..8] } else { &keys }, how & 1 == 0);
    }

    /// Copy of 1 to 8 ranges: `[how and ranges, number, (number, blocks)*]`.
    fn copy(&mut self, session: &mut Session) {
        self.cid += 1;
        let how = self.byte();
        let mut command = Command::new(nvm::COPY, self.cid, if how & 64 == 0 { 1 } else { 3 });
        let count = u32::from(how >> 3 & 7) + 1;
        command.set_slba(self.number());
        // Descriptors of another format, and FUA.
        command.set_cdw(12, (count - 1) | u32::from(how & 4) << 6 | u32::from(how & 2) << 29);
        let mut data = Vec::new();
        for _ in 0..count {
            let mut source = [0; 32];
            source[8..16].copy_from_slice(&self.number().to_le_bytes());
            source[16] = self.byte();
            data.extend_from_slice(&source);
        }
        self.bring(session, command, &data, how & 1 == 0);
    }

    /// A part of a fused operation, or a command that claims to be one: `[FUSE and command, how,
    /// number, data]`.
    fn fused(&mut self, session: &mut Session) {
        let part = self.byte();
        let opcode = match (part & 3, part >> 2) {
            (1, 0) => nvm::COMPARE,
            (_, 0) => nvm::WRITE,
            (_, other) => other % 32,
        };
        let (mut command, len) = self.io(opcode);
        command.flags |= part & 3;
        let data = vec![self.byte(); len.min(LIMITS.capsule_data_bytes_max) as usize];
        self.bring(session, command, &data, true);
    }

    /// Sends the PDU, or the PDUs, that the next numbers select.
    fn send(&mut self, session: &mut Session) {
        match self.byte() % 19 {
            0 => self.connect_anyhow(session),
            1 => self.connect_well(session),
            2 => {
                session.enable();
            }
            3 => {
                session.set(self.number() as u32, self.number() as u32);
            }
            4 => {
                session.identify(self.number() as u32, self.number() as u32);
            }
            5 => {
                session.log(self.byte().into(), self.number(), self.number() as u32 & 0xFFFF);
            }
            6 => {
                session.feature(admin::GET_FEATURES, self.byte().into(), self.byte().into());
            }
            7 => {
                session.feature(admin::SET_FEATURES, self.byte().into(), self.number() as u32);
            }
            8 => {
                session.events();
            }
            9 => self.write_or_compare(session),
            10 => self.anything(session),
            11 => self.write_in_capsule(session),
            12 => self.requested_data(session),
            13 => self.manage_ranges(session),
            14 => self.stray_data(session),
            15 => self.noise(session),
            16 => self.reserve(session),
            17 => self.copy(session),
            _ => self.fused(session),
        }
    }

    /// Connect with any values: `[format, queue, size, keep alive, controller]`.
    fn connect_anyhow(&mut self, session: &mut Session) {
        let connect = Connect {
            format: u16::from(self.byte() == 9),
            queue: self.byte().into(),
            size: self.number() as u16,
            no_flow_control: true,
            keep_alive_ms: self.number() as u32,
        };
        session.connect_with(connect, SUBSYSTEM, self.number() as u16);
    }

    /// Connect of an I/O queue, or of an admin queue, which then enables its controller.
    fn connect_well(&mut self, session: &mut Session) {
        match self.byte() % 4 {
            0 => session.connect(1),
            3 => {
                let connect = Connect { format: 0, queue: 0, size: 31, no_flow_control: false, keep_alive_ms: 0 };
                session.connect_with(connect, DISCOVERY_NQN, ANY_CONTROLLER).enable()
            }
            _ => session.connect(0).enable(),
        };
    }

    /// Write or Compare, whose data is requested.
    fn write_or_compare(&mut self, session: &mut Session) {
        let opcode = if self.byte().is_multiple_of(4) { nvm::COMPARE } else { nvm::WRITE };
        let (mut command, len) = self.io(opcode);
        command.dptr = Sgl::transport(len);
        self.expect(len);
        session.command(command, &[]);
    }

    /// A command with any opcode. This includes reservation commands and Copy, whose data has
    /// another length.
    fn anything(&mut self, session: &mut Session) {
        let opcode = self.byte() % 32;
        let (mut command, len) = self.io(opcode);
        command.dptr = Sgl::transport(len);
        session.command(command, &[]);
    }

    fn write_in_capsule(&mut self, session: &mut Session) {
        let (mut command, len) = self.io(nvm::WRITE);
        command.dptr = Sgl::in_capsule(len);
        session.command(command, &vec![self.byte(); len as usize]);
    }

    /// A part of the data that is requested, or all: `[tag, part of the rest in 255ths]`.
    fn requested_data(&mut self, session: &mut Session) {
        let (tag, part) = (usize::from(self.byte()) % self.transfers.len(), u32::from(self.byte()));
        let Some((cid, len, sent)) = self.transfers[tag] else { return };
        let now = (((len - sent) * part / 255).next_multiple_of(4)).min(len - sent).max(1);
        let last = sent + now == len;
        session.data(cid, tag as u16, sent, &vec![part as u8; now as usize], last);
        self.transfers[tag] = (!last).then_some((cid, len, sent + now));
    }

    /// Dataset Management of 1 to 8 ranges: `[ranges, attributes, (blocks, number)*]`.
    fn manage_ranges(&mut self, session: &mut Session) {
        self.cid += 1;
        let mut command = Command::new(nvm::DATASET_MANAGEMENT, self.cid, 1);
        let count = u32::from(self.byte() % 8) + 1;
        command.set_cdw(10, count - 1);
        command.set_cdw(11, u32::from(self.byte()));
        let mut data = Vec::new();
        for _ in 0..count {
            data.extend_from_slice(&[0; 4]);
            data.extend_from_slice(&(self.number() as u32).to_le_bytes());
            data.extend_from_slice(&self.number().to_le_bytes());
        }
        command.dptr = Sgl::in_capsule(data.len() as u32);
        session.command(command, &data);
    }

    /// Data with any command, tag and offset.
    fn stray_data(&mut self, session: &mut Session) {
        let (cid, tag, offset) = (self.byte().into(), self.byte().into(), self.number() as u32);
        session.data(cid, tag, offset, &vec![1; usize::from(self.byte()) * 4], self.byte().is_multiple_of(2));
    }

    /// Up to 39 bytes that need not be a PDU.
    fn noise(&mut self, session: &mut Session) {
        let count = self.byte() % 40;
        (0..count).for_each(|_| session.bytes.push(self.byte()));
    }
}

/// `[mode, pieces, PDU*]`.
fn run(input: &[u8]) {
    let Some((&[mode, pieces], bytes)) = input.split_first_chunk::<2>() else { return };
    let transfers = vec![None; usize::from(LIMITS.transfers_max)];
    let mut script = Script { bytes, cid: 0, transfers };
    let mut session = Session::new(mode & 3);
    for _ in 0..PDUS_MAX {
        if script.bytes.is_empty() {
            break;
        }
        script.send(&mut session);
    }
    nvme_target::check(&session.bytes, Way { pieces, direct: mode & 4 != 0 });
}
