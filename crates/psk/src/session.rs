//! The TLS session of one connection.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture};
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, PskHmac, Version};
use s2n_tls::error::Error;
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::hello::identities;
use crate::wire::Wired;

/// TLS 1.3 alone, TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384 and TLS_CHACHA20_POLY1305_SHA256,
/// over secp256r1, x25519 and secp384r1. A numbered policy does not change.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";

/// Most identities of a ClientHello that are looked up. Hosts offer two or three.
const OFFERED_MAX: usize = 8;

/// Most bytes of an unknown identity that are shown: the longest of NVMe/TCP.
const SHOWN_BYTES: usize = 600;

/// Most plaintext of one record.
const RECORD_BYTES: usize = 16 << 10;

/// Most bytes that a record adds: its header, its content type and its tag.
const RECORD_EXTRA_BYTES: usize = 5 + 1 + 16;

/// A KeyUpdate that may come before the encrypted data, and its record.
const KEY_UPDATE_BYTES: usize = 5 + RECORD_EXTRA_BYTES;

/// The hash function of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
}

/// A pre-shared key.
#[derive(Clone)]
pub struct Key {
    /// The name of the key for both ends. It is sent unencrypted.
    pub identity: Vec<u8>,
    /// 16 bytes or more.
    pub secret: Zeroizing<Vec<u8>>,
    /// The hash of its cipher suite.
    pub hash: Hash,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", String::from_utf8_lossy(&self.identity))
    }
}

/// Returns the key of an identity to a server, if it exists.
pub type Find = Arc<dyn Fn(&[u8]) -> Option<Key> + Send + Sync>;

/// Why a session could not start, or has failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TlsError {
    /// This end cannot set up a session.
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
    /// The handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Handshake(String),
    /// The peer violated TLS, or its data were changed on the way.
    #[error("TLS failed: {0}")]
    Broken(String),
}

/// The result of [`Session::open`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Bytes of ciphertext that were taken.
    pub taken: usize,
    /// Bytes of plaintext.
    pub len: usize,
    /// Whether the peer has sent its close message.
    pub ended: bool,
}

/// The function with which a server's connection finds its keys.
struct Finder(Find);

/// No key that the client offers is known.
#[derive(Debug, Error)]
enum Unknown {
    #[error("it offers no pre-shared key")]
    Nothing,
    /// The first offered identity. Empty if it is not printable text, or longer than allowed.
    #[error("no key here has the identity that it offers, {0:?}")]
    Identity(String),
}

impl Unknown {
    fn of(offered: &[&[u8]]) -> Unknown {
        let is_shown = |name: &[u8]| name.len() <= SHOWN_BYTES && name.iter().all(|byte| matches!(byte, b' '..=b'~'));
        let shown =
            |name: &[u8]| if is_shown(name) { String::from_utf8_lossy(name).into_owned() } else { String::new() };
        offered.first().map_or(Unknown::Nothing, |name| Unknown::Identity(shown(name)))
    }
}

/// Adds the keys of the identities that a client offers to the connection.
struct OnHello;

impl ClientHelloCallback for OnHello {
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<std::pin::Pin<Box<dyn ConnectionFuture>>>, Error> {
        let message = connection.client_hello()?.raw_message()?;
        let offered = identities(&message, OFFERED_MAX);
        let found: Vec<Key> = match connection.application_context::<Finder>() {
            Some(Finder(find)) => offered.iter().filter_map(|name| find(name)).collect(),
            None => Vec::new(),
        };
        if found.is_empty() {
            // Without a key s2n-tls would continue with certificates, and report that it has none.
            return Err(Error::application(Box::new(Unknown::of(&offered))));
        }
        for key in &found {
            connection.append_psk(&key.built()?)?;
        }
        Ok(None)
    }
}

impl Key {
    fn built(&self) -> Result<Psk, Error> {
        let mut psk = Psk::builder()?;
        psk.set_identity(&self.identity)?.set_secret(&self.secret)?.set_hmac(match self.hash {
            Hash::Sha256 => PskHmac::SHA256,
            Hash::Sha384 => PskHmac::SHA384,
        })?;
        psk.build()
    }
}

fn config() -> Result<Config, TlsError> {
    static CONFIG: OnceLock<Result<Config, String>> = OnceLock::new();
    let made = CONFIG.get_or_init(|| {
        let make = || {
            let mut config = Config::builder();
            // No certificate is trusted.
            config.with_system_certs(false)?.set_security_policy(&Policy::from_version(POLICY)?)?;
            config.set_client_hello_callback(OnHello)?;
            config.build()
        };
        make().map_err(|error: Error| error.to_string())
    });
    made.clone().map_err(TlsError::Setup)
}

/// The TLS of one connection, sans-I/O. Call [`Session::shake`] until it is done, then
/// [`Session::open`] and [`Session::seal`] in any order. After an error the session cannot be used.
pub struct Session {
    wired: Wired,
}

impl Session {
    fn new(mode: Mode) -> Result<Session, Error> {
        let mut connection = Connection::new(mode);
        // Blinding protects against timing attacks on the padding of CBC, which TLS 1.3 does not
        // have. With built-in blinding s2n-tls would block the thread.
        connection.set_blinding(Blinding::SelfService)?;
        // Callbacks need a waker, even if they never wait.
        connection.set_waker(Some(Waker::noop()))?;
        Ok(Session { wired: Wired::new(connection)? })
    }

    /// A client that offers these keys, the best one first.
    ///
    /// # Errors
    /// [`TlsError::Setup`]
    pub fn client(keys: &[Key]) -> Result<Session, TlsError> {
        let config = config()?;
        let make = || {
            let mut session = Session::new(Mode::Client)?;
            let connection = session.wired.connection_mut();
            connection.set_config(config)?;
            for key in keys {
                connection.append_psk(&key.built()?)?;
            }
            Ok(session)
        };
        make().map_err(|error: Error| TlsError::Setup(error.to_string()))
    }

    /// A server that finds its keys with `find`.
    ///
    /// # Errors
    /// [`TlsError::Setup`]
    pub fn server(find: Find) -> Result<Session, TlsError> {
        let config = config()?;
        let make = || {
            let mut session = Session::new(Mode::Server)?;
            let connection = session.wired.connection_mut();
            connection.set_application_context(Finder(find));
            connection.set_config(config)?;
            Ok(session)
        };
        make().map_err(|error: Error| TlsError::Setup(error.to_string()))
    }

    /// Takes ciphertext of the handshake. Returns how many bytes it took, and whether the handshake
    /// is done. After each call, even a failed one, the caller must send the bytes of
    /// [`Session::to_send`].
    ///
    /// # Errors
    /// [`TlsError::Handshake`]
    pub fn shake(&mut self, cipher: &[u8]) -> Result<(usize, bool), TlsError> {
        let failed = |error: Error| TlsError::Handshake(error.to_string());
        let (polled, taken, _) =
            self.wired.run(cipher, &mut [], |connection| connection.poll_negotiate().map_ok(|_| ()));
        match polled {
            Poll::Pending => Ok((taken, false)),
            Poll::Ready(Err(error)) => Err(failed(error)),
            Poll::Ready(Ok(())) => {
                let connection = self.wired.connection();
                // Other results cannot occur. A session without a key could be with any peer.
                let version = connection.actual_protocol_version().map_err(failed)?;
                if version != Version::TLS13 || self.identity().is_none() {
                    return Err(TlsError::Handshake("the peer has shown no key".to_owned()));
                }
                Ok((taken, true))
            }
        }
    }

    /// Bytes to send for the handshake or for [`Session::close`]. Empty if there are none.
    pub fn to_send(&mut self) -> Vec<u8> {
        self.wired.take_spilled()
    }

    /// The identity of the key that both ends use. `None` before the handshake is done.
    pub fn identity(&self) -> Option<Vec<u8>> {
        let connection = self.wired.connection();
        let len = connection.negotiated_psk_identity_length().ok().filter(|len| *len > 0)?;
        let mut identity = vec![0; len];
        connection.negotiated_psk_identity(&mut identity).ok()?;
        Some(identity)
    }

    /// The cipher suite. `None` before the handshake is done.
    pub fn cipher_suite(&self) -> Option<String> {
        self.wired.connection().cipher_suite().ok().map(str::to_owned)
    }

    /// Decrypts: takes ciphertext, and fills `into` as far as possible. If there is room left in
    /// `into`, all ciphertext was taken, unless the peer has sent its close message.
    ///
    /// # Errors
    /// [`TlsError::Broken`]
    pub fn open(&mut self, cipher: &[u8], into: &mut [u8]) -> Result<Opened, TlsError> {
        let (opened, taken, _) = self.wired.run(cipher, &mut [], |connection| {
            let (mut len, mut ended) = (0, false);
            while len < into.len() {
                match connection.poll_recv(&mut into[len..]) {
                    Poll::Ready(Ok(0)) => {
                        ended = true;
                        break;
                    }
                    Poll::Ready(Ok(more)) => len += more,
                    Poll::Ready(Err(error)) => return Err(TlsError::Broken(error.to_string())),
                    Poll::Pending => break,
                }
            }
            Ok((len, ended))
        });
        opened.map(|(len, ended)| Opened { taken, len, ended })
    }

    /// Bytes of room that [`Session::seal`] needs for this much plaintext.
    pub fn sealed_bytes_max(plain_bytes: usize) -> usize {
        plain_bytes + plain_bytes.div_ceil(RECORD_BYTES) * RECORD_EXTRA_BYTES + KEY_UPDATE_BYTES
    }

    /// Encrypts `plain` into the front of `into`. Returns how many of its bytes must be sent.
    ///
    /// # Errors
    /// [`TlsError::Broken`]
    ///
    /// # Panics
    /// If `into` is shorter than [`Session::sealed_bytes_max`].
    pub fn seal(&mut self, plain: &[u8], into: &mut [u8]) -> Result<usize, TlsError> {
        assert!(into.len() >= Session::sealed_bytes_max(plain.len()));
        let (done, _, put) = self.wired.run(&[], into, |connection| {
            let mut done = 0;
            while done < plain.len() {
                match connection.poll_send(&plain[done..]) {
                    Poll::Ready(Ok(more)) => done += more,
                    Poll::Ready(Err(error)) => return Err(TlsError::Broken(error.to_string())),
                    Poll::Pending => return Err(TlsError::Broken("the ciphertext found no place".to_owned())),
                }
            }
            Ok(())
        });
        done?;
        if !self.wired.take_spilled().is_empty() {
            return Err(TlsError::Broken("the ciphertext found no place".to_owned()));
        }
        Ok(put)
    }

    /// Creates the close message, which [`Session::to_send`] returns.
    pub fn close(&mut self) {
        // A session that has failed sends no close message.
        let _ = self.wired.run(&[], &mut [], |connection| connection.poll_shutdown_send().map_ok(|_| ()));
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(..)")
    }
}
