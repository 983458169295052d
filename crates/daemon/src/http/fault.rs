//! Errors as HTTP answers.

use api::{ErrorBody, ErrorCode, ErrorDetail};
use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::control::ControlError;

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status()).expect("every error code has a valid HTTP status");
        let body = ErrorBody { error: ErrorDetail { code: self.code, message: one_line(self.message) } };
        let mut response = (status, Json(body)).into_response();
        if self.code == ErrorCode::Unauthorized {
            // RFC 9110, 11.6.1: a 401 names a challenge.
            response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A message may quote what the client sent, and ends up on terminals and in logs: control characters are written out.
fn one_line(message: String) -> String {
    if !message.contains(char::is_control) {
        return message;
    }
    let written_out = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    message.chars().map(written_out).collect()
}
