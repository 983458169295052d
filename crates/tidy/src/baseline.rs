//! Findings that are accepted: those that were there when a rule was introduced.
//!
//! A line of the file is a rule, a file, an item or `-`, and a weight: `width docs/cli/README.md -
//! 12` are twelve lines that are too wide. A file may not get worse, and what got better is written
//! down.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::Finding;

/// The key of a weight: rule, file, item.
type Key = (String, String, String);

/// Weights that are accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Baseline(BTreeMap<Key, usize>);

/// A difference between a baseline and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// These are new, or some of them are.
    Worse(Vec<Finding>),
    /// The baseline accepts more than there is: what it says, what there is.
    Better(String, usize, usize),
}

impl Baseline {
    /// The weights of these findings.
    pub fn of(findings: &[Finding]) -> Baseline {
        let mut weights: BTreeMap<Key, usize> = BTreeMap::new();
        for finding in findings {
            *weights.entry(key(finding)).or_default() += finding.weight;
        }
        Baseline(weights)
    }

    /// Reads the text of a baseline.
    ///
    /// # Errors
    /// The first line that is none.
    pub fn parse(text: &str) -> Result<Baseline, String> {
        let mut weights = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let parts: Vec<&str> = line.split(' ').collect();
            let [rule, file, item, weight] = parts[..] else { return Err(format!("no baseline: {line}")) };
            let weight = weight.parse().map_err(|_| format!("no weight: {line}"))?;
            weights.insert((rule.to_owned(), file.to_owned(), item.to_owned()), weight);
        }
        Ok(Baseline(weights))
    }

    /// The text that [`Baseline::parse`] reads.
    pub fn text(&self) -> String {
        let mut text = String::from(
            "# What `tidy` found and is not put right so far: rule, file, item, weight. `tidy --update` lowers it.\n",
        );
        for ((rule, file, item), weight) in &self.0 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{rule} {file} {item} {weight}");
        }
        text
    }

    /// The differences to this baseline, worse ones first.
    pub fn compare(&self, findings: &[Finding]) -> Vec<Difference> {
        let now = Baseline::of(findings);
        let accepted = |key: &Key| self.0.get(key).copied().unwrap_or(0);
        let worse = now.0.iter().filter(|(key, weight)| **weight > accepted(key));
        let of_key = |key: &Key| findings.iter().filter(|finding| self::key(finding) == *key).cloned().collect();
        let mut differences: Vec<Difference> = worse.map(|(key, _)| Difference::Worse(of_key(key))).collect();
        for (key, &weight) in &self.0 {
            let is = now.0.get(key).copied().unwrap_or(0);
            if is < weight {
                let (rule, file, item) = key;
                let name = if item == "-" { format!("{rule} {file}") } else { format!("{rule} {file} {item}") };
                differences.push(Difference::Better(name, weight, is));
            }
        }
        differences
    }

    /// This baseline where it is lower, and nothing that it does not have.
    pub fn lowered_to(&self, findings: &[Finding]) -> Baseline {
        let now = Baseline::of(findings);
        let lower = |(key, &weight): (&Key, &usize)| {
            let is = now.0.get(key).copied().unwrap_or(0).min(weight);
            (is > 0).then(|| (key.clone(), is))
        };
        Baseline(self.0.iter().filter_map(lower).collect())
    }
}

fn key(finding: &Finding) -> Key {
    let item = if finding.item.is_empty() { "-" } else { &finding.item };
    (finding.rule.to_owned(), finding.file.clone(), item.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(file: &str, lines: usize) -> Vec<Finding> {
        let finding = |line| Finding {
            file: file.to_owned(),
            line,
            rule: "width",
            item: String::new(),
            weight: 1,
            message: "wide".to_owned(),
        };
        (1..=lines).map(finding).collect()
    }

    #[test]
    fn a_baseline_reads_as_it_was_written() {
        let baseline = Baseline::of(&[wide("a.md", 2), wide("b.md", 1)].concat());
        assert_eq!(Baseline::parse(&baseline.text()), Ok(baseline));
        assert_eq!(Baseline::parse("width a.md 2\n"), Err("no baseline: width a.md 2".to_owned()));
        assert_eq!(Baseline::parse("width a.md - x\n"), Err("no weight: width a.md - x".to_owned()));
    }

    #[test]
    fn worse_is_an_error_with_all_places_and_better_lowers_the_baseline() {
        let baseline = Baseline::of(&wide("a.md", 2));
        assert_eq!(baseline.compare(&wide("a.md", 2)), []);
        assert_eq!(baseline.compare(&wide("a.md", 3)), [Difference::Worse(wide("a.md", 3))]);
        assert_eq!(baseline.compare(&wide("a.md", 1)), [Difference::Better("width a.md".to_owned(), 2, 1)]);
        assert_eq!(baseline.lowered_to(&wide("a.md", 1)), Baseline::of(&wide("a.md", 1)));
        assert_eq!(baseline.lowered_to(&wide("a.md", 9)), baseline, "it is never raised");
        assert_eq!(baseline.lowered_to(&wide("b.md", 1)), Baseline::default());
    }
}
