//! Conversions of volumes between direct and thin.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Compression, Invalid, ThinSettings, ThinUpdate, VolumeKind};

/// A conversion that is under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Conversion {
    /// The kind that the volume gets.
    pub to: VolumeKind,
    /// Bytes of the volume that are copied.
    pub done_bytes: u64,
    /// Bytes of the volume.
    pub total_bytes: u64,
    /// How much is copied, in percent.
    pub done_percent: f64,
    /// Why it does not go on at present; `null` if it does.
    pub message: Option<String>,
    /// How the volume will use the pool, if it becomes thin; else `null`.
    pub thin: Option<ThinSettings>,
}

/// `POST /v1/volumes/{group}/{volume}/convert`: convert a volume while it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeConvert {
    /// The action.
    pub action: ConvertAction,
    /// How blocks of the thin volume are stored: `off`, `lz4`, `zstd` or `zstd:LEVEL`; default
    /// `off`.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "zstd:3")]
    pub compression: Option<Compression>,
    /// Most bytes that may be written to the thin volume, uncompressed; default: all.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Bytes of the pool that are kept for the thin volume; default: none.
    #[serde(default)]
    pub reserve_bytes: Option<u64>,
    /// Milliseconds that a write to the thin volume waits for space, up to 20 000; default 0: it
    /// fails at once.
    #[serde(default)]
    pub full_wait_ms: Option<u64>,
    /// Content of the thin volume that was not written for so many seconds, to twice that, is
    /// packed again in larger pieces with Zstandard; default: never.
    #[serde(default)]
    pub repack_after_s: Option<u64>,
    /// Only report what would be done; change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// An action on the kind of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConvertAction {
    /// Make it thin.
    Thin,
    /// Make it direct.
    Direct,
    /// Stop the conversion that is under way. The volume stays as it was before.
    Cancel,
}

impl VolumeConvert {
    /// Checks everything that does not need the volume.
    ///
    /// # Errors
    /// A sentence that names the problem.
    pub fn validate(&self) -> Result<(), Invalid> {
        let settings = self.thin_settings();
        match self.action {
            ConvertAction::Direct | ConvertAction::Cancel if !settings.is_empty() => {
                Err(Invalid::new("settings of thin volumes are for a conversion to thin"))
            }
            _ => settings.check_values(),
        }
    }

    /// How the thin volume is to use the pool.
    pub fn thin_settings(&self) -> ThinUpdate {
        let VolumeConvert { compression, quota_bytes, reserve_bytes, full_wait_ms, repack_after_s, dry_run, .. } =
            *self;
        ThinUpdate { compression, quota_bytes, reserve_bytes, full_wait_ms, repack_after_s, dry_run }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: serde_json::Value) -> VolumeConvert {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn settings_of_a_thin_volume_are_refused_unless_it_becomes_thin() {
        let settings = [
            ("compression", serde_json::json!("zstd:3")),
            ("quota_bytes", 4096.into()),
            ("reserve_bytes", 4096.into()),
            ("full_wait_ms", 1.into()),
            ("repack_after_s", 1.into()),
        ];
        for (name, value) in settings {
            let with = |action: &str| request(serde_json::json!({ "action": action, name: value }));
            assert_eq!(with("thin").validate(), Ok(()), "{name}");
            for action in ["direct", "cancel"] {
                let message = with(action).validate().unwrap_err().to_string();
                assert_eq!(message, "settings of thin volumes are for a conversion to thin", "{name}");
            }
        }
        for action in ["thin", "direct", "cancel"] {
            assert_eq!(
                request(serde_json::json!({ "action": action, "dry_run": true })).validate(),
                Ok(()),
                "{action}"
            );
        }
    }

    #[test]
    fn settings_of_a_conversion_are_checked_and_passed_on() {
        let long = request(serde_json::json!({ "action": "thin", "full_wait_ms": 20_001 }));
        assert!(long.validate().is_err());
        let all = serde_json::json!({
            "action": "thin", "compression": "lz4", "quota_bytes": 8192, "reserve_bytes": 4096, "full_wait_ms": 5,
            "repack_after_s": 60, "dry_run": true,
        });
        let passed = ThinUpdate {
            compression: Some(Compression::Lz4),
            quota_bytes: Some(8192),
            reserve_bytes: Some(4096),
            full_wait_ms: Some(5),
            repack_after_s: Some(60),
            dry_run: true,
        };
        assert_eq!(request(all).thin_settings(), passed);
        assert!(serde_json::from_str::<VolumeConvert>(r#"{"action":"thin","level":3}"#).is_err());
    }
}
