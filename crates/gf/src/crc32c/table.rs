//! One byte at a time, for CPUs without a faster kernel, and for the last bytes of a message.

use super::{CRC32C_BLOCK, Operations, polynomial};

pub(super) static OPERATIONS: Operations = Operations { name: "table", append, blocks };

/// The register after its lowest byte is shifted out with 8 zero bits, for each value of that byte.
static AFTER_BYTE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = polynomial::times_x(register);
            bit += 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
};

pub(super) fn append(register: u32, bytes: &[u8]) -> u32 {
    let after = |register: u32, byte: &u8| AFTER_BYTE[usize::from(register as u8 ^ byte)] ^ (register >> 8);
    bytes.iter().fold(register, after)
}

fn blocks(bytes: &[u8], sums: &mut [u32]) {
    for (block, sum) in bytes.chunks_exact(CRC32C_BLOCK).zip(sums) {
        *sum = !append(!0, block);
    }
}
