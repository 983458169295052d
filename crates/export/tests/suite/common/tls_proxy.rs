//! Listens for plain connections, and speaks TLS with pre-shared keys to a target, so that a host
//! without TLS can use it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use psk::{Key, Session};

/// A blocking end of TLS over a socket.
pub struct Secure {
    pub stream: TcpStream,
    pub session: Session,
    cipher: Vec<u8>,
}

impl Secure {
    /// Does the handshake. `None` if the target refuses it.
    pub fn connect(address: SocketAddr, keys: &[Key]) -> Option<Secure> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(super::PATIENCE)).unwrap();
        let mut session = Session::client(keys).unwrap();
        let mut cipher = Vec::new();
        loop {
            let shaken = session.shake(&cipher);
            let said = session.to_send();
            if stream.write_all(&said).is_err() {
                return None;
            }
            let (taken, is_done) = shaken.ok()?;
            cipher.drain(..taken);
            if is_done {
                return Some(Secure { stream, session, cipher });
            }
            let mut more = [0; 4096];
            match crate::common::read_some(&mut stream, &mut more) {
                Ok(0) | Err(_) => return None,
                Ok(len) => cipher.extend_from_slice(&more[..len]),
            }
        }
    }

    /// The ciphertext of `plain`.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        seal(&mut self.session, plain)
    }
}

fn seal(session: &mut Session, plain: &[u8]) -> Vec<u8> {
    let mut cipher = vec![0; Session::sealed_bytes_max(plain.len())];
    let len = session.seal(plain, &mut cipher).unwrap();
    cipher.truncate(len);
    cipher
}

/// An address where hosts connect without TLS.
fn listen(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

/// Forwards bytes until one end has finished.
fn pump(mut from: impl Read, mut to: impl FnMut(&[u8]) -> bool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if !to(&bytes[..len]) {
            return;
        }
    }
}

/// A proxy with this TLS implementation.
pub fn proxy(target: SocketAddr, keys: &[Key]) -> SocketAddr {
    let keys = keys.to_vec();
    listen(move |plain| {
        plain.set_nodelay(true).unwrap();
        let Some(Secure { stream, session, cipher }) = Secure::connect(target, &keys) else { return };
        let session = Arc::new(Mutex::new(session));
        let (mut to_target, mut to_host) = (stream.try_clone().unwrap(), plain.try_clone().unwrap());
        let outgoing = session.clone();
        let host = plain.try_clone().unwrap();
        let ended = plain;
        thread::spawn(move || {
            pump(host, |bytes| {
                let cipher = seal(&mut outgoing.lock().unwrap(), bytes);
                to_target.write_all(&cipher).is_ok()
            });
            let _ = to_target.shutdown(Shutdown::Both);
        });
        let mut left = cipher;
        let mut take = |bytes: &[u8]| {
            left.extend_from_slice(bytes);
            let mut plain = vec![0; 256 << 10];
            loop {
                let Ok(opened) = session.lock().unwrap().open(&left, &mut plain) else { return false };
                left.drain(..opened.taken);
                if to_host.write_all(&plain[..opened.len]).is_err() || opened.ended {
                    return false;
                }
                if opened.len < plain.len() {
                    return true;
                }
            }
        };
        if take(&[]) {
            pump(stream, take);
        }
        let _ = ended.shutdown(Shutdown::Both);
    })
}

/// A proxy with OpenSSL, with a key for SHA-256.
pub fn openssl(target: SocketAddr, key: &Key) -> SocketAddr {
    s_client(target, key, ("-quiet", Stdio::null), |client| client.stdin.take().unwrap())
}

/// As [`openssl`], for hosts that never send a chunk that begins with a letter, which s_client
/// would take for a command. The returned function makes each connection renew its keys, and
/// request new keys from the target.
pub fn openssl_that_renews(target: SocketAddr, key: &Key) -> (SocketAddr, impl Fn() + use<>) {
    type Ends = Vec<(Shared, BufReader<ChildStderr>)>;
    let clients = Arc::new(Mutex::new(Ends::new()));
    let known = clients.clone();
    let address = s_client(target, key, ("-brief", Stdio::piped), move |client| {
        let input = Shared(Arc::new(Mutex::new(client.stdin.take().unwrap())));
        known.lock().unwrap().push((input.clone(), BufReader::new(client.stderr.take().unwrap())));
        input
    });
    let renew = move || {
        for (input, said) in clients.lock().unwrap().iter_mut() {
            input.write_all(b"K\n").unwrap();
            let renewed = said.lines().any(|line| line.unwrap() == "KEYUPDATE");
            assert!(renewed, "s_client ended");
        }
    };
    (address, renew)
}

/// Standard input of an s_client, shared by several writers.
#[derive(Clone)]
struct Shared(Arc<Mutex<ChildStdin>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().unwrap().flush()
    }
}

/// A proxy with OpenSSL's s_client. The arguments set how much it prints, and where. `take` returns
/// the end that gets the hosts' bytes.
fn s_client<W: Write + Send + 'static>(
    target: SocketAddr,
    key: &Key,
    (how, said): (&'static str, fn() -> Stdio),
    take: impl Fn(&mut Child) -> W + Clone + Send + 'static,
) -> SocketAddr {
    let hex: String = key.secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let identity = String::from_utf8(key.identity.clone()).unwrap();
    listen(move |plain| {
        plain.set_nodelay(true).unwrap();
        let mut child = Command::new("openssl")
            .args(["s_client", how, "-tls1_3", "-psk", &hex, "-psk_identity", &identity])
            .args(["-connect", &target.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(said())
            .spawn()
            .unwrap();
        let (mut input, output) = (take(&mut child), child.stdout.take().unwrap());
        let (host, mut to_host) = (plain.try_clone().unwrap(), plain.try_clone().unwrap());
        // The s_client ends with its input.
        thread::spawn(move || pump(host, |bytes| input.write_all(bytes).and_then(|()| input.flush()).is_ok()));
        pump(output, |bytes| to_host.write_all(bytes).is_ok());
        let _ = plain.shutdown(Shutdown::Both);
        let _ = child.kill();
        child.wait().unwrap();
    })
}
