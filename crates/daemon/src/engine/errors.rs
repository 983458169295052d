//! Errors that several parts of the engine answer with.

use api::ErrorCode;
use format::Uuid;

use crate::http::{Answer, ControlError};

pub(crate) fn stopping() -> ControlError {
    ControlError::new(ErrorCode::Unavailable, "the daemon is stopping")
}

/// A random UUID, as of RFC 9562.
pub(crate) fn new_uuid() -> Answer<Uuid> {
    let mut bytes = [0; 16];
    let read =
        std::fs::File::open("/dev/urandom").and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes));
    read.map_err(|error| ControlError::new(ErrorCode::Internal, format!("no random numbers: {error}")))?;
    Ok(Uuid::from_random(bytes))
}
