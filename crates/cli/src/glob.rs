//! Names of drives with wildcards that the shell did not expand: `'/dev/nvme*n1'`, `d[0-3]`, as in
//! glob(7).
//!
//! A path that exists always means itself, even if it contains such characters.

use std::cmp::Ordering;
use std::path::Path;

/// Whether a path has wildcards and does not exist itself.
pub fn is_pattern(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains(['*', '?', '['])) && !path.exists()
}

/// The paths that match an absolute pattern, in numeric order: `nvme2n1` before `nvme10n1`.
pub fn expand(pattern: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = found.iter().flat_map(|folder| below(folder, part)).collect();
    }
    found.sort_by(|one, other| counted_order(one, other));
    found
}

/// The names in a folder that match one part of a pattern.
fn below(folder: &str, part: &str) -> Vec<String> {
    if !part.contains(['*', '?', '[']) {
        let path = format!("{folder}/{part}");
        return if Path::new(&path).exists() { vec![path] } else { Vec::new() };
    }
    let pattern: Vec<char> = part.chars().collect();
    let entries = std::fs::read_dir(format!("{folder}/")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // As in a shell, only a pattern that begins with a dot matches hidden names.
    let is_meant = |name: &String| name.starts_with('.') <= part.starts_with('.');
    let matching = names.filter(|name| is_meant(name) && matches(&pattern, &name.chars().collect::<Vec<_>>()));
    matching.map(|name| format!("{folder}/{name}")).collect()
}

fn matches(pattern: &[char], name: &[char]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        (['*', rest @ ..], _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        (['?', rest @ ..], [_, name @ ..]) => matches(rest, name),
        (['[', rest @ ..], [letter, others @ ..]) => match set(rest, *letter) {
            Some((is_in, rest)) => is_in && matches(rest, others),
            // A `[` without an end stands for itself.
            None => *letter == '[' && matches(rest, others),
        },
        ([one, rest @ ..], [letter, others @ ..]) => one == letter && matches(rest, others),
        _ => false,
    }
}

/// Whether a letter is in the set that begins behind `[`, and the pattern behind the set. `None` if
/// the set does not end.
fn set(pattern: &[char], letter: char) -> Option<(bool, &[char])> {
    let (is_other, set) = match pattern {
        ['!' | '^', set @ ..] => (true, set),
        set => (false, set),
    };
    // A `]` at the beginning is one of the letters.
    let end = set.iter().skip(1).position(|one| *one == ']')? + 1;
    let (mut letters, mut is_in) = (&set[..end], false);
    while let [first, rest @ ..] = letters {
        (is_in, letters) = match rest {
            ['-', last, rest @ ..] => (is_in || (*first..=*last).contains(&letter), rest),
            rest => (is_in || *first == letter, rest),
        };
    }
    Some((is_in != is_other, &set[end + 1..]))
}

/// Compares names with their numbers as numbers.
fn counted_order(one: &str, other: &str) -> Ordering {
    let parts = |text: &str| {
        let mut parts: Vec<(u64, String)> = Vec::new();
        for letter in text.chars() {
            match (parts.last_mut(), letter.to_digit(10)) {
                (Some((number, tail)), Some(digit)) if tail.is_empty() => {
                    *number = number.saturating_mul(10).saturating_add(digit.into());
                }
                (_, Some(digit)) => parts.push((digit.into(), String::new())),
                (Some((_, tail)), None) => tail.push(letter),
                (None, None) => parts.push((0, letter.to_string())),
            }
        }
        parts
    };
    parts(one).cmp(&parts(other)).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_stands_for_what_a_shell_would_find_in_the_order_of_its_numbers() {
        let folder = std::env::temp_dir().join(format!("purlin-glob-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("by-id")).unwrap();
        for name in ["nvme0n1", "nvme2n1", "nvme10n1", "nvme0n1p1", "sda", ".nvme3n1", "by-id/x-1", "odd[1]"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found = |pattern: &str| -> Vec<String> {
            let all = expand(&folder.join(pattern).display().to_string());
            all.iter().map(|path| path.strip_prefix(folder.to_str().unwrap()).unwrap().to_owned()).collect()
        };
        assert_eq!(found("nvme*n1"), ["/nvme0n1", "/nvme2n1", "/nvme10n1"]);
        assert_eq!(found("nvme?n1"), ["/nvme0n1", "/nvme2n1"]);
        assert_eq!(found("nvme[1-9]*"), ["/nvme2n1", "/nvme10n1"]);
        assert_eq!(found("nvme[!0]n1"), ["/nvme2n1"]);
        assert_eq!(found("*/x-*"), ["/by-id/x-1"]);
        assert_eq!(found("sd[ab]"), ["/sda"]);
        assert_eq!(found("hd*"), [""; 0]);
        assert!(!is_pattern(&folder.join("odd[1]")), "it is there under this name");
        assert!(is_pattern(&folder.join("odd[2]")) && !is_pattern(&folder.join("sda")));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
