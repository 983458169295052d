//! Powers of x modulo the polynomial of Castagnoli, computed when the program is compiled.
//!
//! Polynomials are written *reflected*: of a register of n bits, the lowest stands for x^(n-1). So
//! the bytes of a message, loaded in little endian, are its polynomial as it is.

/// x^32 modulo the polynomial, reflected: 0x1EDC6F41 from the other end.
const X32: u32 = 0x82F6_3B78;

/// The 32-bit register times x: what each bit of zero does to it.
pub(super) const fn times_x(register: u32) -> u32 {
    // Its lowest bit stands for x^31.
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

/// What takes a 128-bit piece of a message `bytes` further, by two carry-less products: the factor
/// for its first half, and the one for its second.
///
/// The first half stands x^64 higher than the second. The product of two reflected 64-bit numbers
/// is one bit short of 128, which counts as a factor of x: so there is one less in each factor.
pub(super) const fn fold_factors(bytes: usize) -> [u64; 2] {
    // Shifted: reflected in 64 bits.
    [(power(8 * bytes + 63) as u64) << 32, (power(8 * bytes - 1) as u64) << 32]
}

/// What takes a register `bytes` further: their carry-less product, appended to a register of
/// zeroes as a word, is what `bytes` bytes of zeroes would make of it.
///
/// Appending is a product with x^32, and a product of two reflected 32-bit numbers in 64 bits has
/// one x too many as above: the factor has so much less. At least 5 bytes.
pub(super) const fn shift_factor(bytes: usize) -> u32 {
    power(8 * bytes - 33)
}
