//! The identity of this machine for NVMe targets.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nvme::Nqn;
use nvme::target::Host;
use thiserror::Error;

/// Files in which nvme-cli and the kernel's host keep the name and the identifier of this machine.
const SYSTEM_NQN: &str = "/etc/nvme/hostnqn";
const SYSTEM_ID: &str = "/etc/nvme/hostid";

/// Why this machine has no name.
#[derive(Debug, Error)]
pub enum ThisHostError {
    /// The system has no name, and there is no file to keep one.
    #[error("this host has no name, and there is no place to keep one")]
    NoPlace,
    /// The file cannot be used. A host with another name each time would be of no use.
    #[error("cannot keep this host's name in {}: {source}", .file.display())]
    NotKept {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content of the file is not a name.
    #[error("{}: {text:?} is not the name of a host", .file.display())]
    NoName {
        /// The file.
        file: PathBuf,
        /// Its content.
        text: String,
    },
}

/// Name and identifier of this machine: the given ones, those of the system, or a name that is
/// created once and kept in the file `own`.
///
/// # Errors
/// [`ThisHostError`], only if a name must be created or read in `own`.
pub fn this_host(nqn: Option<Nqn>, id: Option<[u8; 16]>, own: Option<&Path>) -> Result<Host, ThisHostError> {
    let own = || own_name(own.ok_or(ThisHostError::NoPlace)?);
    let system = || fs::read_to_string(SYSTEM_NQN).ok()?.trim().parse::<Nqn>().ok();
    let nqn = match nqn.or_else(system) {
        Some(nqn) => nqn,
        None => own()?,
    };
    let in_name = |nqn: &Nqn| nqn.as_str().rsplit_once("uuid:").and_then(|(_, id)| parse_uuid(id));
    let of_system = || parse_uuid(fs::read_to_string(SYSTEM_ID).ok()?.trim());
    let id = match id.or(in_name(&nqn)).or_else(of_system) {
        Some(id) => id,
        // The name has no identifier. Use the one in the name that is kept in `own`, which stays
        // the same.
        None => in_name(&own()?).unwrap_or([1; 16]),
    };
    Ok(Host { nqn, id })
}

/// Reads the name, or creates it.
fn own_name(file: &Path) -> Result<Nqn, ThisHostError> {
    let fail = |source| ThisHostError::NotKept { file: file.to_owned(), source };
    match fs::read_to_string(file) {
        Ok(text) => {
            let text = text.trim();
            return text
                .parse()
                .map_err(|_| ThisHostError::NoName { file: file.to_owned(), text: text.chars().take(80).collect() });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| fail(io::Error::other(error.to_string())))?;
    // RFC 9562, section 5.4: version 4.
    id[6] = id[6] & 0x0F | 0x40;
    id[8] = id[8] & 0x3F | 0x80;
    let name = Nqn::of_uuid(&id);
    fs::create_dir_all(file.parent().unwrap_or(file)).map_err(fail)?;
    // If another process has created the file first, its name counts.
    match fs::File::create_new(file) {
        Ok(mut created) => io::Write::write_all(&mut created, format!("{name}\n").as_bytes()).map_err(fail)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return own_name(file),
        Err(error) => return Err(fail(error)),
    }
    Ok(name)
}

/// 32 hexadecimal digits, with hyphens in the usual places or without.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let hyphens: Vec<usize> = text.bytes().enumerate().filter(|(_, byte)| *byte == b'-').map(|(at, _)| at).collect();
    if digits.len() != 32 || !(hyphens.is_empty() || hyphens == [8, 13, 18, 23]) {
        return None;
    }
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_read_with_and_without_hyphens_and_nothing_else_is_one() {
        let id = [0x2e, 0x5c, 0xb3, 0xb8, 0x6b, 0x30, 0x4b, 0x1e, 0x8a, 0x0f, 0x7d, 0x4e, 0x0c, 0x1f, 0x2a, 0x3b];
        for text in ["2e5cb3b8-6b30-4b1e-8a0f-7d4e0c1f2a3b", "2E5CB3B86B304B1E8A0F7D4E0C1F2A3B"] {
            assert_eq!(parse_uuid(text), Some(id));
        }
        for text in ["", "2e5cb3b8", "2e5cb3b8-6b304b1e-8a0f-7d4e-0c1f2a3b", "2e5cb3b8-6b30-4b1e-8a0f-7d4e0c1f2a3g"] {
            assert!(parse_uuid(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_name_is_made_once_and_never_guessed() {
        let folder = std::env::temp_dir().join(format!("purlin-this-host-{}", std::process::id()));
        let file = folder.join("kept").join("hostnqn");
        let named = Some("nqn.2026-11.com.example:a".parse::<Nqn>().unwrap());
        let host = this_host(named.clone(), Some([7; 16]), None).unwrap();
        assert_eq!((Some(host.nqn), host.id), (named.clone(), [7; 16]));
        let made = own_name(&file).unwrap();
        assert_eq!(own_name(&file).unwrap(), made);
        let id = this_host(Some(made.clone()), None, None).unwrap().id;
        assert_eq!(Nqn::of_uuid(&id), made, "the identifier is the one in the name");
        fs::write(&file, "my machine").unwrap();
        assert!(matches!(own_name(&file), Err(ThisHostError::NoName { .. })), "it is not made anew");
        fs::remove_dir_all(&folder).unwrap();
    }
}
