//! The daemon's HTTP side: routes, listeners and metrics over a [`Control`].
//!
//! - [`Control`]: the operations of the daemon; the interface to the engine.
//! - [`router`]: all routes of the API over a `Control`; its OpenAPI document is [`document`].
//! - [`Server`]: the Unix socket, and TCP with TLS and tokens if configured by [`HttpOptions`].
//! - [`metrics_text`]: the metrics of the daemon, as Prometheus reads them.
//!
//! An operation that was started is completed even if its client disconnects: each runs in its own
//! task.

mod auth;
mod connection_slots;
mod control;
mod exposition;
mod extract;
mod fault;
mod metrics;
mod options;
mod routes;
mod serve;
mod shape;
mod tls;

pub use auth::{TOKEN_CHARS_MIN, TokenError, Tokens, guarded};
pub use control::{
    Answer, Control, ControlError, DriveControl, ExportControl, GroupControl, HostControl, ImportControl,
    MemberControl, ReferralControl, ShareControl, UpgradeControl, VolumeControl, require_confirmation,
};
pub use metrics::metrics_text;
pub use options::{HttpOptions, OptionsError, TcpOptions};
pub use routes::{document, router};
pub use serve::{ServeError, Server, serve_connection};
