//! The engine as a library: RAID 6 over six drives in memory, on one shard, without a daemon.
//!
//! ```text
//! cargo run --release -p array --example memory
//! ```
//! Writes 1 MiB, fails two drives, and reads the data back from the other four.

use std::error::Error;
use std::rc::Rc;

use array::{Array, MemberIndex, NewGroup, NoPeers, assemble, create, load};
use drive::BufMut;
use format::{CrashSafety, Level, Shape, Uuid};
use runtime::{Config, DriveSpec, OpenDrive, Runtime, ShardEnv};

const DRIVES: u16 = 6;

fn main() -> Result<(), Box<dyn Error>> {
    let core = Config::default().cores.into_iter().take(1).collect();
    let runtime = Runtime::start(Config { cores: core, ..Config::default() })?;
    // A group lives on shards: threads with an event loop of their own. This one has one shard.
    let outcome =
        runtime.shard(0).call(|| async { store_and_lose_two_drives().await.map_err(|error| error.to_string()) });
    println!("{}", outcome.wait()??);
    runtime.stop();
    Ok(())
}

async fn store_and_lose_two_drives() -> Result<String, Box<dyn Error>> {
    let array = group().await?;
    let mut data = BufMut::zeroed(1 << 20);
    data.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    let data = data.freeze();
    array.write(0, data.clone(), false).await?;
    array.flush().await?;

    for member in 0..2 {
        array.fail_member(MemberIndex(member)).await?;
    }
    let read = array.read(0, BufMut::zeroed(data.len())).await?;
    let status = array.status();
    array.stop().await?;
    let verdict = if read[..] == data[..] { "the same" } else { "DIFFERENT" };
    let states: Vec<String> = status.members.iter().map(|member| format!("{:?}", member.state)).collect();
    Ok(format!("the members are {}\nthe data are {verdict}", states.join(", ")))
}

/// Writes the superblocks of a new group, finds the group by them, and starts it.
async fn group() -> Result<Array<ShardEnv>, Box<dyn Error>> {
    let env = ShardEnv::current();
    let mut drives = Vec::new();
    for index in 0..DRIVES {
        let memory = DriveSpec::Memory { name: format!("example-{index}"), size_bytes: 64 << 20 };
        drives.push(env.attach(&OpenDrive::open(&memory)?));
    }
    let uuid = |number: u8| Uuid::from_random([number; 16]);
    let new = NewGroup {
        array: uuid(255),
        name: "example".into(),
        shape: Shape::of(Level::Raid6, DRIVES).build()?,
        crash_safety: CrashSafety::On,
        checksums: true,
        drives: (1..=DRIVES as u8).map(uuid).collect(),
        created_unix_s: 0,
    };
    create::<ShardEnv>(&new, &drives).await?;
    let assembly = assemble(&env, &drives).await?;
    let loaded = load(&env, &assembly, &drives, None, Box::new(|event| println!("event: {event:?}"))).await?;
    let array = loaded.lead(env, drives, 1, Rc::new(NoPeers));
    array.start(loaded.needs_resync).await?;
    Ok(array)
}
