//! What a target is.

/// A piece of code that takes bytes from outside, as a plain function.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name on the command line, and of its folder in `corpus/`.
    pub name: &'static str,
    /// What it checks, in one sentence.
    pub checks: &'static str,
    /// Takes any bytes. It panics if a promise is broken, and does nothing else that lasts.
    pub run: fn(&[u8]),
    /// Inputs that reach deep, made by the code that writes what `run` reads.
    pub seeds: fn() -> Vec<Seed>,
    /// Inputs of this kind that are kept elsewhere in the repository.
    pub stored: fn() -> Vec<Seed>,
    /// Words that mutations put in.
    pub dictionary: &'static [&'static [u8]],
    /// The longest input that is tried.
    pub input_bytes_max: usize,
    /// How much memory it may have at one time.
    pub memory: Memory,
}

/// A named input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    /// Name of its file.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
}

impl Seed {
    /// An input of this name.
    pub fn new(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Seed {
        Seed { name: name.into(), bytes: bytes.into() }
    }
}

/// Memory that is allowed: something fixed, and something for each byte that was really sent.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Bytes whatever the input is.
    pub base_bytes: usize,
    /// Bytes for each byte of the input.
    pub per_input_byte: usize,
}

impl Memory {
    /// Bytes allowed for an input of this length.
    pub fn limit_bytes(self, input_len: usize) -> usize {
        self.base_bytes + self.per_input_byte * input_len
    }
}
