//! Log records that are in force and must not be applied any more.

use drive::Buf;
use format::CrashSafety;
use sim::Sim;

use crate::group::*;

#[test]
fn a_chunk_that_was_given_back_and_written_again_is_not_put_right_by_a_record_from_before() {
    // The first write of an allocation chunk needs no record. So after a discard no new record
    // would cover an older one.
    let protections = [Protection::DEFAULT, Protection::plain(CrashSafety::On), Protection::plain(CrashSafety::Strict)];
    let shapes = every_level(16 * KIB).into_iter().filter(|shape| shape.survives() > 0);
    for (shape, seed) in shapes.flat_map(|shape| seeds(30).map(move |seed| (shape, seed))) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let drives = new_drives(&sim, usize::from(shape.members), 8 << 20, 4096);
        let group = Group::create_with(&sim, shape, *rng.pick(&protections), drives, 1);
        let mut model = Model::new(group.size());
        let geometry = group.leader().shared().geometry.clone();
        let stripe_group_bytes = geometry.stripe_group_bytes * geometry.data as u64;
        let stripe_group = rng.below(group.size() / stripe_group_bytes) * stripe_group_bytes;
        let range = stripe_group as usize..(stripe_group + stripe_group_bytes) as usize;
        sim.block_on(async {
            let array = group.leader();
            rng.fill(&mut model.bytes[range.clone()]);
            array.write(stripe_group, Buf::from(model.bytes[range.clone()].to_vec()), true).await.expect("writable");
            array.flush().await.expect("flushes");
            for _ in 0..1 + rng.below(4) {
                // Writes some blocks with records, which name the content of the others.
                let start = stripe_group + rng.below(stripe_group_bytes / KIB) * KIB;
                let len = (KIB * (1 + rng.below(32))).min(stripe_group + stripe_group_bytes - start);
                let mut new = vec![0; len as usize];
                rng.fill(&mut new);
                array.write(start, Buf::from(new), true).await.expect("writable");
            }
            array.discard(stripe_group, stripe_group_bytes).await.expect("discards");
            rng.fill(&mut model.bytes[range.clone()]);
            array.write(stripe_group, Buf::from(model.bytes[range.clone()].to_vec()), true).await.expect("writable");
        });
        let mut drives = group.cut(&sim);
        for _ in 0..rng.below(shape.survives() as u64 + 1) {
            drives.remove(rng.index(drives.len()));
        }
        let group = Group::open(&sim, drives, 1);
        sim.block_on(verify(&group, &model, &mut rng));
    }
}
