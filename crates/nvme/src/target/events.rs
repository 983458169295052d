//! Asynchronous events: NVMe Base 2.0, clause 5.2.

use std::collections::VecDeque;

use crate::{Completion, Status};

/// Maximum number of Asynchronous Event Requests that may wait: AERL plus one.
pub const EVENT_REQUESTS_MAX: usize = 4;

/// An event that hosts want to know about without polling. Base 2.0, figure 149.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Event {
    /// Namespaces were added, removed or resized.
    NamespaceChanged,
    /// The state of a path changed.
    AccessChanged,
    /// The discovery log changed.
    DiscoveryChanged,
    /// A reservation notification is available.
    ReservationNotice,
}

impl Event {
    const ALL: [Event; 4] =
        [Event::NamespaceChanged, Event::AccessChanged, Event::DiscoveryChanged, Event::ReservationNotice];

    /// The bit in OAES and in the feature Asynchronous Event Configuration. 0 for an event without
    /// a bit, which is always reported.
    pub fn bit(self) -> u32 {
        match self {
            Event::NamespaceChanged => 1 << 8,
            Event::AccessChanged => 1 << 11,
            Event::DiscoveryChanged => 1 << 31,
            Event::ReservationNotice => 0,
        }
    }

    /// The log page with details.
    fn log_page(self) -> u8 {
        match self {
            Event::NamespaceChanged => 0x04,
            Event::AccessChanged => 0x0C,
            Event::DiscoveryChanged => 0x70,
            Event::ReservationNotice => 0x80,
        }
    }

    /// Dword 0 of the completion: log page, information and type. 2 is "Notice", 6 "I/O Command
    /// specific status".
    fn result(self) -> u64 {
        let (information, kind) = match self {
            Event::NamespaceChanged => (0x00, 2),
            Event::AccessChanged => (0x03, 2),
            Event::DiscoveryChanged => (0xF0, 2),
            Event::ReservationNotice => (0x00, 6),
        };
        u64::from(self.log_page()) << 16 | information << 8 | kind
    }
}

/// The events of one controller, and the requests that wait for them.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Command identifiers of waiting requests.
    requests: VecDeque<u16>,
    /// Events that occurred but were not reported yet, by [`Event`].
    pending: [bool; Event::ALL.len()],
    /// Events that were reported and whose log page was not read yet. They are not reported again
    /// before.
    masked: [bool; Event::ALL.len()],
    /// The feature Asynchronous Event Configuration: events that the host enabled.
    pub wanted: u32,
}

impl Events {
    /// Adds an event request. False if too many wait already.
    pub fn request(&mut self, cid: u16) -> bool {
        let fits = self.requests.len() < EVENT_REQUESTS_MAX;
        if fits {
            self.requests.push_back(cid);
        }
        fits
    }

    /// Removes a waiting request. False if there is none with this identifier.
    pub fn abort(&mut self, cid: u16) -> bool {
        let before = self.requests.len();
        self.requests.retain(|waiting| *waiting != cid);
        self.requests.len() < before
    }

    pub fn happened(&mut self, event: Event) {
        self.pending[event as usize] = true;
    }

    /// The host has read a log page: its event may be reported again.
    pub fn looked_up(&mut self, page: u8) {
        for event in Event::ALL {
            if event.log_page() == page {
                self.masked[event as usize] = false;
            }
        }
    }

    /// The completion of a request, if an event can be reported now.
    pub fn take(&mut self) -> Option<Completion> {
        let tell = |event: &Event| {
            let index = *event as usize;
            let is_wanted = event.bit() == 0 || self.wanted & event.bit() != 0;
            self.pending[index] && !self.masked[index] && is_wanted
        };
        let event = Event::ALL.into_iter().find(tell)?;
        let cid = self.requests.pop_front()?;
        self.pending[event as usize] = false;
        self.masked[event as usize] = true;
        Some(Completion::new(cid, Status::SUCCESS, event.result()))
    }

    /// The controller is reset.
    pub fn reset(&mut self) {
        *self = Events::default();
    }
}
