//! Computes lost strips from surviving ones.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::code::{Code, CodeError};
use crate::coefficient::{PARITY_MAX, coefficient};
use crate::field::{Multiplier, inverse, multiply, power};
use crate::kernel::SolvePq;
use crate::transform::{Square, Transform, invert};

/// A plan for computing certain lost strips of a stripe from surviving ones. Made by
/// [`Code::decoder`]; usable for any number of stripes.
#[derive(Clone)]
pub struct Decoder {
    code: Code,
    wanted: Box<[usize]>,
    sources: Box<[usize]>,
    plan: Plan,
}

#[derive(Clone)]
enum Plan {
    /// No strip is wanted.
    Nothing,
    /// The one wanted strip is the sum of the sources.
    Sum,
    /// P and Q are wanted, and all data is there; with `swapped`, Q first.
    Parity { swapped: bool },
    /// Two data strips are wanted, computed from the other data, P and Q; with `swapped`, the later
    /// strip first.
    SolvePq { solve: Box<SolvePq>, swapped: bool },
    /// All other cases.
    General(Transform),
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("code", &self.code)
            .field("lost", &self.wanted)
            .field("sources", &self.sources)
            .finish()
    }
}

impl Decoder {
    pub(crate) fn new(code: &Code, lost: &[usize], wanted: &[usize]) -> Result<Decoder, CodeError> {
        let (data_count, strips) = (code.data_count(), code.strip_count());
        for list in [lost, wanted] {
            for (n, &strip) in list.iter().enumerate() {
                if strip >= strips {
                    return Err(CodeError::NoSuchStrip { strip, strips });
                }
                if list[..n].contains(&strip) {
                    return Err(CodeError::RepeatedStrip { strip });
                }
            }
        }
        if lost.len() > code.parity_count() {
            return Err(CodeError::TooManyLosses { lost: lost.len(), parity: code.parity_count() });
        }
        if let Some(&strip) = wanted.iter().find(|strip| !lost.contains(strip)) {
            return Err(CodeError::NotLost { strip });
        }
        let sources: Vec<usize> = (0..strips).filter(|strip| !lost.contains(strip)).take(data_count).collect();
        let plan = plan(code, lost, wanted, &sources);
        Ok(Decoder { code: code.clone(), wanted: wanted.into(), sources: sources.into(), plan })
    }

    /// The strips to read: exactly [`data_count`](Code::data_count) of them, ascending. They are
    /// the surviving data strips and, in place of the lost ones, the first surviving parity strips.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// The strips that [`reconstruct`](Decoder::reconstruct) computes, in the order in which they
    /// were passed to [`Code::decoder`], or as `wanted` to [`Code::decoder_for`].
    pub fn lost(&self) -> &[usize] {
        &self.wanted
    }

    /// Computes the lost strips. `sources` has the content of the strips
    /// [`sources`](Decoder::sources), `out` receives that of the strips [`lost`](Decoder::lost),
    /// both in that order. The strips may be parts of whole ones, if all are the same part.
    ///
    /// # Panics
    /// If the number of strips differs from those lists, or not all strips are equally long.
    pub fn reconstruct(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        assert_eq!(sources.len(), self.sources.len(), "sources");
        assert_eq!(out.len(), self.wanted.len(), "lost strips");
        let length = sources[0].len();
        assert!(sources.iter().all(|strip| strip.len() == length), "sources differ in length");
        assert!(out.iter().all(|strip| strip.len() == length), "lost strips are not as long as the sources");
        let operations = self.code.operations();
        match (&self.plan, out) {
            (Plan::Nothing, _) => {}
            // SAFETY: here and below, the operations run on this CPU, there are sources, and all
            // strips are equally long: checked above.
            (Plan::Sum, [out]) => unsafe { (operations.xor)(sources, out) },
            (Plan::Parity { swapped }, [first, second]) => {
                let (p, q) = if *swapped { (second, first) } else { (first, second) };
                // SAFETY: as above.
                unsafe { (operations.pq)(sources, p, q) }
            }
            (Plan::SolvePq { solve, swapped }, [first, second]) => {
                let (x, y) = if *swapped { (second, first) } else { (first, second) };
                let [data @ .., p, q] = sources else { unreachable!("P and Q are sources") };
                // SAFETY: as above; x < y, and `data` lacks exactly these two data strips.
                unsafe { (operations.solve_pq)(solve, data, p, q, x, y) }
            }
            (Plan::General(transform), out) => transform.apply(operations, sources, out),
            _ => unreachable!("a plan is made for the number of wanted strips"),
        }
    }
}

fn plan(code: &Code, lost: &[usize], wanted: &[usize], sources: &[usize]) -> Plan {
    let data_count = code.data_count();
    match *wanted {
        [] => return Plan::Nothing,
        [_, _] if lost.len() == 2 && lost.iter().all(|&strip| strip < data_count) => {
            let (x, y) = (lost[0].min(lost[1]), lost[0].max(lost[1]));
            // P gives Dx + Dy, Q gives g^x Dx + g^y Dy.
            let scale = inverse(power(x) ^ power(y));
            let p_factor = Multiplier::new(multiply(power(y), scale));
            let q_factor = Multiplier::new(scale);
            return Plan::SolvePq { solve: Box::new(SolvePq { x, y, p_factor, q_factor }), swapped: wanted[0] != x };
        }
        [a, b] if a.min(b) == data_count && a.max(b) == data_count + 1 && sources[data_count - 1] < data_count => {
            return Plan::Parity { swapped: a > b };
        }
        _ => {}
    }
    let matrix = matrix(code, lost, wanted, sources);
    if wanted.len() == 1 && matrix.iter().all(|&factor| factor == 1) {
        return Plan::Sum;
    }
    Plan::General(Transform::new(&matrix, data_count))
}

/// The coefficients of each wanted strip, one per source.
///
/// Let B be the coefficients of the u lost data strips in the u parity strips among the sources.
/// These parity strips minus the contribution of the surviving data are B times the lost data. So
/// the inverse of B gives the lost data, and from it follow the lost parity strips.
fn matrix(code: &Code, lost: &[usize], wanted: &[usize], sources: &[usize]) -> Vec<u8> {
    let data_count = code.data_count();
    let factor = |parity_strip: usize, data: usize| coefficient(code.parity_count(), parity_strip - data_count, data);
    let lost_data: Vec<usize> = lost.iter().copied().filter(|&strip| strip < data_count).collect();
    let (data, parity) = sources.split_at(data_count - lost_data.len());

    let mut square: Square = [[0; PARITY_MAX]; PARITY_MAX];
    for (row, &parity_strip) in square.iter_mut().zip(parity) {
        for (entry, &strip) in row.iter_mut().zip(&lost_data) {
            *entry = factor(parity_strip, strip);
        }
    }
    let inverse = invert(square, lost_data.len()).expect("every square submatrix of the code is invertible");

    // Adds `scale` times the lost data strip number `index` to `row`.
    let add_lost_data = |row: &mut [u8], index: usize, scale: u8| {
        for (position, &parity_strip) in parity.iter().enumerate() {
            let share = multiply(scale, inverse[index][position]);
            row[data.len() + position] ^= share;
            for (entry, &strip) in row.iter_mut().zip(data) {
                *entry ^= multiply(share, factor(parity_strip, strip));
            }
        }
    };
    let mut matrix = vec![0; wanted.len() * data_count];
    for (row, &strip) in matrix.chunks_exact_mut(data_count).zip(wanted) {
        if let Some(index) = lost_data.iter().position(|&lost| lost == strip) {
            add_lost_data(row, index, 1);
            continue;
        }
        for (entry, &surviving) in row.iter_mut().zip(data) {
            *entry = factor(strip, surviving);
        }
        for (index, &lost) in lost_data.iter().enumerate() {
            add_lost_data(row, index, factor(strip, lost));
        }
    }
    matrix
}
