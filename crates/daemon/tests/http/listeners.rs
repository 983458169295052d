//! The Unix socket, and TCP with TLS and tokens.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daemon::http::{HttpOptions, Server, TokenError, Tokens};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::bench::PATIENCE;
use crate::{Machine, empty};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A folder of this test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("purlin-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(socket: PathBuf) -> HttpOptions {
    HttpOptions { socket, http: None, http_tls_cert: None, http_tls_key: None, http_token_file: None }
}

/// A running server. It stops when `stop` is set.
struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    tcp: Option<SocketAddr>,
    machine: Machine,
}

async fn start(options: &HttpOptions) -> Running {
    let server = Server::bind(options).await.unwrap();
    let tcp = server.tcp_address();
    let (stop, stopped) = watch::channel(false);
    let machine = empty().await;
    let task = tokio::spawn(server.run(machine.engine.clone(), stopped));
    Running { stop, task, tcp, machine }
}

/// One request over any stream: status and body.
async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    path: &str,
    token: Option<&str>,
) -> (u16, String) {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = hyper::Request::builder().uri(path).header("host", "purlind");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn the_socket_is_its_owners_and_goes_with_the_daemon() {
    let folder = Folder::new("socket");
    let socket = folder.0.join("deep/purlind.sock");
    let running = start(&options(socket.clone())).await;
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (status, body) = get(UnixStream::connect(&socket).await.unwrap(), "/v1/groups", None).await;
    assert_eq!((status, body.as_str()), (200, "{\"groups\":[],\"not_started\":[]}"));

    let second = Server::bind(&options(socket.clone())).await.err().unwrap();
    assert_eq!(second.to_string(), format!("another daemon listens on {}", socket.display()));

    running.stop.send(true).unwrap();
    tokio::time::timeout(Duration::from_secs(10), running.task).await.unwrap().unwrap();
    assert!(!socket.exists());
    let left: Vec<_> = std::fs::read_dir(socket.parent().unwrap()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_socket_left_behind_is_replaced_and_a_file_is_not() {
    let folder = Folder::new("stale");
    let socket = folder.0.join("purlind.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let running = start(&options(socket.clone())).await;
    assert_eq!(get(UnixStream::connect(&socket).await.unwrap(), "/v1/drives", None).await.0, 200);
    drop(running);

    let file = folder.file("precious", "text", 0o600);
    let refused = Server::bind(&options(file.clone())).await.err().unwrap();
    assert_eq!(refused.to_string(), format!("{} is there and is not a socket", file.display()));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
}

/// A request to create a mirror, as bytes.
fn to_create(name: &str, drives: &[String]) -> Vec<u8> {
    let body = serde_json::json!({
        "name": name, "level": "raid1", "drives": drives, "create_files_bytes": 64 << 20,
    });
    let body = body.to_string();
    format!("POST /v1/groups HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[tokio::test]
async fn an_operation_goes_on_when_its_client_goes_away() {
    let folder = Folder::new("carried");
    let socket = folder.0.join("purlind.sock");
    let running = start(&options(socket.clone())).await;
    // Making files takes some milliseconds: most of these clients leave before the group is there.
    let names: Vec<String> = (2..12).map(|after| format!("g{after}")).collect();
    for (after, name) in (2..).zip(&names) {
        let drives = ["a", "b"].map(|drive| running.machine.bench.drive(&format!("{name}{drive}")));
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(&to_create(name, &drives)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(after)).await;
        drop(stream);
    }
    for name in names {
        let path = format!("/v1/groups/{name}");
        let there = async {
            while get(UnixStream::connect(&socket).await.unwrap(), &path, None).await.0 != 200 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, there)
            .await
            .unwrap_or_else(|_| panic!("the group {name} was made all the same"));
    }
}

#[tokio::test]
async fn a_malformed_request_ends_its_connection_only() {
    let folder = Folder::new("malformed");
    let socket = folder.0.join("purlind.sock");
    let _running = start(&options(socket.clone())).await;
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    stream.write_all(b"\x00\x01nonsense\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(get(UnixStream::connect(&socket).await.unwrap(), "/v1/groups", None).await.0, 200);
}

/// Certificate and key for "localhost", and a client that trusts them.
fn identity() -> (String, String, tokio_rustls::TlsConnector) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (made.cert.pem(), made.signing_key.serialize_pem(), tokio_rustls::TlsConnector::from(Arc::new(client)))
}

/// Options for TCP as well, with the token [`TOKEN`], and a client.
fn tcp_options(folder: &Folder) -> (HttpOptions, tokio_rustls::TlsConnector) {
    let (cert, key, connector) = identity();
    let mut options = options(folder.0.join("purlind.sock"));
    options.http = Some("127.0.0.1:0".parse().unwrap());
    options.http_tls_cert = Some(folder.file("cert.pem", &cert, 0o644));
    options.http_tls_key = Some(folder.file("key.pem", &key, 0o600));
    options.http_token_file = Some(folder.file("tokens", &format!("# people\n\n{TOKEN}\n"), 0o600));
    (options, connector)
}

#[tokio::test]
async fn clients_that_stall_keep_nobody_out_and_end_no_request() {
    let folder = Folder::new("stalled");
    let (options, connector) = tcp_options(&folder);
    let running = start(&options).await;
    let address = running.tcp.unwrap();
    let secure = async || {
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    };
    // A change that takes a while: it waits for a silent drive of another machine.
    let [a] = running.machine.drives(&["a"]).try_into().unwrap();
    let far = running.machine.bench.address();
    let _silent = tokio::net::TcpListener::bind(&far).await.unwrap();
    let remote = format!("nvme-tcp://{far}/nqn.2026-11.com.example:silent?nsid=1&loss=2s");
    let mut working = UnixStream::connect(&options.socket).await.unwrap();
    working.write_all(&to_create("slow", &[remote, a])).await.unwrap();

    let begun = b"POST /v1/groups HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    let answers = async |path| {
        let local = UnixStream::connect(&options.socket).await.unwrap();
        let both = async { (get(local, path, None).await.0, get(secure().await, path, Some(TOKEN)).await.0) };
        assert_eq!(tokio::time::timeout(Duration::from_secs(5), both).await.expect("there is room"), (200, 200));
    };
    let (mut local, mut silent, mut strangers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..200 {
        let mut stream = UnixStream::connect(&options.socket).await.unwrap();
        stream.write_all(begun).await.unwrap();
        local.push(stream);
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    answers("/v1/groups").await;
    for _ in 0..200 {
        let mut stream = secure().await;
        stream.write_all(begun).await.unwrap();
        strangers.push(stream);
    }
    answers("/v1/drives").await;
    // Without a token the first answer is the last one.
    let mut refused = String::new();
    let _ = strangers.last_mut().unwrap().read_to_string(&mut refused).await;
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("connection: close"), "{refused}");

    let mut answer = [0; 12];
    working.read_exact(&mut answer).await.expect("the change was carried out, and answered");
    assert!(answer.starts_with(b"HTTP/1.1 4") || answer.starts_with(b"HTTP/1.1 5"), "{answer:?}");
}

#[tokio::test]
async fn tcp_serves_only_tls_with_a_known_token() {
    let folder = Folder::new("tcp");
    let (options, connector) = tcp_options(&folder);
    let running = start(&options).await;
    let address = running.tcp.unwrap();
    let connect = async || {
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    };

    let needs = r#"{"error":{"code":"unauthorized","message":"this address needs a bearer token"}}"#;
    let wrong = r#"{"error":{"code":"unauthorized","message":"the bearer token is not known here"}}"#;
    for path in ["/v1/groups", "/metrics", "/openapi.json", "/nothing"] {
        assert_eq!(get(connect().await, path, None).await, (401, needs.to_owned()), "{path}");
        for token in ["", "x", &TOKEN[..31], &format!("{TOKEN}0"), &TOKEN.to_uppercase()] {
            assert_eq!(get(connect().await, path, Some(token)).await.0, 401, "{path} {token}");
        }
    }
    assert_eq!(get(connect().await, "/v1/groups", Some("wrong")).await.1, wrong);
    assert_eq!(
        get(connect().await, "/v1/groups", Some(TOKEN)).await,
        (200, "{\"groups\":[],\"not_started\":[]}".to_owned())
    );

    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /v1/groups HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // A TLS alert, or a closed connection: anything but HTTP.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
}

fn token_error(path: &Path) -> TokenError {
    Tokens::read(path).err().unwrap()
}

#[test]
fn a_token_file_that_guards_nothing_is_refused() {
    let folder = Folder::new("tokens");
    let readable = folder.file("readable", TOKEN, 0o644);
    assert_eq!(
        token_error(&readable).to_string(),
        format!("the token file {} can be read by others (mode 644): make it 600", readable.display())
    );
    let weak = folder.file("weak", "# ok\nhunter2\n", 0o600);
    assert_eq!(
        token_error(&weak).to_string(),
        format!(
            "line 2 of the token file {} is no token: use at least 32 visible characters without spaces",
            weak.display()
        )
    );
    let empty = folder.file("empty", "# nobody\n", 0o600);
    assert_eq!(token_error(&empty).to_string(), format!("the token file {} holds no token", empty.display()));
    assert!(matches!(token_error(&folder.0.join("none")), TokenError::Read { .. }));
    let good = folder.file("good", &format!("{TOKEN}\n{}\n", "z".repeat(40)), 0o400);
    let tokens = Tokens::read(&good).unwrap();
    assert!(tokens.accept(TOKEN) && tokens.accept(&"z".repeat(40)) && !tokens.accept("") && !tokens.accept("z"));
    assert_eq!(format!("{tokens:?}"), "Tokens(2)");
}
