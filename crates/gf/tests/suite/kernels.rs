//! Every kernel that this CPU runs, against the oracle: every length from 0 to beyond the widest
//! loop, every strip at its own alignment, with guard bytes around what is written.
//!
//! Under Miri, which is some thousand times slower, fewer lengths are tried: those around the
//! borders of each loop.

use crate::oracle::{Bytes, Placed, Products, place, strips, strips_mut};
use gf::{Code, Kernel, kernels};
use proptest::prelude::*;

/// The widest loop takes four registers of 64 bytes; then two more registers and a byte tail.
const LENGTH_MAX: usize = 256 + 2 * 64 + 63;

fn lengths() -> Vec<usize> {
    // The longest takes a wide step, three of one register, and one of a byte.
    if cfg!(miri) { vec![63, 449] } else { (0..=LENGTH_MAX).collect() }
}

/// Data strip counts that reach each branch of the loops: one, an odd and an even number.
fn data_counts() -> &'static [usize] {
    if cfg!(miri) { &[4] } else { &[1, 2, 3, 6] }
}

/// Under Miri one of each kind: XOR, P and Q, P and Q and R, and more.
fn parity_counts() -> &'static [usize] {
    if cfg!(miri) { &[1, 2, 3, 5] } else { &[0, 1, 2, 3, 4, 5, 6, 7, 8] }
}

struct Case {
    kernel: Kernel,
    products: Products,
    bytes: Bytes,
}

impl Case {
    fn each(mut test: impl FnMut(&mut Case)) {
        let mut count = 0;
        // Miri has to be told the CPU's features, so a run under Miri is for the fastest kernel
        // only.
        for kernel in kernels().take(if cfg!(miri) { 1 } else { usize::MAX }) {
            test(&mut Case { kernel, products: Products::new(), bytes: Bytes(1) });
            count += 1;
        }
        assert!(count > 0, "no kernel was tested");
    }

    fn place(&mut self, contents: &[Vec<u8>]) -> Vec<Placed> {
        place(contents, &mut || self.bytes.below(64))
    }

    fn code(&self, data: usize, parity: usize) -> Code {
        Code::with_kernel(data, parity, self.kernel).expect("a possible code")
    }

    fn assert_equal(&self, placed: &[Placed], expected: &[Vec<u8>], what: &str) {
        for (index, (placed, expected)) in placed.iter().zip(expected).enumerate() {
            assert!(
                placed.strip() == expected,
                "{} {what} strip {index} ({} bytes)",
                self.kernel.name(),
                expected.len()
            );
            assert!(placed.surroundings_are_untouched(), "{} {what} strip {index}", self.kernel.name());
        }
    }
}

#[test]
fn encode_is_the_oracles_for_every_length_and_alignment() {
    Case::each(|case| {
        for length in lengths() {
            for &data_count in data_counts() {
                let data = case.bytes.strips(data_count, length);
                let placed_data = case.place(&data);
                for &parity_count in parity_counts() {
                    let expected = crate::oracle::parity(&case.products, parity_count, &data);
                    let junk = case.bytes.strips(parity_count, length);
                    let mut out = case.place(&junk);
                    case.code(data_count, parity_count).encode(&strips(&placed_data), &mut strips_mut(&mut out));
                    case.assert_equal(&out, &expected, "encode");
                    case.assert_equal(&placed_data, &data, "data");
                }
            }
        }
    });
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there")]
fn encode_of_more_than_the_cache_holds_is_the_oracles() {
    // From 512 KiB a stripe on, aligned parity is written around the cache.
    Case::each(|case| {
        for parity_count in 1..=4 {
            let data = case.bytes.strips(8, (64 << 10) + 77);
            let placed_data = case.place(&data);
            let expected = crate::oracle::parity(&case.products, parity_count, &data);
            for offset in [0, 32, 1] {
                let mut out = place(&vec![vec![0; data[0].len()]; parity_count], &mut || offset);
                case.code(8, parity_count).encode(&strips(&placed_data), &mut strips_mut(&mut out));
                case.assert_equal(&out, &expected, "encode");
            }
        }
    });
}

#[test]
fn update_and_accumulate_are_the_oracles_for_every_length_and_alignment() {
    Case::each(|case| {
        for length in lengths() {
            for &parity_count in parity_counts() {
                let code = case.code(5, parity_count);
                let data_index = case.bytes.below(5);
                let before = case.bytes.strips(parity_count, length);
                let (old, new) = (case.bytes.strip(length), case.bytes.strip(length));
                let sources = case.place(&[old.clone(), new.clone()]);
                let expected = |change: &dyn Fn(usize) -> u8| -> Vec<Vec<u8>> {
                    let with = |(row, strip): (usize, &Vec<u8>)| {
                        let factor = crate::oracle::coefficient(parity_count, row, data_index);
                        let byte = |at: usize| strip[at] ^ case.products.of(factor, change(at));
                        (0..length).map(byte).collect()
                    };
                    before.iter().enumerate().map(with).collect()
                };
                let (updated, accumulated) = (expected(&|at| old[at] ^ new[at]), expected(&|at| new[at]));

                let mut out = case.place(&before);
                code.update(data_index, sources[0].strip(), sources[1].strip(), &mut strips_mut(&mut out));
                case.assert_equal(&out, &updated, "update");
                let mut out = case.place(&before);
                code.accumulate(data_index, sources[1].strip(), &mut strips_mut(&mut out));
                case.assert_equal(&out, &accumulated, "accumulate");
            }
        }
    });
}

#[test]
fn reconstruct_gives_back_what_was_lost_for_every_length_and_alignment() {
    Case::each(|case| {
        // Losses that take each path through the decoder: a plain sum, P and Q, two data strips,
        // one to eight rows.
        let shapes: &[(usize, usize, &[usize])] = &[
            (4, 1, &[2]),
            (4, 1, &[4]),
            (4, 2, &[3]),
            (4, 2, &[5, 4]),
            (4, 2, &[1, 4]),
            (4, 2, &[2, 0]),
            (4, 2, &[2, 3]),
            (2, 2, &[0, 1]),
            (5, 3, &[4, 0, 2]),
            (5, 3, &[6, 1, 7]),
            (6, 4, &[5, 0, 2, 3]),
            (6, 5, &[1, 10, 0, 7, 4]),
            (8, 8, &[0, 1, 2, 3, 4, 5, 6, 7]),
            (3, 7, &[0, 3, 4, 1, 9, 2, 6]),
        ];
        for length in lengths() {
            for &(data_count, parity_count, lost) in shapes {
                let code = case.code(data_count, parity_count);
                let mut stripe = case.bytes.strips(data_count, length);
                stripe.extend(crate::oracle::parity(&case.products, parity_count, &stripe));
                let decoder = code.decoder(lost).unwrap();
                let contents: Vec<_> = decoder.sources().iter().map(|&strip| stripe[strip].clone()).collect();
                let sources = case.place(&contents);
                let junk = case.bytes.strips(lost.len(), length);
                let mut out = case.place(&junk);
                decoder.reconstruct(&strips(&sources), &mut strips_mut(&mut out));
                let expected: Vec<_> = lost.iter().map(|&strip| stripe[strip].clone()).collect();
                case.assert_equal(&out, &expected, "reconstruct");
            }
        }
    });
}

#[test]
fn xor_into_and_is_zero_see_every_byte() {
    Case::each(|case| {
        for length in lengths() {
            let (a, b) = (case.bytes.strip(length), case.bytes.strip(length));
            let expected: Vec<u8> = a.iter().zip(&b).map(|(a, b)| a ^ b).collect();
            let source = case.place(&[b]);
            let mut out = case.place(&[a]);
            case.kernel.xor_into(out[0].strip_mut(), source[0].strip());
            case.assert_equal(&out, &[expected], "xor_into");

            let mut zeroes = case.place(&[vec![0; length]]);
            assert!(case.kernel.is_zero(zeroes[0].strip()));
            for at in 0..length {
                if cfg!(miri) && at % 64 != 21 {
                    continue;
                }
                zeroes[0].strip_mut()[at] = 1 << (at % 8);
                assert!(!case.kernel.is_zero(zeroes[0].strip()), "{} {at} of {length}", case.kernel.name());
                zeroes[0].strip_mut()[at] = 0;
            }
        }
    });
}

#[test]
fn every_product_is_the_oracles() {
    // Each coefficient of a code, times each byte, in every position of a register.
    Case::each(|case| {
        let strip: Vec<u8> = (0..=255).collect();
        for parity_count in if cfg!(miri) { vec![3] } else { vec![2, 3, 8] } {
            let data_count = if cfg!(miri) { 4 } else { gf::STRIPS_MAX - parity_count };
            let code = case.code(data_count, parity_count);
            for data_index in 0..data_count {
                let mut out = vec![vec![0; 256]; parity_count];
                code.accumulate(data_index, &strip, &mut crate::oracle::slices_mut(&mut out));
                for (row, out) in out.iter().enumerate() {
                    let factor = crate::oracle::coefficient(parity_count, row, data_index);
                    assert!((0..=255).all(|byte| out[usize::from(byte)] == case.products.of(factor, byte)));
                }
            }
        }
    });
}

/// The shape of a stripe, a length, and a seed for contents, alignments and losses.
fn stripes() -> impl Strategy<Value = (usize, usize, usize, u64)> {
    (0usize..=8).prop_flat_map(|parity| (1..=64 - parity, Just(parity), 0usize..12_000, any::<u64>()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "the lengths above reach the same loops")]
    fn any_stripe_survives_any_losses((data_count, parity_count, length, seed) in stripes()) {
        let products = Products::new();
        let mut bytes = Bytes(seed);
        let data = bytes.strips(data_count, length);
        let expected = crate::oracle::parity(&products, parity_count, &data);
        let stripe = place(&[data, expected.clone()].concat(), &mut || bytes.below(64));
        let (data, stored) = stripe.split_at(data_count);
        let mut lost: Vec<usize> = Vec::new();
        let loss_count = bytes.below(parity_count + 1);
        while lost.len() < loss_count {
            let strip = bytes.below(data_count + parity_count);
            if !lost.contains(&strip) {
                lost.push(strip);
            }
        }
        let wanted = &lost[..bytes.below(loss_count + 1)];
        for kernel in kernels() {
            let code = Code::with_kernel(data_count, parity_count, kernel).unwrap();
            let mut out = place(&vec![vec![0x5a; length]; parity_count], &mut || bytes.below(64));
            code.encode(&strips(data), &mut strips_mut(&mut out));
            for (out, expected) in out.iter().zip(&expected) {
                prop_assert!(out.strip() == expected, "{} encode", kernel.name());
                prop_assert!(out.surroundings_are_untouched());
            }
            prop_assert!(code.check(&strips(data), &strips(stored)));

            for decoder in [code.decoder(&lost).unwrap(), code.decoder_for(&lost, wanted).unwrap()] {
                prop_assert_eq!(decoder.sources().len(), data_count);
                let sources: Vec<&[u8]> = decoder.sources().iter().map(|&strip| stripe[strip].strip()).collect();
                let mut out = place(&vec![vec![0x5a; length]; decoder.lost().len()], &mut || bytes.below(64));
                decoder.reconstruct(&sources, &mut strips_mut(&mut out));
                for (out, &strip) in out.iter().zip(decoder.lost()) {
                    prop_assert!(out.strip() == stripe[strip].strip(), "{} strip {strip}", kernel.name());
                    prop_assert!(out.surroundings_are_untouched());
                }
            }
        }
    }
}

#[test]
fn every_kernel_that_this_cpu_can_run_is_tested() {
    let mut expected = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("gfni") {
            expected.push("avx512-gfni");
        }
        if is_x86_feature_detected!("avx2") {
            expected.push("avx2");
        }
    }
    #[cfg(target_arch = "aarch64")]
    expected.push("neon");
    expected.push("scalar");
    assert_eq!(kernels().map(Kernel::name).collect::<Vec<_>>(), expected);
    assert_eq!(gf::kernel_name(), expected[0]);
}
