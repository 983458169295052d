//! Messages in Authentication Send and Receive: NVMe Base 2.0, clause 8.13.5.

use super::{DhGroup, Hash, Refusal};

/// The longest message that this module sends, in bytes: Reply with SHA-512 and ffdhe8192.
pub const MESSAGE_BYTES_MAX: usize = HEAD_BYTES + 64 + 64 + 1024;

/// AUTH_TYPE: messages of all protocols, and those of DH-HMAC-CHAP.
const COMMON: u8 = 0x00;
const DH_HMAC_CHAP: u8 = 0x01;

/// AUTH_ID.
const NEGOTIATE: (u8, u8) = (COMMON, 0x00);
const CHALLENGE: (u8, u8) = (DH_HMAC_CHAP, 0x01);
const REPLY: (u8, u8) = (DH_HMAC_CHAP, 0x02);
const SUCCESS_1: (u8, u8) = (DH_HMAC_CHAP, 0x03);
const SUCCESS_2: (u8, u8) = (DH_HMAC_CHAP, 0x04);
const FAILURE_2: (u8, u8) = (COMMON, 0xF0);
const FAILURE_1: (u8, u8) = (COMMON, 0xF1);

/// Bytes of the fixed part of a message.
const HEAD_BYTES: usize = 16;

/// Bytes of Failure1 and Failure2, and of the part that all messages begin with.
const FAILURE_BYTES: usize = 8;

/// A protocol descriptor of Negotiate. It follows the first eight bytes: identifiers of hashes from
/// byte 4 on, of groups from byte 34 on, at most 30 of each.
const DESCRIPTOR_BYTES: usize = 64;
const HASHES_AT: usize = 4;
const GROUPS_AT: usize = 34;
const IDS_MAX: usize = 30;

/// The only defined reason code.
const AUTHENTICATION_FAILURE: u8 = 1;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// AUTH_Negotiate, from the host.
    Negotiate(Negotiate),
    /// DH-HMAC-CHAP_Challenge, from the controller.
    Challenge(Challenge),
    /// DH-HMAC-CHAP_Reply, from the host.
    Reply(Response),
    /// DH-HMAC-CHAP_Success1, from the controller.
    Success1(Success),
    /// DH-HMAC-CHAP_Success2, from the host.
    Success2 {
        /// T_ID.
        transaction: u16,
    },
    /// AUTH_Failure1, from the controller.
    Failure1 {
        /// T_ID.
        transaction: u16,
        /// The reason.
        refusal: Refusal,
    },
    /// AUTH_Failure2, from the host.
    Failure2 {
        /// T_ID.
        transaction: u16,
        /// The reason.
        refusal: Refusal,
    },
}

/// The algorithms that a host offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiate {
    /// T_ID.
    pub transaction: u16,
    /// SC_C: the purpose of the session key; 0 for none.
    pub secure_channel: u8,
    /// Hash functions, at least one. Unknown identifiers are left out.
    pub hashes: Vec<Hash>,
    /// Groups, the same.
    pub groups: Vec<DhGroup>,
}

/// The controller's challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    /// T_ID.
    pub transaction: u16,
    /// The chosen hash function.
    pub hash: Hash,
    /// The chosen group.
    pub group: DhGroup,
    /// S1.
    pub sequence: u32,
    /// C1, as long as a digest.
    pub challenge: Vec<u8>,
    /// g^x mod p, as long as an element of the group.
    pub public: Vec<u8>,
}

/// The host's answer, and its own challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// T_ID.
    pub transaction: u16,
    /// S2.
    pub sequence: u32,
    /// R1, as long as a digest.
    pub answer: Vec<u8>,
    /// C2, if CVALID is set: the controller has to authenticate, too. As long as R1.
    pub challenge: Option<Vec<u8>>,
    /// g^y mod p.
    pub public: Vec<u8>,
}

/// The controller's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Success {
    /// T_ID.
    pub transaction: u16,
    /// The length of a digest in bytes.
    pub hash_bytes: u8,
    /// R2, if RVALID is set. As long as a digest.
    pub answer: Option<Vec<u8>>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Takes bytes from the front.
fn cut<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], Refusal> {
    let (front, rest) = bytes.split_at_checked(len).ok_or(Refusal::Payload)?;
    *bytes = rest;
    Ok(front)
}

/// CVALID and RVALID.
fn flag(byte: u8) -> Result<bool, Refusal> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Refusal::Payload),
    }
}

impl Message {
    /// Reads a message; bytes behind it are ignored.
    ///
    /// # Errors
    /// [`Refusal::Payload`] if it is malformed; other refusals if it asks for something that is not
    /// supported.
    pub fn parse(bytes: &[u8]) -> Result<Message, Refusal> {
        let head = bytes.get(..FAILURE_BYTES).ok_or(Refusal::Payload)?;
        let kind = (head[0], head[1]);
        let transaction = u16_at(head, 4);
        if kind == NEGOTIATE {
            return Negotiate::parse(bytes).map(Message::Negotiate);
        }
        if kind == FAILURE_1 || kind == FAILURE_2 {
            if head[6] != AUTHENTICATION_FAILURE {
                return Err(Refusal::Payload);
            }
            let refusal = Refusal::of(head[7]);
            return Ok(match kind {
                FAILURE_1 => Message::Failure1 { transaction, refusal },
                _ => Message::Failure2 { transaction, refusal },
            });
        }
        let (head, mut rest) = bytes.split_at_checked(HEAD_BYTES).ok_or(Refusal::Payload)?;
        let hash_bytes = usize::from(head[6]);
        if kind != SUCCESS_2 && !matches!(hash_bytes, 32 | 48 | 64) {
            return Err(Refusal::Payload);
        }
        Ok(match kind {
            CHALLENGE => {
                let hash = Hash::of(head[8]).ok_or(Refusal::Hash)?;
                let group = DhGroup::of(head[9]).ok_or(Refusal::Group)?;
                let public_bytes = usize::from(u16_at(head, 10));
                if hash.bytes() != hash_bytes || group.bytes() != public_bytes {
                    return Err(Refusal::Payload);
                }
                Message::Challenge(Challenge {
                    transaction,
                    hash,
                    group,
                    sequence: u32_at(head, 12),
                    challenge: cut(&mut rest, hash_bytes)?.to_vec(),
                    public: cut(&mut rest, public_bytes)?.to_vec(),
                })
            }
            REPLY => {
                let is_challenge_valid = flag(head[8])?;
                let answer = cut(&mut rest, hash_bytes)?.to_vec();
                // The field is present even if it is not valid.
                let challenge = cut(&mut rest, hash_bytes)?.to_vec();
                Message::Reply(Response {
                    transaction,
                    sequence: u32_at(head, 12),
                    answer,
                    challenge: is_challenge_valid.then_some(challenge),
                    public: cut(&mut rest, u16_at(head, 10).into())?.to_vec(),
                })
            }
            SUCCESS_1 => {
                let answer = if flag(head[8])? { Some(cut(&mut rest, hash_bytes)?.to_vec()) } else { None };
                Message::Success1(Success { transaction, hash_bytes: head[6], answer })
            }
            SUCCESS_2 => Message::Success2 { transaction },
            _ => return Err(Refusal::Payload),
        })
    }

    /// T_ID of bytes that may be malformed, so that the sender knows which transaction is refused.
    pub(super) fn transaction_of(bytes: &[u8]) -> Option<u16> {
        bytes.get(..FAILURE_BYTES).map(|head| u16_at(head, 4))
    }

    /// T_ID.
    pub fn transaction(&self) -> u16 {
        match self {
            Message::Negotiate(Negotiate { transaction, .. })
            | Message::Challenge(Challenge { transaction, .. })
            | Message::Reply(Response { transaction, .. })
            | Message::Success1(Success { transaction, .. })
            | Message::Success2 { transaction }
            | Message::Failure1 { transaction, .. }
            | Message::Failure2 { transaction, .. } => *transaction,
        }
    }

    /// The message as bytes.
    ///
    /// # Panics
    /// If a field does not have the length of its hash or group, or if there are no identifiers of
    /// a kind, or more than 30.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, len) = match self {
            Message::Negotiate(_) => (NEGOTIATE, FAILURE_BYTES + DESCRIPTOR_BYTES),
            Message::Challenge(_) => (CHALLENGE, HEAD_BYTES),
            Message::Reply(_) => (REPLY, HEAD_BYTES),
            Message::Success1(_) => (SUCCESS_1, HEAD_BYTES),
            Message::Success2 { .. } => (SUCCESS_2, HEAD_BYTES),
            Message::Failure1 { .. } => (FAILURE_1, FAILURE_BYTES),
            Message::Failure2 { .. } => (FAILURE_2, FAILURE_BYTES),
        };
        let mut bytes = vec![0; len];
        (bytes[0], bytes[1]) = kind;
        bytes[4..6].copy_from_slice(&self.transaction().to_le_bytes());
        match self {
            Message::Negotiate(negotiate) => negotiate.encode(&mut bytes),
            Message::Challenge(Challenge { hash, group, sequence, challenge, public, .. }) => {
                assert!(challenge.len() == hash.bytes() && public.len() == group.bytes());
                bytes[6] = hash.bytes() as u8;
                (bytes[8], bytes[9]) = (*hash as u8, *group as u8);
                bytes[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
                bytes[12..16].copy_from_slice(&sequence.to_le_bytes());
                bytes.extend_from_slice(challenge);
                bytes.extend_from_slice(public);
            }
            Message::Reply(Response { sequence, answer, challenge, public, .. }) => {
                bytes[6] = answer.len() as u8;
                bytes[8] = challenge.is_some().into();
                bytes[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
                bytes[12..16].copy_from_slice(&sequence.to_le_bytes());
                bytes.extend_from_slice(answer);
                match challenge {
                    Some(challenge) => {
                        assert_eq!(challenge.len(), answer.len());
                        bytes.extend_from_slice(challenge);
                    }
                    None => bytes.resize(bytes.len() + answer.len(), 0),
                }
                bytes.extend_from_slice(public);
            }
            Message::Success1(Success { hash_bytes, answer, .. }) => {
                bytes[6] = *hash_bytes;
                bytes[8] = answer.is_some().into();
                if let Some(answer) = answer {
                    assert_eq!(answer.len(), usize::from(*hash_bytes));
                    bytes.extend_from_slice(answer);
                }
            }
            Message::Success2 { .. } => {}
            Message::Failure1 { refusal, .. } | Message::Failure2 { refusal, .. } => {
                (bytes[6], bytes[7]) = (AUTHENTICATION_FAILURE, *refusal as u8);
            }
        }
        bytes
    }
}

impl Negotiate {
    fn parse(bytes: &[u8]) -> Result<Negotiate, Refusal> {
        // NAPD: the number of offered protocols. One of them has to be DH-HMAC-CHAP.
        let count = usize::from(bytes[7]);
        let descriptors = &bytes[FAILURE_BYTES..];
        if count == 0 || descriptors.len() < count * DESCRIPTOR_BYTES {
            return Err(Refusal::Payload);
        }
        let mut descriptors = descriptors[..count * DESCRIPTOR_BYTES].chunks_exact(DESCRIPTOR_BYTES);
        let descriptor = descriptors.find(|descriptor| descriptor[0] == DH_HMAC_CHAP).ok_or(Refusal::Protocol)?;
        let (hashes, groups) = (usize::from(descriptor[2]), usize::from(descriptor[3]));
        if !(1..=IDS_MAX).contains(&hashes) || !(1..=IDS_MAX).contains(&groups) {
            return Err(Refusal::Payload);
        }
        let hashes: Vec<Hash> = descriptor[HASHES_AT..][..hashes].iter().filter_map(|id| Hash::of(*id)).collect();
        let groups: Vec<DhGroup> = descriptor[GROUPS_AT..][..groups].iter().filter_map(|id| DhGroup::of(*id)).collect();
        if hashes.is_empty() {
            return Err(Refusal::Hash);
        }
        if groups.is_empty() {
            return Err(Refusal::Group);
        }
        Ok(Negotiate { transaction: u16_at(bytes, 4), secure_channel: bytes[6], hashes, groups })
    }

    fn encode(&self, bytes: &mut [u8]) {
        assert!((1..=IDS_MAX).contains(&self.hashes.len()) && (1..=IDS_MAX).contains(&self.groups.len()));
        (bytes[6], bytes[7]) = (self.secure_channel, 1);
        let descriptor = &mut bytes[FAILURE_BYTES..];
        descriptor[0] = DH_HMAC_CHAP;
        (descriptor[2], descriptor[3]) = (self.hashes.len() as u8, self.groups.len() as u8);
        descriptor[HASHES_AT..].iter_mut().zip(&self.hashes).for_each(|(byte, hash)| *byte = *hash as u8);
        descriptor[GROUPS_AT..].iter_mut().zip(&self.groups).for_each(|(byte, group)| *byte = *group as u8);
    }
}
