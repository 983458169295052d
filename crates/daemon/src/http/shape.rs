//! From the numbers of a request to the shape of a group.

use api::{ErrorCode, GroupCreate};
use format::{DEFAULT_STRIP_BYTES, Level, Shape};

use super::control::{Answer, ControlError};

/// The level by its number on drives.
fn level(level: api::Level) -> Answer<Level> {
    Ok(match level {
        api::Level::Raid0 => Level::Raid0,
        api::Level::Raid1 => Level::Raid1,
        api::Level::Raid10 => Level::Raid10,
        api::Level::Raid5 => Level::Raid5,
        api::Level::Raid6 => Level::Raid6,
        api::Level::Raid7 => Level::Raid7,
        api::Level::Raid50 => Level::Raid50,
        api::Level::Raid60 => Level::Raid60,
        api::Level::Nm => Level::Nm,
        api::Level::Unknown => {
            let names: Vec<&str> = Level::ALL.iter().map(|level| level.name()).collect();
            return Err(ControlError::new(
                ErrorCode::Invalid,
                format!("the level is not known here: choose one of {}", names.join(", ")),
            ));
        }
    })
}

/// The shape that a request asks for, with the format's rules and defaults.
///
/// # Errors
/// [`ErrorCode::Invalid`], with the sentence of the rule that is broken.
pub(super) fn shape(request: &GroupCreate) -> Answer<Shape> {
    // A number too large for its field is too large for its rule as well, so it may as well be the largest.
    let narrow_u8 = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    let narrow_u16 = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    Shape::new(
        level(request.level)?,
        u16::try_from(request.drives.len()).unwrap_or(u16::MAX),
        request.parity.map(narrow_u8),
        request.copies.map(narrow_u8),
        request.sets.map(narrow_u16),
        request.strip_bytes.map_or(DEFAULT_STRIP_BYTES, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
    )
    .map_err(|error| ControlError::new(ErrorCode::Invalid, error.to_string()))
}
