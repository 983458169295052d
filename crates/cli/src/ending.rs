//! Ctrl-C, and the signal of a service manager.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::{CtrlBreak, CtrlC, ctrl_break, ctrl_c};

/// Listens for a request to end this process. From then on such a signal only wakes the caller.
pub struct Ending {
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(windows)]
    interrupt: CtrlC,
    #[cfg(windows)]
    terminate: CtrlBreak,
}

impl Ending {
    /// Starts to listen.
    ///
    /// # Errors
    /// The error of the system.
    pub fn listen() -> io::Result<Ending> {
        #[cfg(unix)]
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        #[cfg(windows)]
        let (interrupt, terminate) = (ctrl_c()?, ctrl_break()?);
        Ok(Ending { interrupt, terminate })
    }

    /// Returns when the process has to end.
    pub async fn told(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
