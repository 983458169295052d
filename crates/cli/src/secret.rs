//! Secrets of NVMe hosts and their keys of TLS, as files have them.

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

/// What `purlin host key generate` made, as JSON says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostKey {
    /// The file that holds it.
    pub file: Option<String>,
    /// The secret or key, where it is in no file.
    pub secret: Option<String>,
}

/// Bytes of a file that is read for a secret, at most: none has more than 103.
const FILE_BYTES_MAX: u64 = 4096;

/// Reads a secret from a file, or from stdin if that is called `-`.
///
/// # Errors
/// The file cannot be read, or holds no secret. What it holds is not told.
pub fn read(file: &Path) -> Result<Secret, Failure> {
    parsed(file, "secret")
}

/// Reads a key of TLS the same way.
///
/// # Errors
/// The file cannot be read, or holds no key. What it holds is not told.
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

/// Makes a secret: its text.
///
/// # Errors
/// The system has no random numbers.
pub fn generate(transform: Option<Hash>) -> Result<Zeroizing<String>, Failure> {
    Ok(Secret::generate(transform, &*random()?).text())
}

/// Makes a key of TLS: its text.
///
/// # Errors
/// TLS has no such hash function, or the system has no random numbers.
pub fn generate_tls(hash: Option<Hash>) -> Result<Zeroizing<String>, Failure> {
    match hash {
        Some(hash @ (Hash::Sha256 | Hash::Sha384)) => Ok(TlsKey::generate(hash, &*random()?).text()),
        _ => Err(Failure::Usage("a key of TLS is for sha256 or sha384 (--hash)".to_owned())),
    }
}

/// Writes a secret to a new file that only its user may read. No new line ends it: SPDK takes it
/// for a part of a key of TLS.
///
/// # Errors
/// The file is there already, or cannot be written.
pub fn write(file: &Path, secret: &str) -> Result<(), Failure> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(file).and_then(|mut file| file.write_all(secret.as_bytes()));
    written.map_err(|source| Failure::Local { what: format!("cannot write the secret to {}", file.display()), source })
}
