//! The end of a controller: NVMe Base 2.0, clause 3.6.2.

use super::setup::{ENABLED, POLL_MS};
use super::{Dialogue, HostError, Next, admin, succeeded};
use crate::Completion;
use crate::fabrics_data::property;

/// CC.SHN, "Normal shutdown notification".
const NORMAL: u32 = 0b01 << 14;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Notify,
    Status,
    Pause,
    Done,
}

/// Announces a shutdown to a controller and waits until the controller has finished it.
#[derive(Debug)]
pub struct Shutdown {
    stage: Stage,
    patience_ms: u32,
    waited_ms: u32,
}

impl Shutdown {
    /// Waits for at most `patience_ms`.
    pub fn new(patience_ms: u32) -> Shutdown {
        Shutdown { stage: Stage::Notify, patience_ms, waited_ms: 0 }
    }
}

impl Dialogue for Shutdown {
    type Outcome = ();

    fn next(&mut self) -> Next<Self::Outcome> {
        match self.stage {
            Stage::Notify => Next::Send(admin::property_set(property::CC, ENABLED | NORMAL)),
            Stage::Status => Next::Send(admin::property_get(property::CSTS, false)),
            Stage::Pause => {
                self.stage = Stage::Status;
                self.waited_ms += POLL_MS;
                Next::Wait(POLL_MS)
            }
            Stage::Done => Next::Done(()),
        }
    }

    fn answer(&mut self, completion: &Completion, _data: &[u8]) -> Result<(), HostError> {
        self.stage = match self.stage {
            Stage::Notify => {
                succeeded("Property Set", completion)?;
                Stage::Status
            }
            Stage::Status => {
                succeeded("Property Get", completion)?;
                // SHST 10b: "Shutdown processing complete".
                match completion.result.get() >> 2 & 0b11 == 0b10 {
                    true => Stage::Done,
                    false if self.waited_ms >= self.patience_ms => {
                        let what = "the controller did not shut down";
                        return Err(HostError::Timeout { what, ms: self.waited_ms });
                    }
                    false => Stage::Pause,
                }
            }
            Stage::Pause | Stage::Done => return Err(HostError::Malformed("an answer to nothing")),
        };
        Ok(())
    }
}
