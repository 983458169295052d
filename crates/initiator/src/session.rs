//! TLS with the crate `psk`.

use nvme::auth::Hash;
use nvme::tls::TlsPsk;
use psk::Key;

pub(crate) use psk::{Session, TlsError};

/// A client's session that offers these keys.
pub(crate) fn client(psks: &[TlsPsk]) -> Result<Session, TlsError> {
    let key = |psk: &TlsPsk| Key {
        identity: psk.identity.text().into_bytes(),
        secret: psk.secret().to_vec().into(),
        hash: if psk.identity.hash == Hash::Sha256 { psk::Hash::Sha256 } else { psk::Hash::Sha384 },
    };
    Session::client(&psks.iter().map(key).collect::<Vec<Key>>())
}
