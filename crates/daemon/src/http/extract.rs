//! Requests taken apart, with refusals in the API's own words.

use api::ErrorCode;
use axum::body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::control::ControlError;

/// The largest request body: a group of 64 members and 64 spares with the longest paths stays below it.
const BODY_BYTES_MAX: usize = 1 << 20;

/// A JSON body. An empty one reads as `{}`, so that verbs without options need no body.
#[derive(Debug)]
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ControlError;

    async fn from_request(request: Request, _: &S) -> Result<Body<T>, ControlError> {
        let bytes = body::to_bytes(request.into_body(), BODY_BYTES_MAX).await.map_err(|error| {
            // The limit's error type is not public; its text is the only sign.
            if error.to_string().contains("length limit") {
                ControlError::new(ErrorCode::TooLarge, format!("the request is larger than {BODY_BYTES_MAX} bytes"))
            } else {
                ControlError::new(ErrorCode::BadRequest, format!("the request could not be read: {error}"))
            }
        })?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text)
            .map(Body)
            .map_err(|error| ControlError::new(ErrorCode::BadRequest, format!("the request is refused: {error}")))
    }
}

/// The query's parameters; unknown ones are refused.
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

/// The path's segments.
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
