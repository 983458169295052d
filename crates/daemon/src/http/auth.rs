//! Bearer tokens: they authorize clients of the API over TCP.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::ErrorCode;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{AUTHORIZATION, CONNECTION};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq};
use thiserror::Error;

use super::connection_slots::ConnectionSlot;
use super::control::ControlError;

/// The shortest token: 32 characters of hexadecimal are 128 bits, too many to guess.
pub const TOKEN_CHARS_MIN: usize = 32;

/// The reason why a token file cannot be used.
#[derive(Debug, Error)]
pub enum TokenError {
    /// It could not be read.
    #[error("cannot read the token file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Users other than its owner can read it.
    #[error("the token file {} can be read by others (mode {mode:o}): make it 600", path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A token that could be guessed, or that a header cannot carry.
    #[error(
        "line {line} of the token file {} is no token: use at least {TOKEN_CHARS_MIN} visible characters without spaces",
        path.display()
    )]
    Weak {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The file has no token, so no client could be authorized.
    #[error("the token file {} holds no token", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// The tokens that the daemon accepts.
#[derive(Clone)]
pub struct Tokens(Vec<String>);

impl std::fmt::Debug for Tokens {
    /// Never shows a token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

impl Tokens {
    /// Reads a file with one token per line. Empty lines and lines that start with `#` are skipped.
    ///
    /// # Errors
    /// [`TokenError`]; a file that others can read is refused.
    pub fn read(path: &Path) -> Result<Tokens, TokenError> {
        let fail = |source| TokenError::Read { path: path.to_owned(), source };
        let mut file = std::fs::File::open(path).map_err(fail)?;
        let mode = file.metadata().map_err(fail)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Readable { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(fail)?;
        Tokens::parse(&text, path)
    }

    /// Parses a token file. `path` is only for the errors.
    ///
    /// # Errors
    /// [`TokenError::Weak`] and [`TokenError::Empty`].
    pub fn parse(text: &str, path: &Path) -> Result<Tokens, TokenError> {
        let mut tokens = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let token = line.trim();
            if token.is_empty() || token.starts_with('#') {
                continue;
            }
            if token.len() < TOKEN_CHARS_MIN || !token.chars().all(|c| c.is_ascii_graphic()) {
                return Err(TokenError::Weak { path: path.to_owned(), line: index + 1 });
            }
            tokens.push(token.to_owned());
        }
        if tokens.is_empty() {
            return Err(TokenError::Empty { path: path.to_owned() });
        }
        Ok(Tokens(tokens))
    }

    /// Whether `token` is one of them. The time that this takes reveals only its length.
    pub fn accept(&self, token: &str) -> bool {
        let mut found = Choice::from(0);
        for known in &self.0 {
            found |= known.as_bytes().ct_eq(token.as_bytes());
        }
        found.into()
    }
}

/// Protects `routes`: no request is routed without one of `tokens`.
pub fn guarded(routes: Router, tokens: Arc<Tokens>) -> Router {
    routes.layer(from_fn_with_state(tokens, require_token))
}

/// Forwards a request that carries `Authorization: Bearer TOKEN` (RFC 6750, 2.1) with a known
/// token. Any other request is the last one of its connection.
async fn require_token(State(tokens): State<Arc<Tokens>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let refusal = match given {
        Some(token) if tokens.accept(token) => {
            if let Some(slot) = request.extensions().get::<Arc<ConnectionSlot>>() {
                slot.is_known();
            }
            return next.run(request).await;
        }
        Some(_) => "the bearer token is not known here",
        None => "this address needs a bearer token",
    };
    let mut response = ControlError::new(ErrorCode::Unauthorized, refusal).into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
