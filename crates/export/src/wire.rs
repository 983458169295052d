//! A stream, in the clear or inside of TLS.
//!
//! TLS is one state for both directions. Its reader decrypts what arrives; whatever TLS itself wants to say (handshake,
//! tickets, key updates, alarms) is sent by the writer, when the reader asks for it with [`Received::Flush`].

use std::cell::RefCell;
use std::rc::Rc;

use drive::{Buf, BufMut, Env, Segments};
use runtime::{Closer, ShardEnv, Stream, StreamReader, StreamWriter};

use crate::limits::TLS_SEND_BYTES;
use crate::tls::{Plain, Session, TlsConfig};

/// Ciphertext that is received at once, in bytes: some records of the largest size, 16 KiB.
const CIPHER_BYTES: usize = 64 << 10;

/// What a receive brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// That many bytes, at least 1.
    Bytes(usize),
    /// None yet: [`WireWriter::flush`] has to send something first.
    Flush,
    /// The peer has finished.
    End,
    /// The socket failed, or the peer broke TLS.
    Broken,
}

/// A failed send. The connection is of no use any more; why does not matter to anybody.
#[derive(Debug)]
pub(crate) struct SendFailed;

/// The receiving half.
pub(crate) struct WireReader {
    stream: StreamReader,
    tls: Option<TlsReader>,
}

struct TlsReader {
    env: ShardEnv,
    session: Rc<RefCell<Session>>,
    /// Ciphertext that has arrived and was not decrypted yet: `start..end` of a buffer, absent while it is received into.
    cipher: Option<BufMut>,
    start: usize,
    end: usize,
    /// The flush that the last ciphertext made necessary was asked for. The sender may do it later.
    asked: bool,
}

/// The sending half.
pub(crate) struct WireWriter {
    env: ShardEnv,
    stream: StreamWriter,
    session: Option<Rc<RefCell<Session>>>,
}

/// Takes a stream apart.
pub(crate) fn split(env: &ShardEnv, stream: Stream) -> (WireReader, WireWriter) {
    let (reader, writer) = stream.split();
    (WireReader { stream: reader, tls: None }, WireWriter { env: env.clone(), stream: writer, session: None })
}

/// From here on both halves speak TLS. `arrived`: what the peer has sent behind its wish for TLS.
///
/// # Errors
/// If the configuration does not make a session.
pub(crate) fn start_tls(
    reader: &mut WireReader,
    writer: &mut WireWriter,
    config: &TlsConfig,
    arrived: &[u8],
) -> Result<(), rustls::Error> {
    let session = Rc::new(RefCell::new(Session::new(config)?));
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
    Ok(())
}

impl WireReader {
    /// Waits for data and puts them into `buf` from index `from` on, where there is room. To be dropped only when the
    /// connection ends.
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
    /// Decrypts what is there. `None` if more ciphertext is needed.
    fn decrypt(&mut self, into: &mut [u8]) -> Option<Received> {
        let mut session = self.session.borrow_mut();
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
                // The peer goes on after its goodbye.
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

    /// Sends segments in order, and whatever TLS wants to say.
    pub async fn send(&mut self, segments: Vec<Buf>) -> Result<(), SendFailed> {
        let Some(session) = self.session.clone() else {
            return self.stream.send_all(Segments::from_vec(segments)).await.map_err(|_| SendFailed);
        };
        let mut plain_bytes = 0;
        for segment in &segments {
            for part in segment.chunks(TLS_SEND_BYTES) {
                session.borrow_mut().write(part).map_err(|_| SendFailed)?;
                plain_bytes += part.len();
                if plain_bytes >= TLS_SEND_BYTES {
                    self.flush().await?;
                    plain_bytes = 0;
                }
            }
        }
        self.flush().await
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

    /// Sends what TLS wants to say.
    pub async fn flush(&mut self) -> Result<(), SendFailed> {
        let Some(session) = &self.session else { return Ok(()) };
        let mut cipher = Vec::new();
        session.borrow_mut().take(&mut cipher);
        if cipher.is_empty() {
            return Ok(());
        }
        let mut buf = self.env.alloc(cipher.len());
        buf.copy_from_slice(&cipher);
        self.stream.send_all(Segments::from_vec(vec![buf.freeze()])).await.map_err(|_| SendFailed)
    }

    /// Ends the session as TLS wants it, and then the stream.
    pub async fn goodbye(mut self) {
        if let Some(session) = &self.session {
            session.borrow_mut().close();
            // The peer may have gone without listening.
            let _ = self.flush().await;
        }
        self.stream.shutdown();
    }
}
