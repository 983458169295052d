//! The bytes of an NVMe/TCP host, PDU by PDU.

use nvme::fabrics_data::{ANY_CONTROLLER, Connect, ConnectData};
use nvme::tcp::{Digests, Kind, Writer, pdu};
use nvme::{Command, FABRICS, Nqn, Sgl, admin, fabrics};

use super::nvme_target::SUBSYSTEM;

/// The bytes of a host that does not wait for answers.
pub(super) struct Session {
    pub bytes: Vec<u8>,
    writer: Writer,
}

impl Session {
    /// Starts with an ICReq for these digests, as bits of DGST.
    pub fn new(digests: u8) -> Session {
        let digests = Digests::from_bits(digests);
        Session { bytes: pdu::initialize(Kind::IcReq, 0, digests, 0).to_vec(), writer: Writer::new(digests, 0) }
    }

    /// Starts without an ICReq.
    pub fn silent(digests: u8) -> Session {
        Session { bytes: Vec::new(), writer: Writer::new(Digests::from_bits(digests), 0) }
    }

    /// A command, with data in its capsule or without data.
    pub fn command(&mut self, command: Command, data: &[u8]) -> &mut Session {
        self.bytes.extend_from_slice(&self.writer.command(command, data.len()));
        self.body(data)
    }

    /// Data, whether it was requested or not.
    pub fn data(&mut self, cid: u16, tag: u16, offset: u32, data: &[u8], last: bool) -> &mut Session {
        self.bytes.extend_from_slice(&self.writer.data_to_controller(cid, tag, offset, data.len() as u32, last));
        self.body(data)
    }

    fn body(&mut self, data: &[u8]) -> &mut Session {
        self.bytes.extend_from_slice(data);
        if self.writer.digests().data && !data.is_empty() {
            self.bytes.extend_from_slice(&gf::crc32c(data).to_le_bytes());
        }
        self
    }

    /// Connect, with this data.
    pub fn connect_with(&mut self, connect: Connect, subsystem: &str, cntlid: u16) -> &mut Session {
        let nqn: Nqn = subsystem.parse().expect("a name");
        let data = ConnectData {
            host_id: [7; 16],
            cntlid: cntlid.into(),
            reserved18: [0; 238],
            subnqn: nqn.field(),
            hostnqn: Nqn::of_uuid(&[7; 16]).field(),
            reserved768: [0; 256],
        };
        self.command(connect.command(0), zerocopy::IntoBytes::as_bytes(&data))
    }

    /// Connect, as a well-behaved host sends it.
    pub fn connect(&mut self, queue: u16) -> &mut Session {
        let cntlid = if queue == 0 { ANY_CONTROLLER } else { 1 };
        let connect = Connect { format: 0, queue, size: 31, no_flow_control: true, keep_alive_ms: 5000 };
        self.connect_with(connect, SUBSYSTEM, cntlid)
    }

    /// Property Set.
    pub fn set(&mut self, offset: u32, value: u32) -> &mut Session {
        let mut command = Command::new(FABRICS, 1, fabrics::PROPERTY_SET.into());
        command.set_cdw(11, offset);
        command.set_cdw(12, value);
        self.command(command, &[])
    }

    /// CC.EN.
    pub fn enable(&mut self) -> &mut Session {
        self.set(0x14, 0x0046_0001)
    }

    /// Identify.
    pub fn identify(&mut self, cns: u32, nsid: u32) -> &mut Session {
        let mut command = Command::new(admin::IDENTIFY, 2, nsid);
        command.set_cdw(10, cns);
        command.dptr = Sgl::transport(4096);
        self.command(command, &[])
    }

    /// Get Log Page.
    pub fn log(&mut self, page: u32, offset: u64, len: u32) -> &mut Session {
        let mut command = Command::new(admin::GET_LOG_PAGE, 3, 0xFFFF_FFFF);
        let dwords = (len / 4).wrapping_sub(1);
        command.set_cdw(10, page | dwords << 16);
        command.set_cdw(11, dwords >> 16);
        command.set_cdw(12, offset as u32);
        command.set_cdw(13, (offset >> 32) as u32);
        command.dptr = Sgl::transport(len);
        self.command(command, &[])
    }

    /// Get Features or Set Features.
    pub fn feature(&mut self, opcode: u8, dword10: u32, dword11: u32) -> &mut Session {
        let mut command = Command::new(opcode, 4, 0);
        command.set_cdw(10, dword10);
        command.set_cdw(11, dword11);
        self.command(command, &[])
    }

    /// Number of queues, events, and the keep alive timer.
    pub fn features(&mut self) -> &mut Session {
        self.feature(admin::SET_FEATURES, 0x07, 0x0003_0003).feature(admin::SET_FEATURES, 0x0B, 0x900).feature(
            admin::GET_FEATURES,
            0x0F,
            0,
        )
    }

    /// Event requests, one of them aborted, and a Keep Alive that causes events.
    pub fn events(&mut self) -> &mut Session {
        for cid in 10..15 {
            self.command(Command::new(admin::ASYNC_EVENT_REQUEST, cid, 0), &[]);
        }
        let mut abort = Command::new(admin::ABORT, 5, 0);
        abort.set_cdw(10, 11 << 16);
        self.command(abort, &[]).command(Command::new(admin::KEEP_ALIVE, 6, 9), &[])
    }
}
