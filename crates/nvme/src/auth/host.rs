//! The host's end of a transaction.

use super::message::{Challenge, Message, Negotiate, Response, Success};
use super::proof::{Terms, Who};
use super::{DhGroup, Hash, MESSAGE_BYTES_MAX, Names, Random, Refusal, Secret, Work, Worked, receive, send};
use crate::host::{HostError, Submission};
use crate::{Completion, Status};

/// A host's secrets for a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The host's secret.
    pub host: Secret,
    /// The subsystem's secret. If there is one, the controller has to authenticate, too.
    pub controller: Option<Secret>,
}

/// The next step of a host.
#[derive(Debug)]
pub enum Turn {
    /// Send this, and pass the answer to [`HostAuth::answer`].
    Send(Submission),
    /// Run this, and pass the result to [`HostAuth::worked`].
    Work(Work),
    /// Authentication succeeded.
    Done,
}

#[derive(Debug)]
enum Stage {
    Negotiate,
    ReadChallenge,
    Work(Box<Challenge>),
    Working(Box<Challenge>),
    Reply(Box<Response>, Box<Terms>),
    ReadSuccess(Box<Terms>),
    /// Success2 is to be sent.
    Confirm,
    /// Failure2 is to be sent.
    Refuse(Refusal),
    Done,
}

/// The host's state of one transaction.
#[derive(Debug)]
pub struct HostAuth {
    credentials: Credentials,
    names: Names,
    random: Random,
    transaction: u16,
    stage: Stage,
}

impl HostAuth {
    /// Begins with Negotiate. `transaction` distinguishes it from others of the same queue.
    pub fn new(credentials: Credentials, names: Names, transaction: u16, random: Random) -> HostAuth {
        HostAuth { credentials, names, random, transaction, stage: Stage::Negotiate }
    }

    /// The next step.
    ///
    /// # Panics
    /// If earlier work was not passed to [`HostAuth::worked`] yet.
    pub fn turn(&mut self) -> Turn {
        let transaction = self.transaction;
        let message = match &self.stage {
            Stage::Negotiate => Message::Negotiate(Negotiate {
                transaction,
                secure_channel: 0,
                hashes: Hash::ALL.to_vec(),
                groups: DhGroup::ALL.to_vec(),
            }),
            Stage::ReadChallenge | Stage::ReadSuccess(_) => {
                let reply_bytes = MESSAGE_BYTES_MAX as u32;
                return Turn::Send(Submission { command: receive(reply_bytes), data: Vec::new(), reply_bytes });
            }
            Stage::Work(challenge) => {
                let group = challenge.group;
                let peer = (group != DhGroup::Null).then(|| challenge.public.clone());
                let work = Work::new(group, &self.random.exponent, true, peer);
                let Stage::Work(challenge) = std::mem::replace(&mut self.stage, Stage::Done) else { unreachable!() };
                self.stage = Stage::Working(challenge);
                return Turn::Work(work);
            }
            Stage::Working(_) => panic!("work is brought back before anything else happens"),
            Stage::Reply(reply, _) => Message::Reply((**reply).clone()),
            Stage::Confirm => Message::Success2 { transaction },
            Stage::Refuse(refusal) => Message::Failure2 { transaction, refusal: *refusal },
            Stage::Done => return Turn::Done,
        };
        let data = message.encode();
        Turn::Send(Submission { command: send(data.len() as u32), data, reply_bytes: 0 })
    }

    /// Takes the answer to the command that [`HostAuth::turn`] gave, with its data.
    ///
    /// # Errors
    /// [`HostError`]: the authentication failed.
    pub fn answer(&mut self, completion: &Completion, data: &[u8]) -> Result<(), HostError> {
        let status = completion.status();
        if let Some(verdict) = self.verdict() {
            return Err(verdict);
        }
        if !status.is_success() {
            return Err(failed(&self.stage, status));
        }
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Negotiate => Stage::ReadChallenge,
            Stage::Reply(_, terms) => Stage::ReadSuccess(terms),
            Stage::Confirm => Stage::Done,
            stage @ (Stage::ReadChallenge | Stage::ReadSuccess(_)) => match (Message::parse(data), stage) {
                (Ok(Message::Failure1 { refusal, .. }), _) => return Err(HostError::NotAuthenticated(refusal)),
                (Ok(message), _) if message.transaction() != self.transaction => Stage::Refuse(Refusal::Payload),
                (Ok(Message::Challenge(challenge)), Stage::ReadChallenge) => Stage::Work(Box::new(challenge)),
                (Ok(Message::Success1(success)), Stage::ReadSuccess(terms)) => self.verify(&success, &terms),
                (Ok(_), _) => Stage::Refuse(Refusal::Order),
                (Err(refusal), _) => Stage::Refuse(refusal),
            },
            Stage::Work(_) | Stage::Working(_) | Stage::Refuse(_) | Stage::Done => {
                return Err(HostError::Malformed("an answer to nothing"));
            }
        };
        Ok(())
    }

    /// Why the host refuses the controller, once it is sending Failure2. A controller may close the
    /// connection instead of answering it.
    pub fn verdict(&self) -> Option<HostError> {
        match self.stage {
            Stage::Refuse(refusal) => Some(HostError::Impostor(refusal)),
            _ => None,
        }
    }

    /// Whether the host has sent its proof and waits for the controller's verdict.
    pub fn awaits_verdict(&self) -> bool {
        matches!(self.stage, Stage::ReadSuccess(_))
    }

    /// Takes the result of the work.
    pub fn worked(&mut self, worked: Worked) {
        let Stage::Working(challenge) = std::mem::replace(&mut self.stage, Stage::Done) else { return };
        let shared = match worked.shared {
            Ok(shared) => shared,
            Err(refusal) => {
                self.stage = Stage::Refuse(refusal);
                return;
            }
        };
        let Challenge { hash, group, transaction, sequence, .. } = *challenge;
        let terms = Terms { hash, group, transaction, names: self.names.clone(), shared };
        let key = self.credentials.host.key(&self.names.host);
        let is_mutual = self.credentials.controller.is_some();
        let reply = Response {
            transaction,
            // "0 if the host does not ask the controller to authenticate".
            sequence: if is_mutual { self.random.sequence } else { 0 },
            answer: terms.answer(Who::Host, &key, &challenge.challenge, sequence).to_vec(),
            challenge: is_mutual.then(|| self.asked(hash).to_vec()),
            public: worked.public,
        };
        self.stage = Stage::Reply(Box::new(reply), Box::new(terms));
    }

    /// C2, the host's challenge.
    fn asked(&self, hash: Hash) -> &[u8] {
        &self.random.challenge[..hash.bytes()]
    }

    fn verify(&self, success: &Success, terms: &Terms) -> Stage {
        let Some(controller) = &self.credentials.controller else { return Stage::Done };
        let key = controller.key(&self.names.subsystem);
        let is_proven = success.answer.as_ref().is_some_and(|answer| {
            terms.is_answer(Who::Controller, &key, self.asked(terms.hash), self.random.sequence, answer)
        });
        if is_proven { Stage::Confirm } else { Stage::Refuse(Refusal::Failed) }
    }
}

fn failed(stage: &Stage, status: Status) -> HostError {
    let command = match stage {
        Stage::ReadChallenge | Stage::ReadSuccess(_) => "Authentication Receive",
        _ => "Authentication Send",
    };
    HostError::Failed { command, status }
}
