//! Two machines: one with drives for others, and one that uses them as members, with a network
//! between them that fails on command.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::*;
use daemon::Engine;
use daemon::http::{ExportControl, GroupControl, VolumeControl};

use crate::bench::*;
use crate::client;
use crate::proxy::Proxy;

/// How long a remote drive may be unreachable in tests of that limit.
pub const LOSS: Duration = Duration::from_secs(2);

pub const MIB: usize = 1 << 20;

/// A machine with drives for others.
pub struct Target {
    bench: Bench,
    pub engine: Arc<Engine>,
    pub subsystem: String,
    address: String,
}

impl Target {
    /// A target with this many drives, which are volumes of a mirror.
    pub async fn new(drives: u32) -> Target {
        let bench = Bench::new();
        let engine = bench.engine().await;
        bench
            .create(
                &engine,
                GroupCreate { create_files_bytes: Some(512 << 20), ..bench.request("target", Level::Raid1, 2) },
            )
            .await;
        let address = bench.address();
        let mut subsystem = String::new();
        for number in 1..=drives {
            let volume = format!("d{number}");
            let asked = serde_json::json!({ "group": "target", "volume": volume, "size_bytes": 64 << 20 });
            engine.volume_create(serde_json::from_value(asked).unwrap()).await.unwrap();
            let export: ExportCreate = serde_json::from_value(serde_json::json!({
                "volume": format!("target/{volume}"), "nvme_tcp": { "address": address, "allow_any_host": true, "block_bytes": 4096, "nsid": number },
            }))
            .unwrap();
            let (volume, place) = export.validate().unwrap();
            subsystem = engine.export_create(export, volume, place).await.unwrap().object.unwrap().nqn.unwrap();
        }
        Target { bench, engine, subsystem, address }
    }

    /// The same machine after its daemon was stopped and started again.
    pub async fn restarted(self) -> Target {
        self.stopped().await.started().await
    }

    /// The machine without its daemon.
    pub async fn stopped(self) -> Stopped {
        let Target { bench, engine, subsystem, address } = self;
        end(engine).await;
        Stopped { bench, subsystem, address }
    }

    pub fn network(&self) -> Proxy {
        Proxy::to(self.address.parse().unwrap())
    }

    /// A drive with a long limit, for busy machines. Its target does not give up its host quickly
    /// either.
    pub fn drive(&self, network: &Proxy, number: u32) -> String {
        format!("nvme-tcp://{}/{}?nsid={number}&loss=60s", network.address, self.subsystem)
    }

    /// A drive that may be unreachable for [`LOSS`].
    pub fn missed_soon(&self, network: &Proxy, number: u32) -> String {
        self.drive(network, number).replace("loss=60s", "loss=2s")
    }
}

/// A machine whose daemon is stopped.
pub struct Stopped {
    bench: Bench,
    subsystem: String,
    address: String,
}

impl Stopped {
    /// The machine with a new daemon.
    pub async fn started(self) -> Target {
        let Stopped { bench, subsystem, address } = self;
        let engine = bench.engine().await;
        Target { bench, engine, subsystem, address }
    }
}

/// An engine that looks for remote drives, as the daemon's does.
pub async fn head(bench: &Bench) -> Arc<Engine> {
    let engine = bench.engine().await;
    engine.start_reconnecting();
    engine
}

pub async fn create(bench: &Bench, engine: &Engine, level: Level, drives: Vec<String>) -> Group {
    let request = GroupCreate { drives, ..bench.request("tank", level, 2) };
    bench.create(engine, request).await
}

/// A volume of the group, served on a socket.
pub async fn volume(bench: &Bench, engine: &Engine) -> std::path::PathBuf {
    let asked = serde_json::json!({ "group": "tank", "volume": "db", "size_bytes": 48 << 20 });
    engine.volume_create(serde_json::from_value(asked).unwrap()).await.unwrap();
    let socket = bench.directory.join("db.nbd");
    let export = ExportCreate {
        volume: "tank/db".into(),
        nbd: Some(format!("unix:{}", socket.display())),
        ..ExportCreate::default()
    };
    let (volume, place) = export.validate().unwrap();
    engine.export_create(export, volume, place).await.unwrap();
    socket
}

pub async fn write(socket: &Path, offset: usize, bytes: Vec<u8>) {
    let socket = socket.to_owned();
    let writing = tokio::task::spawn_blocking(move || client::write(&socket, "tank/db", offset as u64, &bytes));
    writing.await.unwrap().unwrap();
}

pub async fn read(socket: &Path, offset: usize, len: usize) -> Vec<u8> {
    let socket = socket.to_owned();
    let reading = tokio::task::spawn_blocking(move || client::read(&socket, "tank/db", offset as u64, len));
    reading.await.unwrap().unwrap()
}

pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

pub fn states(group: &Group) -> Vec<MemberState> {
    group.members.iter().map(|member| member.state).collect()
}

pub fn is_healthy(group: &Group) -> bool {
    group.health == GroupHealth::Optimal && group.jobs.iter().all(|job| job.state != JobState::Running)
}

/// A scrub finds no mismatch.
pub async fn scrubbed(engine: &Engine) {
    scrub(engine, "tank", ScrubAction::Start, false).await.unwrap();
    let group = until(engine, "tank", |group| scrub_job(group).is_some_and(|job| job.state == JobState::Done)).await;
    let findings = scrub_job(&group).unwrap().findings.clone().unwrap();
    assert_eq!(findings.mismatch_count, 0, "{findings:?}");
}

/// Waits until the remembered group is started.
pub async fn until_there(engine: &Engine) {
    let began = Instant::now();
    while engine.group("tank").await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(60), "not started");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
