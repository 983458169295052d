//! Secrets and TLS keys of NVMe hosts in files.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::str::FromStr;

use nvme::auth::{Hash, Secret};
use nvme::tls::TlsKey;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::Failure;

/// The result of `purlin host key generate`, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostKey {
    /// The file with the secret or key.
    pub file: Option<String>,
    /// The secret or key, if it is not in a file.
    pub secret: Option<String>,
}

/// Maximum number of bytes read from a file with a secret: no secret has more than 103 bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// Reads a secret from a file, or from stdin if that is called `-`.
///
/// # Errors
/// The file cannot be read, or holds no secret. The error does not quote its content.
pub fn read(file: &Path) -> Result<Secret, Failure> {
    parsed(file, "secret")
}

/// Reads a TLS key in the same way.
///
/// # Errors
/// The file cannot be read, or holds no key. The error does not quote its content.
pub fn read_tls(file: &Path) -> Result<TlsKey, Failure> {
    parsed(file, "key of TLS")
}

fn parsed<T: FromStr<Err: Display>>(file: &Path, what: &str) -> Result<T, Failure> {
    let name = file.to_string_lossy();
    if name.starts_with("DHHC-1:") || name.starts_with("NVMeTLSkey-1:") {
        let why = format!(
            "a {what} on the command line is seen by every user of this machine: write it to a file, and name that here"
        );
        return Err(Failure::Usage(why));
    }
    let mut text = Zeroizing::new(String::new());
    let read = if name == "-" {
        io::stdin().lock().take(FILE_BYTES_MAX).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
    };
    read.map_err(|source| Failure::Local { what: format!("cannot read the {what} in {name}"), source })?;
    let parsed = text.trim().parse();
    parsed.map_err(|error| Failure::Usage(format!("{name} holds no {what} of an NVMe host: {error}")))
}

fn random() -> Result<Zeroizing<[u8; 64]>, Failure> {
    let mut random = Zeroizing::new([0; 64]);
    getrandom::fill(&mut *random).map_err(|error| Failure::Local {
        what: "cannot make a secret".to_owned(),
        source: io::Error::other(error.to_string()),
    })?;
    Ok(random)
}

/// Generates a secret as text.
///
/// # Errors
/// The system has no random numbers.
pub fn generate(transform: Option<Hash>) -> Result<Zeroizing<String>, Failure> {
    Ok(Secret::generate(transform, &*random()?).text())
}

/// Generates a TLS key as text.
///
/// # Errors
/// TLS does not use this hash function, or the system has no random numbers.
pub fn generate_tls(hash: Option<Hash>) -> Result<Zeroizing<String>, Failure> {
    match hash {
        Some(hash @ (Hash::Sha256 | Hash::Sha384)) => Ok(TlsKey::generate(hash, &*random()?).text()),
        _ => Err(Failure::Usage("a key of TLS is for sha256 or sha384 (--hash)".to_owned())),
    }
}

/// Writes a secret to a new file that only the user may read, without a newline at its end: SPDK
/// would take it for a part of a TLS key.
///
/// # Errors
/// The file exists already, or cannot be written.
pub fn write(file: &Path, secret: &str) -> Result<(), Failure> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(file).and_then(|mut file| file.write_all(secret.as_bytes()));
    written.map_err(|source| Failure::Local { what: format!("cannot write the secret to {}", file.display()), source })
}
