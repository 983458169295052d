//! A stub for systems without TLS: the crate `psk` is only for Linux. No session can be created.

use nvme::tls::TlsPsk;
use thiserror::Error;

/// TLS is not available.
#[derive(Debug, Error)]
#[error("TLS of NVMe/TCP is there on Linux only")]
pub(crate) struct TlsError;

/// A session, which cannot exist here.
pub(crate) enum Session {}

/// The result of a decryption.
pub(crate) struct Opened {
    pub taken: usize,
    pub len: usize,
    pub ended: bool,
}

/// Always fails.
pub(crate) fn client(_: &[TlsPsk]) -> Result<Session, TlsError> {
    Err(TlsError)
}

impl Session {
    pub fn shake(&mut self, _: &[u8]) -> Result<(usize, bool), TlsError> {
        match *self {}
    }

    pub fn to_send(&mut self) -> Vec<u8> {
        match *self {}
    }

    pub fn open(&mut self, _: &[u8], _: &mut [u8]) -> Result<Opened, TlsError> {
        match *self {}
    }

    pub fn sealed_bytes_max(plain_bytes: usize) -> usize {
        plain_bytes
    }

    pub fn seal(&mut self, _: &[u8], _: &mut [u8]) -> Result<usize, TlsError> {
        match *self {}
    }

    pub fn close(&mut self) {
        match *self {}
    }
}
