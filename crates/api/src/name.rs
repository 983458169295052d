//! Names of groups and volumes.

use std::fmt;
use std::str::FromStr;

use crate::Invalid;

/// The longest name, in characters (all ASCII, so bytes too): the superblock has no room for more.
pub const NAME_CHARS_MAX: usize = 64;

/// Checks the name of a group or volume: 1 to [`NAME_CHARS_MAX`] of `a-z 0-9 . _ -`, first a letter
/// or digit.
///
/// So a name is one path segment and one shell word, and never looks like an option.
///
/// # Errors
/// A sentence that names the problem; `what` is "group" or "volume".
pub fn check_name(what: &str, name: &str) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::new(format!("a {what} needs a name")));
    }
    if name.len() > NAME_CHARS_MAX {
        return Err(Invalid::new(format!("the {what} name {name:?} is longer than {NAME_CHARS_MAX} characters")));
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !name.chars().all(|c| plain(c) || matches!(c, '.' | '_' | '-')) || !name.starts_with(plain) {
        return Err(Invalid::new(format!(
            "{name:?} is not a {what} name: use a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"
        )));
    }
    Ok(())
}

/// A volume's full name, `GROUP/VOLUME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeName {
    /// The group of the volume.
    pub group: String,
    /// Its name in the group.
    pub volume: String,
}

impl FromStr for VolumeName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<VolumeName, Invalid> {
        let Some((group, volume)) = text.split_once('/') else {
            return Err(Invalid::new(format!("{text:?} is not a volume name: write GROUP/VOLUME, such as tank/db")));
        };
        check_name("group", group)?;
        check_name("volume", volume)?;
        Ok(VolumeName { group: group.to_owned(), volume: volume.to_owned() })
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_that_is_no_option() {
        for name in ["tank", "t", "0", "a.b_c-d9", "x".repeat(NAME_CHARS_MAX).as_str()] {
            assert_eq!(check_name("group", name), Ok(()), "{name}");
        }
        for (name, sentence) in [
            ("", "a group needs a name"),
            ("-x", "\"-x\" is not a group name: use a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"),
            ("..", "\"..\" is not a group name: use a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"),
            ("Tank", "\"Tank\" is not a group name: use a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"),
            ("a b", "\"a b\" is not a group name: use a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"),
            ("tänk", "\"tänk\" is not a group name: use a-z, 0-9, '.', '_' and '-', and begin with a letter or digit"),
        ] {
            assert_eq!(check_name("group", name).unwrap_err().to_string(), sentence);
        }
        assert_eq!(
            check_name("volume", &"x".repeat(65)).unwrap_err().to_string(),
            format!("the volume name \"{}\" is longer than 64 characters", "x".repeat(65))
        );
    }

    #[test]
    fn a_volume_name_has_two_parts() {
        let name: VolumeName = "tank/db".parse().unwrap();
        assert_eq!((name.group.as_str(), name.volume.as_str()), ("tank", "db"));
        assert_eq!(name.to_string(), "tank/db");
        assert_eq!(
            "tank".parse::<VolumeName>().unwrap_err().to_string(),
            "\"tank\" is not a volume name: write GROUP/VOLUME, such as tank/db"
        );
        assert_eq!("tank/".parse::<VolumeName>().unwrap_err().to_string(), "a volume needs a name");
        assert!("a/b/c".parse::<VolumeName>().is_err());
    }
}
