//! Asynchronous events: NVMe Base 2.0, clause 5.2.

use std::collections::VecDeque;

use crate::{Completion, Status};

/// Asynchronous Event Requests that may wait at the same time: AERL and one.
pub const EVENT_REQUESTS_MAX: usize = 4;

/// Something that hosts want to know without asking again and again. Base 2.0, figure 149.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Event {
    /// Namespaces came, went, or have another size.
    NamespaceChanged,
    /// The state of a path changed.
    AccessChanged,
    /// The discovery log changed.
    DiscoveryChanged,
    /// There is a reservation notification to be read.
    ReservationNotice,
}

impl Event {
    const ALL: [Event; 4] =
        [Event::NamespaceChanged, Event::AccessChanged, Event::DiscoveryChanged, Event::ReservationNotice];

    /// Its bit in OAES and in the feature Asynchronous Event Configuration. 0 for one that has
    /// none: it is always told.
    pub fn bit(self) -> u32 {
        match self {
            Event::NamespaceChanged => 1 << 8,
            Event::AccessChanged => 1 << 11,
            Event::DiscoveryChanged => 1 << 31,
            Event::ReservationNotice => 0,
        }
    }

    /// The log page that says more.
    fn log_page(self) -> u8 {
        match self {
            Event::NamespaceChanged => 0x04,
            Event::AccessChanged => 0x0C,
            Event::DiscoveryChanged => 0x70,
            Event::ReservationNotice => 0x80,
        }
    }

    /// Dword 0 of the completion: log page, information, and type: 2 is "Notice", 6 "I/O Command
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

/// The events of one controller, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Command identifiers of requests that wait.
    requests: VecDeque<u16>,
    /// What happened and was not told yet, by [`Event`].
    pending: [bool; Event::ALL.len()],
    /// What was told and not looked up yet: not told again until it is.
    masked: [bool; Event::ALL.len()],
    /// The feature Asynchronous Event Configuration: what the host wants to hear of.
    pub wanted: u32,
}

impl Events {
    /// A request to be told. False if so many wait already.
    pub fn request(&mut self, cid: u16) -> bool {
        let fits = self.requests.len() < EVENT_REQUESTS_MAX;
        if fits {
            self.requests.push_back(cid);
        }
        fits
    }

    /// Takes a request back. False if it does not wait.
    pub fn abort(&mut self, cid: u16) -> bool {
        let before = self.requests.len();
        self.requests.retain(|waiting| *waiting != cid);
        self.requests.len() < before
    }

    pub fn happened(&mut self, event: Event) {
        self.pending[event as usize] = true;
    }

    /// The host has read a log page.
    pub fn looked_up(&mut self, page: u8) {
        for event in Event::ALL {
            if event.log_page() == page {
                self.masked[event as usize] = false;
            }
        }
    }

    /// What can be told now.
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
