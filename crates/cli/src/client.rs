//! The API over a Unix socket.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use api::{
    Changed, DriveDetails, DriveList, DriveWipe, ErrorBody, Export, ExportCreate, ExportList, ExportUpdate, Group,
    GroupAssemble, GroupCreate, GroupForget, GroupList, GroupScan, GroupStart, GroupStop, GroupUpdate, HostKey,
    HostKeySet, HostList, HostTlsKey, HostTlsKeySet, Import, ImportForget, ImportList, ImportMd, ImportNvme, Imported,
    LimitUpdate, MemberFail, MemberReplace, Referral, ReferralList, Rename, Scanned, Scrub, ScrubRequest, Share,
    ShareCreate, ShareList, SpareAdd, Status, ThinUpdate, Upgrade, UpgradeRequest, Volume, VolumeConvert, VolumeCreate,
    VolumeList, VolumeName, VolumeUpdate, WipedDrive,
};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
#[cfg(unix)]
use tokio::net::UnixStream;

use crate::{Failure, on_stderr};

/// Time after which a person is told that the first answer is late. A daemon that starts listens
/// before it answers.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// A daemon behind a Unix socket. Each request has its own connection, so a client holds no
/// resources between requests.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    /// Whether a request was sent before.
    asked: Cell<bool>,
}

/// The body of a request without a body.
const NO_BODY: Option<&()> = None;

impl Client {
    /// A client of the daemon that listens on `socket`. Nothing is connected yet.
    pub fn new(socket: &Path) -> Client {
        Client { socket: socket.to_owned(), asked: Cell::new(false) }
    }

    /// Sends one request and reads the answer.
    ///
    /// # Errors
    /// [`Failure::Refused`] with the daemon's message; other errors if there was no usable answer.
    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let garbled = |what: String| Failure::Garbled { socket: self.socket.clone(), what };
        let stream = connect(&self.socket).await.map_err(|source| self.unreachable(source))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| garbled(error.to_string()))?;
        // The answer reports errors of the connection. The result of the connection's own task adds
        // nothing.
        let connection = tokio::spawn(async move { drop(connection.await) });

        let json = match body {
            Some(body) => serde_json::to_vec(body).expect("requests have string keys only"),
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "purlind")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .body(Full::new(Bytes::from(json)))
            .expect("paths are percent-encoded");
        let response =
            self.patiently(sender.send_request(request)).await.map_err(|error| garbled(error.to_string()))?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| garbled(error.to_string()))?.to_bytes();
        connection.abort();

        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| garbled(error.to_string()));
        }
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { error }) => Err(Failure::Refused { code: error.code, message: error.message }),
            Err(_) => Err(garbled(format!("HTTP status {status} without a reason"))),
        }
    }

    /// Waits for an answer, and notifies a person at a terminal if the first one takes long.
    async fn patiently<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        if !self.asked.replace(true) && io::stderr().is_terminal() {
            if let Ok(answer) = tokio::time::timeout(SILENCE_MAX, answer.as_mut()).await {
                return answer;
            }
            on_stderr("purlin: the daemon has not answered yet: it may be starting, or busy with this");
        }
        answer.await
    }

    fn unreachable(&self, source: io::Error) -> Failure {
        let socket = self.socket.clone();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Failure::Forbidden { socket },
            io::ErrorKind::Unsupported => Failure::Elsewhere,
            _ => Failure::Unreachable { socket, source },
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.request(Method::GET, path, NO_BODY).await
    }

    /// One screen of everything.
    pub async fn status(&self) -> Result<Status, Failure> {
        self.get("/v1/status").await
    }

    /// All groups.
    pub async fn groups(&self) -> Result<GroupList, Failure> {
        self.get("/v1/groups").await
    }

    /// One group.
    pub async fn group(&self, group: &str) -> Result<Group, Failure> {
        self.get(&format!("/v1/groups/{}", encoded(group))).await
    }

    /// Creates a group.
    pub async fn group_create(&self, request: &GroupCreate) -> Result<Changed<Group>, Failure> {
        self.request(Method::POST, "/v1/groups", Some(request)).await
    }

    /// Starts a group from its drives.
    pub async fn group_assemble(&self, request: &GroupAssemble) -> Result<Changed<Group>, Failure> {
        self.request(Method::POST, "/v1/groups/assemble", Some(request)).await
    }

    /// Starts a group by its name.
    pub async fn group_start(&self, group: &str, request: &GroupStart) -> Result<Changed<Group>, Failure> {
        self.request(Method::POST, &format!("/v1/groups/{}/start", encoded(group)), Some(request)).await
    }

    /// Finds the groups on drives.
    pub async fn group_scan(&self, request: &GroupScan) -> Result<Scanned, Failure> {
        self.request(Method::POST, "/v1/scan", Some(request)).await
    }

    /// Renames a group.
    pub async fn group_rename(&self, group: &str, request: &Rename) -> Result<Changed<Group>, Failure> {
        self.request(Method::PATCH, &format!("/v1/groups/{}/name", encoded(group)), Some(request)).await
    }

    /// Stops using a group's drives.
    pub async fn group_stop(&self, group: &str, request: &GroupStop) -> Result<Changed<Group>, Failure> {
        self.request(Method::POST, &format!("/v1/groups/{}/stop", encoded(group)), Some(request)).await
    }

    /// Stops trying to start a group.
    pub async fn group_forget(&self, group: &str, request: &GroupForget) -> Result<Changed<Group>, Failure> {
        self.request(Method::POST, &format!("/v1/groups/{}/forget", encoded(group)), Some(request)).await
    }

    /// Destroys a group with its volumes.
    pub async fn group_delete(&self, group: &str, dry_run: bool) -> Result<Changed<Group>, Failure> {
        let path = format!("/v1/groups/{0}?confirm={0}&dry_run={dry_run}", encoded(group));
        self.request(Method::DELETE, &path, NO_BODY).await
    }

    /// Changes settings of a group.
    pub async fn group_update(&self, group: &str, request: &GroupUpdate) -> Result<Changed<Group>, Failure> {
        self.request(Method::PATCH, &format!("/v1/groups/{}", encoded(group)), Some(request)).await
    }

    /// Starts, pauses, resumes, stops or queries a scrub.
    pub async fn scrub(&self, group: &str, request: &ScrubRequest) -> Result<Scrub, Failure> {
        self.request(Method::POST, &format!("/v1/groups/{}/scrub", encoded(group)), Some(request)).await
    }

    /// All imports.
    pub async fn imports(&self) -> Result<ImportList, Failure> {
        self.get("/v1/imports").await
    }

    /// One import.
    pub async fn import(&self, import: &str) -> Result<Import, Failure> {
        self.get(&format!("/v1/imports/{}", encoded(import))).await
    }

    /// Reads an md array in place, or reports what is on the drives.
    pub async fn import_md(&self, request: &ImportMd) -> Result<Imported, Failure> {
        self.request(Method::POST, "/v1/imports", Some(request)).await
    }

    /// Connects to a namespace of another machine.
    pub async fn import_nvme(&self, request: &ImportNvme) -> Result<Changed<Import>, Failure> {
        self.request(Method::POST, "/v1/imports/nvme", Some(request)).await
    }

    /// Releases an import's drives.
    pub async fn import_forget(&self, import: &str, request: &ImportForget) -> Result<Changed<Import>, Failure> {
        self.request(Method::POST, &format!("/v1/imports/{}/forget", encoded(import)), Some(request)).await
    }

    /// All drives.
    pub async fn drives(&self) -> Result<DriveList, Failure> {
        self.get("/v1/drives").await
    }

    /// One drive with its health.
    pub async fn drive(&self, drive: &str) -> Result<DriveDetails, Failure> {
        self.get(&format!("/v1/drives/{}", encoded(drive))).await
    }

    /// Erases the superblocks of a drive.
    pub async fn drive_wipe(&self, drive: &str, request: &DriveWipe) -> Result<Changed<WipedDrive>, Failure> {
        self.request(Method::POST, &format!("/v1/drives/{}/wipe", encoded(drive)), Some(request)).await
    }

    /// Stops using a member.
    pub async fn member_fail(&self, group: &str, slot: u32, request: &MemberFail) -> Result<Changed<Group>, Failure> {
        self.request(Method::POST, &format!("/v1/groups/{}/members/{slot}/fail", encoded(group)), Some(request)).await
    }

    /// Puts another drive in a slot.
    pub async fn member_replace(
        &self,
        group: &str,
        slot: u32,
        request: &MemberReplace,
    ) -> Result<Changed<Group>, Failure> {
        let path = format!("/v1/groups/{}/members/{slot}/replace", encoded(group));
        self.request(Method::POST, &path, Some(request)).await
    }

    /// Adds a hot spare.
    pub async fn spare_add(&self, group: &str, request: &SpareAdd) -> Result<Changed<Group>, Failure> {
        self.request(Method::POST, &format!("/v1/groups/{}/spares", encoded(group)), Some(request)).await
    }

    /// Removes a hot spare.
    pub async fn spare_remove(&self, group: &str, drive: &str, dry_run: bool) -> Result<Changed<Group>, Failure> {
        let path = format!("/v1/groups/{}/spares?drive={}&dry_run={dry_run}", encoded(group), encoded(drive));
        self.request(Method::DELETE, &path, NO_BODY).await
    }

    /// All volumes.
    pub async fn volumes(&self) -> Result<VolumeList, Failure> {
        self.get("/v1/volumes").await
    }

    /// One volume.
    pub async fn volume(&self, name: &VolumeName) -> Result<Volume, Failure> {
        self.get(&volume_path(name)).await
    }

    /// Creates a volume.
    pub async fn volume_create(&self, request: &VolumeCreate) -> Result<Changed<Volume>, Failure> {
        self.request(Method::POST, "/v1/volumes", Some(request)).await
    }

    /// Grows or shrinks a volume.
    pub async fn volume_resize(&self, name: &VolumeName, request: &VolumeUpdate) -> Result<Changed<Volume>, Failure> {
        self.request(Method::PATCH, &volume_path(name), Some(request)).await
    }

    /// Changes how a thin volume uses the pool.
    pub async fn volume_thin(&self, name: &VolumeName, request: &ThinUpdate) -> Result<Changed<Volume>, Failure> {
        self.request(Method::PATCH, &format!("{}/thin", volume_path(name)), Some(request)).await
    }

    /// Converts a volume to another kind, or stops that.
    pub async fn volume_convert(&self, name: &VolumeName, request: &VolumeConvert) -> Result<Changed<Volume>, Failure> {
        self.request(Method::POST, &format!("{}/convert", volume_path(name)), Some(request)).await
    }

    /// Changes the rate limit of a volume.
    pub async fn volume_limit(&self, name: &VolumeName, request: &LimitUpdate) -> Result<Changed<Volume>, Failure> {
        self.request(Method::PATCH, &format!("{}/limit", volume_path(name)), Some(request)).await
    }

    /// Renames a volume within its group.
    pub async fn volume_rename(&self, name: &VolumeName, request: &Rename) -> Result<Changed<Volume>, Failure> {
        self.request(Method::PATCH, &format!("{}/name", volume_path(name)), Some(request)).await
    }

    /// Destroys a volume.
    pub async fn volume_delete(&self, name: &VolumeName, dry_run: bool) -> Result<Changed<Volume>, Failure> {
        let confirm = encoded(&name.to_string());
        let path = format!("{}?confirm={confirm}&dry_run={dry_run}", volume_path(name));
        self.request(Method::DELETE, &path, NO_BODY).await
    }

    /// All exports.
    pub async fn exports(&self) -> Result<ExportList, Failure> {
        self.get("/v1/exports").await
    }

    /// Offers a volume to clients.
    pub async fn export_create(&self, request: &ExportCreate) -> Result<Changed<Export>, Failure> {
        self.request(Method::POST, "/v1/exports", Some(request)).await
    }

    /// One export.
    pub async fn export(&self, id: &str) -> Result<Export, Failure> {
        self.get(&format!("/v1/exports/{}", encoded(id))).await
    }

    /// Changes an export.
    pub async fn export_set(&self, id: &str, request: &ExportUpdate) -> Result<Changed<Export>, Failure> {
        self.request(Method::PATCH, &format!("/v1/exports/{}", encoded(id)), Some(request)).await
    }

    /// Ends an export.
    pub async fn export_delete(&self, id: &str) -> Result<Changed<Export>, Failure> {
        self.request(Method::DELETE, &format!("/v1/exports/{}", encoded(id)), NO_BODY).await
    }

    /// The drives that other machines may use.
    pub async fn shares(&self) -> Result<ShareList, Failure> {
        self.get("/v1/shares").await
    }

    /// Offers drives to other machines.
    pub async fn share_create(&self, request: &ShareCreate) -> Result<Changed<ShareList>, Failure> {
        self.request(Method::POST, "/v1/shares", Some(request)).await
    }

    /// Stops offering a drive.
    pub async fn share_delete(&self, id: &str) -> Result<Changed<Share>, Failure> {
        self.request(Method::DELETE, &format!("/v1/shares/{}", encoded(id)), NO_BODY).await
    }

    /// `PUT /v1/shares/{id}/hosts/{host}`.
    pub async fn share_host_allow(&self, id: &str, host: &str) -> Result<Changed<Share>, Failure> {
        self.request(Method::PUT, &format!("/v1/shares/{}/hosts/{}", encoded(id), encoded(host)), NO_BODY).await
    }

    /// `DELETE /v1/shares/{id}/hosts/{host}`.
    pub async fn share_host_deny(&self, id: &str, host: &str) -> Result<Changed<Share>, Failure> {
        self.request(Method::DELETE, &format!("/v1/shares/{}/hosts/{}", encoded(id), encoded(host)), NO_BODY).await
    }

    /// All NVMe hosts.
    pub async fn hosts(&self) -> Result<HostList, Failure> {
        self.get("/v1/hosts").await
    }

    /// Lets an NVMe host use an export.
    pub async fn host_allow(&self, id: &str, host: &str) -> Result<Changed<Export>, Failure> {
        self.request(Method::PUT, &format!("/v1/exports/{}/hosts/{}", encoded(id), encoded(host)), NO_BODY).await
    }

    /// Stops an NVMe host from using an export.
    pub async fn host_deny(&self, id: &str, host: &str) -> Result<Changed<Export>, Failure> {
        self.request(Method::DELETE, &format!("/v1/exports/{}/hosts/{}", encoded(id), encoded(host)), NO_BODY).await
    }

    /// Changes the rate limit of an NVMe host on an export.
    pub async fn host_limit(&self, id: &str, host: &str, request: &LimitUpdate) -> Result<Changed<Export>, Failure> {
        let path = format!("/v1/exports/{}/hosts/{}/limit", encoded(id), encoded(host));
        self.request(Method::PATCH, &path, Some(request)).await
    }

    /// Other discovery services that NVMe hosts are referred to.
    pub async fn referrals(&self) -> Result<ReferralList, Failure> {
        self.get("/v1/referrals").await
    }

    /// Refers NVMe hosts to another discovery service.
    pub async fn referral_add(&self, address: &str) -> Result<Changed<Referral>, Failure> {
        self.request(Method::PUT, &format!("/v1/referrals/{}", encoded(address)), NO_BODY).await
    }

    /// Removes a referral to another discovery service.
    pub async fn referral_remove(&self, address: &str) -> Result<Changed<Referral>, Failure> {
        self.request(Method::DELETE, &format!("/v1/referrals/{}", encoded(address)), NO_BODY).await
    }

    /// Sets the secrets with which an NVMe host has to authenticate.
    pub async fn host_key_set(
        &self,
        group: Option<&str>,
        host: &str,
        key: &HostKeySet,
    ) -> Result<Changed<HostKey>, Failure> {
        self.request(Method::PUT, &key_path(group, host, "key"), Some(key)).await
    }

    /// Lets an NVMe host connect without authentication.
    pub async fn host_key_remove(&self, group: Option<&str>, host: &str) -> Result<Changed<HostKey>, Failure> {
        self.request(Method::DELETE, &key_path(group, host, "key"), NO_BODY).await
    }

    /// Requires an NVMe host to use TLS.
    pub async fn host_tls_key_set(
        &self,
        group: Option<&str>,
        host: &str,
        key: &HostTlsKeySet,
    ) -> Result<Changed<HostTlsKey>, Failure> {
        self.request(Method::PUT, &key_path(group, host, "tls-key"), Some(key)).await
    }

    /// Lets an NVMe host connect without TLS.
    pub async fn host_tls_key_remove(&self, group: Option<&str>, host: &str) -> Result<Changed<HostTlsKey>, Failure> {
        self.request(Method::DELETE, &key_path(group, host, "tls-key"), NO_BODY).await
    }

    /// Replaces the daemon by another program.
    pub async fn upgrade(&self, request: &UpgradeRequest) -> Result<Changed<Upgrade>, Failure> {
        self.request(Method::POST, "/v1/upgrade", Some(request)).await
    }

    /// The state of an upgrade.
    pub async fn upgrade_state(&self) -> Result<Upgrade, Failure> {
        self.get("/v1/upgrade").await
    }
}

#[cfg(unix)]
async fn connect(socket: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(socket).await
}

/// A system without Unix sockets has no daemon.
#[cfg(not(unix))]
async fn connect(_socket: &Path) -> io::Result<tokio::net::TcpStream> {
    Err(io::ErrorKind::Unsupported.into())
}

fn volume_path(name: &VolumeName) -> String {
    format!("/v1/volumes/{}/{}", encoded(&name.group), encoded(&name.volume))
}

/// The path of a host's secrets or keys: for a group's exports, or for the shared drives.
fn key_path(group: Option<&str>, host: &str, what: &str) -> String {
    let of = group.map_or_else(|| "shares".to_owned(), |group| format!("groups/{}", encoded(group)));
    format!("/v1/{of}/hosts/{}/{what}", encoded(host))
}

/// Percent-encodes a path segment or query value, except RFC 3986's unreserved characters. Dots are
/// encoded, too, so that `..` stays a name.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::encoded;

    #[test]
    fn a_name_stays_one_path_segment() {
        assert_eq!(encoded("tank-1_x"), "tank-1_x");
        assert_eq!(encoded("../a b?c&d=é"), "%2E%2E%2Fa%20b%3Fc%26d%3D%C3%A9");
    }
}
