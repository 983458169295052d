//! Mutates an input into a similar one.

use crate::rng::Rng;

/// Values at which code often changes its behavior.
const EDGES: [u64; 20] =
    [0, 1, 2, 7, 8, 16, 64, 127, 128, 255, 256, 511, 512, 4095, 4096, 0x7FFF, 0xFFFF, 2147483647, 4294967295, u64::MAX];

/// Numbers as text, as users write them.
const EDGES_AS_TEXT: [&[u8]; 6] =
    [b"0", b"-1", b"4294967296", b"9223372036854775807", b"18446744073709551615", b"99999999999999999999"];

/// Makes one input from others.
#[derive(Debug)]
pub struct Mutator {
    dictionary: &'static [&'static [u8]],
    input_bytes_max: usize,
}

impl Mutator {
    /// A mutator that inserts these words, and makes no input longer than `input_bytes_max`.
    pub fn new(dictionary: &'static [&'static [u8]], input_bytes_max: usize) -> Mutator {
        Mutator { dictionary, input_bytes_max }
    }

    /// Changes `input` in 1 to 8 places. Sometimes parts of `other` are inserted.
    pub fn mutate(&self, rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
        let changes = 1 << rng.below(4);
        for _ in 0..changes {
            self.change(rng, input, other);
        }
        input.truncate(self.input_bytes_max);
    }

    fn change(&self, rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
        match rng.below(14) {
            0 | 1 => flip(rng, input),
            2 | 3 => overwrite(rng, input),
            4 => add(rng, input),
            5 => number(rng, input),
            6 => remove(rng, input),
            7 => insert_noise(rng, input),
            8 => repeat(rng, input),
            9 => splice(rng, input, other),
            10 | 11 => self.word(rng, input),
            12 => digits(rng, input),
            _ => input.truncate(rng.below(input.len() + 1)),
        }
    }

    fn word(&self, rng: &mut Rng, input: &mut Vec<u8>) {
        let Some(word) = self.dictionary.get(rng.below(self.dictionary.len())) else { return flip(rng, input) };
        put(rng, input, word);
    }
}

/// Puts `bytes` at a random place: replaces the bytes there, or inserts before them.
fn put(rng: &mut Rng, input: &mut Vec<u8>, bytes: &[u8]) {
    let at = rng.below(input.len() + 1);
    let end = if rng.one_in(2) { at } else { (at + bytes.len()).min(input.len()) };
    input.splice(at..end, bytes.iter().copied());
}

fn flip(rng: &mut Rng, input: &mut [u8]) {
    let at = rng.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << rng.below(8);
    }
}

fn overwrite(rng: &mut Rng, input: &mut [u8]) {
    let at = rng.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte = rng.bits() as u8;
    }
}

/// Adds a small number to an integer of 1, 2, 4 or 8 bytes, in either byte order.
fn add(rng: &mut Rng, input: &mut [u8]) {
    let width = 1 << rng.below(4);
    let little = rng.one_in(2);
    let Some(room) = (input.len() + 1).checked_sub(width) else { return };
    let at = rng.below(room);
    let Some(field) = input.get_mut(at..at + width) else { return };
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(field);
    if !little {
        bytes[..width].reverse();
    }
    let delta = rng.below(35) as u64;
    let sum = u64::from_le_bytes(bytes);
    let sum = if rng.one_in(2) { sum.wrapping_add(delta) } else { sum.wrapping_sub(delta) };
    field.copy_from_slice(&sum.to_le_bytes()[..width]);
    if !little {
        field.reverse();
    }
}

/// Overwrites a place with an integer.
fn number(rng: &mut Rng, input: &mut [u8]) {
    let width = 1 << rng.below(4);
    let mut bytes = EDGES[rng.below(EDGES.len())].to_le_bytes();
    if rng.one_in(2) {
        bytes[..width].reverse();
    }
    let at = rng.below(input.len());
    for (byte, new) in input.iter_mut().skip(at).zip(&bytes[..width]) {
        *byte = *new;
    }
}

fn remove(rng: &mut Rng, input: &mut Vec<u8>) {
    let at = rng.below(input.len());
    let len = if rng.one_in(4) { rng.below(input.len() - at.min(input.len())) } else { rng.below(8) };
    let end = (at + len).min(input.len());
    input.drain(at..end);
}

fn insert_noise(rng: &mut Rng, input: &mut Vec<u8>) {
    let bytes: Vec<u8> = (0..1 + rng.below(16)).map(|_| rng.bits() as u8).collect();
    let at = rng.below(input.len() + 1);
    input.splice(at..at, bytes);
}

/// Repeats a part at another place, up to eight times.
fn repeat(rng: &mut Rng, input: &mut Vec<u8>) {
    let from = rng.below(input.len() + 1);
    let len = rng.below((input.len() - from + 1).min(256));
    let part = input[from..from + len].to_vec();
    let times = 1 + rng.below(8) * rng.below(2);
    let at = rng.below(input.len() + 1);
    input.splice(at..at, part.repeat(times));
}

fn splice(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    let from = rng.below(other.len() + 1);
    let len = rng.below(other.len() - from + 1);
    put(rng, input, &other[from..from + len]);
}

/// Changes a number in text form.
fn digits(rng: &mut Rng, input: &mut Vec<u8>) {
    let places: Vec<usize> = (0..input.len()).filter(|&at| input[at].is_ascii_digit()).take(200).collect();
    let Some(&at) = places.get(rng.below(places.len())) else { return overwrite(rng, input) };
    if rng.one_in(2) {
        input[at] = b'0' + rng.below(10) as u8;
    } else {
        let end = at + input[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        input.splice(at..end, EDGES_AS_TEXT[rng.below(EDGES_AS_TEXT.len())].iter().copied());
    }
}

/// The neighbors of an input: every prefix of it, and the input with each single bit flipped.
///
/// If there are more than `most`, returns that many of them, evenly distributed.
pub fn neighbours(input: Vec<u8>, most: usize) -> impl Iterator<Item = Vec<u8>> {
    let all = input.len() * 9;
    let step = all.div_ceil(most.max(1)).max(1);
    (0..all).step_by(step).map(move |index| match index.checked_sub(input.len()) {
        None => input[..index].to_vec(),
        Some(bit) => {
            let mut flipped = input.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            flipped
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn mutations_of_nothing_and_of_anything_end_within_the_limit() {
        let mutator = Mutator::new(&[b"word"], 64);
        let mut rng = Rng::new(1);
        let mut input = Vec::new();
        let mut seen = HashSet::new();
        for _ in 0..100_000 {
            mutator.mutate(&mut rng, &mut input, b"other input");
            assert!(input.len() <= 64);
            seen.insert(input.clone());
        }
        assert!(seen.len() > 50_000, "{}", seen.len());
    }

    #[test]
    fn neighbours_are_all_prefixes_and_all_single_bit_flips() {
        let all: HashSet<Vec<u8>> = neighbours(b"abc".to_vec(), usize::MAX).collect();
        assert_eq!(all.len(), 3 + 24);
        assert!(all.contains(&b"ab"[..]) && all.contains(&b"abb"[..]) && !all.contains(&b"abc"[..]));
        assert_eq!(neighbours(vec![0; 100], 90).count(), 90);
    }
}
