//! The data of Reservation Report: NVMe Base 2.0, clause 7.5.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes, Unaligned};

use super::Reservations;

/// The head of the Reservation Status Extended data structure.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    generation: U32,
    kind: u8,
    registrants: U16,
    reserved7: [u8; 2],
    persists: u8,
    reserved10: [u8; 54],
}

/// The Registered Controller Extended data structure.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Registrant {
    cntlid: U16,
    status: u8,
    reserved3: [u8; 5],
    key: U64,
    host: [u8; 16],
    reserved32: [u8; 32],
}

/// CNTLID in a subsystem that creates controllers for each host.
const DYNAMIC: u16 = 0xFFFF;

impl Reservations {
    /// The Reservation Status Extended data structure.
    pub fn report(&self) -> Vec<u8> {
        let head = Head {
            generation: self.generation.into(),
            kind: self.held.map_or(0, |held| held.kind as u8),
            registrants: (self.registrants.len() as u16).into(),
            reserved7: [0; 2],
            persists: self.persists.into(),
            reserved10: [0; 54],
        };
        let mut bytes = head.as_bytes().to_vec();
        for (host, key) in &self.registrants {
            let registrant = Registrant {
                cntlid: DYNAMIC.into(),
                status: self.holds(host).into(),
                reserved3: [0; 5],
                key: (*key).into(),
                host: *host,
                reserved32: [0; 32],
            };
            bytes.extend_from_slice(registrant.as_bytes());
        }
        bytes
    }
}

const _: () = {
    assert!(size_of::<Head>() == 64);
    assert!(size_of::<Registrant>() == 64);
};
