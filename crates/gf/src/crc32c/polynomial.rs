//! Powers of x modulo the polynomial of Castagnoli, computed at compile time.
//!
//! Polynomials are written *reflected*: in a register of n bits, the lowest bit stands for x^(n-1).
//! So the bytes of a message, loaded as little endian, are its polynomial without any conversion.

/// x^32 modulo the polynomial, reflected: 0x1EDC6F41 with its bits reversed.
const X32: u32 = 0x82F6_3B78;

/// The 32-bit register times x: the effect of one zero bit on it.
pub(super) const fn times_x(register: u32) -> u32 {
    // The lowest bit stands for x^31.
    let overflow = 0u32.wrapping_sub(register & 1);
    (register >> 1) ^ (X32 & overflow)
}

/// x^`exponent`.
const fn power(exponent: usize) -> u32 {
    let mut power = 1 << 31; // x^0
    let mut count = 0;
    while count < exponent {
        power = times_x(power);
        count += 1;
    }
    power
}

/// The factors that advance a 128-bit piece of a message by `bytes`, with two carry-less products:
/// one for its first half, and one for its second.
///
/// The first half stands x^64 higher than the second. The product of two reflected 64-bit numbers
/// is one bit short of 128, which counts as a factor of x, so each factor has one x less.
pub(super) const fn fold_factors(bytes: usize) -> [u64; 2] {
    // Shifted, because the factors are reflected in 64 bits.
    [(power(8 * bytes + 63) as u64) << 32, (power(8 * bytes - 1) as u64) << 32]
}

/// The factor that advances a register by `bytes`. The carry-less product of both, appended as a
/// word to a register of zeroes, equals the register after `bytes` zero bytes.
///
/// Appending is a product with x^32, and a product of two reflected 32-bit numbers in 64 bits has
/// one x too many, as above. So the exponent is 33 less. `bytes` is at least 5.
pub(super) const fn shift_factor(bytes: usize) -> u32 {
    power(8 * bytes - 33)
}
