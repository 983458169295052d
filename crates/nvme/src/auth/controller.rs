//! The controller's end of a transaction.
//!
//! ```text
//!            Negotiate          Challenge is read      Reply, work          Success1 is read
//!  Idle ───────────────▶ Asking ───────────────▶ Asked ───────────▶ Convinced ───────────▶ Proven
//!                                                                        │ if the host asked in turn
//!                                                                        └──▶ Answered ── Success2 ──▶ Proven
//! ```
//! From everywhere else than `Proven` a message that is wrong leads to `Refusing`, and from there,
//! once Failure1 is read, to `Failed`.

use super::message::{Challenge, Message, Negotiate, Response, Success};
use super::proof::{Terms, Who};
use super::{DhGroup, Hash, Key, Names, Random, Refusal, Work, Worked};

/// Who may prove itself with what.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Between whom.
    pub names: Names,
    /// The host's key.
    pub host_key: Key,
    /// The subsystem's, if there is one. Without it a host that asks for proof is refused.
    pub controller_key: Option<Key>,
    /// The group; hosts that do not offer it are refused.
    pub group: DhGroup,
}

#[derive(Debug)]
enum Stage {
    Idle,
    /// g^x is being computed.
    Preparing {
        hash: Hash,
    },
    Asking(Box<Challenge>),
    Asked(Box<Challenge>),
    /// (g^y)^x is being computed.
    Weighing(Box<Challenge>, Box<Response>),
    /// Success1 is to be read.
    Convinced(Box<Success>),
    Answered,
    Proven,
    /// Failure1 is to be read.
    Refusing(Refusal),
    Failed(Refusal),
}

/// One transaction, as the controller has it.
#[derive(Debug)]
pub struct ControllerAuth {
    policy: Policy,
    random: Random,
    transaction: u16,
    stage: Stage,
}

impl ControllerAuth {
    /// One that waits for Negotiate.
    pub fn new(policy: Policy, random: Random) -> ControllerAuth {
        ControllerAuth { policy, random, transaction: 0, stage: Stage::Idle }
    }

    /// The data of Authentication Send have arrived. Gives what is to be run then, and given to
    /// [`ControllerAuth::worked`].
    pub fn received(&mut self, data: &[u8]) -> Option<Work> {
        if let Stage::Idle = self.stage {
            self.transaction = Message::transaction_of(data).unwrap_or(0);
        }
        let taken = match self.stage {
            Stage::Proven | Stage::Refusing(_) | Stage::Failed(_) => return None,
            _ => Message::parse(data).and_then(|message| self.take(message)),
        };
        taken.unwrap_or_else(|refusal| {
            self.stage = Stage::Refusing(refusal);
            None
        })
    }

    fn take(&mut self, message: Message) -> Result<Option<Work>, Refusal> {
        if let Message::Negotiate(negotiate) = &message
            && let Stage::Idle = self.stage
        {
            return self.negotiate(negotiate).map(Some);
        }
        if message.transaction() != self.transaction {
            return Err(Refusal::Payload);
        }
        match (&self.stage, message) {
            (Stage::Asked(challenge), Message::Reply(reply)) => {
                let challenge = challenge.clone();
                self.begin_weighing(challenge, reply).map(Some)
            }
            (Stage::Answered, Message::Success2 { .. }) => {
                self.stage = Stage::Proven;
                Ok(None)
            }
            // The host has given up: nobody waits for an answer.
            (_, Message::Failure2 { refusal, .. }) => {
                self.stage = Stage::Failed(refusal);
                Ok(None)
            }
            _ => Err(Refusal::Order),
        }
    }

    fn negotiate(&mut self, negotiate: &Negotiate) -> Result<Work, Refusal> {
        if negotiate.secure_channel != 0 {
            return Err(Refusal::SecureChannel);
        }
        let hash = negotiate.hashes.iter().copied().max().ok_or(Refusal::Hash)?;
        let group = self.policy.group;
        if !negotiate.groups.contains(&group) {
            return Err(Refusal::Group);
        }
        self.stage = Stage::Preparing { hash };
        Ok(Work::new(group, &self.random.exponent, true, None))
    }

    fn begin_weighing(&mut self, challenge: Box<Challenge>, reply: Response) -> Result<Work, Refusal> {
        if reply.answer.len() != challenge.hash.bytes() || reply.public.len() != challenge.group.bytes() {
            return Err(Refusal::Payload);
        }
        // Who asks what was asked wants to hear what it is to answer.
        if reply.challenge.as_ref() == Some(&challenge.challenge) {
            return Err(Refusal::Failed);
        }
        let group = challenge.group;
        let peer = (group != DhGroup::Null).then(|| reply.public.clone());
        self.stage = Stage::Weighing(challenge, Box::new(reply));
        Ok(Work::new(group, &self.random.exponent, false, peer))
    }

    /// Work is done. What comes for a transaction that has ended meanwhile is forgotten.
    pub fn worked(&mut self, worked: Worked) {
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Preparing { hash } => {
                self.stage = Stage::Asking(Box::new(Challenge {
                    transaction: self.transaction,
                    hash,
                    group: self.policy.group,
                    sequence: self.random.sequence,
                    challenge: self.random.challenge[..hash.bytes()].to_vec(),
                    public: worked.public,
                }));
            }
            Stage::Weighing(challenge, reply) => {
                self.stage = match self.weigh(&challenge, &reply, worked) {
                    Ok(success) => Stage::Convinced(Box::new(success)),
                    Err(refusal) => Stage::Refusing(refusal),
                };
            }
            other => self.stage = other,
        }
    }

    fn weigh(&self, challenge: &Challenge, reply: &Response, worked: Worked) -> Result<Success, Refusal> {
        let Policy { names, host_key, controller_key, .. } = &self.policy;
        let Challenge { hash, group, transaction, .. } = *challenge;
        let terms = Terms { hash, group, transaction, names: names.clone(), shared: worked.shared? };
        if !terms.is_answer(Who::Host, host_key, &challenge.challenge, challenge.sequence, &reply.answer) {
            return Err(Refusal::Failed);
        }
        let answer = match &reply.challenge {
            None => None,
            Some(asked) => {
                let key = controller_key.as_ref().ok_or(Refusal::Failed)?;
                Some(terms.answer(Who::Controller, key, asked, reply.sequence).to_vec())
            }
        };
        Ok(Success { transaction, hash_bytes: hash.bytes() as u8, answer })
    }

    /// What Authentication Receive is answered with; [`ControllerAuth::was_read`] is to be called
    /// once it is on its way. `None` if there is nothing to say, or not yet.
    pub fn reply(&self) -> Option<Vec<u8>> {
        let message = match &self.stage {
            Stage::Asking(challenge) => Message::Challenge((**challenge).clone()),
            Stage::Convinced(success) => Message::Success1((**success).clone()),
            Stage::Refusing(refusal) => Message::Failure1 { transaction: self.transaction, refusal: *refusal },
            _ => return None,
        };
        Some(message.encode())
    }

    /// The host was given the message of [`ControllerAuth::reply`].
    pub fn was_read(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Asking(challenge) => Stage::Asked(challenge),
            Stage::Convinced(success) if success.answer.is_some() => Stage::Answered,
            Stage::Convinced(_) => Stage::Proven,
            Stage::Refusing(refusal) => Stage::Failed(refusal),
            other => other,
        };
    }

    /// How it has ended: the host is who it says it is, or why it is not. `None` while it goes on.
    pub fn outcome(&self) -> Option<Result<(), Refusal>> {
        match self.stage {
            Stage::Proven => Some(Ok(())),
            Stage::Failed(refusal) => Some(Err(refusal)),
            _ => None,
        }
    }
}
