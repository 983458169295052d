//! A client's bytes to the HTTP API, and token files.

use std::path::Path;
use std::sync::{Arc, Mutex};

use api::ErrorBody;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use daemon::http::{TOKEN_CHARS_MIN, TokenError, Tokens, guarded, router, serve_connection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::target::{Memory, Seed, Target};

mod noting;

use noting::Noting;

/// The only token that the guarded API accepts.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Size of the pipe between client and server.
const PIPE_BYTES: usize = 16 << 10;

pub(super) const ROUTER: Target = Target {
    name: "http-router",
    checks: "a client's bytes at the API, with and without a token: each request is answered in the API's words or the \
             connection ends, and what is refused, or has no token, is never asked of the daemon",
    run,
    seeds,
    stored: Vec::new,
    dictionary: &[
        b"GET ",
        b"POST ",
        b"PATCH ",
        b"DELETE ",
        b"HEAD ",
        b"OPTIONS * HTTP/1.1\r\n\r\n",
        b" HTTP/1.1\r\nhost: a\r\n",
        b" HTTP/1.0\r\n\r\n",
        b"\r\n\r\n",
        b"content-length: 2\r\n",
        b"content-length: 18446744073709551615\r\n",
        b"transfer-encoding: chunked\r\n\r\n",
        b"0\r\n\r\n",
        b"expect: 100-continue\r\n",
        b"connection: close\r\n",
        b"connection: upgrade\r\nupgrade: h2c\r\n",
        b"authorization: Bearer 0123456789abcdef0123456789abcdef\r\n",
        b"authorization: bearer  ",
        b"authorization: Basic YTpi\r\n",
        b"/v1/groups",
        b"/v1/groups/tank",
        b"/v1/volumes/tank/db",
        b"/v1/exports/",
        b"/members/0/fail",
        b"/members/4294967296/replace",
        b"/spares",
        b"/metrics",
        b"/openapi.json",
        b"?confirm=tank&dry_run=true",
        b"%2e%2e%2f",
        b"%00",
        b"%ff",
        b"{\"dry_run\":true}",
        b"{\"action\":\"start\",\"repair\":true}",
    ],
    input_bytes_max: 8192,
    // The routes, their document, and the largest answer that one more byte of a request can cause:
    // all metrics.
    memory: Memory { base_bytes: 14 << 20, per_input_byte: 4096 },
};

pub(super) const TOKENS: Target = Target {
    name: "http-tokens",
    checks: "token files: what is taken is what its lines say, each token lets in and nothing else does, no token is shown",
    run: tokens,
    seeds: token_seeds,
    stored: Vec::new,
    dictionary: &[b"0123456789abcdef0123456789abcdef\n", b"#", b"\r\n", b"\x0b", b"\xc2\xa0", b"\xef\xbb\xbf", b"\0"],
    input_bytes_max: 2048,
    memory: Memory { base_bytes: 64 << 10, per_input_byte: 256 },
};

fn seeds() -> Vec<Seed> {
    let request = |method: &str, path: &str, body: &str| {
        let length = body.len();
        format!("{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}")
    };
    let requests = [
        ("status", request("GET", "/v1/status", "")),
        ("metrics", request("GET", "/metrics", "")),
        ("document", request("HEAD", "/openapi.json", "")),
        (
            "group-create",
            request(
                "POST",
                "/v1/groups",
                r#"{"name":"lake","level":"raid5","drives":["/drives/a","/drives/b","/drives/c"],"spares":[]}"#,
            ),
        ),
        ("group-assemble", request("POST", "/v1/groups/assemble", r#"{"drives":["/drives/a"],"dry_run":true}"#)),
        ("group-stop", request("POST", "/v1/groups/tank/stop", r#"{"force":true}"#)),
        ("group-delete", request("DELETE", "/v1/groups/tank?confirm=tank", "")),
        ("scrub", request("POST", "/v1/groups/tank/scrub", r#"{"action":"start","repair":true}"#)),
        ("fail", request("POST", "/v1/groups/tank/members/1/fail", "")),
        ("replace", request("POST", "/v1/groups/tank/members/1/replace", r#"{"with":"/drives/x"}"#)),
        ("spare-add", request("POST", "/v1/groups/tank/spares", r#"{"drive":"mem:s:1GiB"}"#)),
        ("spare-remove", request("DELETE", "/v1/groups/tank/spares?drive=%2Fdrives%2Fx", "")),
        ("volume-create", request("POST", "/v1/volumes", r#"{"group":"tank","volume":"a","size_bytes":4096}"#)),
        ("volume-resize", request("PATCH", "/v1/volumes/tank/db", r#"{"size_bytes":8192,"confirm":"tank/db"}"#)),
        ("volume-delete", request("DELETE", "/v1/volumes/tank/db?confirm=tank%2Fdb", "")),
        ("export-create", request("POST", "/v1/exports", r#"{"volume":"tank/db","nbd":"127.0.0.1:10809"}"#)),
        ("export-delete", request("DELETE", "/v1/exports/1", "")),
    ];
    let chunked =
        "POST /v1/groups/tank/stop HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    let all: String = requests.iter().map(|(_, request)| request.as_str()).collect();
    let open = requests.iter().map(|(name, request)| Seed::new(*name, [b"\0", request.as_bytes()].concat()));
    let with_token = all.replace("host: a\r\n", &format!("host: a\r\nauthorization: Bearer {TOKEN}\r\n"));
    open.chain([
        Seed::new("chunked", [b"\0", chunked.as_bytes()].concat()),
        Seed::new("pipelined", [b"\0", all.as_bytes()].concat()),
        Seed::new("guarded-without-token", [b"\x01", all.as_bytes()].concat()),
        Seed::new("guarded", [b"\x01", with_token.as_bytes()].concat()),
    ])
    .collect()
}

/// Checks every answer on its way, and records its status.
async fn look(request: Request, next: Next, seen: Arc<Mutex<Vec<u16>>>) -> Response {
    let (head, body) = next.run(request).await.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.expect("answers are in memory");
    let status = head.status.as_u16();
    if status >= 400 {
        let answer: ErrorBody = serde_json::from_slice(&bytes).expect("a refusal is in the API's words");
        let message = answer.error.message;
        assert!(!message.is_empty() && !message.chars().any(char::is_control), "a refusal moves a cursor: {message:?}");
    }
    seen.lock().expect("nobody panics with it").push(status);
    Response::from_parts(head, Body::from(bytes))
}

/// Sends bytes on a connection. Returns the bytes that came back, and the status of every answer.
async fn converse(routes: Router, bytes: &[u8]) -> (Vec<u8>, Vec<u16>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = seen.clone();
    let routes = routes.layer(from_fn(move |request, next| look(request, next, note.clone())));
    let (client, server) = tokio::io::duplex(PIPE_BYTES);
    let (mut from, mut to) = tokio::io::split(client);
    let mut answers = Vec::new();
    let send = async {
        // The server may have closed the connection: then the rest has no reader.
        if to.write_all(bytes).await.is_ok() {
            let _ = to.shutdown().await;
        }
    };
    let receive = async {
        let _ = from.read_to_end(&mut answers).await;
    };
    // An error is caused by the client's bytes, and is ignored.
    let (_, (), ()) = tokio::join!(serve_connection(server, routes), send, receive);
    let seen = std::mem::take(&mut *seen.lock().expect("nobody panics with it"));
    (answers, seen)
}

thread_local! {
    /// A control and its routes. Making them takes far longer than most requests, so they are
    /// reused.
    static READY: (Arc<Noting>, Router) = {
        let control = Arc::new(Noting::default());
        (control.clone(), router(control))
    };
}

fn run(input: &[u8]) {
    let Some((&kind, bytes)) = input.split_first() else { return };
    let is_guarded = kind & 1 == 1;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let (control, routes) = READY.with(Clone::clone);
        let before = control.changes();
        let tokens = Arc::new(Tokens::parse(TOKEN, Path::new("tokens")).expect("a token"));
        let routes = if is_guarded { guarded(routes, tokens) } else { routes };
        let (answers, seen) = converse(routes, bytes).await;
        assert!(answers.is_empty() || answers.starts_with(b"HTTP/1."), "an answer is HTTP");
        assert!(seen.iter().all(|&status| status < 500), "{seen:?}: nothing here can fail");
        let has_token = bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes());
        if is_guarded && !has_token {
            assert!(seen.iter().all(|&status| status == 401), "{seen:?} without a token");
        }
        let changed = control.changes() > before;
        assert!(!changed || seen.iter().any(|&status| status < 400), "{seen:?}, and something was to be changed");
    });
}

fn token_seeds() -> Vec<Seed> {
    vec![
        Seed::new("one", TOKEN),
        Seed::new("comment", format!("# who has it\n\n {TOKEN}\t\r\n#{TOKEN}\n{}\n", "x".repeat(64))),
        Seed::new("short", "short\n"),
        Seed::new("none", "# nobody\n"),
    ]
}

fn tokens(input: &[u8]) {
    // A file that is not UTF-8 is refused when it is read.
    let Ok(text) = std::str::from_utf8(input) else { return };
    let path = Path::new("tokens");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let said = |line: &&&str| !line.is_empty() && !line.starts_with('#');
    let fits = |line: &&str| line.len() >= TOKEN_CHARS_MIN && line.bytes().all(|byte| byte.is_ascii_graphic());
    match Tokens::parse(text, path) {
        Ok(tokens) => {
            let said: Vec<&str> = lines.iter().filter(said).copied().collect();
            assert!(!said.is_empty() && said.iter().all(fits), "what is taken is a token");
            for &token in &said {
                assert!(tokens.accept(token), "a token lets in");
                assert!(!tokens.accept(&token[1..]) || said.contains(&&token[1..]), "a part of one does not");
                let longer = format!("{token}x");
                assert!(!tokens.accept(&longer) || said.contains(&longer.as_str()), "nor more than one");
            }
            assert!(!tokens.accept("") && !tokens.accept(text.trim_end_matches('\n')) || said.len() == 1);
            assert_eq!(format!("{tokens:?}"), format!("Tokens({})", said.len()), "no token is shown");
        }
        Err(error) => {
            // The same fault in a file that has no token at all has the same message.
            let other = match &error {
                TokenError::Weak { line, .. } => format!("{}short", "\n".repeat(line - 1)),
                _ => String::new(),
            };
            let other = Tokens::parse(&other, path).expect_err("it has no token").to_string();
            assert_eq!(error.to_string(), other, "no token is shown");
            match error {
                TokenError::Weak { line, .. } => assert!(lines.get(line - 1).is_some_and(|line| !fits(line))),
                TokenError::Empty { .. } => assert_eq!(lines.iter().filter(said).count(), 0),
                other => panic!("{other}: no file was read"),
            }
        }
    }
}
