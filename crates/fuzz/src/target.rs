//! The description of a target.

/// Code that takes external data, as a plain function.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name on the command line, and name of its folder in `corpus/`.
    pub name: &'static str,
    /// The checked properties, in one sentence.
    pub checks: &'static str,
    /// Takes any bytes. It panics if a promise is broken, and has no other lasting effect.
    pub run: fn(&[u8]),
    /// Inputs that reach deep into the code, made by the code that writes the data that `run`
    /// reads.
    pub seeds: fn() -> Vec<Seed>,
    /// Inputs of this kind that are stored elsewhere in the repository.
    pub stored: fn() -> Vec<Seed>,
    /// Words that mutations insert.
    pub dictionary: &'static [&'static [u8]],
    /// The longest input that is tried.
    pub input_bytes_max: usize,
    /// Memory that it may use at one time.
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
    /// An input with this name.
    pub fn new(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Seed {
        Seed { name: name.into(), bytes: bytes.into() }
    }
}

/// Allowed memory: a fixed part, and a part for each byte that was really sent.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Bytes for any input.
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
