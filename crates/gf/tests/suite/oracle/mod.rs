//! The codes from their definitions, byte by byte, without code of the crate; and stripes to test
//! them on.

#![allow(dead_code, reason = "each test program uses a part of it")]

/// a * b mod x^8 + x^4 + x^3 + x^2 + 1, by long multiplication and long division.
pub fn multiply(a: u8, b: u8) -> u8 {
    let product = (0..8).filter(|bit| b >> bit & 1 == 1).fold(0u16, |sum, bit| sum ^ (u16::from(a) << bit));
    (8..16).rev().fold(product, |rest, bit| if rest >> bit & 1 == 1 { rest ^ (0x11d << (bit - 8)) } else { rest }) as u8
}

pub fn power(base: u8, exponent: usize) -> u8 {
    (0..exponent).fold(1, |product, _| multiply(product, base))
}

/// a^254, since a^255 = 1.
pub fn inverse(a: u8) -> u8 {
    let square = |a| multiply(a, a);
    let inverse = (0..6).fold(square(a), |product, _| square(multiply(product, a)));
    assert_eq!(multiply(a, inverse), 1, "only zero has no inverse");
    inverse
}

/// As in docs/format/parity.md.
pub fn coefficient(parity_count: usize, row: usize, data_index: usize) -> u8 {
    match (parity_count, row) {
        (_, 0) => 1,
        (_, 1) => power(2, data_index),
        (3, 2) => power(4, data_index),
        _ => inverse(1 ^ inverse(power(2, data_index + row - 1))),
    }
}

/// Products by table, for tests that need millions of them: those with a single bit from
/// [`multiply`], the others as their sums.
pub struct Products(Vec<[u8; 256]>);

impl Products {
    pub fn new() -> Products {
        let row = |a| {
            let mut row = [0u8; 256];
            for b in 1usize..256 {
                let rest = b & (b - 1);
                row[b] = if rest == 0 { multiply(a, b as u8) } else { row[rest] ^ row[b ^ rest] };
            }
            row
        };
        Products((0..=255).map(row).collect())
    }

    #[inline]
    pub fn of(&self, a: u8, b: u8) -> u8 {
        self.0[usize::from(a)][usize::from(b)]
    }
}

pub fn parity(products: &Products, parity_count: usize, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    (0..parity_count)
        .map(|row| {
            let mut strip = vec![0; data[0].len()];
            for (index, data) in data.iter().enumerate() {
                let factor = coefficient(parity_count, row, index);
                for (byte, &value) in strip.iter_mut().zip(data) {
                    *byte ^= products.of(factor, value);
                }
            }
            strip
        })
        .collect()
}

/// SplitMix64: bytes that are the same in every run.
pub struct Bytes(pub u64);

impl Bytes {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn strip(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    pub fn strips(&mut self, count: usize, length: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| self.strip(length)).collect()
    }
}

/// Strips at chosen offsets from a 64-byte boundary, between bytes that must not change.
pub struct Placed {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 64;

impl Placed {
    pub fn new(content: &[u8], offset: usize) -> Placed {
        let mut memory = vec![GUARD; content.len() + 3 * GUARD_BYTES + offset];
        let start = GUARD_BYTES + memory.as_ptr().align_offset(64).min(64) + offset;
        memory[start..start + content.len()].copy_from_slice(content);
        Placed { memory, start, length: content.len() }
    }

    pub fn strip(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    pub fn strip_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }

    pub fn surroundings_are_untouched(&self) -> bool {
        let (before, rest) = self.memory.split_at(self.start);
        before.iter().chain(&rest[self.length..]).all(|&byte| byte == GUARD)
    }
}

pub fn place(strips: &[Vec<u8>], offsets: &mut impl FnMut() -> usize) -> Vec<Placed> {
    strips.iter().map(|strip| Placed::new(strip, offsets())).collect()
}

pub fn strips(placed: &[Placed]) -> Vec<&[u8]> {
    placed.iter().map(Placed::strip).collect()
}

pub fn strips_mut(placed: &mut [Placed]) -> Vec<&mut [u8]> {
    placed.iter_mut().map(Placed::strip_mut).collect()
}

pub fn slices(strips: &[Vec<u8>]) -> Vec<&[u8]> {
    strips.iter().map(Vec::as_slice).collect()
}

pub fn slices_mut(strips: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    strips.iter_mut().map(Vec::as_mut_slice).collect()
}
