//! Authentication of a queue's host: NVMe Base 2.0, clauses 6.1, 6.2 and 8.13.

use std::cell::RefCell;
use std::rc::Rc;

use drive::{BufMut, Env, Nanos, offload};
use nvme::auth::{self, ControllerAuth, Policy, RANDOM_BYTES, Random, Refusal};
use nvme::{Command, FABRICS, Status, fabrics};

use super::queue::Queue;
use crate::limits::{HANDSHAKE_MAX, NVME_ADMIN_DATA_BYTES_MAX};

/// One authentication transaction of a queue.
pub(super) struct Authentication {
    machine: Rc<RefCell<ControllerAuth>>,
    /// The deadline of the transaction.
    until: Nanos,
}

/// Progress of a transaction after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    UnderWay,
    /// The host has proven its identity.
    Proven,
    /// The host has failed to prove its identity: the connection has to end.
    Refused(Refusal),
    /// The deadline has passed.
    TooLate,
}

/// Whether a command is Authentication Send or Receive.
pub(super) fn is_about(command: &Command) -> bool {
    let kind = command.fabrics_type();
    command.opcode == FABRICS && (kind == fabrics::AUTHENTICATION_SEND || kind == fabrics::AUTHENTICATION_RECEIVE)
}

impl Authentication {
    /// A transaction that the host is to begin.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(policy: Policy, now: Nanos) -> Result<Authentication, Status> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| {
            tracing::error!(%error, "no random numbers: NVMe hosts cannot authenticate");
            Status::INTERNAL_ERROR
        })?;
        let machine = ControllerAuth::new(policy, Random::of(&bytes));
        Ok(Authentication {
            machine: Rc::new(RefCell::new(machine)),
            until: now.saturating_add(HANDSHAKE_MAX.as_nanos() as u64),
        })
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self, now: Nanos) -> bool {
        now >= self.until
    }

    /// Executes Authentication Send or Receive. Its answer is put in the outbox at once or when its
    /// work is done.
    pub fn execute(&self, queue: &Rc<Queue>, command: &Command, data: &[u8], now: Nanos) -> Progress {
        let cid = command.cid.get();
        if self.is_over(now) {
            return Progress::TooLate;
        }
        if !auth::is_sound(command) {
            queue.complete(cid, Status::INVALID_FIELD, 0, 0);
        } else if command.fabrics_type() == fabrics::AUTHENTICATION_SEND {
            self.send(queue, cid, data);
        } else {
            self.receive(queue, command);
        }
        match self.machine.borrow().outcome() {
            None => Progress::UnderWay,
            Some(Ok(())) => Progress::Proven,
            Some(Err(refusal)) => Progress::Refused(refusal),
        }
    }

    fn send(&self, queue: &Rc<Queue>, cid: u16, data: &[u8]) {
        let Some(work) = self.machine.borrow_mut().received(data) else {
            return queue.complete(cid, Status::SUCCESS, 0, 0);
        };
        // The command is answered when its work is done. So a connection has no more than one piece
        // of work that waits, and counts towards its address's limit until that is done.
        let (queue, machine) = (queue.clone(), self.machine.clone());
        queue.link.env.clone().spawn(async move {
            let worked = offload(move || work.run()).await;
            machine.borrow_mut().worked(worked);
            queue.complete(cid, Status::SUCCESS, 0, 0);
        });
    }

    fn receive(&self, queue: &Queue, command: &Command) {
        let (cid, len) = (command.cid.get(), command.dptr.length.get());
        let mut machine = self.machine.borrow_mut();
        match machine.reply() {
            None => queue.complete(cid, Status::COMMAND_SEQUENCE_ERROR, 0, 0),
            // The message stays, so that the host can read it again.
            Some(message) if len > NVME_ADMIN_DATA_BYTES_MAX || message.len() > len as usize => {
                queue.complete(cid, Status::INVALID_FIELD, 0, 0);
            }
            Some(mut message) => {
                // As many bytes as the host has asked for: hosts check the length.
                message.resize(len as usize, 0);
                queue.deliver(cid, BufMut::copy_of(&message).freeze(), 0, 0);
                machine.was_read();
            }
        }
    }
}
