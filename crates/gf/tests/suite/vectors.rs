//! The vectors of docs/format/parity.md, which were computed independently of this crate.

use gf::{Code, Verdict, coefficient, kernels};

const DOCUMENT: &str = include_str!("../../../../docs/format/parity.md");

/// The lines of the document's only block with this name.
fn block(name: &str) -> Vec<&'static str> {
    let (_, rest) = DOCUMENT.split_once(&format!("```{name}\n")).expect("the document has the block");
    let (block, _) = rest.split_once("```").expect("the block ends");
    assert!(block.lines().count() > 0);
    block.lines().collect()
}

fn bytes(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits")).collect()
}

/// "4+2 rest": 4, 2 and the rest.
fn shape(line: &str) -> (usize, usize, &str) {
    let (shape, rest) = line.split_once(' ').expect("a shape and bytes");
    let (data, parity) = shape.split_once('+').expect("data+parity");
    (data.parse().expect("a number"), parity.parse().expect("a number"), rest)
}

/// Lines that each have a first index and bytes, as one list that begins with index `first`.
fn table(name: &str, first: usize) -> Vec<u8> {
    let mut values = Vec::new();
    for line in block(name) {
        let (index, rest) = line.trim_start().split_once(' ').expect("an index and bytes");
        assert_eq!(index.parse::<usize>().expect("a number"), first + values.len());
        values.extend(bytes(rest));
    }
    values
}

#[test]
fn the_documented_powers_are_those_of_two() {
    let powers = table("powers", 0);
    assert_eq!(powers.len(), 255);
    for (index, pair) in powers.windows(2).enumerate() {
        let doubled = u16::from(pair[0]) << 1;
        assert_eq!(u16::from(pair[1]), if doubled > 255 { doubled ^ 0x11d } else { doubled }, "power {index}");
    }
    for (index, &power) in powers[..62].iter().enumerate() {
        assert_eq!(coefficient(2, 1, index), power);
    }
    for index in 0..61 {
        assert_eq!(coefficient(3, 2, index), powers[2 * index % 255]);
    }
}

#[test]
fn the_documented_higher_rows_are_the_codes() {
    for (index, &value) in (1..).zip(&table("higher", 1)) {
        for row in 2..8 {
            if index + 1 >= row {
                assert_eq!(coefficient(8, row, index + 1 - row), value);
            }
        }
    }
}

#[test]
fn the_documented_vectors_are_what_encode_gives() {
    for line in block("vectors") {
        let (data_count, parity_count, rest) = shape(line);
        let (data, parity) = rest.split_once(':').expect("data : parity");
        let (data, parity) = (bytes(data), bytes(parity));
        assert_eq!((data.len(), parity.len()), (data_count, parity_count), "{line}");
        // In strips of one byte, and in strips long enough for every loop.
        for length in [1, 449] {
            let strips: Vec<Vec<u8>> = data.iter().map(|&byte| vec![byte; length]).collect();
            let strips: Vec<&[u8]> = strips.iter().map(Vec::as_slice).collect();
            for kernel in kernels() {
                let code = Code::with_kernel(data_count, parity_count, kernel).expect("a documented code");
                let mut out = vec![vec![0xee; length]; parity_count];
                code.encode(&strips, &mut out.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
                let expected: Vec<Vec<u8>> = parity.iter().map(|&byte| vec![byte; length]).collect();
                assert_eq!(out, expected, "{line} with {}", kernel.name());
            }
        }
    }
}

#[test]
fn the_documented_last_strips_are_those_of_the_widest_codes() {
    for line in block("widest") {
        let (data_count, parity_count, parity) = shape(line);
        assert_eq!(data_count + parity_count, gf::STRIPS_MAX);
        let last: Vec<u8> = (0..parity_count).map(|row| coefficient(parity_count, row, data_count - 1)).collect();
        assert_eq!(last, bytes(parity), "{line}");
    }
}

#[test]
fn the_documented_examples_of_decoding_and_finding_hold() {
    let code = Code::new(4, 2).unwrap();
    let decoder = code.decoder(&[1, 3]).unwrap();
    let (mut d1, mut d3) = ([0], [0]);
    decoder.reconstruct(&[&[0x01], &[0x80], &[0x7c], &[0x94]], &mut [&mut d1, &mut d3]);
    assert_eq!((d1, d3), ([0x02], [0xff]));

    let code = Code::new(8, 2).unwrap();
    let read: Vec<[u8; 1]> = [0x11, 0x22, 0x33, 0x40, 0x55, 0x66, 0x77, 0x88].map(|byte| [byte]).into();
    let read: Vec<&[u8]> = read.iter().map(|strip| &strip[..]).collect();
    assert_eq!(code.locate(&read, &[&[0x88], &[0x0d]]), Verdict::OneWrong(3));
}
