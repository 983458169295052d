//! Ctrl-C, and what a service manager says instead.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::{CtrlBreak, CtrlC, ctrl_break, ctrl_c};

/// Listens for the wish that this process ends; from then on only who asks hears of it.
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
    /// Begins to listen.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen() -> io::Result<Ending> {
        #[cfg(unix)]
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        #[cfg(windows)]
        let (interrupt, terminate) = (ctrl_c()?, ctrl_break()?);
        Ok(Ending { interrupt, terminate })
    }

    /// Returns when it is to end.
    pub async fn told(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
