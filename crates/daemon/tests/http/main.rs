//! The daemon's HTTP side over the engine, on drives in memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../engine/bench.rs"]
#[allow(dead_code, reason = "the engine's tests use all of it")]
mod bench;

mod document;
mod listeners;
mod metrics;
mod refusals;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use bench::Bench;
use daemon::Engine;
use daemon::http::router;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

/// An engine behind its routes.
struct Machine {
    router: Router,
    engine: Arc<Engine>,
    number: u32,
    bench: Bench,
}

impl Deref for Machine {
    type Target = Router;

    fn deref(&self) -> &Router {
        &self.router
    }
}

impl Machine {
    /// The name of a memory drive of this machine. Names are shared by the whole process.
    fn drive(&self, name: &str) -> String {
        format!("mem:{name}-{}", self.number)
    }

    /// Memory drives of 64 MiB, to be created.
    fn drives(&self, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| self.drive(name) + ":64MiB").collect()
    }

    /// The socket of an export.
    fn socket(&self) -> String {
        format!("unix:{}", self.bench.drive("db.sock"))
    }
}

/// A machine without groups.
async fn empty() -> Machine {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let bench = Bench::new();
    let engine = bench.engine().await;
    Machine { router: router(engine.clone()), engine, number: COUNT.fetch_add(1, Ordering::Relaxed), bench }
}

/// Sends one request; `body` is JSON text, or nothing.
async fn send(router: &Router, method: &str, path: &str, body: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(Body::from(body.to_owned())).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Sends one request and reads the answer as JSON.
async fn call(router: &Router, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (status, text) = send(router, method, path, &body).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{method} {path}: {e}: {text}")))
}

/// A machine with the group `tank`, the volume `tank/db` of 64 MiB and its export `tank-2`.
async fn filled() -> Machine {
    let machine = empty().await;
    let drives = machine.drives(&["0", "1", "2", "3", "4", "5"]);
    for (path, body) in [
        ("/v1/groups", json!({"name": "tank", "level": "raid6", "drives": drives})),
        ("/v1/volumes", json!({"group": "tank", "volume": "db", "size_bytes": 64 << 20})),
        ("/v1/exports", json!({"volume": "tank/db", "nbd": machine.socket()})),
    ] {
        let (status, answer) = call(&machine, "POST", path, body).await;
        assert_eq!(status, StatusCode::CREATED, "{path}: {answer}");
    }
    machine
}
