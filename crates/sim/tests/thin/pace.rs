//! The collector leaves time to clients as long as free segments last, and not longer.

use std::rc::Rc;
use std::time::Duration;

use array::Settings;
use drive::{Block, Buf, Env, Nanos, join_all};
use format::{ExtentRecord, Level, Uuid};
use sim::engine::*;
use sim::thin::BLOCK;
use sim::thin::pool::{ARRAY, KEY, SMALL};
use sim::{Latency, Rng, Sim, SimEnv};
use volume::thin::{ArrayBacking, Grid, Thin, ThinStore};

/// A target that no drive here reaches: background work has the smallest share.
const TIGHT: Nanos = 20_000;

/// The result of a load of overwrites.
#[derive(Debug)]
struct Seen {
    took: Nanos,
    /// How long the collector rested meanwhile.
    rested: Nanos,
    collected_segments: u64,
    /// The longest write.
    slowest: Nanos,
}

/// A volume in a store of 512 segments, of which two thirds have content.
struct Pool {
    store: Rc<ThinStore<ArrayBacking<SimEnv>>>,
    volume: Thin<ArrayBacking<SimEnv>>,
    blocks: u64,
}

/// All blocks are written, and then some are overwritten, so that the collector works.
async fn settled(group: &Group, rng: &mut Rng) -> Pool {
    assert!(group.leader().add_intent_log().await.is_ok());
    let unit_bytes = group.leader().shared().geometry.whole_write_bytes();
    let grid = Grid { segment_bytes: unit_bytes.max(128 * KIB), unit_bytes };
    let extents = [ExtentRecord { start_byte: 0, len_bytes: 512 * grid.segment_bytes }];
    let (backing, array) =
        (|| ArrayBacking::new(group.env.clone(), group.leader().clone(), (0, 1)), Uuid::from_bytes(ARRAY));
    ThinStore::create(&backing(), array, KEY, grid, &extents).await.expect("a store is made");
    let store = ThinStore::open(backing(), array, grid, &extents, SMALL).await.expect("the store opens");
    let blocks = extents[0].len_bytes * 2 / 3 / BLOCK;
    let pool = Pool { volume: Thin::new(store.clone(), 1, blocks * BLOCK), store, blocks };
    for start in (0..blocks).step_by(16) {
        let len = 16.min(blocks - start) * BLOCK;
        pool.volume.write(start * BLOCK, Buf::zeroes(len as usize), false).await.expect("there is space");
    }
    overwrite(group, &pool, rng, (8, blocks), Duration::ZERO).await;
    pool
}

/// Random overwrites of single blocks by some clients, each with a pause between two of them.
async fn overwrite(
    group: &Group,
    pool: &Pool,
    rng: &mut Rng,
    (clients, writes): (usize, u64),
    pause: Duration,
) -> Seen {
    let (before, began) = (pool.store.counts(), group.env.now());
    let clients = (0..clients).map(|_| rng.fork()).map(|mut rng| async move {
        let mut slowest = 0;
        for _ in 0..writes / clients as u64 {
            let (data, at) = (Buf::zeroes(BLOCK as usize), rng.below(pool.blocks) * BLOCK);
            let began = group.env.now();
            pool.volume.write(at, data, false).await.expect("there is space");
            slowest = slowest.max(group.env.now() - began);
            if !pause.is_zero() {
                group.env.sleep(pause).await;
            }
        }
        slowest
    });
    let slowest = join_all(clients.collect::<Vec<_>>()).await.into_iter().max().expect("there are clients");
    let after = pool.store.counts();
    Seen {
        took: group.env.now() - began,
        rested: after.rested_ns - before.rested_ns,
        collected_segments: after.collected_segments - before.collected_segments,
        slowest,
    }
}

fn group(sim: &Sim) -> Group {
    let drives = new_drives(sim, 3, 38 * MIB, 4096);
    for drive in &drives {
        drive.set_latency(Latency::between(60_000, 110_000));
    }
    Group::create(sim, shape(Level::Raid5, 3, 16 * KIB), drives, 1)
}

#[test]
fn the_collector_rests_beside_clients_as_long_as_free_segments_last() {
    let sim = Sim::new(11);
    let mut rng = sim.rng();
    let group = group(&sim);
    sim.block_on(async {
        let pool = settled(&group, &mut rng).await;
        // Each write takes a run of its own: faster writes would leave no time to rest.
        let pause = Duration::from_millis(16);
        let usual = overwrite(&group, &pool, &mut rng, (2, 800), pause).await;
        assert!(usual.collected_segments > 100, "{usual:?}");
        assert!(usual.rested > 0, "{usual:?}");
        group.leader().configure(Settings { client_p99: Some(TIGHT), ..Settings::default() });
        let tight = overwrite(&group, &pool, &mut rng, (2, 800), pause).await;
        assert!(tight.rested > 2 * usual.rested, "{tight:?} beside {usual:?}: the target is not followed");
        // No write waits for a collector that rests.
        assert!(tight.slowest < 2 * usual.slowest + 5_000_000, "{tight:?} beside {usual:?}");
    });
}

#[test]
fn the_collector_does_not_rest_while_writes_wait_for_it() {
    let sim = Sim::new(12);
    let mut rng = sim.rng();
    let group = group(&sim);
    sim.block_on(async {
        let pool = settled(&group, &mut rng).await;
        group.leader().configure(Settings { client_p99: Some(TIGHT), ..Settings::default() });
        let tight = overwrite(&group, &pool, &mut rng, (32, 3000), Duration::ZERO).await;
        assert!(tight.collected_segments > 100, "{tight:?}");
        assert!(tight.rested < tight.took / 20, "{tight:?}");
    });
}

#[test]
fn the_collector_does_not_rest_without_clients() {
    let sim = Sim::new(13);
    let mut rng = sim.rng();
    let group = group(&sim);
    sim.block_on(async {
        let pool = settled(&group, &mut rng).await;
        group.leader().configure(Settings { client_p99: Some(TIGHT), ..Settings::default() });
        group.env.sleep(Duration::from_secs(1)).await;
        let before = pool.store.counts();
        pool.store.collect_once().await.expect("collects");
        let after = pool.store.counts();
        assert!(after.collected_segments > before.collected_segments);
        assert_eq!(after.rested_ns, before.rested_ns);
    });
}
