//! A namespace on a local NBD socket.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cli::nvme::reports::NvmeConnectionList;
use drive::{Block, BufMut};
use nbd::client::{self, Reply};
use nbd::wire::{cmd, cmd_flag};

use crate::common::proxy::Proxy;
use crate::common::{BLOCK, MIB, Random, Raw, Target, Volume, eventually, has, offer, on_tokio, pattern, subsystem};
use crate::{HOST, Home};

const SIZE: u64 = 4 * MIB;

/// `purlin nvme connect`, and the place where it serves.
struct Served<'a> {
    home: &'a Home,
    child: Child,
    socket: PathBuf,
}

impl Served<'_> {
    /// Returns when it serves.
    fn start<'a>(home: &'a Home, at: &str, options: &str) -> Served<'a> {
        let socket = home.0.join("disk.sock");
        let line = format!(
            "nvme connect {at} {} {HOST} --reconnect-delay 1 --keep-alive-tmo 1 --nbd unix:{} {options}",
            subsystem(),
            socket.display()
        );
        let mut child = home.command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("is at nbd+unix:///?socket="), "{said} {:?}", child.try_wait());
        Served { home, child, socket }
    }

    fn client(&self) -> Raw {
        Raw::on(&self.socket, "", true)
    }

    fn listed(&self) -> NvmeConnectionList {
        serde_json::from_str(&self.home.ok("nvme list --output json")).unwrap()
    }

    /// Its exit status, after it was told to end.
    fn ends(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < Duration::from_secs(30), "it ends");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(client: &mut Raw, offset: u64, len: u32) -> Vec<u8> {
    client.read(1, offset, len);
    let mut data = vec![0; len as usize];
    loop {
        match client.reply() {
            Reply::Chunk { kind: nbd::wire::chunk::OFFSET_DATA, payload, done, .. } => {
                let at = (u64::from_be_bytes(payload[..8].try_into().unwrap()) - offset) as usize;
                data[at..at + payload.len() - 8].copy_from_slice(&payload[8..]);
                if done {
                    return data;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn done(client: &mut Raw, bytes: &[u8]) {
    client.send(bytes);
    assert_eq!(client.error(), 0);
}

fn content(volume: &Volume) -> Vec<u8> {
    on_tokio(async { Block::read(volume, 0, BufMut::zeroed(volume.size_bytes() as usize)).await.unwrap().to_vec() })
}

#[test]
fn requests_of_any_alignment_agree_with_a_model() {
    let (home, (target, volume, _)) = (Home::new(), Target::disk(SIZE));
    let served = Served::start(&home, &target.address.to_string(), "--nr-io-queues 2 --data-digest");
    let (mut client, mut model, mut random) = (served.client(), vec![0_u8; SIZE as usize], Random(7));
    for step in 0..400 {
        let len = 1 + random.below([1, 600, 10_000, MIB][step % 4]);
        let offset = random.below(SIZE - len);
        let range = offset as usize..(offset + len) as usize;
        match random.below(5) {
            0 | 1 => {
                let data = pattern(len as usize, step);
                done(&mut client, &client::write(2, offset, &data, if step % 2 == 0 { cmd_flag::FUA } else { 0 }));
                model[range].copy_from_slice(&data);
            }
            2 => {
                done(&mut client, &client::request(0, cmd::WRITE_ZEROES, 3, offset, len as u32));
                model[range].fill(0);
            }
            3 => {
                // Whole blocks are discarded, and read as zeroes here. Partial blocks stay.
                done(&mut client, &client::request(0, cmd::TRIM, 4, offset, len as u32));
                let block = BLOCK as usize;
                let (start, end) = (range.start.next_multiple_of(block), range.end / block * block);
                if start < end {
                    model[start..end].fill(0);
                }
            }
            _ => assert!(read(&mut client, offset, len as u32) == model[range], "step {step}"),
        }
    }
    done(&mut client, &client::flush(5));
    assert!(content(&volume) == model);
}

#[test]
fn writes_beside_each_other_in_one_block_lose_nothing() {
    let (home, (target, volume, _)) = (Home::new(), Target::disk(SIZE));
    let served = Served::start(&home, &target.address.to_string(), "");
    let mut client = served.client();
    // All at once, in pieces that share blocks, and whole blocks between them.
    let data = pattern(65_536, 3);
    let mut at = 0;
    let mut count = 0;
    while at < data.len() {
        let len = [700, 4096 - at % 4096, 13, 4096][count % 4].min(data.len() - at);
        client.send(&client::write(count as u64, at as u64, &data[at..at + len], 0));
        (at, count) = (at + len, count + 1);
    }
    for _ in 0..count {
        assert_eq!(client.error(), 0);
    }
    assert!(content(&volume)[..data.len()] == data);
}

#[test]
fn a_connection_that_is_cut_is_not_noticed_by_nbd_clients() {
    let (home, (target, volume, _)) = (Home::new(), Target::disk(SIZE));
    let proxy = Proxy::to(target.address);
    let served = Served::start(&home, &proxy.address.to_string(), "");
    let mut client = served.client();
    for step in 0..20_usize {
        proxy.cut();
        let data = pattern(100_000, step);
        done(&mut client, &client::write(2, step as u64 * 100_000, &data, 0));
        assert!(read(&mut client, step as u64 * 100_000, 100_000) == data);
    }
    let path = &served.listed().connections[0].paths[0];
    assert!(path.connect_count > 5, "{path:?}");
    assert!(content(&volume)[..100_000] == pattern(100_000, 0));
}

#[test]
fn what_is_served_is_listed_and_ended_by_its_name() {
    let (home, (target, _volume, state)) = (Home::new(), Target::disk(SIZE));
    assert!(home.ok("nvme list").starts_with("no namespaces are connected"));
    let mut served = Served::start(&home, &target.address.to_string(), "");
    let client = served.client();
    let listed = served.listed().connections;
    let connection = &listed[0];
    assert_eq!((listed.len(), connection.nsid, connection.size_bytes), (1, 1, SIZE));
    assert_eq!((connection.client_count, connection.pid), (1, served.child.id()));
    assert_eq!(connection.paths[0].state, "optimized");
    let table = home.ok("nvme list");
    assert!(table.contains(&format!("{} optimized", target.address)), "{table}");

    let said = home.fails("nvme disconnect nqn.2026-11.com.example:other");
    assert!(said.contains("no such namespace is connected"), "{said}");
    let said = home.fails(&format!("nvme disconnect {}", subsystem()));
    assert!(said.contains("1 NBD client is connected") && said.contains("--force"), "{said}");
    drop(client);
    eventually("the client is gone", || served.listed().connections[0].client_count == 0);
    let said = home.ok(&format!("nvme disconnect {}", subsystem()));
    assert_eq!(said, format!("disconnected namespace 1 of {}\n", subsystem()));
    assert_eq!(served.ends(), Some(0));
    assert!(!served.socket.exists() && served.listed().connections.is_empty());
    eventually("the target is told", || state.connections().is_empty());
}

#[test]
fn a_process_that_was_killed_leaves_nothing_that_lasts() {
    let (home, (target, _volume, _)) = (Home::new(), Target::disk(SIZE));
    let mut served = Served::start(&home, &target.address.to_string(), "");
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    assert!(served.socket.exists());
    assert!(served.listed().connections.is_empty());
    let left = std::fs::read_dir(home.0.join("purlin/nvme")).unwrap().count();
    assert_eq!(left, 0, "its file is removed");
    // A leftover socket file is no obstacle, but a served socket is.
    let again = Served::start(&home, &target.address.to_string(), "");
    let socket = again.socket.display();
    let said = home.fails(&format!("nvme connect {} {} {HOST} --nbd unix:{socket}", target.address, subsystem()));
    assert!(said.contains("cannot listen at unix:") && said.contains("another process listens there"), "{said}");
    drop(again.client());
}

#[test]
fn a_signal_ends_it_in_order() {
    let (home, (target, _volume, state)) = (Home::new(), Target::disk(SIZE));
    let mut served = Served::start(&home, &target.address.to_string(), "");
    assert!(Command::new("kill").arg(served.child.id().to_string()).status().unwrap().success());
    assert_eq!(served.ends(), Some(0));
    assert!(!served.socket.exists() && state.connections().is_empty());
}

#[test]
fn a_namespace_that_is_gone_ends_it_with_a_sentence() {
    let (home, target) = (Home::new(), Target::start(1, 64));
    offer(&target, 1, 1, &Volume::new(SIZE), BLOCK);
    let mut served = Served::start(&home, &target.address.to_string(), "--ctrl-loss-tmo 1");
    let mut client = served.client();
    drop(target);
    client.read(1, 0, 4096);
    assert_eq!(client.error(), 108, "ESHUTDOWN");
    assert_eq!(served.ends(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut served.child.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("cannot be reached any more"), "{said}");
}

#[test]
fn a_read_only_namespace_is_read_only_for_nbd_clients() {
    let (home, target) = (Home::new(), Target::start(1, 64));
    target.offer(1, Volume::new(SIZE), export::Hosts::Any, true);
    let served = Served::start(&home, &target.address.to_string(), "");
    let mut client = served.client();
    client.send(&client::write(1, 0, &[1; 512], 0));
    assert_eq!(client.error(), 1, "EPERM");
    assert_eq!(read(&mut client, 0, 512), [0; 512]);
}

#[test]
fn qemu_img_copies_there_and_back() {
    if !has("qemu-img") {
        return;
    }
    let (home, (target, _volume, _)) = (Home::new(), Target::disk(SIZE));
    let served = Served::start(&home, &target.address.to_string(), "--hdr-digest --data-digest");
    let (image, back) = (home.0.join("image"), home.0.join("back"));
    std::fs::write(&image, pattern(SIZE as usize, 9)).unwrap();
    let uri = format!("nbd+unix:///?socket={}", served.socket.display());
    let qemu = |words: &[&str]| {
        let said = Command::new("qemu-img").args(words).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    };
    let (image, back) = (image.to_str().unwrap(), back.to_str().unwrap());
    qemu(&["convert", "-n", "-f", "raw", "-O", "raw", image, &uri]);
    qemu(&["compare", "-f", "raw", "-F", "raw", image, &uri]);
    qemu(&["convert", "-f", "raw", "-O", "raw", &uri, back]);
    assert!(std::fs::read(back).unwrap() == pattern(SIZE as usize, 9));
}
