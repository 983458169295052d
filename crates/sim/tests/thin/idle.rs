//! A store without requests.

use std::cell::RefCell;

use sim::Sim;
use sim::engine::*;
use sim::thin::pool::{create, group, open_with, volume_blocks};
use sim::thin::{Model, any_compression};

#[test]
fn an_idle_store_frees_segments_without_live_content() {
    for seed in seeds(12) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let (group, shape) = group(&sim, &mut rng);
        let context = format!("seed {seed}, {shape}");
        let model = RefCell::new(Model::default());
        sim.block_on(async {
            create(&group).await;
            let compression = any_compression(&mut rng);
            let pool = open_with(&group, volume_blocks(&group), compression).await;
            pool.write_all(&model, &mut rng).await;
            pool.punch(&model, 1, 0..pool.blocks, false).await;
            assert_eq!(pool.store.used(1), (0, 0), "{context}: discards count at once");
            let (written, stored) = pool.store.used(2);
            assert!(written > 0 && stored <= written, "{context}");
            pool.punch(&model, 2, 0..pool.blocks, false).await;
            let settle = async || {
                for _ in 0..2 {
                    pool.store.settle_if_idle().await.expect("settles");
                }
            };
            settle().await;
            let (sums, checkpoints) = (pool.store.space().segments, pool.store.counts().checkpoints);
            assert_eq!(sums.live_data, 0, "{context}");
            // Nodes of this checkpoint and of earlier ones are in some.
            assert!(sums.free > sums.total * 3 / 4, "{context}: {sums:?}");
            settle().await;
            assert_eq!(pool.store.counts().checkpoints, checkpoints, "{context}: there is nothing to do");
            pool.observe_all(&model, &context).await;
        });
    }
}
