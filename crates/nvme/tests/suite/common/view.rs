//! A subsystem in memory.

use std::collections::BTreeMap;

use nvme::Access;
use nvme::fabrics_data::DiscoveryEntry;
use nvme::target::{AccessState, Activity, Host, Namespace, Past, Subsystem, SubsystemView};
use zerocopy::FromZeros;

pub const SUBSYSTEM: &str = "nqn.2026-11.com.example:target";

pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001";

pub struct Memory {
    pub subsystem: Subsystem,
    pub namespaces: Vec<Namespace>,
    /// Of namespaces that are not simply optimized.
    pub access: BTreeMap<u32, AccessState>,
    pub generation: u64,
    pub entries: Vec<DiscoveryEntry>,
    pub activity: Activity,
    pub past: Past,
}

impl Memory {
    /// Namespace 1 takes changes and has blocks of 4 KiB, 3 is read-only and has blocks of 512
    /// bytes.
    pub fn new() -> Memory {
        let namespace = Namespace {
            nsid: 1,
            blocks: 1 << 20,
            block_bytes: 4096,
            optimal_write_bytes: 256 << 10,
            uuid: [0x11; 16],
            read_only: false,
            deallocated_reads_zeroes: true,
            thin_blocks: None,
        };
        let image =
            Namespace { nsid: 3, blocks: 1000, block_bytes: 512, uuid: [0x33; 16], read_only: true, ..namespace };
        Memory {
            subsystem: Subsystem {
                nqn: SUBSYSTEM.parse().expect("a name"),
                serial: "SN-1".to_owned(),
                firmware: "0.1.0".to_owned(),
            },
            namespaces: vec![namespace, image],
            access: BTreeMap::new(),
            generation: 7,
            entries: vec![entry(1), entry(2)],
            activity: Activity {
                read_bytes: 512_001,
                written_bytes: 512_000,
                reads: 3,
                writes: 4,
                media_errors: 5,
                degraded: true,
            },
            past: Past {
                power_cycles: 3,
                power_on_s: 2 * 3600 + 3599,
                unix_ms: 1_800_000_000_123,
                port: 4420,
                ..Past::default()
            },
        }
    }
}

/// An entry whose port is `number`.
pub fn entry(number: u16) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::new_zeroed();
    (entry.trtype, entry.adrfam, entry.subtype, entry.treq) = (3, 1, 2, 2);
    entry.portid = number.into();
    entry.cntlid = 0xFFFF.into();
    entry.asqsz = 32.into();
    entry.trsvcid = [b' '; 32];
    entry.trsvcid[..4].copy_from_slice(b"4420");
    entry.subnqn = subsystem().field();
    entry.traddr = [b' '; 256];
    entry.traddr[..9].copy_from_slice(b"192.0.2.1");
    entry
}

pub fn subsystem() -> nvme::Nqn {
    SUBSYSTEM.parse().expect("a name")
}

pub fn host() -> Host {
    Host { nqn: HOST.parse().expect("a name"), id: [0xAB; 16] }
}

impl SubsystemView for Memory {
    fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    fn namespace(&self, nsid: u32) -> Option<Namespace> {
        self.namespaces.iter().copied().find(|namespace| namespace.nsid == nsid)
    }

    fn access(&self, nsid: u32) -> Option<AccessState> {
        self.namespace(nsid)?;
        Some(self.access.get(&nsid).copied().unwrap_or(AccessState { state: Access::Optimized, count: 1 }))
    }

    fn reservations_persist(&self, nsid: u32) -> bool {
        nsid == 3
    }

    fn namespaces_above(&self, nsid: u32) -> Vec<u32> {
        self.namespaces.iter().map(|namespace| namespace.nsid).filter(|above| *above > nsid).collect()
    }

    fn discovery(&self) -> (u64, Vec<DiscoveryEntry>) {
        (self.generation, self.entries.clone())
    }

    fn activity(&self) -> Activity {
        self.activity
    }

    fn past(&self) -> Past {
        self.past.clone()
    }
}
