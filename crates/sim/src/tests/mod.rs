//! The promises of the simulation itself.

mod drives;
mod faults;
mod tasks;

use ::drive::{BufMut, Drive, Env, Segments};

use crate::{DriveOptions, Latency, Sim, SimDrive, SimEnv};

/// A write's data.
fn data(bytes: &[u8]) -> Segments {
    Segments::from_iter([BufMut::copy_of(bytes).freeze()])
}

/// A drive whose operations are done at once.
fn quick(env: &SimEnv, sector_bytes: u32) -> SimDrive {
    let latency = Latency::IMMEDIATE;
    SimDrive::with_options(env, DriveOptions { latency, ..DriveOptions::new("quick", 1 << 20, sector_bytes) })
}

/// Reads by an operation.
fn read(sim: &Sim, drive: &SimDrive, offset: u64, len: usize) -> Vec<u8> {
    sim.block_on(drive.read(offset, sim.env().alloc(len))).unwrap().to_vec()
}

fn write(sim: &Sim, drive: &SimDrive, offset: u64, bytes: &[u8]) {
    sim.block_on(drive.write(offset, data(bytes), false)).unwrap();
}
