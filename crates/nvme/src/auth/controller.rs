//! The controller's end of a transaction.
//!
//! ```text
//!           Negotiate       Challenge is read     Reply, work         Success1 is read
//!  Idle ──────────────▶ Asking ─────────▶ Asked ───────────▶ Convinced ──────────▶ Proven
//!                                                                │ if the host asked in turn
//!                                                                ▼          Success2
//!                                                            Answered ──────────▶ Proven
//! ```
//! Messages in `Proven`, `Refusing` and `Failed` are ignored. In other states a wrong message leads
//! to `Refusing` and, once Failure1 is read, to `Failed`.

use super::message::{Challenge, Message, Negotiate, Response, Success};
use super::proof::{Terms, Who};
use super::{DhGroup, Hash, Key, Names, Random, Refusal, Work, Worked};

/// The names, keys and group of an authentication.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The two ends.
    pub names: Names,
    /// The host's key.
    pub host_key: Key,
    /// The subsystem's key, if there is one. Without it the controller refuses hosts that ask it to
    /// authenticate.
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
    Verifying(Box<Challenge>, Box<Response>),
    /// The host is to read Success1.
    Convinced(Box<Success>),
    Answered,
    Proven,
    /// The host is to read Failure1.
    Refusing(Refusal),
    Failed(Refusal),
}

/// The controller's state of one transaction.
#[derive(Debug)]
pub struct ControllerAuth {
    policy: Policy,
    random: Random,
    transaction: u16,
    stage: Stage,
}

impl ControllerAuth {
    /// A transaction that waits for Negotiate.
    pub fn new(policy: Policy, random: Random) -> ControllerAuth {
        ControllerAuth { policy, random, transaction: 0, stage: Stage::Idle }
    }

    /// Takes the data of Authentication Send. Returns the work to run, if any; its result goes to
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
                self.begin_verifying(challenge, reply).map(Some)
            }
            (Stage::Answered, Message::Success2 { .. }) => {
                self.stage = Stage::Proven;
                Ok(None)
            }
            // The host has given up and expects no answer.
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

    fn begin_verifying(&mut self, challenge: Box<Challenge>, reply: Response) -> Result<Work, Refusal> {
        if reply.answer.len() != challenge.hash.bytes() || reply.public.len() != challenge.group.bytes() {
            return Err(Refusal::Payload);
        }
        // A host that sends the controller's own challenge wants the answer from the controller:
        // reflection.
        if reply.challenge.as_ref() == Some(&challenge.challenge) {
            return Err(Refusal::Failed);
        }
        let group = challenge.group;
        let peer = (group != DhGroup::Null).then(|| reply.public.clone());
        self.stage = Stage::Verifying(challenge, Box::new(reply));
        Ok(Work::new(group, &self.random.exponent, false, peer))
    }

    /// Takes the result of the work. It is ignored if the transaction has ended meanwhile.
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
            Stage::Verifying(challenge, reply) => {
                self.stage = match self.verify(&challenge, &reply, worked) {
                    Ok(success) => Stage::Convinced(Box::new(success)),
                    Err(refusal) => Stage::Refusing(refusal),
                };
            }
            other => self.stage = other,
        }
    }

    fn verify(&self, challenge: &Challenge, reply: &Response, worked: Worked) -> Result<Success, Refusal> {
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

    /// The data of the answer to Authentication Receive. The caller calls
    /// [`ControllerAuth::was_read`] once it is sent. `None` if there is no message, or not yet.
    pub fn reply(&self) -> Option<Vec<u8>> {
        let message = match &self.stage {
            Stage::Asking(challenge) => Message::Challenge((**challenge).clone()),
            Stage::Convinced(success) => Message::Success1((**success).clone()),
            Stage::Refusing(refusal) => Message::Failure1 { transaction: self.transaction, refusal: *refusal },
            _ => return None,
        };
        Some(message.encode())
    }

    /// The host has received the message of [`ControllerAuth::reply`].
    pub fn was_read(&mut self) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Asking(challenge) => Stage::Asked(challenge),
            Stage::Convinced(success) if success.answer.is_some() => Stage::Answered,
            Stage::Convinced(_) => Stage::Proven,
            Stage::Refusing(refusal) => Stage::Failed(refusal),
            other => other,
        };
    }

    /// The result: success, or why the host is refused. `None` while the transaction goes on.
    pub fn outcome(&self) -> Option<Result<(), Refusal>> {
        match self.stage {
            Stage::Proven => Some(Ok(())),
            Stage::Failed(refusal) => Some(Err(refusal)),
            _ => None,
        }
    }
}
