//! The discovery log: NVMe Base 2.0, clause 5.16.1.23.

use zerocopy::FromBytes;

use super::setup::text;
use super::{Dialogue, HostError, Next, admin, succeeded};
use crate::fabrics_data::{DiscoveryEntry, DiscoveryHead};
use crate::{Completion, Nqn};

/// Maximum number of entries of a discovery log, 16 MiB of them. A longer log is an error.
pub const DISCOVERY_ENTRIES_MAX: u64 = 16 << 10;

/// Number of attempts to read the log while it changes.
const TRIES: u32 = 10;

/// Entries read by one command: 16 KiB.
const PIECE_ENTRIES: u64 = 16;

/// Log Page Identifier of the discovery log.
const DISCOVERY: u8 = 0x70;

const ENTRY_BYTES: u64 = size_of::<DiscoveryEntry>() as u64;

/// An entry as text and numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredSubsystem {
    /// TRTYPE: 3 is TCP.
    pub transport: u8,
    /// SUBTYPE: 1 a referral, 2 an NVM subsystem, 3 the discovery subsystem itself.
    pub kind: u8,
    /// SUBNQN.
    pub subsystem: Nqn,
    /// TRADDR.
    pub address: String,
    /// TRSVCID: the port.
    pub port: String,
    /// PORTID.
    pub port_id: u16,
    /// TREQ bits 1:0 are 01b: a secure channel is required.
    pub needs_secure_channel: bool,
}

impl DiscoveredSubsystem {
    /// Reads an entry.
    ///
    /// # Errors
    /// [`HostError::Malformed`]: it has no valid name of a subsystem.
    pub fn of(entry: &DiscoveryEntry) -> Result<DiscoveredSubsystem, HostError> {
        let subsystem = Nqn::from_field(&entry.subnqn)
            .map_err(|_| HostError::Malformed("an entry of the discovery log has no name of a subsystem"))?;
        Ok(DiscoveredSubsystem {
            transport: entry.trtype,
            kind: entry.subtype,
            subsystem,
            address: text(&entry.traddr),
            port: text(&entry.trsvcid),
            port_id: entry.portid.get(),
            needs_secure_channel: entry.treq & 0b11 == 0b01,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    Entries,
    /// Reads the head once more to see whether the log has changed.
    Check,
    Done,
}

/// Reads the discovery log in pieces, and again if it has changed meanwhile.
#[derive(Debug)]
pub struct DiscoveryLog {
    stage: Stage,
    tries: u32,
    generation: u64,
    count: u64,
    entries: Vec<DiscoveryEntry>,
    /// Entries could not be read, because the log became shorter or because of another error.
    failed: Option<HostError>,
}

impl Default for DiscoveryLog {
    fn default() -> Self {
        DiscoveryLog::new()
    }
}

impl DiscoveryLog {
    /// Begins with the head.
    pub fn new() -> DiscoveryLog {
        DiscoveryLog { stage: Stage::Head, tries: 0, generation: 0, count: 0, entries: Vec::new(), failed: None }
    }

    /// The number of entries in the next piece.
    fn piece(&self) -> u64 {
        (self.count - self.entries.len() as u64).min(PIECE_ENTRIES)
    }

    fn begin(&mut self, head: &DiscoveryHead) -> Result<(), HostError> {
        if head.recfmt.get() != 0 {
            return Err(HostError::Unsupported("the discovery log has another format than 0"));
        }
        if head.numrec.get() > DISCOVERY_ENTRIES_MAX {
            return Err(HostError::TooMany(head.numrec.get()));
        }
        (self.generation, self.count) = (head.genctr.get(), head.numrec.get());
        self.entries.clear();
        self.failed = None;
        self.go_on();
        Ok(())
    }

    fn go_on(&mut self) {
        self.stage = if (self.entries.len() as u64) < self.count { Stage::Entries } else { Stage::Check };
    }
}

impl Dialogue for DiscoveryLog {
    /// The generation of the log, and its entries.
    type Outcome = (u64, Vec<DiscoveryEntry>);

    fn next(&mut self) -> Next<Self::Outcome> {
        let head_bytes = size_of::<DiscoveryHead>() as u32;
        match self.stage {
            Stage::Head => Next::Send(admin::get_log_page(DISCOVERY, 0, head_bytes, true)),
            Stage::Entries => {
                let offset = u64::from(head_bytes) + self.entries.len() as u64 * ENTRY_BYTES;
                Next::Send(admin::get_log_page(DISCOVERY, offset, (self.piece() * ENTRY_BYTES) as u32, true))
            }
            // The last read clears the event that announced a change.
            Stage::Check => Next::Send(admin::get_log_page(DISCOVERY, 0, head_bytes, false)),
            Stage::Done => Next::Done((self.generation, std::mem::take(&mut self.entries))),
        }
    }

    fn answer(&mut self, completion: &Completion, data: &[u8]) -> Result<(), HostError> {
        if let Err(error) = succeeded("Get Log Page", completion) {
            if self.stage != Stage::Entries {
                return Err(error);
            }
            (self.stage, self.failed) = (Stage::Check, Some(error));
            return Ok(());
        }
        let short = || HostError::Short { command: "Get Log Page", len: data.len() };
        let head = || DiscoveryHead::read_from_bytes(data).map_err(|_| short());
        match self.stage {
            Stage::Head => self.begin(&head()?)?,
            Stage::Entries => {
                if data.len() as u64 != self.piece() * ENTRY_BYTES {
                    return Err(short());
                }
                for entry in data.chunks_exact(ENTRY_BYTES as usize) {
                    self.entries.push(DiscoveryEntry::read_from_bytes(entry).map_err(|_| short())?);
                }
                self.go_on();
            }
            Stage::Check => {
                let head = head()?;
                if head.genctr.get() == self.generation {
                    if let Some(error) = self.failed.take() {
                        return Err(error);
                    }
                    self.stage = Stage::Done;
                } else {
                    self.tries += 1;
                    if self.tries >= TRIES {
                        return Err(HostError::Restless);
                    }
                    self.begin(&head)?;
                }
            }
            Stage::Done => return Err(HostError::Malformed("an answer to nothing")),
        }
        Ok(())
    }
}
