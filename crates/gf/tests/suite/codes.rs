//! The codes themselves: the losses that they survive, the errors that they find, the shapes that
//! they refuse.

use crate::oracle::{Bytes, Products, slices, slices_mut};
use gf::{Code, CodeError, Decoder, Verdict, coefficient};

/// Minors of the coefficient matrix, grown column by column: `minors[rows]` is the determinant of
/// the chosen columns in the rows of the bit set `rows`, by Laplace expansion along the last
/// column. Signs do not matter where -1 = 1.
struct Minors<'a> {
    products: &'a Products,
    /// `matrix[column][row]`
    matrix: Vec<[u8; 8]>,
    row_count: usize,
    count: u64,
}

impl Minors<'_> {
    fn new(products: &Products, parity_count: usize, columns: usize) -> Minors<'_> {
        let column = |index| {
            std::array::from_fn(|row| if row < parity_count { coefficient(parity_count, row, index) } else { 0 })
        };
        Minors { products, matrix: (0..columns).map(column).collect(), row_count: parity_count, count: 0 }
    }

    /// Checks all minors of `size` and returns how many there are.
    fn are_not_zero(mut self, size: usize) -> u64 {
        let mut minors = [0; 256];
        minors[0] = 1;
        let row_sets: Vec<Vec<usize>> = (0..=size)
            .map(|rows| (0usize..1 << self.row_count).filter(|set| set.count_ones() as usize == rows).collect())
            .collect();
        self.grow(&minors, 0, &row_sets[1..]);
        self.count
    }

    fn grow(&mut self, minors: &[u8; 256], first: usize, row_sets: &[Vec<usize>]) {
        let Some((row_sets, larger)) = row_sets.split_first() else { return };
        for column in first..self.matrix.len() {
            let mut grown = [0; 256];
            for &rows in row_sets {
                let mut determinant = 0;
                let mut rest = rows;
                while rest != 0 {
                    let row = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    determinant ^= self.products.of(self.matrix[column][row], minors[rows ^ 1 << row]);
                }
                assert!(determinant != 0, "rows {rows:#b}, last column {column}");
                grown[rows] = determinant;
            }
            if larger.is_empty() {
                self.count += row_sets.len() as u64;
            }
            self.grow(&grown, column + 1, larger);
        }
    }
}

fn binomial(n: u64, k: u64) -> u64 {
    (0..k).fold(1, |product, i| product * (n - i) / (i + 1))
}

/// A code is MDS exactly if every square submatrix of its coefficients is invertible (MacWilliams
/// and Sloane, "The theory of error-correcting codes", chapter 11, theorem 8). Checks all
/// submatrices of `size`, for the most columns that a code with this many rows can have.
fn assert_invertible(parity_count: usize, size: usize) {
    let products = Products::new();
    // From four parity strips on, the rows do not depend on the number of parity strips: all eight
    // are checked at once, over the columns of the widest code with at least `size` of them.
    let columns = if parity_count < 4 { 64 - parity_count } else { 64 - size.max(4) };
    let count = Minors::new(&products, parity_count, columns).are_not_zero(size);
    assert_eq!(count, binomial(columns as u64, size as u64) * binomial(parity_count as u64, size as u64));
}

#[test]
fn up_to_three_parity_strips_survive_every_loss_they_promise() {
    assert_invertible(1, 1);
    for size in 1..=2 {
        assert_invertible(2, size);
    }
    for size in 1..=3 {
        assert_invertible(3, size);
    }
}

#[test]
fn four_to_eight_parity_strips_survive_every_loss_of_up_to_four_data_strips() {
    for size in 1..=4 {
        assert_invertible(8, size);
    }
}

#[test]
#[ignore = "4.9 * 10^9 determinants: minutes, with --release"]
fn four_to_eight_parity_strips_survive_every_loss_they_promise() {
    for size in 5..=8 {
        assert_invertible(8, size);
    }
}

/// The premise of the proof in `coefficient`'s documentation, for every size at once: the rows are
/// those of a Cauchy matrix, times a factor for each column, in points that are all distinct.
#[test]
fn the_higher_rows_are_a_cauchy_matrix_in_distinct_points() {
    let column_points: Vec<u8> = (0..60).map(|index| crate::oracle::power(2, index)).collect();
    // P belongs to the point 0, Q to the one at infinity.
    let row_points: Vec<u8> = (2..8).map(|row| crate::oracle::inverse(crate::oracle::power(2, row - 1))).collect();
    let mut points = [column_points.clone(), row_points.clone(), vec![0]].concat();
    points.sort_unstable();
    points.dedup();
    assert_eq!(points.len(), 60 + 6 + 1);
    for parity_count in 4..=8 {
        for (index, &a) in column_points.iter().enumerate().take(64 - parity_count) {
            assert_eq!(coefficient(parity_count, 0, index), crate::oracle::multiply(a, crate::oracle::inverse(a)));
            assert_eq!(coefficient(parity_count, 1, index), a);
            for (row, &b) in (2..parity_count).zip(&row_points) {
                let cauchy = crate::oracle::inverse(a ^ b);
                assert_eq!(coefficient(parity_count, row, index), crate::oracle::multiply(a, cauchy));
            }
        }
    }
}

fn stripe(data_count: usize, parity_count: usize, length: usize, bytes: &mut Bytes) -> (Code, Vec<Vec<u8>>) {
    let code = Code::new(data_count, parity_count).expect("a possible code");
    let mut strips = bytes.strips(data_count, length);
    let mut parity = vec![vec![0; length]; parity_count];
    code.encode(&slices(&strips), &mut slices_mut(&mut parity));
    strips.append(&mut parity);
    (code, strips)
}

fn assert_reconstructs(decoder: &Decoder, stripe: &[Vec<u8>]) {
    let sources: Vec<&[u8]> = decoder.sources().iter().map(|&strip| stripe[strip].as_slice()).collect();
    let mut out = vec![vec![0xee; stripe[0].len()]; decoder.lost().len()];
    decoder.reconstruct(&sources, &mut slices_mut(&mut out));
    for (out, &strip) in out.iter().zip(decoder.lost()) {
        assert!(*out == stripe[strip], "strip {strip} of lost {:?}", decoder.lost());
    }
}

/// All sets of at most `most` of the strips `from..count`.
fn each_set(count: usize, from: usize, most: usize, set: &mut Vec<usize>, visit: &mut impl FnMut(&[usize])) {
    visit(set);
    if set.len() < most {
        for strip in from..count {
            set.push(strip);
            each_set(count, strip + 1, most, set, visit);
            set.pop();
        }
    }
}

#[test]
fn every_set_of_losses_is_reconstructed() {
    let mut bytes = Bytes(2);
    for (data_count, parity_count) in [
        (1, 1),
        (5, 1),
        (63, 1),
        (1, 2),
        (6, 2),
        (62, 2),
        (1, 3),
        (7, 3),
        (20, 3),
        (6, 4),
        (5, 5),
        (4, 6),
        (3, 7),
        (6, 8),
    ] {
        let (code, stripe) = stripe(data_count, parity_count, 5, &mut bytes);
        let mut sets = 0;
        each_set(data_count + parity_count, 0, parity_count, &mut Vec::new(), &mut |lost| {
            let decoder = code.decoder(lost).unwrap();
            assert_eq!(decoder.lost(), lost);
            assert_eq!(decoder.sources().len(), data_count);
            assert!(decoder.sources().is_sorted());
            assert!(decoder.sources().iter().all(|strip| !lost.contains(strip)));
            assert_reconstructs(&decoder, &stripe);
            for wanted in lost {
                assert_reconstructs(&code.decoder_for(lost, &[*wanted]).unwrap(), &stripe);
            }
            sets += 1;
        });
        let strips = (data_count + parity_count) as u64;
        assert_eq!(sets, (0..=parity_count as u64).map(|size| binomial(strips, size)).sum::<u64>());
    }
}

#[test]
fn losses_come_back_in_the_order_they_were_named() {
    let (code, stripe) = stripe(6, 4, 40, &mut Bytes(3));
    for lost in [[5, 2], [2, 5], [7, 6], [6, 7], [9, 0], [0, 9]] {
        let decoder = code.decoder(&lost).unwrap();
        assert_eq!(decoder.lost(), lost);
        assert_reconstructs(&decoder, &stripe);
    }
}

#[test]
fn one_lost_data_strip_is_read_from_the_other_data_and_p() {
    let code = Code::new(4, 2).unwrap();
    assert_eq!(code.decoder(&[1]).unwrap().sources(), [0, 2, 3, 4]);
    assert_eq!(code.decoder(&[1, 4]).unwrap().sources(), [0, 2, 3, 5]);
    assert_eq!(code.decoder(&[4, 5]).unwrap().sources(), [0, 1, 2, 3]);
    assert_eq!(code.decoder(&[0, 3]).unwrap().sources(), [1, 2, 4, 5]);
}

#[test]
fn p_and_q_are_the_same_for_every_number_of_parity_strips() {
    let (_, raid6) = stripe(9, 2, 100, &mut Bytes(4));
    for parity_count in 3..=8 {
        let (_, stripe) = stripe(9, parity_count, 100, &mut Bytes(4));
        assert_eq!(stripe[..11], raid6[..11]);
    }
}

#[test]
fn updates_and_accumulation_lead_to_the_parity_of_encode() {
    let mut bytes = Bytes(5);
    for parity_count in 0..=8 {
        let (code, mut stripe) = stripe(7, parity_count, 77, &mut bytes);
        for index in [3, 0, 6, 3] {
            let new = bytes.strip(77);
            let old = std::mem::replace(&mut stripe[index], new);
            let (data, parity) = stripe.split_at_mut(7);
            code.update(index, &old, &data[index], &mut slices_mut(parity));
        }
        let (data, parity) = stripe.split_at(7);
        assert!(code.check(&slices(data), &slices(parity)));

        let mut accumulated = vec![vec![0; 77]; parity_count];
        for index in [4, 2, 6, 0, 1, 3, 5] {
            code.accumulate(index, &data[index], &mut slices_mut(&mut accumulated));
        }
        assert_eq!(accumulated, parity);
    }
}

#[test]
fn check_notices_every_single_changed_bit() {
    let mut bytes = Bytes(6);
    // Longer than one block of the check, so that the last one is partial.
    let length = 2048 + 100;
    for parity_count in 1..=8 {
        let (code, mut stripe) = stripe(3, parity_count, length, &mut bytes);
        let check = |stripe: &[Vec<u8>]| code.check(&slices(&stripe[..3]), &slices(&stripe[3..]));
        assert!(check(&stripe));
        for strip in 0..stripe.len() {
            for at in [0, 1, 2047, 2048, length - 1] {
                stripe[strip][at] ^= 1 << (at % 8);
                assert!(!check(&stripe), "strip {strip} byte {at}");
                stripe[strip][at] ^= 1 << (at % 8);
            }
        }
    }
}

fn locate(code: &Code, stripe: &[Vec<u8>]) -> Verdict {
    let (data, parity) = stripe.split_at(code.data_count());
    code.locate(&slices(data), &slices(parity))
}

#[test]
fn the_one_wrong_strip_is_named_whatever_its_error() {
    for (data_count, parity_count) in [(1, 2), (2, 2), (8, 2), (62, 2), (1, 3), (61, 3), (60, 4), (8, 5), (56, 8)] {
        let (code, stripe) = stripe(data_count, parity_count, 255, &mut Bytes(7));
        assert_eq!(locate(&code, &stripe), Verdict::Consistent);
        for strip in 0..data_count + parity_count {
            let mut wrong = stripe.clone();
            // Every possible error, each in its own column.
            for (at, byte) in wrong[strip].iter_mut().enumerate() {
                *byte ^= at as u8 + 1;
            }
            assert_eq!(locate(&code, &wrong), Verdict::OneWrong(strip), "{data_count}+{parity_count}");
            let mut wrong = stripe.clone();
            wrong[strip][200] ^= 0x40;
            assert_eq!(locate(&code, &wrong), Verdict::OneWrong(strip), "{data_count}+{parity_count}");
        }
    }
}

#[test]
fn columns_that_name_different_strips_name_none() {
    for parity_count in 2..=8 {
        let (code, stripe) = stripe(6, parity_count, 5000, &mut Bytes(8));
        for a in 0..stripe.len() {
            for b in (0..stripe.len()).filter(|&b| b != a) {
                let mut wrong = stripe.clone();
                wrong[a][17] ^= 3;
                wrong[b][4100] ^= 9;
                assert_eq!(locate(&code, &wrong), Verdict::Unknown, "{a} and {b}");
            }
        }
    }
}

#[test]
fn with_three_parity_strips_two_errors_in_a_column_are_never_taken_for_one() {
    for (data_count, parity_count) in [(5, 3), (61, 3), (5, 4), (20, 6), (56, 8)] {
        let mut bytes = Bytes(9);
        let (code, stripe) = stripe(data_count, parity_count, 255, &mut bytes);
        let mut wrong = stripe.clone();
        for a in 0..stripe.len() {
            for b in a + 1..stripe.len() {
                let at = bytes.below(255);
                let (error_a, error_b) = (1 + bytes.below(255) as u8, 1 + bytes.below(255) as u8);
                wrong[a][at] ^= error_a;
                wrong[b][at] ^= error_b;
                assert_eq!(locate(&code, &wrong), Verdict::Unknown, "{a} and {b}");
                wrong[a][at] ^= error_a;
                wrong[b][at] ^= error_b;
            }
        }
    }
}

#[test]
fn one_parity_strip_names_nothing() {
    let (code, mut stripe) = stripe(4, 1, 64, &mut Bytes(10));
    assert_eq!(locate(&code, &stripe), Verdict::Consistent);
    stripe[2][5] ^= 1;
    assert_eq!(locate(&code, &stripe), Verdict::Unknown);
}

#[test]
fn a_code_and_its_decoders_go_to_any_thread() {
    fn any_thread<T: Send + Sync + Clone>() {}
    any_thread::<Code>();
    any_thread::<Decoder>();
}

#[test]
fn impossible_codes_and_decoders_are_refused() {
    assert_eq!(Code::new(0, 2).unwrap_err(), CodeError::NoData);
    assert_eq!(Code::new(4, 9).unwrap_err(), CodeError::TooManyParityStrips { parity: 9 });
    assert_eq!(Code::new(61, 4).unwrap_err(), CodeError::TooManyStrips { data: 61, parity: 4 });
    assert_eq!(Code::new(usize::MAX, 4).unwrap_err(), CodeError::TooManyStrips { data: usize::MAX, parity: 4 });
    for parity in 0..=8 {
        assert!(Code::new(64 - parity, parity).is_ok());
    }
    let code = Code::new(4, 2).unwrap();
    assert_eq!(code.decoder(&[0, 1, 2]).unwrap_err(), CodeError::TooManyLosses { lost: 3, parity: 2 });
    assert_eq!(code.decoder(&[6]).unwrap_err(), CodeError::NoSuchStrip { strip: 6, strips: 6 });
    assert_eq!(code.decoder(&[3, 3]).unwrap_err(), CodeError::RepeatedStrip { strip: 3 });
    assert_eq!(code.decoder_for(&[3], &[2]).unwrap_err(), CodeError::NotLost { strip: 2 });
    assert!(code.decoder(&[]).unwrap().lost().is_empty());
}
