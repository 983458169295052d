//! The daemon's HTTP side, over a control without drives.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod document;
mod listeners;
mod metrics;
mod refusals;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use daemon::http::router;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use support::MemoryControl;
use tower::ServiceExt;

/// A router over an empty control.
fn empty() -> Router {
    router(Arc::new(MemoryControl::default()))
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

/// A router over a control with the group `tank`, the volume `tank/db` and its export 2.
async fn filled() -> Router {
    let router = empty();
    let drives: Vec<String> = (0..6).map(|n| format!("/drives/{n}")).collect();
    for (path, body) in [
        ("/v1/groups", json!({"name": "tank", "level": "raid6", "drives": drives})),
        ("/v1/volumes", json!({"group": "tank", "volume": "db", "size_bytes": 1 << 30})),
        ("/v1/exports", json!({"volume": "tank/db", "nbd": "unix:/run/db.sock"})),
    ] {
        let (status, answer) = call(&router, "POST", path, body).await;
        assert_eq!(status, StatusCode::CREATED, "{path}: {answer}");
    }
    router
}
