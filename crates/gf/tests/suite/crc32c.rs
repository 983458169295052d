//! CRC-32C: every kernel that this CPU runs, against long division and against published values.
//!
//! Under Miri, which is some thousand times slower, fewer lengths are tried: those around the
//! borders of each loop.

use crate::oracle::{Bytes, place};
use gf::{CRC32C_BLOCK, Crc32cKernel, crc32c, crc32c_append, crc32c_blocks, crc32c_kernels};
use proptest::prelude::*;

/// The register of RFC 3720, bit by bit: 0x1EDC6F41, read from its other end.
fn divide(register: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(register, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte), |register, _| {
            (register >> 1) ^ if register & 1 == 1 { 0x1EDC_6F41_u32.reverse_bits() } else { 0 }
        })
    })
}

fn oracle_append(sum: u32, bytes: &[u8]) -> u32 {
    !divide(!sum, bytes)
}

/// Miri has to be told the CPU's features, so a run under Miri is for the fastest kernel only.
fn tested_kernels() -> impl Iterator<Item = Crc32cKernel> {
    crc32c_kernels().take(if cfg!(miri) { 1 } else { usize::MAX })
}

#[test]
fn every_kernel_gives_the_published_sums() {
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    #[rustfmt::skip]
    let read_10 = [
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
        0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
    ];
    // RFC 3720, appendix B.4, whose sums are printed byte by byte as they are sent: the lowest
    // first.
    let vectors: [(&[u8], [u8; 4]); 5] = [
        (&[0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (&ascending, [0x4e, 0x79, 0xdd, 0x46]),
        (&descending, [0x5c, 0xdb, 0x3f, 0x11]),
        (&read_10, [0x56, 0x3a, 0x96, 0xd9]),
    ];
    for kernel in tested_kernels() {
        for (bytes, sum) in vectors {
            assert_eq!(kernel.append(0, bytes), u32::from_le_bytes(sum), "{} {bytes:x?}", kernel.name());
        }
        // The check value of CRC-32/ISCSI in the catalogue of parametrised CRC algorithms.
        assert_eq!(kernel.append(0, b"123456789"), 0xE306_9283, "{}", kernel.name());
        assert_eq!(kernel.append(0, b""), 0, "{}", kernel.name());
    }
}

#[test]
fn every_kernel_is_the_oracle_for_every_length_and_alignment_and_seed() {
    // Beyond two small chunks, and a block with everything after it.
    let lengths: Vec<usize> = match cfg!(miri) {
        true => vec![15, 512 + 17, 4096 + 512 + 9],
        false => (0..=1100).chain(4080..=4700).chain([8191, 8192, 9000, 12288, 65536]).collect(),
    };
    let mut bytes = Bytes(1);
    for length in lengths {
        let content = bytes.strip(length);
        let seed = if length % 3 == 0 { 0 } else { bytes.next() as u32 };
        let expected = oracle_append(seed, &content);
        let offset = bytes.below(64);
        let placed = place(&[content], &mut || offset);
        for kernel in tested_kernels() {
            let sum = kernel.append(seed, placed[0].strip());
            assert_eq!(sum, expected, "{} {length} bytes at {offset}, seed {seed:08x}", kernel.name());
        }
    }
}

#[test]
fn every_kernel_takes_every_bit_of_a_block_for_what_it_is() {
    let mut bytes = Bytes(2);
    let mut block = bytes.strip(CRC32C_BLOCK);
    let sum = oracle_append(0, &block);
    // CRCs are linear: the change by a flipped bit depends only on its place.
    let mut changes: Vec<u32> = (0..8).map(|bit| divide(0, &[1 << bit])).collect();
    for at in (0..CRC32C_BLOCK).rev() {
        for (bit, change) in changes.iter_mut().enumerate() {
            if !cfg!(miri) || at % 199 == bit {
                block[at] ^= 1 << bit;
                for kernel in tested_kernels() {
                    assert_eq!(kernel.append(0, &block), sum ^ *change, "{} byte {at} bit {bit}", kernel.name());
                }
                block[at] ^= 1 << bit;
            }
            *change = divide(*change, &[0]);
        }
    }
}

#[test]
fn blocks_have_the_sums_that_they_have_one_by_one() {
    let mut bytes = Bytes(3);
    for count in if cfg!(miri) { 1..=2 } else { 0..=9 } {
        let content = bytes.strip(count * CRC32C_BLOCK);
        let expected: Vec<u32> = content.chunks(CRC32C_BLOCK).map(|block| oracle_append(0, block)).collect();
        let placed = place(&[content], &mut || bytes.below(64));
        for kernel in tested_kernels() {
            let mut sums = vec![0; count];
            kernel.blocks(placed[0].strip(), &mut sums);
            assert_eq!(sums, expected, "{}", kernel.name());
        }
    }
}

#[test]
#[should_panic(expected = "a block for each sum")]
fn a_part_of_a_block_has_no_sum() {
    crc32c_blocks(&[0; CRC32C_BLOCK + 1], &mut [0]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "the lengths above reach the same loops")]
    fn sums_of_parts_are_the_sum_of_the_whole(
        length in 0usize..20_000, cuts in proptest::collection::vec(0usize..20_000, 0..4), seed in any::<u64>(),
    ) {
        let mut bytes = Bytes(seed);
        let content = bytes.strip(length);
        let placed = place(&[content], &mut || bytes.below(64));
        let content = placed[0].strip();
        let expected = oracle_append(0, content);
        prop_assert_eq!(crc32c(content), expected);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(length)).chain([0, length]).collect();
        cuts.sort_unstable();
        for kernel in crc32c_kernels() {
            let sum = cuts.windows(2).fold(0, |sum, part| kernel.append(sum, &content[part[0]..part[1]]));
            prop_assert_eq!(sum, expected, "{}", kernel.name());
        }
        let sum = cuts.windows(2).fold(0, |sum, part| crc32c_append(sum, &content[part[0]..part[1]]));
        prop_assert_eq!(sum, expected);
    }
}

#[test]
fn every_kernel_that_this_cpu_can_run_is_tested() {
    let mut expected = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq") {
            if is_x86_feature_detected!("vpclmulqdq") {
                if is_x86_feature_detected!("avx512f") {
                    expected.push("avx512-vpclmulqdq");
                }
                if is_x86_feature_detected!("avx2") {
                    expected.push("avx2-vpclmulqdq");
                }
            }
            expected.push("sse4.2-pclmulqdq");
        }
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("pmull") && std::arch::is_aarch64_feature_detected!("crc") {
        expected.push("neon-pmull");
    }
    expected.push("table");
    assert_eq!(crc32c_kernels().map(Crc32cKernel::name).collect::<Vec<_>>(), expected);
}
