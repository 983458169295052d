//! Converts errors to HTTP answers.

use api::{ErrorBody, ErrorCode, ErrorDetail, visible};
use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::control::ControlError;

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status()).expect("every error code has a valid HTTP status");
        // The message may quote client input, and it ends up on terminals and in logs.
        let message = visible(&self.message).into_owned();
        let body = ErrorBody { error: ErrorDetail { code: self.code, message } };
        let mut response = (status, Json(body)).into_response();
        if self.code == ErrorCode::Unauthorized {
            // RFC 9110, 11.6.1: a 401 names a challenge.
            response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}
