//! The two halves of a connection, unencrypted or with TLS.
//!
//! With TLS only its close message proves that the target has ended the connection. An attacker
//! between both ends can end the connection too, and hold back data. So an end without that message
//! is a failure, after which the target may still execute commands.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::rc::Rc;

use drive::{BufMut, Segments};
use nvme::tls::TlsPsk;
use smallvec::smallvec;

use crate::network::{Network, Reader, Writer};
use crate::session::{Session, TlsError, client};

/// Ciphertext that is received at once, in bytes: several records of the largest size, 16 KiB.
const CIPHER_BYTES: usize = 64 << 10;

/// Plaintext that is encrypted and sent in one step, in bytes.
const SEND_BYTES: usize = 240 << 10;

/// The receiving half.
pub(crate) struct WireReader<N: Network> {
    reader: N::Reader,
    tls: Option<TlsReader<N>>,
}

struct TlsReader<N> {
    env: N,
    session: Rc<RefCell<Session>>,
    /// Ciphertext that was not decrypted yet: `start..end` of a buffer. The buffer is `None` while
    /// ciphertext is received into it.
    cipher: Option<BufMut>,
    start: usize,
    end: usize,
}

/// The sending half.
pub(crate) struct WireWriter<N: Network> {
    env: N,
    writer: N::Writer,
    session: Option<Rc<RefCell<Session>>>,
}

/// Both halves, unencrypted.
pub(crate) fn plain<N: Network>(env: &N, reader: N::Reader, writer: N::Writer) -> (WireReader<N>, WireWriter<N>) {
    (WireReader { reader, tls: None }, WireWriter { env: env.clone(), writer, session: None })
}

/// Why there is no TLS, for display.
pub(crate) enum Unsecured {
    /// The target refused these keys.
    Refused(String),
    /// Another key would not help.
    Failed(String),
}

/// Performs the handshake with one of these keys of this host.
pub(crate) async fn secure<N: Network>(
    env: &N,
    mut reader: N::Reader,
    mut writer: N::Writer,
    offered: &[TlsPsk],
) -> Result<(WireReader<N>, WireWriter<N>), Unsecured> {
    let text = |error: TlsError| Unsecured::Refused(error.to_string());
    let broken = |error: io::Error| Unsecured::Failed(format!("the connection failed: {error}"));
    let mut session = client(offered).map_err(|error| Unsecured::Failed(error.to_string()))?;
    let mut cipher = env.alloc(CIPHER_BYTES);
    let (mut len, mut is_silent) = (0, true);
    loop {
        let shaken = session.shake(&cipher[..len]);
        let said = session.to_send();
        if !said.is_empty() {
            let sent = writer.send(smallvec![BufMut::copy_of(&said).freeze()] as Segments).await;
            sent.map_err(broken)?;
        }
        let (taken, is_done) = shaken.map_err(text)?;
        if is_done {
            let session = Rc::new(RefCell::new(session));
            let tls =
                TlsReader { env: env.clone(), session: session.clone(), cipher: Some(cipher), start: taken, end: len };
            let writer = WireWriter { env: env.clone(), writer, session: Some(session) };
            return Ok((WireReader { reader, tls: Some(tls) }, writer));
        }
        let received;
        (received, cipher) = reader.recv(cipher, 0).await;
        let is_first = std::mem::take(&mut is_silent);
        len = match received {
            Ok(0) => return Err(Unsecured::Refused(REFUSED.to_owned())),
            Ok(_) if is_first && !RECORD_TYPES.contains(&cipher[0]) => {
                return Err(Unsecured::Failed(NO_TLS.to_owned()));
            }
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                return Err(Unsecured::Refused(REFUSED.to_owned()));
            }
            Err(error) => return Err(broken(error)),
        };
    }
}

/// A target gives no reason to a host whose key it does not have.
const REFUSED: &str = "the target ended the handshake: it has another key of this host, or none, or no TLS";

/// The first byte of a TLS record (RFC 8446, section 5.1): change_cipher_spec, alert, handshake. An
/// NVMe/TCP PDU does not begin with it.
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=22;

const NO_TLS: &str = "what listens there answers without TLS";

fn failed(what: impl ToString) -> io::Error {
    io::Error::new(ErrorKind::ConnectionAborted, what.to_string())
}

impl<N: Network> WireReader<N> {
    /// See [`Reader::recv`].
    pub async fn recv(&mut self, mut buf: BufMut, from: usize) -> (io::Result<usize>, BufMut) {
        let Some(tls) = &mut self.tls else { return self.reader.recv(buf, from).await };
        loop {
            if let Some(opened) = tls.open(&mut buf[from..]) {
                return (opened, buf);
            }
            let cipher = match tls.cipher.take() {
                Some(cipher) => cipher,
                None => tls.env.alloc(CIPHER_BYTES),
            };
            let (received, cipher) = self.reader.recv(cipher, 0).await;
            (tls.cipher, tls.start, tls.end) = (Some(cipher), 0, 0);
            match received {
                Ok(0) => return (Err(failed("it was closed without TLS' goodbye")), buf),
                Ok(len) => tls.end = len,
                Err(error) => return (Err(failed(error)), buf),
            }
        }
    }
}

impl<N> TlsReader<N> {
    /// Decrypts available ciphertext. `None` if more is needed.
    fn open(&mut self, into: &mut [u8]) -> Option<io::Result<usize>> {
        let cipher = self.cipher.as_ref().map_or(&[][..], |cipher| &cipher[self.start..self.end]);
        match self.session.borrow_mut().open(cipher, into) {
            Err(error) => Some(Err(failed(error))),
            Ok(opened) => {
                self.start += opened.taken;
                (opened.len > 0 || opened.ended).then_some(Ok(opened.len))
            }
        }
    }
}

impl<N: Network> WireWriter<N> {
    /// See [`Writer::send`].
    pub async fn send(&mut self, data: Segments) -> io::Result<()> {
        let Some(session) = &self.session else { return self.writer.send(data).await };
        let mut rest = data.iter().map(|segment| &segment[..]).filter(|segment| !segment.is_empty()).peekable();
        while rest.peek().is_some() {
            // Parts of segments that are encrypted and sent in one step.
            let (mut parts, mut plain_bytes) = (Vec::new(), 0);
            while let Some(segment) = rest.peek_mut()
                && plain_bytes < SEND_BYTES
            {
                let (part, left) = segment.split_at(segment.len().min(SEND_BYTES - plain_bytes));
                parts.push(part);
                plain_bytes += part.len();
                *segment = left;
                if left.is_empty() {
                    rest.next();
                }
            }
            let max = parts.iter().map(|part| Session::sealed_bytes_max(part.len())).sum();
            let (mut cipher, mut len) = (self.env.alloc(max), 0);
            for part in parts {
                len += session.borrow_mut().seal(part, &mut cipher[len..]).map_err(failed)?;
            }
            self.writer.send(smallvec![cipher.freeze().slice(0..len)]).await?;
        }
        Ok(())
    }

    /// Sends TLS's close message. Does nothing without TLS.
    pub async fn goodbye(&mut self) -> io::Result<()> {
        let Some(session) = &self.session else { return Ok(()) };
        session.borrow_mut().close();
        let said = session.borrow_mut().to_send();
        if said.is_empty() { Ok(()) } else { self.writer.send(smallvec![BufMut::copy_of(&said).freeze()]).await }
    }
}
