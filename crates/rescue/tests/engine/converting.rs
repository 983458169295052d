//! A volume that is being converted is its old content, also after a power cut with members lost.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use drive::{Block, Buf, Env};
use format::{BLOCK, ConversionRecord, ExtentRecord, ThinVolumeRecord, VolumeKind};
use sim::engine::*;
use sim::{Rng, Sim, SimEnv};
use volume::Direct;
use volume::convert::{ConvertTuning, Converting, Progress};

use crate::image::{check_all, extract, images, newest, same, survey, without};
use crate::thin::{NAMES, ThinGroup, VolumeModel};

/// Small limits, so that a short program has many windows, regions and joined ranges.
const TUNING: ConvertTuning = ConvertTuning { window_bytes: 16 << 10, regions_max: 10, stale_max: 3 };

/// The volume that is converted.
const LINE: u32 = 1;

/// Where the volume is while it is direct: two extents behind those of the store, out of order.
fn place(thin: &ThinGroup) -> Vec<ExtentRecord> {
    let (segment, size, block) = (thin.grid.segment_bytes, thin.size_bytes, BLOCK as u64);
    let start = (thin.group.size() - size) / segment * segment;
    let half = size / 2 / block * block;
    vec![
        ExtentRecord { start_byte: start + half, len_bytes: size - half },
        ExtentRecord { start_byte: start, len_bytes: half },
    ]
}

/// A group whose first volume is going to be converted to `to`, and whose second one is thin.
fn group(sim: &Sim, to: VolumeKind, rng: &mut Rng) -> ThinGroup {
    let shape = *rng.pick(&every_level(4 * KIB));
    let mut thin = ThinGroup::new(sim, shape, Protection::DEFAULT, rng);
    thin.size_bytes = 700 * KIB + BLOCK as u64 * rng.below(4);
    let place = place(&thin);
    let extent = ExtentRecord { start_byte: 0, len_bytes: place[1].start_byte };
    thin.catalogue.thin.as_mut().unwrap().stores[0].extents = vec![extent];
    for volume in &mut thin.catalogue.volumes {
        volume.size_bytes = thin.size_bytes;
    }
    let (source, target) = if to == VolumeKind::Thin { (place, Vec::new()) } else { (Vec::new(), place) };
    let volume = &mut thin.catalogue.volumes[0];
    volume.kind = if to == VolumeKind::Thin { VolumeKind::Direct } else { VolumeKind::Thin };
    volume.extents = source;
    volume.conversion = Some(ConversionRecord {
        id: thin.catalogue.next_id,
        to,
        extents: target,
        thin: ThinVolumeRecord::default(),
        copied_bytes: 0,
        stale: Vec::new(),
    });
    thin.catalogue.next_id += 1;
    thin
}

/// Writes and discards. Everything is flushed in the end.
async fn write<B: Block>(volume: &B, model: &mut VolumeModel, rng: &mut Rng) {
    for _ in 0..30 {
        let size = model.bytes.len();
        let start = rng.index(size);
        let end = (start + 1 + rng.index(100_000)).min(size);
        let range = &mut model.bytes[start..end];
        if rng.chance(1, 6) {
            range.fill(0);
            volume.discard(start as u64, (end - start) as u64).await.unwrap();
            // A direct volume keeps the parts of blocks that were not discarded as a whole.
            model.bytes[start..end].copy_from_slice(&volume.read(start as u64, zeroed(end - start)).await.unwrap());
        } else {
            rng.fill(range);
            volume.write(start as u64, Buf::from(range.to_vec()), rng.chance(1, 4)).await.unwrap();
        }
    }
    volume.flush().await.unwrap();
}

fn zeroed(len: usize) -> drive::BufMut {
    drive::BufMut::zeroed(len)
}

async fn save<S: Block + 'static, T: Block + 'static>(
    array: &array::Array<SimEnv>,
    conversion: &Converting<SimEnv, S, T>,
    flush: bool,
) {
    let progress = conversion.progress(flush).await.unwrap();
    let mut catalogue = array.catalogue();
    let record = catalogue.volumes[0].conversion.as_mut().unwrap();
    (record.copied_bytes, record.stale) = (progress.copied_bytes, progress.stale);
    conversion.saved(array.set_catalogue(catalogue).await);
}

/// Converts a part of the volume while a client writes.
async fn convert<S: Block + 'static, T: Block + 'static>(
    thin: &ThinGroup,
    both: (S, T),
    model: &mut VolumeModel,
    rng: &mut Rng,
) {
    let (env, array) = (thin.group.env.clone(), thin.group.leader().clone());
    write(&both.0, model, rng).await;
    let nothing = Progress { copied_bytes: 0, stale: Vec::new() };
    let conversion = Converting::new(env.clone(), both, &nothing, TUNING, Box::new(|| {}));
    let left = Rc::new(Cell::new(rng.index(40)));
    let (copying, windows) = (conversion.clone(), left.clone());
    env.spawn(async move {
        let has_room = || {
            windows.set(windows.get().saturating_sub(1));
            windows.get() > 0
        };
        copying.copy(|| 0, has_room).await;
    });
    let (saving, sleeper) = (conversion.clone(), env.clone());
    env.spawn(async move {
        for turn in 0u64.. {
            sleeper.sleep(Duration::from_micros(300)).await;
            if saving.wants_saving() || turn % 8 == 7 {
                save(&array, &saving, turn % 8 == 7).await;
            }
        }
    });
    while left.get() > 0 && !conversion.is_copied() {
        write(&conversion, model, rng).await;
    }
    write(&conversion, model, rng).await;
}

#[test]
fn a_volume_that_is_being_converted_is_extracted_with_its_old_content() {
    let mut unfinished = [0; 2];
    for seed in seeds(24) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let to = *rng.pick(&[VolumeKind::Thin, VolumeKind::Direct]);
        let thin = group(&sim, to, &mut rng);
        let [mut model, mut other] = thin.models();
        let mut fork = rng.fork();
        sim.block_on(async {
            thin.create().await;
            let store = thin.open_compressed(&mut fork).await;
            let direct = Direct::new(thin.group.leader().clone(), thin.size_bytes, place(&thin));
            write(&thin.volume(&store, 2), &mut other, &mut fork).await;
            match to {
                VolumeKind::Thin => {
                    convert(&thin, (direct, thin.volume(&store, LINE)), &mut model, &mut fork).await;
                }
                VolumeKind::Direct => {
                    convert(&thin, (thin.volume(&store, LINE), direct), &mut model, &mut fork).await;
                }
            }
        });
        let copied_bytes = thin.group.leader().catalogue().volumes[0].conversion.as_ref().unwrap().copied_bytes;
        let images = images(&if rng.chance(2, 3) { thin.group.cut(&sim) } else { thin.group.kill(&sim) });
        let shape = newest(&images).shape;
        let first = rng.index(usize::from(shape.sets)) * shape.members_per_set();
        let mut slots: Vec<usize> = (first..first + shape.members_per_set()).collect();
        rng.shuffle(&mut slots);
        slots.truncate(rng.index(shape.survives() + 1));
        let left = without(&images, &slots, &mut rng);
        let context = format!("seed {seed}, {shape}, to {to:?}, {copied_bytes} bytes copied, without {slots:?}");
        let listed = rescue::list(&survey(&left));
        for (number, (name, model)) in NAMES.iter().zip([&model, &other]).enumerate() {
            let shown = &listed.groups[0].volumes[number];
            let lost = (shown.name.as_str(), shown.size_bytes, shown.lost_bytes);
            assert_eq!(lost, (format!("tank/{name}").as_str(), thin.size_bytes, 0), "{context}");
            let converting_to = Some(to).filter(|_| number == 0);
            let kind = if (number, to) == (0, VolumeKind::Thin) { VolumeKind::Direct } else { VolumeKind::Thin };
            assert_eq!((shown.kind, shown.converting_to), (kind, converting_to), "{context}: {name}");
            // Of a thin volume, only the blocks that a checkpoint knows count.
            let is_thin = number == 1 || to == VolumeKind::Direct;
            assert!(is_thin || shown.written_bytes > 0, "{context}: {name}");
            let (read, report) = extract(&left, name, false).unwrap();
            same(&read, &model.bytes, &format!("{context}: {name}"));
            assert_eq!((report.lost_bytes, report.rebuilt_bytes), (0, 0), "{context}");
        }
        let checked = check_all(&left);
        let findings = checked.findings.iter().filter(|finding| finding.structure == rescue::Structure::Thin);
        assert_eq!(findings.collect::<Vec<_>>(), Vec::<&rescue::Finding>::new(), "{context}");
        unfinished[usize::from(to == VolumeKind::Thin)] += u32::from(copied_bytes < thin.size_bytes);
    }
    assert!(unfinished.iter().all(|count| *count > 2), "{unfinished:?}");
}
