//! TLS for the API over TCP.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use thiserror::Error;

/// The reason why certificate and key cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file could not be read, or is not PEM.
    #[error("cannot read the {what} {}: {source}", path.display())]
    Read {
        /// "certificate" or "private key".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: pem::Error,
    },
    /// The file holds no certificate.
    #[error("there is no certificate in {}", .0.display())]
    NoCertificate(PathBuf),
    /// Certificate and key do not match.
    #[error("certificate {} and key {} cannot be used: {source}", cert.display(), key.display())]
    Unusable {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The reason.
        source: rustls::Error,
    },
}

/// TLS 1.2 and 1.3 with this certificate, HTTP/1.1 inside.
pub(super) fn server_config(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let unusable = |source| TlsError::Unusable { cert: cert.to_owned(), key: key.to_owned(), source };
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| TlsError::Read { what: "certificate", path: cert.to_owned(), source })?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(cert.to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Read {
        what: "private key",
        path: key.to_owned(),
        source,
    })?;
    // The provider is explicit, because another crate could change the process-wide default.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
