//! Serves a volume in memory over NBD, for measurements: `ram SIZE_MIB (SOCKET_PATH | HOST:PORT)
//! [CORE...]`. One shard on each of the cores, by default on the last one. Ends with the process.

use std::net::SocketAddr;
use std::path::PathBuf;

use export::{ExportState, Exports, Ram, ServerConfig, serve};
use runtime::{Config, Listener, Runtime, ShardEnv};

fn main() {
    let usage = "usage: ram SIZE_MIB (SOCKET_PATH | HOST:PORT) [CORE...]";
    let mut arguments = std::env::args().skip(1);
    let size_mib: u64 = arguments.next().and_then(|text| text.parse().ok()).expect(usage);
    let place = arguments.next().expect(usage);
    let mut cores: Vec<usize> = arguments.map(|text| text.parse().expect(usage)).collect();
    if cores.is_empty() {
        cores.extend(Config::default().cores.last());
    }

    let exports = Exports::default();
    exports.add(Ram::new(size_mib << 20), ExportState::new("ram", "a volume in memory", false));
    let runtime = Runtime::start(Config { cores, ..Config::default() }).expect("the shards start");
    let shards = runtime.shards().to_vec();
    let listening = shards[0].clone().call(move || async move {
        let env = ShardEnv::current();
        let listener = match place.parse::<SocketAddr>() {
            Ok(address) => Listener::bind_tcp(&env, address),
            Err(_) => Listener::bind_unix(&env, &PathBuf::from(place), 0o600),
        };
        let listener = listener.expect("the address is free");
        serve(env, listener, shards, ServerConfig::default(), move || exports.clone()).await;
    });
    listening.wait().expect("the shard serves until the process ends");
}
