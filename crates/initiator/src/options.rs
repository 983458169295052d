//! Properties and time limits of a host's connections.

use std::time::Duration;

use nvme::Nqn;
use nvme::auth::Credentials;
use nvme::target::Host;
use nvme::tcp::Digests;
use nvme::tls::TlsKey;

/// How to connect, and how to react when a connection ends. [`Options::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Options {
    /// Identity of this host.
    pub host: Host,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The secrets with which this host authenticates if a controller requires it, and the proof
    /// that it requires from the controller.
    pub credentials: Option<Credentials>,
    /// The key for encrypted connections (TLS 1.3). Without a key they are not encrypted. Only on
    /// Linux; on other systems a connect fails.
    pub tls: Option<TlsKey>,
    /// Digests that are requested. A controller may refuse them, which is logged.
    pub digests: Digests,
    /// Number of I/O queues, at least 1. A controller may grant fewer.
    pub queues: u16,
    /// Entries of an I/O queue, at least 2. A controller may support fewer.
    pub queue_entries: u16,
    /// KATO: a controller ends if it does not hear from this host for this time. At least 1 s. A
    /// Keep Alive is sent twice in this time. It also determines how long to wait before an
    /// unanswered command is sent again: [`quiet_time`].
    pub keep_alive: Duration,
    /// Time limit of a connect, until the controller is ready.
    pub connect_timeout: Duration,
    /// Time after which a command is aborted. If it is not answered within half of that time more,
    /// its controller is given up.
    pub command_timeout: Duration,
    /// Delay before the second attempt to connect again. The first follows at once. The delay
    /// doubles each time.
    pub reconnect_delay: Duration,
    /// The longest of these delays.
    pub reconnect_delay_max: Duration,
    /// A path that could not be connected again for this time counts as lost. `None`: it never
    /// does.
    pub loss_timeout: Option<Duration>,
}

/// The smallest [`Options::keep_alive`].
pub(crate) const KEEP_ALIVE_MIN: Duration = Duration::from_secs(1);

/// Time after which a controller executes no more commands of a host that has stopped sending. The
/// controller's keep alive timer runs from the last command that arrives. That command may have
/// been sent just before the end, and arrive one keep alive time later. So the result is twice that
/// time. With traffic based keep alive (`traffic_based`) all commands count, and the controller
/// checks once in a keep alive time whether there were any. Then it is three times.
pub const fn quiet_time(keep_alive: Duration, traffic_based: bool) -> Duration {
    keep_alive.saturating_mul(if traffic_based { 3 } else { 2 })
}

impl Options {
    /// One queue of 128 entries, no secrets, no TLS, no digests, and the times of Linux's host: 5 s
    /// to keep alive, 30 s for a command, 600 s until a path is lost. Connecting again is tried at
    /// once, and then after 1, 2, 4, 8 s and every 10 s.
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
