//! Clients and servers against each other, and against what is no TLS.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::sync::Arc;

use psk::{Find, Hash, Key, Session, TlsError};

fn key(name: &str, seed: u8, hash: Hash) -> Key {
    let len = if hash == Hash::Sha256 { 32 } else { 48 };
    Key { identity: name.as_bytes().to_vec(), secret: vec![seed; len].into(), hash }
}

/// A server that has these keys.
fn server(keys: &[Key]) -> Session {
    let keys = keys.to_vec();
    let find: Find = Arc::new(move |identity| keys.iter().find(|key| key.identity == identity).cloned());
    Session::server(find).unwrap()
}

/// Passes on what each has to say, in pieces of `piece` bytes, until both are done.
fn shake(client: &mut Session, server: &mut Session, piece: usize) -> Result<(), TlsError> {
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let (mut is_client_done, mut is_server_done) = (false, false);
    for _ in 0..10_000 {
        if is_client_done && is_server_done {
            return Ok(());
        }
        if !is_client_done {
            is_client_done = step(client, &mut to_client, piece, &mut to_server)?;
        }
        if !is_server_done {
            is_server_done = step(server, &mut to_server, piece, &mut to_client)?;
        }
    }
    panic!("the handshake does not end");
}

fn step(session: &mut Session, input: &mut Vec<u8>, piece: usize, output: &mut Vec<u8>) -> Result<bool, TlsError> {
    let shaken = session.shake(&input[..piece.min(input.len())]);
    output.extend(session.to_send());
    let (taken, done) = shaken?;
    input.drain(..taken);
    Ok(done)
}

fn pair(hash: Hash) -> (Session, Session) {
    let keys = [key("host", 1, hash)];
    let (mut client, mut server) = (Session::client(&keys).unwrap(), server(&keys));
    shake(&mut client, &mut server, usize::MAX).unwrap();
    (client, server)
}

fn sealed(session: &mut Session, plain: &[u8]) -> Vec<u8> {
    let mut cipher = vec![0; Session::sealed_bytes_max(plain.len())];
    let len = session.seal(plain, &mut cipher).unwrap();
    cipher.truncate(len);
    cipher
}

#[test]
fn both_ends_agree_on_the_key_and_its_cipher_suite() {
    for (hash, suite) in [(Hash::Sha256, "TLS_AES_128_GCM_SHA256"), (Hash::Sha384, "TLS_AES_256_GCM_SHA384")] {
        for piece in [1, 7, usize::MAX] {
            let keys = [key("better", 1, hash), key("other", 2, hash)];
            let (mut client, mut server) = (Session::client(&keys).unwrap(), server(&keys[1..]));
            shake(&mut client, &mut server, piece).unwrap();
            for session in [&client, &server] {
                assert_eq!(session.identity().as_deref(), Some(&b"other"[..]));
                assert_eq!(session.cipher_suite().as_deref(), Some(suite));
            }
        }
    }
}

#[test]
fn who_has_another_key_or_none_is_refused() {
    let ours = [key("host", 1, Hash::Sha256)];
    for theirs in [
        vec![key("host", 2, Hash::Sha256)],
        vec![key("stranger", 1, Hash::Sha256)],
        vec![key("host", 1, Hash::Sha384)],
        vec![],
    ] {
        let mut client = Session::client(&theirs).unwrap();
        let refused = shake(&mut client, &mut server(&ours), usize::MAX);
        assert!(matches!(refused, Err(TlsError::Handshake(_))), "{theirs:?}: {refused:?}");
    }
}

#[test]
fn a_server_without_keys_lets_nobody_in() {
    let mut client = Session::client(&[key("host", 1, Hash::Sha256)]).unwrap();
    assert!(shake(&mut client, &mut server(&[]), usize::MAX).is_err());
}

#[test]
fn data_arrive_as_they_were_sent_however_they_are_cut() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let (mut client, mut server) = pair(hash);
        for len in [1, 100, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, 300_000] {
            let plain: Vec<u8> = (0..len).map(|at: usize| (at % 251) as u8).collect();
            for (from, to) in [(0, 1), (1, 0)] {
                let ends = &mut [&mut client, &mut server];
                let cipher = sealed(ends[from], &plain);
                assert!(cipher.len() >= len + 17, "nothing is sent in the clear");
                let (mut at, mut got) = (0, Vec::new());
                let mut piece = 1;
                while got.len() < len {
                    // Pieces grow, and the room for the plaintext is sometimes short.
                    piece = piece * 3 + 1;
                    let mut into = vec![0; (piece * 5 / 4).max(1)];
                    let input = &cipher[at..cipher.len().min(at + piece)];
                    let opened = ends[to].open(input, &mut into).unwrap();
                    assert!(opened.len == into.len() || opened.taken == input.len());
                    at += opened.taken;
                    got.extend_from_slice(&into[..opened.len]);
                }
                assert!(got == plain && at == cipher.len());
            }
        }
    }
}

#[test]
fn what_was_changed_on_the_way_is_noticed() {
    let plain = [7; 1000];
    for at in [0, 3, 5, 500, 1021] {
        let (mut client, mut server) = pair(Hash::Sha256);
        let mut cipher = sealed(&mut client, &plain);
        cipher[at] ^= 1;
        let mut into = [0; 2000];
        // A longer length waits for bytes that do not come; then nothing is given out either.
        let opened = server.open(&cipher, &mut into);
        assert!(!matches!(opened, Ok(opened) if opened.len > 0), "{at}: {opened:?}");
    }
}

#[test]
fn records_that_are_replayed_are_noticed() {
    let (mut client, mut server) = pair(Hash::Sha256);
    let cipher = sealed(&mut client, b"write once");
    let mut into = [0; 100];
    assert_eq!(server.open(&cipher, &mut into).unwrap().len, 10);
    assert!(matches!(server.open(&cipher, &mut into), Err(TlsError::Broken(_))));
}

#[test]
fn a_goodbye_is_heard() {
    let (mut client, mut server) = pair(Hash::Sha256);
    client.close();
    let goodbye = client.to_send();
    assert!(!goodbye.is_empty());
    let opened = server.open(&goodbye, &mut [0; 10]).unwrap();
    assert!(opened.ended && opened.len == 0);
}

#[test]
fn what_is_no_handshake_is_refused() {
    let keys = [key("host", 1, Hash::Sha256)];
    for garbage in [&[0; 128][..], &[0x16, 3, 1, 0, 4, 1, 0, 0, 0], &[0x17, 3, 3, 0, 4, 1, 2, 3, 4]] {
        let shaken = server(&keys).shake(garbage);
        assert!(matches!(shaken, Err(TlsError::Handshake(_))), "{garbage:?}: {shaken:?}");
    }
}
