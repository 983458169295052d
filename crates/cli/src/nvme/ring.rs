//! What `purlin nvme` runs on a shard of its own: one thread with an io_uring.

use initiator::Address;
use runtime::{Config, Runtime, ShardEnv};
use tokio::net::{TcpStream, lookup_host};

use super::bench::Bench;
use super::reports::NvmeBench;
use crate::Failure;

/// Memory for what is in flight: more is taken from the heap.
const ARENA_BYTES: usize = 16 << 20;

/// Runs a benchmark on a shard.
///
/// # Errors
/// [`Failure`]: there is no io_uring, or the benchmark failed.
pub(super) async fn run(bench: Bench) -> Result<NvmeBench, Failure> {
    let addresses = resolved(&bench.args.addresses).await?;
    let Config { mut cores, .. } = Config::default();
    cores.truncate(1);
    // Which core has nothing else to do the scheduler knows better.
    let config = Config { cores, pinned: false, arena_bytes: ARENA_BYTES, ..Config::default() };
    let runtime = Runtime::start(config).map_err(|error| Failure::Ended(error.to_string()))?;
    let running = runtime.shard(0).call(move || async move { bench.run(ShardEnv::current(), &addresses).await });
    running.await.map_err(|_| Failure::Ended("the benchmark was cut off".to_owned()))?
}

/// The addresses with names looked up: a shard connects to IP addresses only, since looking a name up would hold it up. Of several
/// that a name has, the first that somebody listens at.
async fn resolved(addresses: &[Address]) -> Result<Vec<Address>, Failure> {
    let mut resolved = Vec::new();
    for address in addresses {
        let fail = |source| Failure::Local { what: format!("cannot find {}", address.host), source };
        let all: Vec<_> = lookup_host((address.host.as_str(), address.port)).await.map_err(fail)?.collect();
        let mut found = all.first().copied();
        if all.len() > 1 {
            for other in all {
                if TcpStream::connect(other).await.is_ok() {
                    found = Some(other);
                    break;
                }
            }
        }
        let found = found.ok_or_else(|| fail(std::io::Error::other("the name has no address")))?;
        resolved.push(Address { host: found.ip().to_string(), port: found.port() });
    }
    Ok(resolved)
}
