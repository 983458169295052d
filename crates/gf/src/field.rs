//! The field GF(2^8) with polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D) and generator 2.
//!
//! The polynomial and the generator are those of Linux RAID 6 (H. P. Anvin, "The mathematics of
//! RAID-6", section 1), so P and Q are the same bytes. Addition is XOR. All tables are computed at
//! compile time from [`double`] alone.

/// x^8 reduced by the polynomial: 0x11D without its leading bit.
pub const REDUCTION: u8 = 0x1d;

/// The order of the multiplicative group: g^255 = 1.
pub const ORDER: usize = 255;

/// `2 * a` in the field.
pub const fn double(a: u8) -> u8 {
    (a << 1) ^ (if a & 0x80 != 0 { REDUCTION } else { 0 })
}

/// `POWERS[n]` = 2^n, over two periods, so that a sum of two logarithms needs no reduction.
const POWERS: [u8; 2 * ORDER] = {
    let mut powers = [0u8; 2 * ORDER];
    let mut value = 1u8;
    let mut n = 0;
    while n < 2 * ORDER {
        powers[n] = value;
        value = double(value);
        n += 1;
    }
    powers
};

/// `LOGARITHMS[a]` = the n in 0..255 with 2^n = a; the entry for 0 is meaningless.
const LOGARITHMS: [u8; 256] = {
    let mut logarithms = [0u8; 256];
    let mut n = 0;
    while n < ORDER {
        logarithms[POWERS[n] as usize] = n as u8;
        n += 1;
    }
    logarithms
};

/// 2^n, for any n.
pub const fn power(n: usize) -> u8 {
    POWERS[n % ORDER]
}

/// The n in 0..255 with 2^n = a. Panics when `a` is 0, which has no logarithm.
pub const fn logarithm(a: u8) -> usize {
    assert!(a != 0, "zero has no logarithm");
    LOGARITHMS[a as usize] as usize
}

/// The product of two elements.
pub const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[LOGARITHMS[a as usize] as usize + LOGARITHMS[b as usize] as usize]
}

/// The element whose product with `a` is 1. Panics when `a` is 0, which has no inverse.
pub const fn inverse(a: u8) -> u8 {
    POWERS[ORDER - logarithm(a)]
}

/// One coefficient, in the forms in which the kernels need it.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct Multiplier {
    /// `low[n]` = coefficient * n: the low nibble's share of a product (for PSHUFB and TBL).
    pub low: [u8; 16],
    /// `high[n]` = coefficient * 16n: the high nibble's share.
    pub high: [u8; 16],
    /// The 8x8 bit matrix of the multiplication as GF2P8AFFINEQB reads it: byte 7-b is the mask of
    /// input bits whose parity is output bit b (Intel SDM volume 2, GF2P8AFFINEQB).
    pub affine: u64,
}

impl Multiplier {
    /// The tables of one coefficient.
    pub const fn new(coefficient: u8) -> Multiplier {
        let mut low = [0u8; 16];
        let mut high = [0u8; 16];
        let mut n = 0;
        while n < 16 {
            low[n] = multiply(coefficient, n as u8);
            high[n] = multiply(coefficient, (n as u8) << 4);
            n += 1;
        }
        let mut affine = 0u64;
        let mut input = 0;
        while input < 8 {
            let product = multiply(coefficient, 1 << input);
            let mut output = 0;
            while output < 8 {
                if product >> output & 1 == 1 {
                    affine |= 1 << (8 * (7 - output) + input);
                }
                output += 1;
            }
            input += 1;
        }
        Multiplier { low, high, affine }
    }

    /// The product of the coefficient and one byte.
    #[inline(always)]
    pub const fn times(&self, a: u8) -> u8 {
        self.low[(a & 15) as usize] ^ self.high[(a >> 4) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication from its definition: a product of polynomials, reduced by 0x11D.
    fn multiply_by_definition(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11d << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn every_product_is_that_of_the_definition() {
        for a in 0..=255u8 {
            let multiplier = Multiplier::new(a);
            for b in 0..=255u8 {
                let product = multiply_by_definition(a, b);
                assert_eq!(multiply(a, b), product);
                assert_eq!(multiplier.times(b), product);
                let by_matrix = (0..8).fold(0u8, |byte, bit| {
                    let mask = (multiplier.affine >> (8 * (7 - bit))) as u8;
                    byte | (((mask & b).count_ones() & 1) as u8) << bit
                });
                assert_eq!(by_matrix, product);
            }
        }
    }

    #[test]
    fn two_generates_every_element_but_zero() {
        let mut seen = [false; 256];
        for n in 0..ORDER {
            assert!(!seen[power(n) as usize]);
            seen[power(n) as usize] = true;
            assert_eq!(logarithm(power(n)), n);
            assert_eq!(multiply_by_definition(power(n), inverse(power(n))), 1);
        }
        assert!(!seen[0]);
    }
}
