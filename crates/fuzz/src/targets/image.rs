//! Whole drives: fields of any structure are changed and its checksums corrected; drives are
//! truncated, replaced by copies of others, and left out. Then the engine assembles and serves the
//! drives, and the rescue reader reads them.
//!
//! An input is a group (one byte) and a list of [`Change`]s, 16 bytes each:
//!
//! ```text
//! | group | what  member  which  width | offset (4) | value (8) | what ..
//! ```

use std::cell::RefCell;
use std::io;

use ::drive::BufMut;
use array::ScrubMode;
use format::log::{FRAME_VERSION, LOST_SLOT_BYTES, LOST_SLOTS, lost_slot_offset, rings};
use format::{
    BLOCK, CATALOGUE_SLOTS, Catalogue, CrashSafety, ExtentRecord, Level, MAP_SLOTS, Superblock, ThinVolumeRecord,
    VolumeKind, VolumeRecord, catalogue_slot_bytes, catalogue_slot_offset, map_slot_offset, superblock_offsets,
};
use rescue::{Extraction, Medium, Survey, Target as Sink};
use sim::engine::{Group, KIB, Protection, new_drives, shape};
use sim::{Sim, SimDrive};

use super::seal;
use crate::target::{Memory, Seed, Target};

/// Bytes of each member: close to the minimum.
const MEMBER_BYTES: u64 = 512 * KIB;

/// Most changes of one input.
const CHANGES_MAX: usize = 8;

const CHANGE_BYTES: usize = 16;

/// Most steps of the simulator in one run. A run without changes takes some thousands.
const STEPS_MAX: u64 = 2_000_000;

pub(super) const TARGET: Target = Target {
    name: "image",
    checks: "drives whose structures are wrong under right checksums: assembled, served, scrubbed and rescued, or refused",
    run,
    seeds,
    stored: Vec::new,
    dictionary: &[&[0xFF; 8], &[0; 8], &[0, 0, 0, 0, 0, 0, 0, 0x80], &[0xFF, 0xFF, 0xFF, 0x7F]],
    input_bytes_max: 1 + CHANGES_MAX * CHANGE_BYTES,
    // The drives exist several times: original, changed, in the simulator and for the rescue
    // reader.
    memory: Memory { base_bytes: 160 << 20, per_input_byte: 0 },
};

/// The structure that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A copy of the superblock. `which`: head or tail.
    Superblock,
    /// The same field of all copies of all superblocks.
    Superblocks,
    /// A slot of a map block. `which`: the slot.
    Map,
    /// The document of a slot of the catalogue. `which`: the slot.
    Document,
    /// The header of a slot of the catalogue. `which`: the slot.
    CatalogueHeader,
    /// The document of both slots of all members.
    Documents,
    /// A frame of the log. `which`: its number, counted from the first frame.
    Frame,
    /// A slot of the list of lost blocks. `which`: the slot.
    Lost,
    /// The checksums of data.
    Sums,
    /// Any place. Its checksums are not corrected.
    Anywhere,
    /// The drive ends at `value`.
    CutOff,
    /// The drive is absent.
    LeftOut,
    /// The drive is a copy of another one. `which`: that one.
    Copy,
}

const ALL: [What; 13] = [
    What::Superblock,
    What::Superblocks,
    What::Map,
    What::Document,
    What::CatalogueHeader,
    What::Documents,
    What::Frame,
    What::Lost,
    What::Sums,
    What::Anywhere,
    What::CutOff,
    What::LeftOut,
    What::Copy,
];

struct Change {
    what: What,
    member: usize,
    which: u8,
    width: usize,
    offset: usize,
    value: u64,
}

impl Change {
    fn parse(bytes: &[u8]) -> Option<Change> {
        let (bytes, _) = bytes.split_first_chunk::<CHANGE_BYTES>()?;
        Some(Change {
            what: ALL[usize::from(bytes[0]) % ALL.len()],
            member: bytes[1].into(),
            which: bytes[2],
            width: 1 << (bytes[3] % 4),
            offset: u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")) as usize,
            value: u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")),
        })
    }

    fn bytes(&self) -> [u8; CHANGE_BYTES] {
        let mut bytes = [0; CHANGE_BYTES];
        let what = ALL.iter().position(|what| *what == self.what).expect("it is one of them");
        bytes[..4].copy_from_slice(&[what as u8, self.member as u8, self.which, self.width.trailing_zeros() as u8]);
        bytes[4..8].copy_from_slice(&(self.offset as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Writes the value to a place in a structure.
    fn put(&self, structure: &mut [u8]) {
        let at = self.offset % structure.len();
        let end = (at + self.width).min(structure.len());
        structure[at..end].copy_from_slice(&self.value.to_le_bytes()[..end - at]);
    }

    fn put_sealed(&self, structure: &mut [u8]) {
        self.put(structure);
        seal::seal(structure);
    }
}

/// A group, as its drives hold it after a power cut.
struct Base {
    images: Vec<Vec<u8>>,
    superblock: Superblock,
    sector_bytes: u32,
}

/// The groups from which inputs start.
fn bases() -> Vec<Base> {
    let on = Protection { safety: CrashSafety::On, checksums: true };
    vec![
        base(1, Level::Raid6, 6, on, 4096),
        base(2, Level::Raid5, 3, Protection { checksums: false, ..on }, 512),
        base(3, Level::Raid10, 4, Protection { safety: CrashSafety::Off, checksums: false }, 512),
        base(4, Level::Raid1, 2, on, 512),
        base(5, Level::Raid60, 8, Protection { checksums: false, ..on }, 4096),
    ]
}

/// Makes a group with two volumes and some data, whose power failed during writes.
fn base(seed: u64, level: Level, members: u16, protection: Protection, sector_bytes: u32) -> Base {
    let sim = Sim::new(seed);
    let shape = shape(level, members, 16 * KIB);
    let drives = new_drives(&sim, usize::from(members), MEMBER_BYTES, sector_bytes);
    let group = Group::create_with(&sim, shape, protection, drives, 2);
    let half = group.size() / 2 / BLOCK as u64 * BLOCK as u64;
    let volume = |id, name: &str, start_byte| VolumeRecord {
        id,
        name: name.to_owned(),
        kind: VolumeKind::Direct,
        size_bytes: half,
        created_unix_s: 1,
        extents: vec![ExtentRecord { start_byte, len_bytes: half }],
        thin: ThinVolumeRecord::default(),
        conversion: None,
    };
    let volumes = vec![volume(1, "db", 0), volume(2, "rest", half)];
    let catalogue = Catalogue { next_id: 3, volumes, ..Catalogue::default() };
    let write = |offset: u64, len: usize| {
        let data = BufMut::copy_of(&vec![offset as u8 ^ 0x5A; len]).freeze();
        sim.block_on(group.leader().write(offset, data, false)).expect("the drives are fine");
    };
    sim.block_on(group.leader().set_catalogue(catalogue)).expect("the drives are fine");
    write(0, 96 << 10);
    sim.block_on(group.leader().flush()).expect("the drives are fine");
    write(4096, 4096);
    write(40960, 8192);
    write(half, 4096);
    let drives = group.cut(&sim);
    let images: Vec<Vec<u8>> = drives.iter().map(|drive| drive.read_raw(0, MEMBER_BYTES)).collect();
    let copies = images.iter().filter_map(|image| Superblock::decode(&image[..BLOCK]).ok());
    let superblock = copies.max_by_key(|copy| copy.epoch).expect("a member has a superblock");
    Base { images, superblock, sector_bytes }
}

thread_local! {
    static BASES: RefCell<Vec<Base>> = const { RefCell::new(Vec::new()) };
}

fn seeds() -> Vec<Seed> {
    let mut all = Vec::new();
    for group in 0..bases().len() as u8 {
        all.push(Seed::new(format!("unchanged-{group}"), [group]));
        for (index, what) in ALL.into_iter().enumerate() {
            // Fields of all sizes, starting with the first one after the checksum.
            for (offset, width, value) in [(16, 8, u64::MAX), (64, 8, 1 << 40), (100, 4, 0), (141, 1, 0x31)] {
                let value = if what == What::CutOff { value % MEMBER_BYTES } else { value };
                let change = Change { what, member: 1, which: index as u8, width, offset, value };
                let name = format!("{what:?}-{group}-{offset}").to_lowercase();
                all.push(Seed::new(name, [&[group][..], &change.bytes()].concat()));
            }
        }
    }
    all
}

impl Base {
    /// The drives after some changes; `None` for a drive that is left out.
    fn changed(&self, changes: &[Change]) -> Vec<Option<Vec<u8>>> {
        let mut images: Vec<Option<Vec<u8>>> = self.images.iter().cloned().map(Some).collect();
        let mut sizes: Vec<u64> = vec![MEMBER_BYTES; images.len()];
        for change in changes {
            let member = change.member % images.len();
            match change.what {
                What::CutOff => sizes[member] = change.value % (MEMBER_BYTES + 1),
                What::LeftOut => images[member] = None,
                What::Copy => images[member] = images[usize::from(change.which) % images.len()].clone(),
                What::Superblocks | What::Documents => {
                    let images = images.iter_mut().flatten();
                    images.for_each(|image| self.change(image, change));
                }
                _ => images[member].iter_mut().for_each(|image| self.change(image, change)),
            }
        }
        let sector = u64::from(self.sector_bytes);
        for (image, size) in images.iter_mut().zip(sizes) {
            // A drive needs at least one sector.
            *image = image.take().filter(|_| size >= sector);
            image.iter_mut().for_each(|image| image.truncate((size / sector * sector) as usize));
        }
        images
    }

    fn change(&self, image: &mut [u8], change: &Change) {
        let (layout, which) = (&self.superblock.layout, u64::from(change.which));
        let of = |offset: u64, len: usize| offset as usize..offset as usize + len;
        match change.what {
            What::Superblock => {
                let offsets = superblock_offsets(MEMBER_BYTES).expect("there is room");
                change.put_sealed(&mut image[of(offsets[usize::from(change.which % 2)], BLOCK)]);
            }
            What::Superblocks => {
                for offset in superblock_offsets(MEMBER_BYTES).expect("there is room") {
                    change.put_sealed(&mut image[of(offset, BLOCK)]);
                }
            }
            What::Map => change.put_sealed(&mut image[of(map_slot_offset(layout, 0, which % MAP_SLOTS), BLOCK)]),
            What::Document | What::CatalogueHeader => {
                let (offset, len) =
                    (catalogue_slot_offset(layout, which % CATALOGUE_SLOTS), catalogue_slot_bytes(layout));
                change_catalogue(&mut image[of(offset, len as usize)], change);
            }
            What::Documents => {
                for slot in 0..CATALOGUE_SLOTS {
                    let (offset, len) = (catalogue_slot_offset(layout, slot), catalogue_slot_bytes(layout));
                    change_catalogue(&mut image[of(offset, len as usize)], change);
                }
            }
            What::Frame => {
                let region = rings(layout, false);
                let starts = (region.offset..region.end()).step_by(BLOCK);
                let is_frame = |at: &u64| image[*at as usize..].starts_with(b"PurlinLG");
                let starts: Vec<u64> = starts.filter(is_frame).collect();
                let Some(&at) = starts.get(which as usize % starts.len().max(1)) else { return };
                let head = &image[at as usize..][..BLOCK];
                let len = u32::from_le_bytes(head[68..72].try_into().expect("four bytes")) as u64;
                let version = u32::from_le_bytes(head[8..12].try_into().expect("four bytes"));
                let len = len.clamp(BLOCK as u64, region.end() - at) as usize;
                change.put(&mut image[of(at, if version == FRAME_VERSION { BLOCK } else { len })]);
                seal::seal(&mut image[of(at, len)]);
            }
            What::Lost => {
                let offset = lost_slot_offset(layout, which % LOST_SLOTS);
                change.put_sealed(&mut image[of(offset, LOST_SLOT_BYTES)]);
            }
            What::Sums => {
                let Some(region) = layout.checksums else { return };
                change.put(&mut image[of(region.offset, region.len as usize)]);
            }
            What::Anywhere => change.put(image),
            What::CutOff | What::LeftOut | What::Copy => {}
        }
    }
}

/// Changes a slot of the catalogue, and corrects both of its checksums.
fn change_catalogue(slot: &mut [u8], change: &Change) {
    let (header, document) = slot.split_at_mut(BLOCK);
    let len = u32::from_le_bytes(header[40..44].try_into().expect("four bytes")) as usize;
    let filled = len.next_multiple_of(BLOCK).min(document.len());
    if change.what == What::CatalogueHeader {
        change.put(header);
    } else if len > 0 && len <= document.len() {
        change.put(&mut document[..len]);
    }
    header[44..48].copy_from_slice(&gf::crc32c(&document[..filled]).to_le_bytes());
    seal::seal(header);
}

fn run(input: &[u8]) {
    let Some((&group, changes)) = input.split_first() else { return };
    let changes: Vec<Change> = changes.chunks(CHANGE_BYTES).take(CHANGES_MAX).map_while(Change::parse).collect();
    BASES.with_borrow_mut(|known| {
        if known.is_empty() {
            *known = bases();
        }
        let base = &known[usize::from(group) % known.len()];
        let images = base.changed(&changes);
        rescue_all(&images);
        serve(base, images);
    });
}

/// Assembles the drives. If they are a group, uses the group in every way.
fn serve(base: &Base, images: Vec<Option<Vec<u8>>>) {
    let sim = Sim::new(7);
    sim.set_steps_max(STEPS_MAX);
    let mut drives = Vec::new();
    for (index, image) in images.into_iter().enumerate() {
        let Some(image) = image else { continue };
        let drive = SimDrive::new(&sim.env(), &format!("d{index}"), image.len() as u64, base.sector_bytes);
        drive.write_raw(0, &image);
        drives.push(drive);
    }
    let Ok(group) = sim.block_on(Group::try_open(sim.env(), drives, 2)) else { return };
    sim.block_on(async {
        let array = group.leader();
        let (size, status) = (array.size_bytes(), array.status());
        assert_eq!(status.members.len(), usize::from(status.superblock.shape.members));
        let places = [0, 4096, size / 2, size.saturating_sub(64 << 10)];
        for offset in places.into_iter().filter(|offset| offset.is_multiple_of(4096) && *offset < size) {
            let len = (size - offset).min(64 << 10) as usize;
            let _ = array.read(offset, BufMut::zeroed(len)).await;
            let data = BufMut::copy_of(&vec![0xA5; len.min(8192)]).freeze();
            if array.write(offset, data.clone(), false).await.is_ok() {
                match array.read(offset, BufMut::zeroed(data.len())).await {
                    Ok(read) => assert_eq!(*read, *data, "what was written is read"),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
            let _ = array.discard(offset, len as u64).await;
        }
        let _ = array.set_catalogue(array.catalogue()).await;
        let _ = array.flush().await;
        array.start_scrub(ScrubMode::Repair);
        group.jobs_end().await;
        for shard in group.shards.iter().rev() {
            let _ = shard.stop().await;
        }
    });
}

/// A drive for the rescue reader.
struct Bytes(Vec<u8>);

impl Medium for Bytes {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = self.0.get(offset as usize..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(from.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }
}

/// A sink that discards the extracted data.
struct Nothing(u64);

impl Sink for Nothing {
    fn name(&self) -> &str {
        "nothing"
    }

    fn write(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(start, self.0, "bytes come in order, each once");
        self.0 += bytes.len() as u64;
        Ok(())
    }

    fn skip(&mut self, start: u64, len: u64) -> io::Result<()> {
        assert_eq!(start, self.0, "bytes come in order, each once");
        self.0 += len;
        Ok(())
    }
}

/// Lists, checks and extracts the content of the drives.
fn rescue_all(images: &[Option<Vec<u8>>]) {
    let drives = images.iter().flatten().enumerate();
    let drives = drives.map(|(index, bytes)| rescue::Drive::new(&format!("d{index}"), Box::new(Bytes(bytes.clone()))));
    let survey = Survey::of(drives.collect());
    let report = rescue::list(&survey);
    let checked = rescue::check(&survey, true, &mut |_, _| {});
    assert!(checked.findings.len() <= 20_000, "{} findings", checked.findings.len());
    for group in &report.groups {
        for volume in &group.volumes {
            let name = volume.name.rsplit('/').next().unwrap_or_default();
            let Ok(extraction) = Extraction::new(&survey, &group.uuid, name, true) else { continue };
            let mut nothing = Nothing(0);
            let Ok(report) = extraction.run(&mut nothing, &mut |_, _| {}) else { continue };
            assert_eq!(report.data_bytes + report.hole_bytes + report.lost_bytes, report.size_bytes);
            assert_eq!(nothing.0, report.size_bytes);
        }
    }
}
