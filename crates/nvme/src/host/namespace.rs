//! The namespaces of a controller: NVMe Base 2.0, clause 5.17; NVM Command Set 1.0, clause 4.1.5.

use zerocopy::FromBytes;

use super::io::BLOCKS_MAX;
use super::{Blocks, Dialogue, HostError, Next, admin, succeeded};
use crate::Completion;
use crate::identify::{IDENTIFY_BYTES, IdentifyNamespace, cns};

/// Types of namespace identifiers: Base 2.0, figure 277.
mod nidt {
    pub const EUI64: u8 = 0x01;
    pub const NGUID: u8 = 0x02;
    pub const UUID: u8 = 0x03;
    pub const COMMAND_SET: u8 = 0x04;
}

/// Entries of one list: Base 2.0, clause 5.17.2.2.
const LIST_ENTRIES: usize = IDENTIFY_BYTES / 4;

/// A namespace, as its controller describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// NSID.
    pub nsid: u32,
    /// NSZE, in blocks.
    pub blocks: u64,
    /// Size of a block in bytes, a power of two from 512 to 65536.
    pub block_bytes: u32,
    /// NSATTR bit 0: write protected at the moment.
    pub read_only: bool,
    /// DLFEAT bits 2:0 are 001b: deallocated blocks read as zeroes.
    pub deallocated_reads_zeroes: bool,
    /// NOWS: the optimal write size in bytes, if the controller reports it.
    pub optimal_write_bytes: Option<u64>,
    /// ANAGRPID; 0 without ANA.
    pub access_group: u32,
    /// EUI64.
    pub eui64: Option<[u8; 8]>,
    /// NGUID.
    pub nguid: Option<[u8; 16]>,
    /// The UUID.
    pub uuid: Option<[u8; 16]>,
}

impl NamespaceInfo {
    /// Reads Identify Namespace. `None` if no namespace has this number.
    ///
    /// # Errors
    /// [`HostError::Malformed`], [`HostError::Unsupported`].
    pub fn of(nsid: u32, data: &IdentifyNamespace) -> Result<Option<NamespaceInfo>, HostError> {
        let blocks = data.nsze.get();
        if blocks == 0 {
            return Ok(None);
        }
        // FLBAS: the low bits of the format's number in bits 3:0, the high bits in bits 6:5.
        let format = data.lbaf[usize::from(data.flbas & 0xF | (data.flbas >> 5 & 0b11) << 4)];
        if format.ms.get() != 0 {
            return Err(HostError::Unsupported("the namespace has metadata"));
        }
        if !(9..=16).contains(&format.lbads) {
            return Err(HostError::Unsupported("the namespace has blocks below 512 bytes or above 64 KiB"));
        }
        if blocks.checked_mul(1 << format.lbads).is_none() {
            return Err(HostError::Malformed("the namespace is larger than 16 EiB"));
        }
        let some = |id: [u8; 16]| Some(id).filter(|id| *id != [0; 16]);
        Ok(Some(NamespaceInfo {
            nsid,
            blocks,
            block_bytes: 1 << format.lbads,
            read_only: data.nsattr & 1 != 0,
            deallocated_reads_zeroes: data.dlfeat & 0b111 == 0b001,
            // NSFEAT bit 4: NOWS is valid. It is one less than the number of blocks.
            optimal_write_bytes: (data.nsfeat & 1 << 4 != 0)
                .then(|| (u64::from(data.nows.get()) + 1) << format.lbads)
                .filter(|_| data.nows.get() != 0),
            access_group: data.anagrpid.get(),
            eui64: Some(data.eui64).filter(|id| *id != [0; 8]),
            nguid: some(data.nguid),
            uuid: None,
        }))
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }

    /// The blocks of a range in bytes. `None` if the range is not aligned to blocks, is empty, is
    /// too long for a command, or exceeds the namespace.
    #[inline]
    pub fn range(&self, offset: u64, len: u32) -> Option<Blocks> {
        let block_bytes = u64::from(self.block_bytes);
        let (first, count) = (offset / block_bytes, len / self.block_bytes);
        let whole = offset.is_multiple_of(block_bytes)
            && len.is_multiple_of(self.block_bytes)
            && (1..=BLOCKS_MAX).contains(&count);
        let inside = first.checked_add(count.into()).is_some_and(|end| end <= self.blocks);
        (whole && inside).then_some(Blocks { nsid: self.nsid, first, count })
    }

    /// Reads Namespace Identification Descriptors: Base 2.0, figure 277.
    fn describe(&mut self, list: &[u8]) -> Result<(), HostError> {
        let malformed = || HostError::Malformed("a namespace identifier is longer or shorter than its type");
        let mut rest = list;
        while let [kind, len, _, _, behind @ ..] = rest {
            if *kind == 0 {
                break;
            }
            let id = behind.get(..usize::from(*len)).ok_or_else(malformed)?;
            match *kind {
                nidt::EUI64 => self.eui64 = Some(id.try_into().map_err(|_| malformed())?),
                nidt::NGUID => self.nguid = Some(id.try_into().map_err(|_| malformed())?),
                nidt::UUID => self.uuid = Some(id.try_into().map_err(|_| malformed())?),
                nidt::COMMAND_SET if id != [0] => {
                    return Err(HostError::Unsupported("the namespace has another command set than NVM"));
                }
                // Types of later versions are ignored.
                _ => {}
            }
            rest = &behind[id.len()..];
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Stage {
    /// Reads the numbers above this one.
    List(u32),
    Namespace(u32),
    Descriptors(Box<NamespaceInfo>),
    Done,
}

/// Namespaces by number, or why one cannot be used.
pub type Surveyed = Vec<(u32, Result<NamespaceInfo, HostError>)>;

/// Finds all namespaces that the host may see. An error of one namespace does not stop the survey.
#[derive(Debug)]
pub struct Survey {
    stage: Stage,
    namespaces_max: usize,
    /// Numbers still to be read, the next one last.
    listed: Vec<u32>,
    /// The number after which the list continues, if it does.
    list_from: Option<u32>,
    found: Surveyed,
}

impl Survey {
    /// With more than `namespaces_max` the survey ends with an error.
    pub fn new(namespaces_max: usize) -> Survey {
        let (stage, listed, found) = (Stage::List(0), Vec::new(), Vec::new());
        Survey { stage, namespaces_max, listed, list_from: None, found }
    }

    /// Reads this namespace alone. The result is empty if the host may not see it.
    pub fn of(nsid: u32) -> Survey {
        Survey { stage: Stage::Namespace(nsid), ..Survey::new(1) }
    }

    fn list(&mut self, above: u32, data: &[u8]) -> Result<(), HostError> {
        let mut last = above;
        let entries = data.chunks_exact(4).map(|entry| entry.iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte)));
        for nsid in entries.take_while(|nsid| *nsid != 0) {
            if nsid <= last {
                return Err(HostError::Malformed("the list of namespaces does not ascend"));
            }
            last = nsid;
            self.listed.push(nsid);
        }
        let all = self.found.len() + self.listed.len();
        if all > self.namespaces_max {
            return Err(HostError::TooMany(all as u64));
        }
        // A full list may continue.
        self.list_from = (self.listed.len() == LIST_ENTRIES).then_some(last);
        self.listed.reverse();
        Ok(())
    }
}

impl Dialogue for Survey {
    type Outcome = Surveyed;

    fn next(&mut self) -> Next<Self::Outcome> {
        match &self.stage {
            Stage::List(above) => Next::Send(admin::identify(cns::ACTIVE_NAMESPACES, *above)),
            Stage::Namespace(nsid) => Next::Send(admin::identify(cns::NAMESPACE, *nsid)),
            Stage::Descriptors(info) => Next::Send(admin::identify(cns::NAMESPACE_DESCRIPTORS, info.nsid)),
            Stage::Done => Next::Done(std::mem::take(&mut self.found)),
        }
    }

    fn answer(&mut self, completion: &Completion, data: &[u8]) -> Result<(), HostError> {
        let whole = |completion| {
            succeeded("Identify", completion)?;
            match data.len() == IDENTIFY_BYTES {
                true => Ok(()),
                false => Err(HostError::Short { command: "Identify", len: data.len() }),
            }
        };
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::List(above) => {
                whole(completion)?;
                self.list(above, data)?;
            }
            Stage::Namespace(nsid) => {
                let info = whole(completion).and_then(|()| {
                    let data = IdentifyNamespace::ref_from_bytes(data)
                        .map_err(|_| HostError::Short { command: "Identify", len: data.len() })?;
                    NamespaceInfo::of(nsid, data)
                });
                match info {
                    Ok(Some(info)) => {
                        self.stage = Stage::Descriptors(Box::new(info));
                        return Ok(());
                    }
                    // The namespace was removed after it was listed.
                    Ok(None) => {}
                    Err(error) => self.found.push((nsid, Err(error))),
                }
            }
            Stage::Descriptors(mut info) => {
                let described = whole(completion).and_then(|()| info.describe(data));
                self.found.push((info.nsid, described.map(|()| *info)));
            }
            Stage::Done => return Err(HostError::Malformed("an answer to nothing")),
        }
        self.stage = match (self.listed.pop(), self.list_from.take()) {
            (Some(nsid), from) => {
                self.list_from = from;
                Stage::Namespace(nsid)
            }
            (None, Some(above)) => Stage::List(above),
            (None, None) => Stage::Done,
        };
        Ok(())
    }
}
