//! The algorithms, written once for all instruction sets.
//!
//! Each function walks the byte positions of a stripe (the bytes at one offset in every strip),
//! `WIDE` registers at a time. It reads each strip of those byte positions once, keeps the results
//! in registers and writes them once. The rest is walked one register at a time, then byte by byte
//! with the same code.
//!
//! P is the sum of D_i, Q that of g^i times D_i, R that of g^2i times D_i. Horner's rule computes Q
//! and R from the last strip down, so each step multiplies only by 2 (or 4): `q = 2q ^ d`.
//!
//! # Safety of every function
//! That of [`Operations`](super::Operations): the CPU has the instruction set of `L`, and all
//! strips are equally long.

use core::ops::Range;

use super::lanes::Lanes;
use super::{ROWS_MAX, SolvePq};
use crate::field::Multiplier;

/// Runs `$walk::<L, WIDE>` over as many byte positions as possible, then one register at a time,
/// then byte by byte. Each walk gets the first byte position and the end, and returns the first
/// byte position that it left.
macro_rules! all_positions {
    ($positions:expr, $wide:expr, $walk:ident :: <$lanes:ident $(, $more:tt)*>, $($argument:expr),*) => {{
        let Range { start: mut at, end: length } = $positions;
        // SAFETY: the caller's promise; a byte register runs on every CPU.
        unsafe {
            at = $walk::<$lanes, { $wide } $(, $more)*>($($argument,)* at, length);
            if at < length {
                at = $walk::<$lanes, 1 $(, $more)*>($($argument,)* at, length);
            }
            if at < length {
                at = $walk::<u8, 1 $(, $more)*>($($argument,)* at, length);
            }
        }
        debug_assert_eq!(at, length);
    }};
}

/// Loads `WIDE` registers from `strip` at `at`.
///
/// This is a loop and not `array::from_fn`, here and below: a closure has no target features and is
/// not inlined, so each register would need a call and go through memory.
#[inline(always)]
unsafe fn load<L: Lanes, const WIDE: usize>(strip: *const u8, at: usize) -> [L; WIDE] {
    // SAFETY: the caller has checked that `at + WIDE * L::BYTES` is within the strip.
    unsafe {
        let mut values = [L::zero(); WIDE];
        for (n, value) in values.iter_mut().enumerate() {
            *value = L::load(strip.add(at + n * L::BYTES));
        }
        values
    }
}

/// With `STREAM`, `strip` at `at` must be aligned to a register, and the caller must fence.
#[inline(always)]
unsafe fn store<L: Lanes, const WIDE: usize, const STREAM: bool>(values: [L; WIDE], strip: *mut u8, at: usize) {
    for (n, value) in values.into_iter().enumerate() {
        // SAFETY: as in `load`.
        unsafe {
            let place = strip.add(at + n * L::BYTES);
            if STREAM { value.stream(place) } else { value.store(place) }
        }
    }
}

/// Distance from the current byte position at which outputs are prefetched. A store that misses the
/// first-level cache delays all stores after it. A shorter distance is too late; a longer one would
/// evict lines that have not been used yet.
const WRITE_AHEAD_BYTES: usize = 512;

/// Prefetches the lines of `strip` that will be written some byte positions later.
#[inline(always)]
unsafe fn prefetch_to_write<L: Lanes, const WIDE: usize>(strip: *mut u8, at: usize) {
    const LINE_BYTES: usize = 64;
    if WIDE > 1 {
        for line in (0..WIDE * L::BYTES).step_by(LINE_BYTES) {
            // SAFETY: the caller's promise. The address may lie beyond the strip; it is only
            // prefetched.
            unsafe { L::prefetch_to_write(strip.wrapping_add(at + WRITE_AHEAD_BYTES + line)) };
        }
    }
}

/// Stripes of at least this size write their parity around the cache. A second-level cache of 512
/// KiB, common among CPUs with AVX2, does not hold the parity until it is needed. And the lines
/// need not be fetched before they are written. `docs/decisions/gf-stores.md` has the measurements.
const STREAM_STRIPE_BYTES: usize = 512 << 10;

/// Whether the outputs of an encoding bypass the cache.
fn streams<L: Lanes>(data: &[&[u8]], outputs: &[*mut u8]) -> bool {
    let length = data[0].len();
    (data.len() + outputs.len()) * length >= STREAM_STRIPE_BYTES
        && outputs.iter().all(|strip| strip.addr().is_multiple_of(L::BYTES))
}

/// `all_positions` for a `$walk` whose last constant is `STREAM`. If `$streams` is set, the wide
/// steps bypass the cache.
macro_rules! all_positions_streaming {
    ($streams:expr, $length:expr, $wide:expr, $walk:ident :: <$lanes:ident>, $($argument:expr),*) => {{
        let mut at = 0;
        if $streams {
            // SAFETY: the caller's promise. `streams` has checked that the outputs are aligned to a
            // register, and every step is a multiple of a register.
            unsafe {
                at = $walk::<$lanes, { $wide }, true>($($argument,)* at, $length);
                $lanes::fence();
            }
        }
        all_positions!(at..$length, $wide, $walk::<$lanes, false>, $($argument),*);
    }};
}

/// Prepares each value for multiplication.
#[inline(always)]
unsafe fn multiplicands<L: Lanes, const WIDE: usize>(values: [L; WIDE]) -> [L::Multiplicand; WIDE] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut ready = [L::zero().multiplicand(); WIDE];
        for (ready, value) in ready.iter_mut().zip(values) {
            *ready = value.multiplicand();
        }
        ready
    }
}

#[inline(always)]
unsafe fn double<L: Lanes, const WIDE: usize>(values: &mut [L; WIDE]) {
    for value in values {
        // SAFETY: the caller's promise.
        *value = unsafe { value.double() };
    }
}

#[inline(always)]
pub(super) unsafe fn xor<L: Lanes>(data: &[&[u8]], p: &mut [u8]) {
    let out = p.as_mut_ptr();
    all_positions_streaming!(streams::<L>(data, &[out]), p.len(), 4, xor_walk::<L>, data, out);
}

#[inline(always)]
unsafe fn xor_walk<L: Lanes, const WIDE: usize, const STREAM: bool>(
    data: &[&[u8]],
    p: *mut u8,
    mut at: usize,
    end: usize,
) -> usize {
    while end - at >= WIDE * L::BYTES {
        // SAFETY: the strips reach to `end`, and the loop's condition leaves WIDE registers before
        // it.
        unsafe {
            if !STREAM {
                prefetch_to_write::<L, WIDE>(p, at);
            }
            let mut sum: [L; WIDE] = load(data[0].as_ptr(), at);
            for strip in &data[1..] {
                for (n, sum) in sum.iter_mut().enumerate() {
                    *sum = sum.xor(L::load(strip.as_ptr().add(at + n * L::BYTES)));
                }
            }
            store::<L, WIDE, STREAM>(sum, p, at);
        }
        at += WIDE * L::BYTES;
    }
    at
}

/// The Horner steps of P and Q over `data`, from its last strip to its first.
#[inline(always)]
unsafe fn pq_steps<L: Lanes, const WIDE: usize>(data: &[&[u8]], p: &mut [L; WIDE], q: &mut [L; WIDE], at: usize) {
    for strip in data.iter().rev() {
        for n in 0..WIDE {
            // SAFETY: as in `load`.
            unsafe {
                let value = L::load(strip.as_ptr().add(at + n * L::BYTES));
                p[n] = p[n].xor(value);
                q[n] = q[n].double().xor(value);
            }
        }
    }
}

#[inline(always)]
pub(super) unsafe fn pq<L: Lanes>(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    let out = [p.as_mut_ptr(), q.as_mut_ptr()];
    all_positions_streaming!(streams::<L>(data, &out), p.len(), 4, pq_walk::<L>, data, out);
}

#[inline(always)]
unsafe fn pq_walk<L: Lanes, const WIDE: usize, const STREAM: bool>(
    data: &[&[u8]],
    strips: [*mut u8; 2],
    mut at: usize,
    end: usize,
) -> usize {
    let (last, rest) = data.split_last().expect("there is a data strip");
    while end - at >= WIDE * L::BYTES {
        // SAFETY: the strips reach to `end`, and the loop's condition leaves WIDE registers before
        // it.
        unsafe {
            if !STREAM {
                for strip in strips {
                    prefetch_to_write::<L, WIDE>(strip, at);
                }
            }
            let mut p: [L; WIDE] = load(last.as_ptr(), at);
            let mut q = p;
            pq_steps(rest, &mut p, &mut q, at);
            store::<L, WIDE, STREAM>(p, strips[0], at);
            store::<L, WIDE, STREAM>(q, strips[1], at);
        }
        at += WIDE * L::BYTES;
    }
    at
}

#[inline(always)]
pub(super) unsafe fn pqr<L: Lanes>(data: &[&[u8]], p: &mut [u8], q: &mut [u8], r: &mut [u8]) {
    let out = [p.as_mut_ptr(), q.as_mut_ptr(), r.as_mut_ptr()];
    all_positions_streaming!(streams::<L>(data, &out), p.len(), 2, pqr_walk::<L>, data, out);
}

#[inline(always)]
unsafe fn pqr_walk<L: Lanes, const WIDE: usize, const STREAM: bool>(
    data: &[&[u8]],
    strips: [*mut u8; 3],
    mut at: usize,
    end: usize,
) -> usize {
    let (last, rest) = data.split_last().expect("there is a data strip");
    while end - at >= WIDE * L::BYTES {
        // SAFETY: the strips reach to `end`, and the loop's condition leaves WIDE registers before
        // it.
        unsafe {
            if !STREAM {
                for strip in strips {
                    prefetch_to_write::<L, WIDE>(strip, at);
                }
            }
            let mut p: [L; WIDE] = load(last.as_ptr(), at);
            let mut q = p;
            let mut r = p;
            for strip in rest.iter().rev() {
                for n in 0..WIDE {
                    let value = L::load(strip.as_ptr().add(at + n * L::BYTES));
                    p[n] = p[n].xor(value);
                    q[n] = q[n].double().xor(value);
                    r[n] = r[n].quadruple().xor(value);
                }
            }
            store::<L, WIDE, STREAM>(p, strips[0], at);
            store::<L, WIDE, STREAM>(q, strips[1], at);
            store::<L, WIDE, STREAM>(r, strips[2], at);
        }
        at += WIDE * L::BYTES;
    }
    at
}

#[inline(always)]
pub(super) unsafe fn solve_pq<L: Lanes>(
    solve: &SolvePq,
    data: &[&[u8]],
    p: &[u8],
    q: &[u8],
    x: &mut [u8],
    y: &mut [u8],
) {
    // The strips that survive below x, between x and y, and above y; `data` has neither x nor y.
    let (rest, above) = data.split_at(solve.y - 1);
    let (below, between) = rest.split_at(solve.x);
    let parity = [p.as_ptr(), q.as_ptr()];
    let lost = [x.as_mut_ptr(), y.as_mut_ptr()];
    all_positions!(0..p.len(), 2, solve_pq_walk::<L>, solve, [below, between, above], parity, lost);
}

#[inline(always)]
unsafe fn solve_pq_walk<L: Lanes, const WIDE: usize>(
    solve: &SolvePq,
    [below, between, above]: [&[&[u8]]; 3],
    parity: [*const u8; 2],
    lost: [*mut u8; 2],
    mut at: usize,
    end: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let (p_factor, q_factor) = unsafe { (L::factor(&solve.p_factor), L::factor(&solve.q_factor)) };
    while end - at >= WIDE * L::BYTES {
        // SAFETY: the strips reach to `end`, and the loop's condition leaves WIDE registers before
        // it.
        unsafe {
            for strip in lost {
                prefetch_to_write::<L, WIDE>(strip, at);
            }
            let mut p: [L; WIDE] = load(parity[0], at);
            let mut q = [L::zero(); WIDE];
            // A lost strip counts as zero: it adds nothing, but its step still multiplies the sum
            // so far.
            pq_steps(above, &mut p, &mut q, at);
            double(&mut q);
            pq_steps(between, &mut p, &mut q, at);
            double(&mut q);
            pq_steps(below, &mut p, &mut q, at);
            for n in 0..WIDE {
                let offset = at + n * L::BYTES;
                let q = q[n].xor(L::load(parity[1].add(offset)));
                let x = L::zero().add_product(p_factor, p[n].multiplicand()).add_product(q_factor, q.multiplicand());
                x.store(lost[0].add(offset));
                p[n].xor(x).store(lost[1].add(offset));
            }
        }
        at += WIDE * L::BYTES;
    }
    at
}

#[inline(always)]
pub(super) unsafe fn combine<L: Lanes>(factors: &[Multiplier], data: &[&[u8]], out: &mut [&mut [u8]]) {
    assert_eq!(factors.len(), data.len() * out.len(), "a factor for every source and row");
    match out {
        [a] => {
            let rows = [a.as_mut_ptr()];
            all_positions!(0..a.len(), 4, combine_walk::<L, 1>, factors, data, rows);
        }
        [a, b] => {
            let rows = [a.as_mut_ptr(), b.as_mut_ptr()];
            all_positions!(0..a.len(), 2, combine_walk::<L, 2>, factors, data, rows);
        }
        [a, b, c] => {
            let rows = [a.as_mut_ptr(), b.as_mut_ptr(), c.as_mut_ptr()];
            all_positions!(0..a.len(), 2, combine_walk::<L, 3>, factors, data, rows);
        }
        [a, b, c, d] => {
            let rows = [a.as_mut_ptr(), b.as_mut_ptr(), c.as_mut_ptr(), d.as_mut_ptr()];
            all_positions!(0..a.len(), 1, combine_walk::<L, 4>, factors, data, rows);
        }
        _ => unreachable!("1 to {ROWS_MAX} rows"),
    }
}

#[inline(always)]
unsafe fn combine_walk<L: Lanes, const WIDE: usize, const ROWS: usize>(
    factors: &[Multiplier],
    data: &[&[u8]],
    rows: [*mut u8; ROWS],
    mut at: usize,
    end: usize,
) -> usize {
    let (factors, _) = factors.as_chunks::<ROWS>();
    while end - at >= WIDE * L::BYTES {
        // SAFETY: the strips reach to `end`, and the loop's condition leaves WIDE registers before
        // it.
        unsafe {
            for strip in rows {
                prefetch_to_write::<L, WIDE>(strip, at);
            }
            let mut sums = [[L::zero(); WIDE]; ROWS];
            for (strip, factors) in data.iter().zip(factors) {
                let values = multiplicands::<L, WIDE>(load(strip.as_ptr(), at));
                for row in 0..ROWS {
                    let factor = L::factor(&factors[row]);
                    for n in 0..WIDE {
                        sums[row][n] = sums[row][n].add_product(factor, values[n]);
                    }
                }
            }
            for row in 0..ROWS {
                store::<L, WIDE, false>(sums[row], rows[row], at);
            }
        }
        at += WIDE * L::BYTES;
    }
    at
}

#[inline(always)]
pub(super) unsafe fn accumulate<L: Lanes>(factors: &[Multiplier], a: &[u8], b: Option<&[u8]>, out: &mut [&mut [u8]]) {
    assert_eq!(factors.len(), out.len(), "a factor for every row");
    match b {
        Some(b) => {
            let pair = [a.as_ptr(), b.as_ptr()];
            // SAFETY: the caller's promise.
            unsafe { accumulate_rows::<L, 2>(factors, pair, a.len(), out) }
        }
        // SAFETY: the caller's promise.
        None => unsafe { accumulate_rows::<L, 1>(factors, [a.as_ptr()], a.len(), out) },
    }
}

#[inline(always)]
unsafe fn accumulate_rows<L: Lanes, const SOURCES: usize>(
    factors: &[Multiplier],
    sources: [*const u8; SOURCES],
    length: usize,
    out: &mut [&mut [u8]],
) {
    match out {
        [a] => {
            let rows = [a.as_mut_ptr()];
            all_positions!(0..length, 2, accumulate_walk::<L, SOURCES, 1>, factors, sources, rows);
        }
        [a, b] => {
            let rows = [a.as_mut_ptr(), b.as_mut_ptr()];
            all_positions!(0..length, 2, accumulate_walk::<L, SOURCES, 2>, factors, sources, rows);
        }
        [a, b, c] => {
            let rows = [a.as_mut_ptr(), b.as_mut_ptr(), c.as_mut_ptr()];
            all_positions!(0..length, 2, accumulate_walk::<L, SOURCES, 3>, factors, sources, rows);
        }
        [a, b, c, d] => {
            let rows = [a.as_mut_ptr(), b.as_mut_ptr(), c.as_mut_ptr(), d.as_mut_ptr()];
            all_positions!(0..length, 2, accumulate_walk::<L, SOURCES, 4>, factors, sources, rows);
        }
        _ => unreachable!("1 to {ROWS_MAX} rows"),
    }
}

#[inline(always)]
unsafe fn accumulate_walk<L: Lanes, const WIDE: usize, const SOURCES: usize, const ROWS: usize>(
    factors: &[Multiplier],
    sources: [*const u8; SOURCES],
    rows: [*mut u8; ROWS],
    mut at: usize,
    end: usize,
) -> usize {
    while end - at >= WIDE * L::BYTES {
        // SAFETY: the strips reach to `end`, and the loop's condition leaves WIDE registers before
        // it.
        unsafe {
            let mut change: [L; WIDE] = load(sources[0], at);
            for source in &sources[1..] {
                for (n, change) in change.iter_mut().enumerate() {
                    *change = change.xor(L::load(source.add(at + n * L::BYTES)));
                }
            }
            let change = multiplicands(change);
            for row in 0..ROWS {
                let factor = L::factor(&factors[row]);
                for (n, &change) in change.iter().enumerate() {
                    let place = rows[row].add(at + n * L::BYTES);
                    L::load(place).add_product(factor, change).store(place);
                }
            }
        }
        at += WIDE * L::BYTES;
    }
    at
}

#[inline(always)]
pub(super) unsafe fn xor_into<L: Lanes>(a: &mut [u8], b: &[u8]) {
    all_positions!(0..b.len(), 4, xor_into_walk::<L>, a.as_mut_ptr(), b.as_ptr());
}

#[inline(always)]
unsafe fn xor_into_walk<L: Lanes, const WIDE: usize>(a: *mut u8, b: *const u8, mut at: usize, end: usize) -> usize {
    while end - at >= WIDE * L::BYTES {
        // SAFETY: the strips reach to `end`, and the loop's condition leaves WIDE registers before
        // it.
        unsafe {
            let (old, new): ([L; WIDE], [L; WIDE]) = (load(a, at), load(b, at));
            for n in 0..WIDE {
                old[n].xor(new[n]).store(a.add(at + n * L::BYTES));
            }
        }
        at += WIDE * L::BYTES;
    }
    at
}

#[inline(always)]
pub(super) unsafe fn is_zero<L: Lanes>(a: &[u8]) -> bool {
    let (from, end) = (a.as_ptr(), a.len());
    // SAFETY: the caller's promise; a byte register runs on every CPU.
    unsafe {
        is_zero_walk::<L, 4>(from, 0, end)
            .and_then(|at| is_zero_walk::<L, 1>(from, at, end))
            .and_then(|at| is_zero_walk::<u8, 1>(from, at, end))
            .is_some()
    }
}

/// The first byte position that is left over, or `None` if a byte is not zero.
#[inline(always)]
unsafe fn is_zero_walk<L: Lanes, const WIDE: usize>(a: *const u8, mut at: usize, end: usize) -> Option<usize> {
    while end - at >= WIDE * L::BYTES {
        // SAFETY: the strip reaches to `end`, and the loop's condition leaves WIDE registers before
        // it.
        unsafe {
            let values: [L; WIDE] = load(a, at);
            let mut any = values[0];
            for value in &values[1..] {
                any = any.or(*value);
            }
            if !any.is_zero() {
                return None;
            }
        }
        at += WIDE * L::BYTES;
    }
    Some(at)
}
