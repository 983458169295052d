//! The HTTP listeners of the daemon, from its command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use thiserror::Error;

/// Where to listen. Flatten it into the daemon's command line.
#[derive(Debug, Clone, Args)]
pub struct HttpOptions {
    /// Unix socket of the API; only its owner may connect
    #[arg(long, value_name = "PATH", env = "PURLIN_SOCKET", default_value = api::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Serve the API on this address too, such as 0.0.0.0:7443; needs the three options below
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<SocketAddr>,
    /// Certificate chain for --http, in PEM
    #[arg(long, value_name = "FILE")]
    pub http_tls_cert: Option<PathBuf>,
    /// Private key for --http, in PEM
    #[arg(long, value_name = "FILE")]
    pub http_tls_key: Option<PathBuf>,
    /// Bearer tokens that --http takes, one a line; only the owner may be able to read the file
    #[arg(long, value_name = "FILE")]
    pub http_token_file: Option<PathBuf>,
}

/// The settings to serve the API over TCP: never without TLS, never without tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpOptions {
    /// The address to listen on.
    pub address: SocketAddr,
    /// Certificate chain, in PEM.
    pub cert: PathBuf,
    /// Private key, in PEM.
    pub key: PathBuf,
    /// Bearer tokens, one per line.
    pub token_file: PathBuf,
}

/// The reason why the options contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// TCP without TLS or tokens.
    #[error("--http {address} needs {missing} too: the API is not served over TCP without TLS and tokens")]
    Unguarded {
        /// The requested address.
        address: SocketAddr,
        /// The options that are missing.
        missing: String,
    },
    /// An option that needs TCP, without TCP.
    #[error("{0} makes sense only with --http")]
    WithoutHttp(&'static str),
}

impl HttpOptions {
    /// The settings for TCP; `None` if it is not served.
    ///
    /// # Errors
    /// [`OptionsError`] if TCP was requested without TLS or tokens, even on loopback: other users
    /// of the machine reach loopback too.
    pub fn tcp(&self) -> Result<Option<TcpOptions>, OptionsError> {
        let guards = [
            ("--http-tls-cert", &self.http_tls_cert),
            ("--http-tls-key", &self.http_tls_key),
            ("--http-token-file", &self.http_token_file),
        ];
        let Some(address) = self.http else {
            return match guards.iter().find(|(_, value)| value.is_some()) {
                Some((name, _)) => Err(OptionsError::WithoutHttp(name)),
                None => Ok(None),
            };
        };
        match (&self.http_tls_cert, &self.http_tls_key, &self.http_token_file) {
            (Some(cert), Some(key), Some(token_file)) => {
                Ok(Some(TcpOptions { address, cert: cert.clone(), key: key.clone(), token_file: token_file.clone() }))
            }
            _ => {
                let missing: Vec<&str> =
                    guards.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| *name).collect();
                Err(OptionsError::Unguarded { address, missing: missing.join(" and ") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        http: HttpOptions,
    }

    fn tcp(line: &str) -> Result<Option<TcpOptions>, String> {
        let words = std::iter::once("purlind").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().http.tcp().map_err(|e| e.to_string())
    }

    #[test]
    fn tcp_is_refused_without_tls_or_tokens_even_on_loopback() {
        assert_eq!(
            tcp("--http 127.0.0.1:7443").unwrap_err(),
            "--http 127.0.0.1:7443 needs --http-tls-cert and --http-tls-key and --http-token-file too: the API is not \
             served over TCP without TLS and tokens"
        );
        assert_eq!(
            tcp("--http 127.0.0.1:7443 --http-tls-cert c --http-tls-key k").unwrap_err(),
            "--http 127.0.0.1:7443 needs --http-token-file too: the API is not served over TCP without TLS and tokens"
        );
        assert_eq!(
            tcp("--http [::]:1 --http-token-file t").unwrap_err(),
            "--http [::]:1 needs --http-tls-cert and --http-tls-key too: the API is not served over TCP without TLS \
             and tokens"
        );
        assert_eq!(tcp("--http-token-file t").unwrap_err(), "--http-token-file makes sense only with --http");
        assert_eq!(tcp(""), Ok(None));
        assert!(tcp("--http 0.0.0.0:7443 --http-tls-cert c --http-tls-key k --http-token-file t").unwrap().is_some());
    }
}
