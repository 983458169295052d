//! Makes an input that causes a crash smaller, so that it shows the cause.

use crate::examine::{Finding, examine};
use crate::target::Target;

/// The shortest and simplest input, found in at most `tries_max` runs, that still causes a finding
/// like `finding`.
pub fn minimise(target: &Target, input: &[u8], finding: &Finding, tries_max: usize) -> Vec<u8> {
    let mut tries_left = tries_max;
    let mut still_fails = |input: &[u8]| {
        tries_left = tries_left.saturating_sub(1);
        tries_left > 0 && examine(target, input).is_err_and(|found| found.is_like(finding))
    };
    let mut best = input.to_vec();
    loop {
        let before = best.clone();
        let mut len = best.len().next_power_of_two();
        while len > 0 {
            let mut at = 0;
            while at < best.len() {
                let end = (at + len).min(best.len());
                let shorter = [&best[..at], &best[end..]].concat();
                if still_fails(&shorter) { best = shorter } else { at += len }
            }
            len /= 2;
        }
        for at in 0..best.len() {
            for plain in [0, b'0', b'a'] {
                if best[at] == plain {
                    break;
                }
                let mut plainer = best.clone();
                plainer[at] = plain;
                if still_fails(&plainer) {
                    best = plainer;
                    break;
                }
            }
        }
        if best == before {
            return best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Memory;

    #[test]
    fn what_remains_is_only_what_the_crash_needs() {
        fn run(input: &[u8]) {
            assert!(!input.windows(3).any(|window| window == b"xyz"), "xyz");
            assert!(input.len() < 1000, "another fault");
        }
        let memory = Memory { base_bytes: 1 << 20, per_input_byte: 1 };
        let target = Target {
            name: "test",
            checks: "",
            run,
            seeds: Vec::new,
            stored: Vec::new,
            dictionary: &[],
            input_bytes_max: 100,
            memory,
        };
        let input = [&[7; 300][..], b"xyz", &[9; 200]].concat();
        let finding = examine(&target, &input).unwrap_err();
        assert_eq!(minimise(&target, &input, &finding, 10_000), b"xyz");
    }
}
