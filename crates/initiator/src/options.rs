//! What a host wants, and how patient it is.

use std::time::Duration;

use nvme::Nqn;
use nvme::auth::Credentials;
use nvme::target::Host;
use nvme::tcp::Digests;
use nvme::tls::TlsKey;

/// How to connect, and what to do when that ends. [`Options::new`] has what is used where nothing
/// is said.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who asks.
    pub host: Host,
    /// The subsystem.
    pub subsystem: Nqn,
    /// What this host proves itself with where a controller asks for that, and what the controller
    /// has to prove.
    pub credentials: Option<Credentials>,
    /// The key that connections are encrypted with (TLS 1.3). Without one they are not. On Linux;
    /// elsewhere a connect fails.
    pub tls: Option<TlsKey>,
    /// Digests that are asked for; a controller may not want them, which the log says.
    pub digests: Digests,
    /// I/O queues, at least 1; a controller may grant fewer.
    pub queues: u16,
    /// Entries of an I/O queue, 2 or more; a controller may have fewer.
    pub queue_entries: u16,
    /// KATO: a controller that does not hear from this host for so long ends. At least 1 s; one is
    /// sent twice in this time. How long what was not answered is waited for before it is sent
    /// again follows from it: [`quiet_time`].
    pub keep_alive: Duration,
    /// How long a connect may take, until the controller works.
    pub connect_timeout: Duration,
    /// How long a command may take until it is aborted. If it is not answered in half of that time
    /// again, its controller is given up.
    pub command_timeout: Duration,
    /// Waited for before the second attempt to connect again; the first follows at once. Doubled
    /// each time.
    pub reconnect_delay: Duration,
    /// The longest of these delays.
    pub reconnect_delay_max: Duration,
    /// A path that could not be connected again for so long is lost for good. `None`: never.
    pub loss_timeout: Option<Duration>,
}

/// The least time for [`Options::keep_alive`].
pub(crate) const KEEP_ALIVE_MIN: Duration = Duration::from_secs(1);

/// After this time a controller executes nothing any more of what a host had sent that says nothing
/// to it any more. Its keep alive timer runs from the last command that arrives, and that one may
/// have been sent just before and arrive a keep alive time later: so it is twice that time. A
/// controller for which all commands count (`traffic_based`) looks once in a keep alive time
/// whether there were any, which makes it three times.
pub const fn quiet_time(keep_alive: Duration, traffic_based: bool) -> Duration {
    keep_alive.saturating_mul(if traffic_based { 3 } else { 2 })
}

impl Options {
    /// One queue of 128 entries, no secrets, no TLS, no digests, and times as Linux' host has them:
    /// 5 s to keep alive, 30 s for a command, 600 s until a path is lost; connecting again is tried
    /// at once, and then every 1, 2, 4, 8 and 10 s.
    pub fn new(host: Host, subsystem: Nqn) -> Options {
        Options {
            host,
            subsystem,
            credentials: None,
            tls: None,
            digests: Digests::default(),
            queues: 1,
            queue_entries: 128,
            keep_alive: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            reconnect_delay: Duration::from_secs(1),
            reconnect_delay_max: Duration::from_secs(10),
            loss_timeout: Some(Duration::from_secs(600)),
        }
    }
}
