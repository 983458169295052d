//! Encrypted connections, with certificates made here and libnbd as the client.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Served, has, output, python_with_libnbd, run};
use export::{ServerConfig, TlsConfig, TlsConfigError};
use nbd::client;
use nbd::wire::{opt, rep};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

const MIB: u64 = 1 << 20;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, in PEM.
fn certificate(authority: &Authority, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.extended_key_usages.push(usage);
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

/// A server with TLS on a TCP port, and two folders of client certificates: one of the right
/// authority, one of another.
struct Secure {
    served: Served,
    known: PathBuf,
    stranger: PathBuf,
}

fn secure(required: bool, clients_verified: bool) -> Secure {
    let ours = authority("ours");
    let theirs = authority("theirs");
    let (chain, key) = certificate(&ours, "localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let client_authority = ours.pem();
    let client_authority = clients_verified.then_some(client_authority.as_bytes());
    let tls = TlsConfig::from_pem(chain.as_bytes(), key.as_bytes(), client_authority, required).unwrap();
    let served = Served::start(ServerConfig { tls: Some(tls), ..ServerConfig::default() }, true, 1);
    served.add("disk", 64 * MIB, false);
    let folder = |name: &str, signer: &Authority| {
        let folder = served.directory.join(name);
        fs::create_dir(&folder).unwrap();
        let (certificate, key) = certificate(signer, "client", ExtendedKeyUsagePurpose::ClientAuth);
        fs::write(folder.join("ca-cert.pem"), ours.pem()).unwrap();
        fs::write(folder.join("client-cert.pem"), certificate).unwrap();
        fs::write(folder.join("client-key.pem"), key).unwrap();
        folder
    };
    let (known, stranger) = (folder("known", &ours), folder("stranger", &theirs));
    Secure { served, known, stranger }
}

impl Secure {
    fn port(&self) -> u16 {
        self.served.address.unwrap().port()
    }

    fn uri(&self, certificates: &Path) -> String {
        format!("nbds://localhost:{}/disk?tls-certificates={}", self.port(), certificates.display())
    }

    fn plain_uri(&self) -> String {
        format!("nbd://127.0.0.1:{}/disk", self.port())
    }

    fn raw(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.served.address.unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&client::flags(true, true)).unwrap();
        stream
    }
}

#[test]
fn data_travel_inside_of_tls_with_client_certificates() {
    let Some(python) = python_with_libnbd() else { return };
    let secure = secure(true, true);
    let script = format!(
        r#"
import nbd, os
h = nbd.NBD()
h.set_uri_allow_local_file(True)
h.add_meta_context("base:allocation")
h.connect_uri("{}")
assert h.get_tls_negotiated() and h.get_structured_replies_negotiated()
data = os.urandom(9_000_001)
h.pwrite(data, 12345, nbd.CMD_FLAG_FUA)
assert h.pread(len(data), 12345) == data
assert h.pread(1 << 20, 32 << 20) == bytes(1 << 20)
# Many requests at once, in both directions.
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([i]) * 70000), i * 70000) for i in range(200)]
while h.aio_in_flight() > 0:
    h.poll(-1)
for cookie in cookies:
    assert h.aio_command_completed(cookie)
buffers = [nbd.Buffer(70000) for i in range(200)]
cookies = [h.aio_pread(buffer, i * 70000) for i, buffer in enumerate(buffers)]
while h.aio_in_flight() > 0:
    h.poll(-1)
for i, cookie in enumerate(cookies):
    assert h.aio_command_completed(cookie)
    assert buffers[i].to_bytearray() == bytearray([i]) * 70000
h.shutdown()
"#,
        secure.uri(&secure.known)
    );
    let path = secure.served.directory.join("tls.py");
    fs::write(&path, script).unwrap();
    run(python, &[path.to_str().unwrap()]);
    let export = secure.served.exports.all().remove(0);
    crate::common::eventually("the connection is counted as ended", || export.connections().is_empty());
    assert!(export.counters().written_bytes > 9_000_000);
}

#[test]
fn a_client_without_the_right_certificate_gets_nowhere() {
    if !has("nbdinfo") {
        return;
    }
    let secure = secure(true, true);
    assert!(run("nbdinfo", &[&secure.uri(&secure.known)]).contains("with TLS"));
    for refused in [secure.uri(&secure.stranger), secure.plain_uri()] {
        let output = output("nbdinfo", &[&refused]);
        assert!(!output.status.success(), "{refused}: {}", String::from_utf8_lossy(&output.stdout));
    }
    let export = secure.served.exports.all().remove(0);
    assert!(export.connections().iter().all(|connection| connection.secure));
}

#[test]
fn optional_tls_leaves_the_choice_to_the_client() {
    if !has("nbdinfo") {
        return;
    }
    let secure = secure(false, false);
    assert!(run("nbdinfo", &[&secure.uri(&secure.known)]).contains("with TLS"));
    assert!(run("nbdinfo", &[&secure.plain_uri()]).contains("without TLS"));
}

#[test]
fn garbage_instead_of_a_handshake_ends_one_connection_only() {
    let secure = secure(true, true);
    let mut clear = secure.raw();
    clear.write_all(&client::go("disk", &[])).unwrap();
    let mut reply = [0; 20];
    clear.read_exact(&mut reply).unwrap();
    assert_eq!(reply[12..16], rep::ERR_TLS_REQD.to_be_bytes());
    let text_bytes = u32::from_be_bytes(reply[16..].try_into().unwrap());
    clear.read_exact(&mut vec![0; text_bytes as usize]).unwrap();

    // TLS has to refuse options that are injected behind STARTTLS.
    let mut injecting = secure.raw();
    let bytes = [client::option(opt::STARTTLS, &[]), client::go("disk", &[])].concat();
    injecting.write_all(&bytes).unwrap();
    injecting.read_exact(&mut reply).unwrap();
    assert_eq!(reply[8..16], [opt::STARTTLS.to_be_bytes(), rep::ACK.to_be_bytes()].concat());
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = injecting.read_to_end(&mut rest);
    assert!(rest.len() < 20 && !rest.starts_with(&0x0003_e889_0455_65a9_u64.to_be_bytes()), "{rest:02x?}");

    let mut noise = secure.raw();
    noise.write_all(&client::option(opt::STARTTLS, &[])).unwrap();
    noise.read_exact(&mut reply).unwrap();
    noise.write_all(&[0x16, 3, 1, 0xff, 0xff, 1, 2, 3]).unwrap();
    noise.shutdown(std::net::Shutdown::Write).unwrap();
    let _ = noise.read_to_end(&mut Vec::new());

    // The connection without TLS is still served.
    clear.write_all(&client::option(opt::ABORT, &[])).unwrap();
    clear.read_exact(&mut reply).unwrap();
    assert_eq!(reply[12..16], rep::ACK.to_be_bytes());
}

#[test]
fn a_configuration_that_cannot_work_is_refused() {
    let ours = authority("ours");
    let (chain, key) = certificate(&ours, "localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let (_, other_key) = certificate(&ours, "localhost", ExtendedKeyUsagePurpose::ServerAuth);
    let make = |chain: &str, key: &str, authority: Option<&str>| {
        TlsConfig::from_pem(chain.as_bytes(), key.as_bytes(), authority.map(str::as_bytes), true)
    };
    assert!(make(&chain, &key, Some(&ours.pem())).is_ok());
    assert!(matches!(make("", &key, None), Err(TlsConfigError::NoCertificate { what: "server certificate" })));
    assert!(matches!(make(&chain, "", None), Err(TlsConfigError::Pem { what: "server key", .. })));
    assert!(matches!(make(&chain, &other_key, None), Err(TlsConfigError::Rejected(_))));
    assert!(matches!(make(&chain, &key, Some("")), Err(TlsConfigError::NoCertificate { what: "client authority" })));
}
