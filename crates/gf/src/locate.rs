//! Finds a wrong strip from the parity alone.

use crate::code::Code;
use crate::coefficient::{PARITY_MAX, coefficient};
use crate::field;

/// The result of [`Code::locate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The parity matches the data.
    Consistent,
    /// This one strip being wrong explains all differences. An index from 0: first the data strips,
    /// then the parity strips.
    OneWrong(usize),
    /// The parity does not match the data, and no single wrong strip explains it; or there is only
    /// one parity strip.
    Unknown,
}

impl Code {
    /// Identifies the one strip that is wrong.
    ///
    /// Each byte position (the bytes at one offset) in which the parity differs is judged alone
    /// (Anvin, "The mathematics of RAID-6", section 4). If a single parity strip differs, it is
    /// wrong itself. If all differ, by ratios that are those of one data strip's coefficients, that
    /// data strip is wrong. Anything else means that several strips are wrong. A strip is named
    /// only if every such byte position names the same strip.
    ///
    /// Guarantees with m parity strips: a single wrong strip is always named if m >= 2. A byte
    /// position in which 2 to m - 1 strips are wrong is never mistaken for one with a single wrong
    /// strip. So with two parity strips, two wrong strips may be mistaken for a third, with a
    /// chance of about data_count in 255 per byte position; to be named, that third strip would
    /// have to be the same in every byte position. With one parity strip or none, no strip can be
    /// named.
    ///
    /// # Panics
    /// As [`encode`](Code::encode).
    pub fn locate(&self, data: &[&[u8]], parity: &[&[u8]]) -> Verdict {
        let mut verdict = Verdict::Consistent;
        self.visit_blocks(data, parity, |stored, computed| {
            if stored == computed {
                return true;
            }
            for position in 0..stored[0].len() {
                let mut differences = [0; PARITY_MAX];
                for (difference, (stored, computed)) in differences.iter_mut().zip(stored.iter().zip(computed)) {
                    *difference = stored[position] ^ computed[position];
                }
                let differences = &differences[..stored.len()];
                if differences.iter().all(|&difference| difference == 0) {
                    continue;
                }
                let named = self.wrong_strip(differences);
                verdict = match (verdict, named) {
                    (Verdict::Consistent, Some(strip)) => Verdict::OneWrong(strip),
                    (Verdict::OneWrong(before), Some(strip)) if before == strip => verdict,
                    _ => Verdict::Unknown,
                };
                if verdict == Verdict::Unknown {
                    return false;
                }
            }
            true
        });
        verdict
    }

    /// The only strip that, if wrong, explains these parity differences of one byte position. They
    /// are not all zero.
    fn wrong_strip(&self, differences: &[u8]) -> Option<usize> {
        if differences.len() < 2 {
            return None;
        }
        let mut wrong = (0..differences.len()).filter(|&row| differences[row] != 0);
        if let (Some(row), None) = (wrong.next(), wrong.next()) {
            return Some(self.data_count() + row);
        }
        if differences.contains(&0) {
            return None;
        }
        // P differs by the error e itself, and Q by g^z * e.
        let error = differences[0];
        let ratio = field::multiply(differences[1], field::inverse(error));
        let strip = field::logarithm(ratio);
        let explains = strip < self.data_count()
            && (0..differences.len())
                .all(|row| differences[row] == field::multiply(coefficient(differences.len(), row, strip), error));
        explains.then_some(strip)
    }
}
