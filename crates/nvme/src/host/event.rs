//! Asynchronous events: NVMe Base 2.0, clause 5.2.

use crate::target::Event;

/// An asynchronous event: dword 0 of the completion, Base 2.0, figure 146.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type: 0 error, 1 health, 2 notice, 6 specific to I/O commands.
    pub kind: u8,
    /// The event within its type.
    pub information: u8,
    /// The log page with details. The event is not reported again until the host reads the page.
    pub log_page: u8,
}

impl AsyncEvent {
    /// Reads the completion's result.
    pub fn of(result: u64) -> AsyncEvent {
        AsyncEvent { kind: result as u8 & 0b111, information: (result >> 8) as u8, log_page: (result >> 16) as u8 }
    }

    /// The notice, if it is one that the host handles.
    pub fn notice(&self) -> Option<Event> {
        match (self.kind, self.information) {
            (2, 0x00) => Some(Event::NamespaceChanged),
            (2, 0x03) => Some(Event::AccessChanged),
            (2, 0xF0) => Some(Event::DiscoveryChanged),
            (6, 0x00) => Some(Event::ReservationNotice),
            _ => None,
        }
    }
}
