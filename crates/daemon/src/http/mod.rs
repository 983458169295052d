//! The daemon's HTTP side: routes, listeners and metrics over a [`Control`].
//!
//! - [`Control`]: what the daemon can do; the seam to the engine.
//! - [`router`]: every route of the API over a `Control`; its OpenAPI document is [`document`].
//! - [`Server`]: the Unix socket, and TCP with TLS and tokens where asked; configured by
//!   [`HttpOptions`].
//! - [`metrics_text`]: what the daemon knows, as Prometheus reads it.
//!
//! An operation that was begun is carried through even when its client goes away: each runs in a
//! task of its own.

mod auth;
mod control;
mod exposition;
mod extract;
mod fault;
mod metrics;
mod options;
mod routes;
mod seats;
mod serve;
mod shape;
mod tls;

pub use auth::{TOKEN_CHARS_MIN, TokenError, Tokens, guarded};
pub use control::{Answer, Control, ControlError, require_confirmation};
pub use metrics::metrics_text;
pub use options::{HttpOptions, OptionsError, TcpOptions};
pub use routes::{document, router};
pub use serve::{ServeError, Server, serve_connection};
