//! Exports that could not be served at the start are served once they can be.

use std::net::TcpListener;
use std::time::Duration;

use api::*;
use daemon::http::{ExportControl, ShareControl, VolumeControl};

use crate::bench::*;

#[tokio::test]
async fn exports_whose_address_was_taken_are_served_once_it_is_free() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    bench.create(&engine, bench.request("tank", Level::Raid1, 2)).await;
    let asked = serde_json::json!({ "group": "tank", "volume": "v", "size_bytes": 8 << 20 });
    engine.volume_create(serde_json::from_value(asked).unwrap()).await.unwrap();
    let addresses = [bench.address(), bench.address()];
    for place in [
        serde_json::json!({ "volume": "tank/v", "nbd": addresses[0] }),
        serde_json::json!({ "volume": "tank/v", "nvme_tcp": { "address": addresses[1], "allow_any_host": true } }),
    ] {
        let export: ExportCreate = serde_json::from_value(place).unwrap();
        let (volume, place) = export.validate().unwrap();
        engine.export_create(export, volume, place).await.unwrap();
    }
    end(engine).await;

    let taken = addresses.each_ref().map(|address| TcpListener::bind(address).unwrap());
    let engine = bench.engine().await;
    engine.start_retrying_exports();
    let exports = engine.exports().await.unwrap();
    let is_told = |export: &Export| export.message.as_ref().is_some_and(|message| message.contains("cannot listen on"));
    assert!(exports.len() == 2 && exports.iter().all(|export| !export.listening && is_told(export)), "{exports:?}");

    drop(taken);
    let served = async {
        while !engine.exports().await.unwrap().iter().all(|export| export.listening) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("they are tried again");
    assert!(engine.exports().await.unwrap().iter().all(|export| export.message.is_none()));
    for address in &addresses {
        drop(std::net::TcpStream::connect(address).unwrap());
    }
    end(engine).await;
}

#[tokio::test]
async fn a_shared_drive_whose_address_was_taken_is_offered_once_it_is_free() {
    let bench = Bench::new();
    let engine = bench.engine().await;
    let (drive, address) = (bench.drive("raw"), bench.address());
    std::fs::File::create(&drive).unwrap().set_len(64 << 20).unwrap();
    let request = ShareCreate {
        drives: vec![drive],
        address: Some(address.clone()),
        allow_any_host: true,
        ..ShareCreate::default()
    };
    engine.share_create(request).await.unwrap();
    end(engine).await;

    let taken = TcpListener::bind(&address).unwrap();
    let engine = bench.engine().await;
    engine.start_retrying_exports();
    let failure = engine.shares().await.unwrap()[0].failure.clone().unwrap();
    assert!(failure.contains("cannot listen on"), "{failure}");

    drop(taken);
    let offered = async {
        while engine.shares().await.unwrap()[0].failure.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, offered).await.expect("it is tried again");
    drop(std::net::TcpStream::connect(&address).unwrap());
    end(engine).await;
}
