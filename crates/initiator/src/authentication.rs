//! Authentication: a queue proves its host's identity to the controller.

use std::sync::atomic::{AtomicU16, Ordering};

use drive::offload;
use nvme::auth::{HostAuth, Names, RANDOM_BYTES, Random, Turn};
use nvme::host::{Connected, HostError};

use crate::controller::{Led, call};
use crate::error::Lost;
use crate::network::Network;
use crate::options::Options;
use crate::queue::{Payload, Queue};

/// T_ID of the next transaction.
static NEXT_TRANSACTION: AtomicU16 = AtomicU16::new(1);

/// Authenticates a queue that was just connected, if its controller requires it.
pub(crate) async fn authenticate<N: Network>(
    queue: &Queue<N>,
    options: &Options,
    connected: Connected,
) -> Result<(), Led> {
    let credentials = match (&options.credentials, connected.must_authenticate) {
        (None, false) => return Ok(()),
        (None, true) => return Err(Led::Host(HostError::Authentication)),
        // A false controller would not request authentication.
        (Some(credentials), false) if credentials.controller.is_some() => {
            return Err(Led::Host(HostError::NoAuthentication));
        }
        (Some(_), false) => return Ok(()),
        (Some(credentials), true) => credentials.clone(),
    };
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random).map_err(|_| Led::Host(HostError::Unsupported("this system has no random numbers")))?;
    let names = Names { host: options.host.nqn.clone(), subsystem: options.subsystem.clone() };
    let transaction = NEXT_TRANSACTION.fetch_add(1, Ordering::Relaxed);
    let mut machine = HostAuth::new(credentials, names, transaction, Random::of(&random));
    loop {
        match machine.turn() {
            Turn::Done => return Ok(()),
            Turn::Work(work) => machine.worked(offload(move || work.run()).await),
            Turn::Send(submission) => {
                let mut call = call(submission);
                // Some targets pad the reply with zeroes, others send only the message.
                if let Payload::ToHost(buf) = call.payload {
                    call.payload = Payload::ToHostUpTo(buf);
                }
                let reply = queue.execute(call).await;
                let reply = reply.map_err(|lost| match machine.verdict() {
                    Some(verdict) => Led::Host(verdict),
                    None if machine.awaits_verdict() && lost.is_ended_by_target() => Led::Lost(Lost::ClosedOnProof),
                    None => Led::Lost(lost),
                })?;
                if !reply.is_intact {
                    return Err(Led::Host(HostError::Malformed("the digest of the data is wrong")));
                }
                let data = reply.data.as_ref().map_or(&[][..], |data| data);
                machine.answer(&reply.completion, data).map_err(Led::Host)?;
            }
        }
    }
}
