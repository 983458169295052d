//! Scripted answers of a daemon, for operations that a daemon in a test cannot do: replace its
//! process (which is the test's) by another program, and create block devices of the kernel.
//! `tests/path` and `tests/vm` have daemons that can.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

use crate::{Said, purlin};

/// Runs a command against a daemon that expects exactly these requests, method and path, and
/// returns these answers.
pub fn answered(line: &str, script: &[(&str, u16, &str)]) -> Said {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("purlin-answers-{}-{number}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let script: Vec<(String, u16, String)> = script
        .iter()
        .map(|(asked, status, answer)| (format!("{asked} HTTP/1.1"), *status, answer.to_string()))
        .collect();
    let daemon = std::thread::spawn(move || {
        for (expected, status, answer) in script {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 16 << 10];
            let len = stream.read(&mut request).unwrap();
            let asked = String::from_utf8_lossy(&request[..len]).lines().next().unwrap_or_default().to_owned();
            let len = answer.len();
            let head = format!("HTTP/1.1 {status} Said\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n");
            stream.write_all((head + &answer).as_bytes()).unwrap();
            assert_eq!(asked, expected);
        }
    });
    let said = purlin(&path, line);
    daemon.join().unwrap();
    std::fs::remove_file(&path).unwrap();
    said
}
