//! Extracts the parts of requests. Refusals use the API's errors.

use std::sync::Arc;
use std::time::Duration;

use api::ErrorCode;
use axum::body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use super::connection_slots::ConnectionSlot;
use super::control::ControlError;

/// The largest request body. A group of 64 members and 64 spares with the longest paths stays below
/// it.
const BODY_BYTES_MAX: usize = 1 << 20;

/// A client that has not sent its request's body within this time has stalled.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// Reads a request's complete body before the request is served. So a client that stalls delays
/// only its own connection.
pub(super) async fn whole(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let slot = parts.extensions.get::<Arc<ConnectionSlot>>().cloned();
    let bytes = match collect_body(body, BODY_WITHIN).await {
        Ok(bytes) => bytes,
        Err(refusal) => return refusal.into_response(),
    };
    if slot.as_ref().is_some_and(|slot| !slot.serves()) {
        return ControlError::new(ErrorCode::Busy, "too many clients are connected").into_response();
    }
    let response = next.run(Request::from_parts(parts, body::Body::from(bytes))).await;
    if let Some(slot) = slot {
        slot.waits();
    }
    response
}

/// A complete body, if it arrives in time and is not too long.
async fn collect_body(body: body::Body, within: Duration) -> Result<body::Bytes, ControlError> {
    let bytes = tokio::time::timeout(within, body::to_bytes(body, BODY_BYTES_MAX)).await.map_err(|_| {
        let message = format!("the rest of the request did not come within {} s", within.as_secs());
        ControlError::new(ErrorCode::BadRequest, message)
    })?;
    bytes.map_err(|error| {
        // The limit's error type is not public; only its text identifies it.
        if error.to_string().contains("length limit") {
            ControlError::new(ErrorCode::TooLarge, format!("the request is larger than {BODY_BYTES_MAX} bytes"))
        } else {
            ControlError::new(ErrorCode::BadRequest, format!("the request could not be read: {error}"))
        }
    })
}

/// A JSON body. An empty one is read as `{}`, so that requests without options need no body.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ControlError;

    async fn from_request(request: Request, _: &S) -> Result<Body<T>, ControlError> {
        // The body is already in memory: see `whole`.
        let bytes = body::to_bytes(request.into_body(), BODY_BYTES_MAX).await.map_err(|error| {
            ControlError::new(ErrorCode::BadRequest, format!("the request could not be read: {error}"))
        })?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        // The fields of an object would be taken from an array as well, by their order.
        if text.trim_ascii_start().first() == Some(&b'[') {
            let message = "the request is refused: its body is an array, and has to be an object";
            return Err(ControlError::new(ErrorCode::BadRequest, message));
        }
        serde_json::from_slice(text)
            .map(Body)
            .map_err(|error| ControlError::new(ErrorCode::BadRequest, format!("the request is refused: {error}")))
    }
}

/// The query parameters. Unknown ones are refused.
#[derive(Debug)]
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Params<T>, ControlError> {
        Query::try_from_uri(&parts.uri).map(|Query(params)| Params(params)).map_err(|error| {
            let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            ControlError::new(ErrorCode::BadRequest, format!("the query is refused: {cause}"))
        })
    }
}

/// The path segments.
#[derive(Debug)]
pub(super) struct Segments<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segments<T> {
    type Rejection = ControlError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Segments<T>, ControlError> {
        Path::from_request_parts(parts, state).await.map(|Path(segments)| Segments(segments)).map_err(|error| {
            ControlError::new(ErrorCode::BadRequest, format!("the path is refused: {}", error.body_text()))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::body::{Body, Bytes, HttpBody};
    use hyper::body::Frame;

    use super::*;

    /// A body that stalls: one byte arrives, and then nothing.
    struct Stalled(bool);

    impl HttpBody for Stalled {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if std::mem::replace(&mut self.0, true) {
                return Poll::Pending;
            }
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"{")))))
        }
    }

    #[tokio::test]
    async fn a_request_of_which_the_rest_does_not_come_is_refused() {
        let refused = collect_body(Body::new(Stalled(false)), Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::BadRequest);
        assert_eq!(refused.message, "the rest of the request did not come within 1 s");
        assert_eq!(collect_body(Body::from("{}"), Duration::from_secs(1)).await.unwrap(), "{}");
    }
}
