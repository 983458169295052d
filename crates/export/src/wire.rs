//! A stream, in the clear or inside of TLS.
//!
//! TLS is one state for both directions. Its reader decrypts the data that arrives. Messages of TLS
//! itself (handshake, tickets, key updates, alerts) are sent by the writer, when the reader asks
//! for that with [`Received::Flush`]. With pre-shared keys the handshake is over before the stream
//! is split in two halves ([`accept_tls`]), and a key update goes along with the next data.

use std::cell::RefCell;
use std::rc::Rc;

use drive::{Buf, BufMut, Env, Segments};
use psk::TlsError;
use runtime::{Closer, SendsAtOnce, ShardEnv, Stream, StreamReader, StreamWriter};
use thiserror::Error;

use crate::limits::{NVME_FIRST_INPUT_BYTES, PSK_SEND_BYTES, TLS_SEND_BYTES};
use crate::tls::{Plain, Session, TlsConfig};

/// Ciphertext that is received at once, in bytes: a few records of the largest size, 16 KiB.
const CIPHER_BYTES: usize = 64 << 10;

/// Result of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// That many bytes, at least 1.
    Bytes(usize),
    /// Nothing yet: [`WireWriter::flush`] has to send something first.
    Flush,
    /// The peer has finished.
    End,
    /// The socket failed, or the peer broke TLS.
    Broken,
}

/// A failed send. The connection is unusable, and callers do not need the reason.
#[derive(Debug)]
pub(crate) struct SendFailed;

/// The receiving half.
pub(crate) struct WireReader {
    stream: StreamReader,
    tls: Option<TlsReader>,
}

/// TLS of a stream.
enum Tls {
    /// With certificates.
    Certificates(Box<Session>),
    /// With pre-shared keys, after the handshake.
    Keys(psk::Session),
}

struct TlsReader {
    env: ShardEnv,
    session: Rc<RefCell<Tls>>,
    /// Ciphertext that has arrived and was not decrypted yet: `start..end` of a buffer. The buffer
    /// is absent while it is received into.
    cipher: Option<BufMut>,
    start: usize,
    end: usize,
    /// The flush that the last ciphertext requires was requested. The sender may do it later.
    asked: bool,
}

/// The sending half.
pub(crate) struct WireWriter {
    env: ShardEnv,
    stream: StreamWriter,
    session: Option<Rc<RefCell<Tls>>>,
}

/// Splits a stream into its halves.
pub(crate) fn split(env: &ShardEnv, stream: Stream) -> (WireReader, WireWriter) {
    let (reader, writer) = stream.split();
    (WireReader { stream: reader, tls: None }, WireWriter { env: env.clone(), stream: writer, session: None })
}

/// From here on both halves speak TLS. `arrived`: bytes that the peer sent after its request for
/// TLS.
///
/// # Errors
/// If the configuration does not make a session.
pub(crate) fn start_tls(
    reader: &mut WireReader,
    writer: &mut WireWriter,
    config: &TlsConfig,
    arrived: &[u8],
) -> Result<(), rustls::Error> {
    attach(reader, writer, Tls::Certificates(Box::new(Session::new(config)?)), arrived);
    Ok(())
}

/// From here on both halves speak TLS. `arrived`: ciphertext that was not decrypted yet.
fn attach(reader: &mut WireReader, writer: &mut WireWriter, session: Tls, arrived: &[u8]) {
    let session = Rc::new(RefCell::new(session));
    let mut cipher = writer.env.alloc(CIPHER_BYTES.max(arrived.len()));
    cipher[..arrived.len()].copy_from_slice(arrived);
    reader.tls = Some(TlsReader {
        env: writer.env.clone(),
        session: session.clone(),
        cipher: Some(cipher),
        start: 0,
        end: arrived.len(),
        asked: false,
    });
    writer.session = Some(session);
}

/// Why TLS was not set up.
#[derive(Debug, Error)]
pub(crate) enum HandshakeError {
    /// The handshake failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client went.
    #[error("the client closed the connection")]
    Closed,
    /// The socket failed.
    #[error("the connection failed")]
    Broken,
}

/// Performs the handshake with a client that has a pre-shared key; from then on both halves speak
/// TLS. `arrived`: bytes that the client has sent so far. Returns the identity of the key.
pub(crate) async fn accept_tls(
    reader: &mut WireReader,
    writer: &mut WireWriter,
    find: psk::Find,
    arrived: &[u8],
) -> Result<Vec<u8>, HandshakeError> {
    let mut session = psk::Session::server(find)?;
    // Unknown peers hold little: the larger buffer is allocated after the handshake.
    let mut cipher = writer.env.alloc(NVME_FIRST_INPUT_BYTES.max(arrived.len()));
    cipher[..arrived.len()].copy_from_slice(arrived);
    let mut len = arrived.len();
    loop {
        let shaken = session.shake(&cipher[..len]);
        let said = session.to_send();
        if !said.is_empty() {
            writer.send_bytes(said).await.map_err(|_| HandshakeError::Broken)?;
        }
        let (taken, is_done) = shaken?;
        if is_done {
            let identity = session.identity().expect("a session that is open has a key");
            attach(reader, writer, Tls::Keys(session), &cipher[taken..len]);
            return Ok(identity);
        }
        let received;
        (cipher, received) = reader.recv(cipher, 0).await;
        len = match received {
            Received::Bytes(len) => len,
            Received::End => return Err(HandshakeError::Closed),
            Received::Flush | Received::Broken => return Err(HandshakeError::Broken),
        };
    }
}

impl WireReader {
    /// See [`StreamReader::expect_promptly`].
    pub fn expect_promptly(&mut self) {
        self.stream.expect_promptly();
    }

    /// Waits for data and puts it into `buf` from index `from` on, where there is room. The
    /// future may be dropped only when the connection ends.
    pub async fn recv(&mut self, mut buf: BufMut, from: usize) -> (BufMut, Received) {
        let Some(tls) = &mut self.tls else {
            let (received, buf) = self.stream.recv(buf, from).await;
            return match received {
                Ok(0) => (buf, Received::End),
                Ok(len) => (buf, Received::Bytes(len)),
                Err(_) => (buf, Received::Broken),
            };
        };
        loop {
            if let Some(received) = tls.decrypt(&mut buf[from..]) {
                return (buf, received);
            }
            let cipher = match tls.cipher.take() {
                Some(cipher) => cipher,
                None => tls.env.alloc(CIPHER_BYTES),
            };
            let (received, cipher) = self.stream.recv(cipher, 0).await;
            tls.cipher = Some(cipher);
            tls.start = 0;
            match received {
                Ok(0) => return (buf, Received::End),
                Ok(len) => tls.end = len,
                Err(_) => return (buf, Received::Broken),
            }
        }
    }
}

impl TlsReader {
    /// Decrypts the ciphertext that has arrived. `None` if more is needed.
    fn decrypt(&mut self, into: &mut [u8]) -> Option<Received> {
        let mut session = self.session.borrow_mut();
        let session = match &mut *session {
            Tls::Certificates(session) => session,
            Tls::Keys(session) => {
                let cipher = self.cipher.as_ref().map_or(&[][..], |cipher| &cipher[self.start..self.end]);
                return match session.open(cipher, into) {
                    Err(_) => Some(Received::Broken),
                    Ok(opened) => {
                        self.start += opened.taken;
                        match opened.len {
                            0 => opened.ended.then_some(Received::End),
                            len => Some(Received::Bytes(len)),
                        }
                    }
                };
            }
        };
        loop {
            match session.read(into) {
                Ok(Plain::Bytes(len)) => return Some(Received::Bytes(len)),
                Ok(Plain::Ended) => return Some(Received::End),
                Ok(Plain::NeedMore) => {}
                Err(_) => return Some(Received::Broken),
            }
            if session.wants_write() && !self.asked {
                self.asked = true;
                return Some(Received::Flush);
            }
            let cipher = self.cipher.as_ref()?;
            if self.start == self.end {
                return None;
            }
            match session.feed(&cipher[self.start..self.end]) {
                // The peer continues after it closed the session.
                Ok(0) | Err(_) => return Some(Received::Broken),
                Ok(len) => self.start += len,
            }
            self.asked = false;
        }
    }
}

impl WireWriter {
    /// Interrupts both halves.
    pub fn closer(&self) -> Closer {
        self.stream.closer()
    }

    /// Direct sends that bypass [`WireWriter::send`], if nothing is encrypted.
    pub fn at_once(&self) -> Option<SendsAtOnce> {
        self.session.is_none().then(|| self.stream.at_once())
    }

    /// Sends segments in order, and pending messages of TLS.
    pub async fn send(&mut self, segments: Vec<Buf>) -> Result<(), SendFailed> {
        let Some(session) = self.session.clone() else {
            return self.stream.send_all(Segments::from_vec(segments)).await.map_err(|_| SendFailed);
        };
        let send_bytes = match &*session.borrow() {
            Tls::Certificates(_) => TLS_SEND_BYTES,
            Tls::Keys(_) => PSK_SEND_BYTES,
        };
        // Parts of segments that are encrypted and sent at a time.
        let (mut parts, mut plain_bytes) = (Vec::new(), 0);
        for segment in &segments {
            let mut rest = &segment[..];
            while !rest.is_empty() {
                let part;
                (part, rest) = rest.split_at(rest.len().min(send_bytes - plain_bytes));
                parts.push(part);
                plain_bytes += part.len();
                if plain_bytes == send_bytes {
                    self.send_parts(&session, &parts).await?;
                    parts.clear();
                    plain_bytes = 0;
                }
            }
        }
        self.send_parts(&session, &parts).await
    }

    async fn send_parts(&mut self, session: &RefCell<Tls>, parts: &[&[u8]]) -> Result<(), SendFailed> {
        let sealed = match &mut *session.borrow_mut() {
            Tls::Certificates(session) => {
                for part in parts {
                    session.write(part).map_err(|_| SendFailed)?;
                }
                None
            }
            Tls::Keys(session) => {
                let max = parts.iter().map(|part| psk::Session::sealed_bytes_max(part.len())).sum();
                let mut cipher = self.env.alloc(max);
                let mut len = 0;
                for part in parts {
                    len += session.seal(part, &mut cipher[len..]).map_err(|_| SendFailed)?;
                }
                Some(cipher.freeze().slice(0..len))
            }
        };
        match sealed {
            None => self.flush().await,
            Some(sealed) if sealed.is_empty() => Ok(()),
            Some(sealed) => self.stream.send_all(Segments::from_vec(vec![sealed])).await.map_err(|_| SendFailed),
        }
    }

    /// Sends bytes.
    pub async fn send_bytes(&mut self, bytes: Vec<u8>) -> Result<(), SendFailed> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut buf = self.env.alloc(bytes.len());
        buf.copy_from_slice(&bytes);
        self.send(vec![buf.freeze()]).await
    }

    /// Sends pending messages of TLS.
    pub async fn flush(&mut self) -> Result<(), SendFailed> {
        let Some(session) = &self.session else { return Ok(()) };
        let cipher = match &mut *session.borrow_mut() {
            Tls::Certificates(session) => {
                let mut cipher = Vec::new();
                session.take(&mut cipher);
                cipher
            }
            Tls::Keys(session) => session.to_send(),
        };
        if cipher.is_empty() {
            return Ok(());
        }
        let mut buf = self.env.alloc(cipher.len());
        buf.copy_from_slice(&cipher);
        self.stream.send_all(Segments::from_vec(vec![buf.freeze()])).await.map_err(|_| SendFailed)
    }

    /// Closes the session as TLS requires, and then the stream.
    pub async fn goodbye(mut self) {
        if let Some(session) = &self.session {
            match &mut *session.borrow_mut() {
                Tls::Certificates(session) => session.close(),
                Tls::Keys(session) => session.close(),
            }
            // The peer may have gone without listening.
            let _ = self.flush().await;
        }
        self.stream.shutdown();
    }
}
