//! An erasure code: a number of data strips and a number of parity strips.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

use crate::coefficient::{PARITY_MAX, STRIPS_MAX, coefficient};
use crate::decoder::Decoder;
use crate::field::Multiplier;
use crate::kernel::{self, Kernel, Operations, ROWS_MAX};
use crate::transform::Transform;

/// Bytes of each strip that [`Code::check`] and [`Code::locate`] encode and compare at a time.
/// Eight parity blocks of this size fit on the stack.
pub(crate) const CHECK_BYTES: usize = 2048;

/// An erasure code over a stripe: `data_count` data strips and `parity_count` parity strips
/// computed from them. Any `parity_count` lost strips can be computed from the others.
///
/// Cheap to clone, immutable, usable from every thread. Strips are numbered from 0: first the data,
/// then the parity strips.
#[derive(Clone)]
pub struct Code {
    inner: Arc<CodeTables>,
}

struct CodeTables {
    data_count: usize,
    parity_count: usize,
    kernel: Kernel,
    /// The matrix rows from the third parity strip on, for codes with four or more parity strips.
    /// Codes with fewer have kernel functions of their own.
    higher: Option<Transform>,
    /// For each data strip, its factor in each parity strip:
    /// `factors[data_index * parity_count..]`.
    factors: Box<[Multiplier]>,
}

/// Why a code or decoder is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodeError {
    /// A code needs at least one data strip.
    NoData,
    /// More than [`PARITY_MAX`] parity strips.
    TooManyParityStrips {
        /// The number requested.
        parity: usize,
    },
    /// More than [`STRIPS_MAX`] strips in total.
    TooManyStrips {
        /// The number of data strips requested.
        data: usize,
        /// The number of parity strips requested.
        parity: usize,
    },
    /// More losses than parity strips.
    TooManyLosses {
        /// The number of lost strips.
        lost: usize,
        /// The number of losses that the code survives.
        parity: usize,
    },
    /// A strip index beyond the stripe.
    NoSuchStrip {
        /// The index.
        strip: usize,
        /// The number of strips.
        strips: usize,
    },
    /// A strip named twice.
    RepeatedStrip {
        /// Its index.
        strip: usize,
    },
    /// A strip was requested that is not among the lost ones.
    NotLost {
        /// Its index.
        strip: usize,
    },
}

impl fmt::Display for CodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CodeError::NoData => write!(f, "a code needs at least one data strip"),
            CodeError::TooManyParityStrips { parity } => {
                write!(f, "{parity} parity strips are more than the {PARITY_MAX} that a code can have")
            }
            CodeError::TooManyStrips { data, parity } => {
                write!(f, "{data} data strips and {parity} parity strips are more than {STRIPS_MAX} strips")
            }
            CodeError::TooManyLosses { lost, parity } => {
                write!(f, "{lost} lost strips are more than the {parity} that the code survives")
            }
            CodeError::NoSuchStrip { strip, strips } => write!(f, "there is no strip {strip} among {strips}"),
            CodeError::RepeatedStrip { strip } => write!(f, "strip {strip} is named twice"),
            CodeError::NotLost { strip } => write!(f, "strip {strip} is not among the lost ones"),
        }
    }
}

impl core::error::Error for CodeError {}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({}+{}, {})", self.data_count(), self.parity_count(), self.kernel().name())
    }
}

impl Code {
    /// A code with `data` data strips and `parity` parity strips, with the fastest kernel of
    /// this CPU.
    ///
    /// # Errors
    /// [`CodeError::NoData`]; [`CodeError::TooManyParityStrips`] above [`PARITY_MAX`];
    /// [`CodeError::TooManyStrips`] above [`STRIPS_MAX`] strips in total.
    pub fn new(data: usize, parity: usize) -> Result<Code, CodeError> {
        Code::with_kernel(data, parity, kernel::chosen())
    }

    /// As [`Code::new`], with a specific kernel of [`kernels`](crate::kernels), for tests and
    /// benchmarks. Every kernel computes the same bytes.
    ///
    /// # Errors
    /// As [`Code::new`].
    pub fn with_kernel(data: usize, parity: usize, kernel: Kernel) -> Result<Code, CodeError> {
        if data == 0 {
            return Err(CodeError::NoData);
        }
        if parity > PARITY_MAX {
            return Err(CodeError::TooManyParityStrips { parity });
        }
        if data > STRIPS_MAX - parity {
            return Err(CodeError::TooManyStrips { data, parity });
        }
        let row = |row| (0..data).map(move |index| coefficient(parity, row, index));
        let higher = (parity > 3).then(|| {
            let matrix: alloc::vec::Vec<u8> = (2..parity).flat_map(row).collect();
            Transform::new(&matrix, data)
        });
        let factors = (0..data)
            .flat_map(|index| (0..parity).map(move |row| Multiplier::new(coefficient(parity, row, index))))
            .collect();
        Ok(Code { inner: Arc::new(CodeTables { data_count: data, parity_count: parity, kernel, higher, factors }) })
    }

    /// The number of data strips.
    pub fn data_count(&self) -> usize {
        self.inner.data_count
    }

    /// The number of parity strips, which is the number of losses that the code survives.
    pub fn parity_count(&self) -> usize {
        self.inner.parity_count
    }

    /// The number of strips, data and parity.
    pub fn strip_count(&self) -> usize {
        self.inner.data_count + self.inner.parity_count
    }

    /// The kernel that this code computes with.
    pub fn kernel(&self) -> Kernel {
        self.inner.kernel
    }

    pub(crate) fn operations(&self) -> &'static Operations {
        self.inner.kernel.operations()
    }

    /// Computes every parity strip from all the data. The previous content of `parity` does not
    /// matter.
    ///
    /// # Panics
    /// If there are not [`data_count`](Code::data_count) data strips and
    /// [`parity_count`](Code::parity_count) parity strips, or if not all strips are equally
    /// long.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(data.len(), self.data_count(), "data strips");
        assert_eq!(parity.len(), self.parity_count(), "parity strips");
        let length = data[0].len();
        assert!(data.iter().all(|strip| strip.len() == length), "data strips differ in length");
        assert!(parity.iter().all(|strip| strip.len() == length), "parity strips are not as long as the data");
        let operations = self.operations();
        // SAFETY: the operations run on this CPU, there is data, and all strips are equally long:
        // checked above.
        unsafe {
            match parity {
                [] => {}
                [p] => (operations.xor)(data, p),
                [p, q] => (operations.pq)(data, p, q),
                [p, q, r] => (operations.pqr)(data, p, q, r),
                _ => self.encode_higher(data, parity),
            }
        }
    }

    /// Four parity strips or more: computes P and Q, then the others. This is done block by block,
    /// so that the second pass reads from the cache.
    fn encode_higher(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        const BLOCK_BYTES: usize = 4096;
        let higher = self.inner.higher.as_ref().expect("codes of four parity strips or more have them");
        let length = data[0].len();
        for start in (0..length).step_by(BLOCK_BYTES) {
            let end = length.min(start + BLOCK_BYTES);
            let mut blocks = [&[][..]; STRIPS_MAX];
            for (block, strip) in blocks.iter_mut().zip(data) {
                *block = &strip[start..end];
            }
            let blocks = &blocks[..data.len()];
            let mut out: [&mut [u8]; PARITY_MAX] = Default::default();
            for (block, strip) in out.iter_mut().zip(parity.iter_mut()) {
                *block = &mut strip[start..end];
            }
            let [p, q, rest @ ..] = &mut out;
            // SAFETY: the operations run on this CPU, and every block is `end - start` long.
            unsafe { (self.operations().pq)(blocks, p, q) };
            higher.apply(self.operations(), blocks, &mut rest[..self.parity_count() - 2]);
        }
    }

    /// Updates the parity for one data strip that changes from `old` to `new`:
    /// `parity[j] ^= c * (old ^ new)`.
    ///
    /// The strips may be parts of whole ones, if all are the same part.
    ///
    /// # Panics
    /// If there is no data strip `data_index`, if there are not
    /// [`parity_count`](Code::parity_count) parity strips, or if not all strips are equally
    /// long.
    pub fn update(&self, data_index: usize, old: &[u8], new: &[u8], parity: &mut [&mut [u8]]) {
        self.add(data_index, old, Some(new), parity);
    }

    /// Adds one data strip to the parity: `parity[j] ^= c * data`. Adding every data strip to
    /// zeroed parity, in any order, gives the result of [`encode`](Code::encode).
    ///
    /// # Panics
    /// As [`update`](Code::update).
    pub fn accumulate(&self, data_index: usize, data: &[u8], parity: &mut [&mut [u8]]) {
        self.add(data_index, data, None, parity);
    }

    fn add(&self, data_index: usize, a: &[u8], b: Option<&[u8]>, parity: &mut [&mut [u8]]) {
        assert!(data_index < self.data_count(), "there is no data strip {data_index}");
        assert_eq!(parity.len(), self.parity_count(), "parity strips");
        assert!(b.is_none_or(|b| b.len() == a.len()), "old and new differ in length");
        assert!(parity.iter().all(|strip| strip.len() == a.len()), "parity strips are not as long as the data");
        let factors = &self.inner.factors[data_index * self.parity_count()..][..self.parity_count()];
        for (factors, rows) in factors.chunks(ROWS_MAX).zip(parity.chunks_mut(ROWS_MAX)) {
            // SAFETY: the operations run on this CPU, and all strips are equally long: checked
            // above.
            unsafe { (self.operations().accumulate)(factors, a, b, rows) };
        }
    }

    /// A decoder for the loss of the strips `lost`, in any order.
    ///
    /// # Errors
    /// [`CodeError::TooManyLosses`] above [`parity_count`](Code::parity_count);
    /// [`CodeError::NoSuchStrip`]; [`CodeError::RepeatedStrip`].
    pub fn decoder(&self, lost: &[usize]) -> Result<Decoder, CodeError> {
        Decoder::new(self, lost, lost)
    }

    /// As [`decoder`](Code::decoder), but computes only the lost strips in `wanted`: a read from a
    /// stripe with several losses need not compute all of them.
    ///
    /// # Errors
    /// As [`decoder`](Code::decoder); [`CodeError::NotLost`] if a wanted strip is not among the
    /// lost ones.
    pub fn decoder_for(&self, lost: &[usize], wanted: &[usize]) -> Result<Decoder, CodeError> {
        Decoder::new(self, lost, wanted)
    }

    /// Whether the parity matches the data. Stops at the first difference, and needs no memory
    /// besides the stack.
    ///
    /// # Panics
    /// As [`encode`](Code::encode).
    pub fn check(&self, data: &[&[u8]], parity: &[&[u8]]) -> bool {
        self.visit_blocks(data, parity, |stored, computed| stored == computed)
    }

    /// Encodes the data block by block. Passes the stored and the computed parity of each block to
    /// `visit`, until it returns `false`. Returns whether it never did.
    pub(crate) fn visit_blocks(
        &self,
        data: &[&[u8]],
        parity: &[&[u8]],
        mut visit: impl FnMut(&[&[u8]], &[&[u8]]) -> bool,
    ) -> bool {
        assert_eq!(data.len(), self.data_count(), "data strips");
        assert_eq!(parity.len(), self.parity_count(), "parity strips");
        let length = data[0].len();
        assert!(data.iter().all(|strip| strip.len() == length), "data strips differ in length");
        assert!(parity.iter().all(|strip| strip.len() == length), "parity strips are not as long as the data");
        if parity.is_empty() {
            return true;
        }
        let mut scratch = [[0; CHECK_BYTES]; PARITY_MAX];
        (0..length).step_by(CHECK_BYTES).all(|start| {
            let end = length.min(start + CHECK_BYTES);
            let mut data_blocks = [&[][..]; STRIPS_MAX];
            for (block, strip) in data_blocks.iter_mut().zip(data) {
                *block = &strip[start..end];
            }
            let mut stored = [&[][..]; PARITY_MAX];
            for (block, strip) in stored.iter_mut().zip(parity) {
                *block = &strip[start..end];
            }
            let mut computed = scratch.each_mut().map(|block| &mut block[..end - start]);
            self.encode(&data_blocks[..data.len()], &mut computed[..parity.len()]);
            let computed = computed.each_ref().map(|block| &**block);
            visit(&stored[..parity.len()], &computed[..parity.len()])
        })
    }
}
