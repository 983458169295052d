//! Diffie-Hellman in the groups of RFC 7919: NVMe Base 2.0, figure 445.

use std::fmt;
use std::str::FromStr;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use zeroize::Zeroizing;

use super::{Refusal, primes};

/// A group, by its identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DhGroup {
    /// None: challenges are answered with the secret alone.
    Null = 0,
    /// ffdhe2048.
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
    /// ffdhe4096.
    Ffdhe4096 = 3,
    /// ffdhe6144.
    Ffdhe6144 = 4,
    /// ffdhe8192.
    Ffdhe8192 = 5,
}

impl DhGroup {
    /// All of them.
    pub const ALL: [DhGroup; 6] = [
        DhGroup::Null,
        DhGroup::Ffdhe2048,
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
    ];

    /// The group with this identifier. `None` if there is none.
    pub fn of(id: u8) -> Option<DhGroup> {
        DhGroup::ALL.into_iter().find(|group| *group as u8 == id)
    }

    /// The name, as in nvme-cli and the kernel.
    pub fn name(self) -> &'static str {
        match self {
            DhGroup::Null => "null",
            DhGroup::Ffdhe2048 => "ffdhe2048",
            DhGroup::Ffdhe3072 => "ffdhe3072",
            DhGroup::Ffdhe4096 => "ffdhe4096",
            DhGroup::Ffdhe6144 => "ffdhe6144",
            DhGroup::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// Bytes of an element of the group.
    pub fn bytes(self) -> usize {
        self.prime().len() / 2
    }

    fn prime(self) -> &'static str {
        match self {
            DhGroup::Null => "",
            DhGroup::Ffdhe2048 => primes::FFDHE2048,
            DhGroup::Ffdhe3072 => primes::FFDHE3072,
            DhGroup::Ffdhe4096 => primes::FFDHE4096,
            DhGroup::Ffdhe6144 => primes::FFDHE6144,
            DhGroup::Ffdhe8192 => primes::FFDHE8192,
        }
    }

    /// Bytes of an exponent. RFC 7919, appendix A, requires at least 225, 275, 325, 375 and 400
    /// bits for the strength of the groups. A full-length exponent would take many times as long.
    fn exponent_bytes(self) -> usize {
        match self {
            DhGroup::Null => 0,
            DhGroup::Ffdhe2048 => 32,
            DhGroup::Ffdhe3072 => 40,
            DhGroup::Ffdhe4096 => 48,
            DhGroup::Ffdhe6144 => 56,
            DhGroup::Ffdhe8192 => 64,
        }
    }
}

impl fmt::Display for DhGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DhGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<DhGroup, String> {
        let names = || DhGroup::ALL.map(DhGroup::name).join(", ");
        let found = DhGroup::ALL.into_iter().find(|group| group.name() == text);
        found.ok_or_else(|| format!("`{text}` is no Diffie-Hellman group: it is one of {}", names()))
    }
}

/// The exponentiations of one step. Their time depends on the group alone.
pub struct Work {
    group: DhGroup,
    exponent: Zeroizing<[u8; 64]>,
    /// Whether to compute g^x.
    is_public_wanted: bool,
    /// The peer's value. Its power is the shared secret.
    peer: Option<Vec<u8>>,
}

/// The result of [`Work::run`].
pub struct Worked {
    /// g^x mod p, as many bytes as the group has.
    pub(super) public: Vec<u8>,
    /// (g^y)^x mod p, as many bytes.
    pub(super) shared: Result<Zeroizing<Vec<u8>>, Refusal>,
}

impl Work {
    pub(super) fn new(
        group: DhGroup,
        exponent: &Zeroizing<[u8; 64]>,
        is_public_wanted: bool,
        peer: Option<Vec<u8>>,
    ) -> Work {
        Work { group, exponent: exponent.clone(), is_public_wanted, peer }
    }

    /// Runs the work: a few milliseconds, up to a hundred with the largest group.
    pub fn run(self) -> Worked {
        let Work { group, exponent, is_public_wanted, peer } = self;
        let nothing = || Ok(Zeroizing::new(Vec::new()));
        if group == DhGroup::Null {
            return Worked { public: Vec::new(), shared: nothing() };
        }
        let bits = group.bytes() as u32 * 8;
        let prime = BoxedUint::from_be_hex(group.prime(), bits).expect("digits of a prime");
        let prime = Odd::new(prime).expect("primes are odd");
        let parameters = BoxedMontyParams::new_vartime(prime.clone());
        let exponent_bits = group.exponent_bytes() as u32 * 8;
        let exponent = BoxedUint::from_be_slice(&exponent[..group.exponent_bytes()], exponent_bits)
            .map(Zeroizing::new)
            .expect("as many bytes");
        let power = |base: BoxedUint| {
            let power = BoxedMontyForm::new(base, &parameters).pow_bounded_exp(&exponent, exponent_bits);
            Zeroizing::new(Zeroizing::new(power.retrieve()).to_be_bytes().to_vec())
        };
        let two = BoxedUint::from(2u64).resize(bits);
        let public = if is_public_wanted { power(two.clone()).to_vec() } else { Vec::new() };
        let shared = match peer {
            None => nothing(),
            Some(peer) => match BoxedUint::from_be_slice(&peer, bits) {
                // "the DH exponential shall not be 0, 1, or p-1": with these values anyone knows
                // the shared secret.
                Ok(peer) if peer >= two && peer < prime.wrapping_sub(BoxedUint::from(1u64).resize(bits)) => {
                    Ok(power(peer))
                }
                _ => Err(Refusal::Payload),
            },
        };
        Worked { public, shared }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work({})", self.group)
    }
}

impl fmt::Debug for Worked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worked(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(group: DhGroup, exponent: u8, peer: Option<Vec<u8>>) -> Worked {
        Work::new(group, &Zeroizing::new([exponent; 64]), true, peer).run()
    }

    #[test]
    fn both_ends_come_to_the_same_secret_in_each_group() {
        for group in DhGroup::ALL {
            let (ours, theirs) = (work(group, 0xA5, None).public, work(group, 0x3C, None).public);
            assert_eq!((ours.len(), theirs.len()), (group.bytes(), group.bytes()));
            let here = work(group, 0xA5, Some(theirs.clone())).shared.expect("a value of the group");
            let there = work(group, 0x3C, Some(ours.clone())).shared.expect("a value of the group");
            assert_eq!(here, there);
            assert!(group == DhGroup::Null || (ours != theirs && *here != ours));
        }
    }

    #[test]
    fn values_that_give_the_secret_away_are_refused() {
        let group = DhGroup::Ffdhe2048;
        let prime = BoxedUint::from_be_hex(group.prime(), 2048).unwrap();
        let less = |by: u64| prime.wrapping_sub(BoxedUint::from(by).resize(2048)).to_be_bytes().to_vec();
        let small = |value: u8| {
            let mut bytes = vec![0; 256];
            bytes[255] = value;
            bytes
        };
        for bad in [small(0), small(1), less(1), less(0), vec![0xFF; 256], vec![2; 257]] {
            assert_eq!(work(group, 7, Some(bad)).shared.err(), Some(Refusal::Payload));
        }
        for good in [small(2), less(2)] {
            assert!(work(group, 7, Some(good)).shared.is_ok());
        }
    }

    /// RFC 7919: 64 one bits, the digits of e, which all groups share, and 64 one bits.
    #[test]
    fn the_primes_are_those_of_the_rfc() {
        let ones = "f".repeat(16);
        for pair in DhGroup::ALL[1..].windows(2) {
            let (shorter, longer) = (pair[0].prime(), pair[1].prime());
            let shared = shorter.len() - 16 - 33;
            assert_eq!(shorter[..shared], longer[..shared]);
            for prime in [shorter, longer] {
                assert!(
                    prime.starts_with(&ones) && prime.ends_with(&ones) && prime[16..].starts_with("adf85458a2bb4a9a")
                );
            }
        }
        // 2 generates the subgroup of (p-1)/2 elements, so 2^((p-1)/2) is 1. That holds for no
        // other number with these digits.
        for group in DhGroup::ALL[1..].iter() {
            let bits = group.bytes() as u32 * 8;
            let prime = BoxedUint::from_be_hex(group.prime(), bits).unwrap();
            let parameters = BoxedMontyParams::new_vartime(Odd::new(prime.clone()).unwrap());
            let two = BoxedUint::from(2u64).resize(bits);
            let power = BoxedMontyForm::new(two, &parameters).pow(&prime.shr(1)).retrieve();
            assert_eq!(power, BoxedUint::from(1u64).resize(bits), "{group}");
        }
    }
}
