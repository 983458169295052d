//! Converts the numbers of a request to the shape of a group.

use std::fmt::Display;

use api::{ErrorCode, GroupCreate};
use format::{Level, Shape};

use super::control::{Answer, ControlError};

/// The level as the on-disk format knows it.
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

/// The shape that a request specifies, with the format's rules and defaults.
///
/// # Errors
/// [`ErrorCode::Invalid`], with the sentence of the violated rule.
pub(super) fn shape(request: &GroupCreate) -> Answer<Shape> {
    Shape::of(level(request.level)?, narrow("number of drives", request.drives.len())?)
        .parity(request.parity.map(|parity| narrow("parity", parity)).transpose()?)
        .copies(request.copies.map(|copies| narrow("number of copies", copies)).transpose()?)
        .sets(request.sets.map(|sets| narrow("number of sets", sets)).transpose()?)
        .strip_bytes(request.strip_bytes.map(|bytes| narrow("strip size", bytes)).transpose()?)
        .build()
        .map_err(|error| ControlError::new(ErrorCode::Invalid, error.to_string()))
}

/// A number in the width that the format uses. A number that does not fit violates every rule.
fn narrow<Wide: Copy + Display, Narrow: TryFrom<Wide>>(what: &str, number: Wide) -> Answer<Narrow> {
    Narrow::try_from(number)
        .map_err(|_| ControlError::new(ErrorCode::Invalid, format!("the {what} {number} is far too large")))
}
