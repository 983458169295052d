//! TLS for exports: configuration from PEM, and one session over a shard's stream.

use std::io::{Read, Write};
use std::sync::Arc;

use nbd::TlsPolicy;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use thiserror::Error;

/// Certificates and rules for encrypted connections.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    server: Arc<ServerConfig>,
    required: bool,
}

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum TlsConfigError {
    /// A PEM text does not hold what it should.
    #[error("{what}: {error}")]
    Pem {
        /// The text that is wrong.
        what: &'static str,
        /// The error in it.
        error: rustls::pki_types::pem::Error,
    },
    /// There is no certificate in the text.
    #[error("{what}: no certificate in it")]
    NoCertificate {
        /// The text that is wrong.
        what: &'static str,
    },
    /// Certificate, key and authority do not fit each other.
    #[error("TLS configuration: {0}")]
    Rejected(#[from] rustls::Error),
    /// The client authority cannot be used to verify anything.
    #[error("client authority: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

impl TlsConfig {
    /// Loads PEM texts: the server's certificate chain, its private key, and the authority that
    /// signs client certificates, if clients need one. With `required`, connections without TLS are
    /// refused.
    ///
    /// # Errors
    /// [`TlsConfigError`] says which text is wrong.
    pub fn from_pem(
        certificates: &[u8],
        key: &[u8],
        client_authority: Option<&[u8]>,
        required: bool,
    ) -> Result<TlsConfig, TlsConfigError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates_of("server certificate", certificates)?;
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsConfigError::Pem { what: "server key", error })?;
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match client_authority {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates_of("client authority", authority)? {
                    roots.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        Ok(TlsConfig { server: Arc::new(builder.with_single_cert(chain, key)?), required })
    }

    pub(crate) fn policy(config: Option<&TlsConfig>) -> TlsPolicy {
        match config {
            None => TlsPolicy::Off,
            Some(config) if config.required => TlsPolicy::Required,
            Some(_) => TlsPolicy::Optional,
        }
    }
}

fn certificates_of(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsConfigError::Pem { what, error })?;
    if certificates.is_empty() {
        return Err(TlsConfigError::NoCertificate { what });
    }
    Ok(certificates)
}

/// Result of a decryption.
pub(crate) enum Plain {
    /// That many bytes, at least 1.
    Bytes(usize),
    /// Nothing: more ciphertext is needed.
    NeedMore,
    /// The peer has closed the session.
    Ended,
}

/// One TLS session, sans-I/O: ciphertext in and out, plaintext out and in.
pub(crate) struct Session {
    connection: ServerConnection,
}

impl Session {
    pub fn new(config: &TlsConfig) -> Result<Session, rustls::Error> {
        let mut connection = ServerConnection::new(config.server.clone())?;
        // The callers bound the data they hand over.
        connection.set_buffer_limit(None);
        Ok(Session { connection })
    }

    /// Moves decrypted bytes to `into`, which has room. An error means that the peer broke TLS.
    pub fn read(&mut self, into: &mut [u8]) -> std::io::Result<Plain> {
        match self.connection.reader().read(into) {
            Ok(0) => Ok(Plain::Ended),
            Ok(len) => Ok(Plain::Bytes(len)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(Plain::NeedMore),
            Err(error) => Err(error),
        }
    }

    /// Takes ciphertext from the front of `input` and decrypts it. Returns how many bytes it took:
    /// 0 only if plaintext has to be read first, or the session has ended.
    pub fn feed(&mut self, mut input: &[u8]) -> std::io::Result<usize> {
        let before = input.len();
        if !self.connection.wants_read() {
            return Ok(0);
        }
        self.connection.read_tls(&mut input)?;
        self.connection.process_new_packets().map_err(std::io::Error::other)?;
        Ok(before - input.len())
    }

    /// Encrypts `plain`.
    pub fn write(&mut self, plain: &[u8]) -> std::io::Result<()> {
        self.connection.writer().write_all(plain)
    }

    /// Sends the close notification.
    pub fn close(&mut self) {
        self.connection.send_close_notify();
    }

    /// Whether there is ciphertext to send.
    pub fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Appends the ciphertext that is to be sent.
    pub fn take(&mut self, into: &mut Vec<u8>) {
        while self.connection.wants_write() {
            self.connection.write_tls(into).expect("a vector takes every byte");
        }
    }
}
