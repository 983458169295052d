//! RAID levels and crash safety modes by name. The `format` crate defines which shapes they allow.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Invalid;

/// How a group protects its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Striped, no protection.
    Raid0,
    /// 2 to 4 copies, one on each drive.
    Raid1,
    /// Striped over mirrors.
    Raid10,
    /// One parity strip.
    Raid5,
    /// Two parity strips, P and Q.
    Raid6,
    /// Three parity strips: triple parity.
    Raid7,
    /// Striped over sets of RAID 5.
    Raid50,
    /// Striped over sets of RAID 6.
    Raid60,
    /// N data and M parity strips, M from 1 to 8.
    Nm,
    /// A level that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl Level {
    /// Every level that a request may name.
    pub const ALL: [Level; 9] = [
        Level::Raid0,
        Level::Raid1,
        Level::Raid10,
        Level::Raid5,
        Level::Raid6,
        Level::Raid7,
        Level::Raid50,
        Level::Raid60,
        Level::Nm,
    ];

    /// The name in requests, answers and commands.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Raid0 => "raid0",
            Level::Raid1 => "raid1",
            Level::Raid10 => "raid10",
            Level::Raid5 => "raid5",
            Level::Raid6 => "raid6",
            Level::Raid7 => "raid7",
            Level::Raid50 => "raid50",
            Level::Raid60 => "raid60",
            Level::Nm => "nm",
            Level::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Level {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Level, Invalid> {
        let plain: String =
            text.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
        Ok(match plain.as_str() {
            "raid0" | "0" => Level::Raid0,
            "raid1" | "1" | "mirror" => Level::Raid1,
            "raid10" | "10" => Level::Raid10,
            "raid5" | "5" => Level::Raid5,
            "raid6" | "6" => Level::Raid6,
            "raid7" | "raidtp" | "triple" => Level::Raid7,
            "raid50" | "50" => Level::Raid50,
            "raid60" | "60" => Level::Raid60,
            "nm" => Level::Nm,
            _ => {
                return Err(Invalid::new(format!(
                    "{text:?} is not a level: choose raid0, raid1, raid10, raid5, raid6, raid7, raid50, raid60 or nm"
                )));
            }
        })
    }
}

/// How much a crash in the middle of writes may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SafetyMode {
    /// No log: for data that can be recreated.
    Off,
    /// A log closes the write hole.
    On,
    /// Like `on`; in addition, blocks that were being written are old or new even if a drive is
    /// lost in the same crash.
    Strict,
    /// A mode that this client doesn't know. Never sent.
    #[serde(other)]
    Unknown,
}

impl SafetyMode {
    /// The name in requests, answers and commands.
    pub fn as_str(self) -> &'static str {
        match self {
            SafetyMode::Off => "off",
            SafetyMode::On => "on",
            SafetyMode::Strict => "strict",
            SafetyMode::Unknown => "unknown",
        }
    }
}

impl fmt::Display for SafetyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for SafetyMode {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<SafetyMode, Invalid> {
        let modes = [SafetyMode::Off, SafetyMode::On, SafetyMode::Strict];
        let mode = modes.into_iter().find(|mode| mode.as_str() == text);
        mode.ok_or_else(|| Invalid::new(format!("{text:?} is not a crash safety: choose on, off or strict")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_reads_back_under_its_name() {
        for level in Level::ALL {
            assert_eq!(level.as_str().parse::<Level>(), Ok(level));
            assert_eq!(serde_json::to_string(&level).unwrap(), format!("\"{level}\""));
        }
        assert_eq!("RAID-6".parse::<Level>(), Ok(Level::Raid6));
        assert_eq!("triple".parse::<Level>(), Ok(Level::Raid7));
        assert_eq!("N+M".parse::<Level>(), Ok(Level::Nm));
        assert_eq!(
            "raid9".parse::<Level>().unwrap_err().to_string(),
            "\"raid9\" is not a level: choose raid0, raid1, raid10, raid5, raid6, raid7, raid50, raid60 or nm"
        );
    }
}
