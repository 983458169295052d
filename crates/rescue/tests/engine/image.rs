//! Images of simulated drives, and the volumes on them with their content.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use drive::Drive as _;
use format::log::{Frame, LogShape, rings};
use format::{Catalogue, ExtentRecord, Shape, Superblock, ThinVolumeRecord, VolumeKind, VolumeRecord};
use rescue::{CheckReport, Drive, ExtractReport, Extraction, Medium, RescueError, StreamTarget, Survey, Target, check};
use sim::engine::{Group, KIB, Model, Protection, new_drives, work};
use sim::{Rng, Sim, SimDrive};

const SECTOR: u64 = 512;

/// The bytes of a drive, and sectors of it that cannot be read.
#[derive(Clone)]
pub struct Image {
    pub name: String,
    pub bytes: Vec<u8>,
    pub bad: BTreeSet<u64>,
}

impl Image {
    pub fn of(drive: &SimDrive) -> Image {
        let bytes = drive.read_raw(0, drive.info().size_bytes);
        Image { name: drive.info().name.clone(), bytes, bad: BTreeSet::new() }
    }
}

impl Medium for Image {
    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset + buf.len() as u64;
        if self.bad.range(offset / SECTOR..end.div_ceil(SECTOR)).next().is_some() {
            return Err(io::Error::other("unrecovered read error"));
        }
        buf.copy_from_slice(&self.bytes[offset as usize..end as usize]);
        Ok(())
    }
}

pub fn images(drives: &[SimDrive]) -> Vec<Image> {
    drives.iter().map(Image::of).collect()
}

pub fn survey(images: &[Image]) -> Survey {
    Survey::of(images.iter().map(|image| Drive::new(&image.name, Box::new(image.clone()))).collect())
}

/// The superblock with the highest epoch.
pub fn newest(images: &[Image]) -> Superblock {
    let superblocks = images.iter().filter_map(|image| Superblock::decode(&image.bytes[..4096]).ok());
    superblocks.max_by_key(|superblock| superblock.epoch).unwrap()
}

/// The frames in the logs: index of the image, byte in it, and the decoded frame.
pub fn frames(images: &[Image]) -> Vec<(usize, u64, Frame)> {
    let newest = newest(images);
    let (region, shape) =
        (rings(&newest.layout, newest.has_intent_log()), LogShape::new(&newest.shape, &newest.layout));
    let mut frames = Vec::new();
    for (index, image) in images.iter().enumerate() {
        let mut at = region.offset;
        while at < region.end() {
            let rest = &image.bytes[at as usize..region.end() as usize];
            match Frame::decode(rest, &newest.array, newest.log_generation, at, &shape) {
                Ok(frame) => {
                    at += frame.len as u64;
                    frames.push((index, at - frame.len as u64, frame));
                }
                Err(_) => at += 4096,
            }
        }
    }
    frames
}

/// The images without those of some members, the rest in another order.
pub fn without(images: &[Image], lost: &[usize], rng: &mut Rng) -> Vec<Image> {
    let kept = (0..images.len()).filter(|index| !lost.contains(index));
    let mut left: Vec<Image> = kept.map(|index| images[index].clone()).collect();
    rng.shuffle(&mut left);
    left
}

/// A sink that keeps the bytes.
#[derive(Default)]
struct Kept(Vec<u8>);

impl Target for Kept {
    fn name(&self) -> &str {
        "memory"
    }

    fn write(&mut self, start: u64, bytes: &[u8]) -> io::Result<()> {
        assert_eq!(start, self.0.len() as u64, "bytes come in order, each once");
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn skip(&mut self, start: u64, len: u64) -> io::Result<()> {
        StreamTarget::new(io::sink()).skip(start, len)?;
        self.write(start, &vec![0; len as usize])
    }
}

/// Extracts a volume of the group `tank`.
pub fn extract(images: &[Image], volume: &str, partial: bool) -> Result<(Vec<u8>, ExtractReport), RescueError> {
    let survey = survey(images);
    run(&Extraction::new(&survey, "tank", volume, partial)?)
}

/// As [`extract`], without the anchors and the map of a thin volume.
pub fn extract_from_segments(images: &[Image], volume: &str) -> Result<(Vec<u8>, ExtractReport), RescueError> {
    let survey = survey(images);
    run(&Extraction::new(&survey, "tank", volume, false)?.from_segments())
}

fn run(extraction: &Extraction<'_>) -> Result<(Vec<u8>, ExtractReport), RescueError> {
    let mut kept = Kept::default();
    let report = extraction.run(&mut kept, &mut |_, _| {})?;
    assert_eq!(kept.0.len() as u64, report.size_bytes);
    assert_eq!(report.data_bytes + report.hole_bytes + report.lost_bytes, report.size_bytes);
    Ok((kept.0, report))
}

pub fn check_all(images: &[Image]) -> CheckReport {
    check(&survey(images), true, &mut |_, _| {})
}

/// A volume in three extents that are out of order and end in the middle of a block, and one over
/// the rest.
pub fn catalogue(capacity: u64) -> Catalogue {
    let quarter = capacity / 4 / 4096 * 4096;
    let extent = |start_byte, len_bytes| ExtentRecord { start_byte, len_bytes };
    let pieces = vec![extent(2 * quarter, quarter), extent(0, quarter), extent(3 * quarter, 4096)];
    let size_bytes = 2 * quarter + 4096 - 700;
    let volume = |id, name: &str, size_bytes, extents| VolumeRecord {
        id,
        name: name.to_owned(),
        kind: VolumeKind::Direct,
        size_bytes,
        created_unix_s: 1,
        extents,
        thin: ThinVolumeRecord::default(),
        conversion: None,
    };
    let volumes = vec![volume(1, "db", size_bytes, pieces), volume(2, "rest", quarter, vec![extent(quarter, quarter)])];
    Catalogue { next_id: 3, volumes, ..Catalogue::default() }
}

/// The content of a volume, in a group with the content `bytes`.
pub fn content(catalogue: &Catalogue, volume: &str, bytes: &[u8]) -> Vec<u8> {
    let volume = catalogue.volumes.iter().find(|record| record.name == volume).unwrap();
    let extents = volume.extents.iter();
    let mut content: Vec<u8> = extents
        .flat_map(|extent| bytes[extent.start_byte as usize..(extent.start_byte + extent.len_bytes) as usize].to_vec())
        .collect();
    content.truncate(volume.size_bytes as usize);
    content
}

/// A group that was worked on and stopped in order.
pub struct Stopped {
    pub images: Vec<Image>,
    pub catalogue: Catalogue,
    pub bytes: Vec<u8>,
}

/// A group on `bytes` bytes of each drive, with volumes and random data, discards and zeroes.
pub fn working(sim: &Sim, shape: Shape, bytes: u64, rng: &mut Rng) -> (Group, Catalogue, Model) {
    working_with(sim, shape, Protection::DEFAULT, bytes, rng)
}

/// As [`working`], with the given protection.
fn working_with(
    sim: &Sim,
    shape: Shape,
    protection: Protection,
    bytes: u64,
    rng: &mut Rng,
) -> (Group, Catalogue, Model) {
    let sector = *rng.pick(&[512, 4096]);
    let drives = new_drives(sim, usize::from(shape.members), bytes, sector);
    let group = Group::create_with(sim, shape, protection, drives, 1 + rng.index(2));
    let catalogue = catalogue(group.size());
    let mut model = Model::new(group.size());
    sim.block_on(async {
        group.leader().set_catalogue(catalogue.clone()).await.unwrap();
        work(&group, &mut model, rng, 6, 4).await;
    });
    (group, catalogue, model)
}

pub fn stopped(sim: &Sim, shape: Shape, rng: &mut Rng) -> Stopped {
    stopped_with(sim, shape, Protection::DEFAULT, rng)
}

/// As [`stopped`], with the given protection.
pub fn stopped_with(sim: &Sim, shape: Shape, protection: Protection, rng: &mut Rng) -> Stopped {
    let (group, catalogue, model) = working_with(sim, shape, protection, 1024 * KIB, rng);
    let drives = sim.block_on(group.stop());
    Stopped { images: images(&drives), catalogue, bytes: model.bytes }
}

pub fn same(read: &[u8], expected: &[u8], what: &str) {
    let differs = read.iter().zip(expected).position(|(read, expected)| read != expected);
    assert_eq!((read.len(), differs), (expected.len(), None), "{what}");
}

/// A file that is removed when it is dropped.
pub struct Scratch(pub std::path::PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("purlin-rescue-{}-{name}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
