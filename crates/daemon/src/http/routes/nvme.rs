//! Routes about NVMe: hosts, their secrets and limits, referrals, and shared drives.

use api::{
    Changed, ErrorBody, Export, ExportUpdate, HostKey, HostKeySet, HostList, HostTlsKey, HostTlsKeySet, LimitUpdate,
    Referral, ReferralList, Share, ShareCreate, ShareList, check_host, check_referral,
};
use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::super::control::Answer;
use super::super::extract::{Body, Segments};
use super::{Shared, carried, created};

/// The drives that other machines may use.
#[utoipa::path(get, path = "/v1/shares", tag = "drive",
    responses((status = 200, body = ShareList), (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn share_list(State(control): State<Shared>) -> Answer<Json<ShareList>> {
    Ok(Json(ShareList { shares: control.shares().await? }))
}

/// Offer drives, as they are, to other machines: all or none.
#[utoipa::path(post, path = "/v1/shares", tag = "drive", request_body = ShareCreate,
    responses((status = 201, body = Changed<ShareList>, description = "Made"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn share_create(State(control): State<Shared>, Body(request): Body<ShareCreate>) -> Answer<Response> {
    request.validate()?;
    carried(async move { control.share_create(request).await }).await.map(created)
}

/// Offer a drive no longer. Hosts lose it at once.
#[utoipa::path(delete, path = "/v1/shares/{id}", tag = "drive",
    params(("id" = String, Path, description = "Its identity")),
    responses((status = 200, body = Changed<Share>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn share_delete(
    State(control): State<Shared>,
    Segments(id): Segments<String>,
) -> Answer<Json<Changed<Share>>> {
    carried(async move { control.share_delete(&id).await }).await.map(Json)
}

/// Let an NVMe host use a shared drive. If it is connected it sees the namespace at once.
#[utoipa::path(put, path = "/v1/shares/{id}/hosts/{host}", tag = "host",
    params(("id" = String, Path, description = "Identity of the share"),
        ("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<Share>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn share_host_allow(
    State(control): State<Shared>,
    Segments((id, host)): Segments<(String, String)>,
) -> Answer<Json<Changed<Share>>> {
    check_host(&host)?;
    carried(async move { control.share_host_allow(&id, &host).await }).await.map(Json)
}

/// Let an NVMe host use a shared drive no longer. It loses the namespace at once; what is in flight
/// is answered.
#[utoipa::path(delete, path = "/v1/shares/{id}/hosts/{host}", tag = "host",
    params(("id" = String, Path, description = "Identity of the share"),
        ("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<Share>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn share_host_deny(
    State(control): State<Shared>,
    Segments((id, host)): Segments<(String, String)>,
) -> Answer<Json<Changed<Share>>> {
    carried(async move { control.share_host_deny(&id, &host).await }).await.map(Json)
}

/// All NVMe hosts: those that exports or shared drives name, those that are or were connected, and
/// those with a secret or key.
#[utoipa::path(get, path = "/v1/hosts", tag = "host",
    responses((status = 200, body = HostList), (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn host_list(State(control): State<Shared>) -> Answer<Json<HostList>> {
    Ok(Json(HostList { hosts: control.hosts().await? }))
}

/// Let an NVMe host use an export. Hosts that are connected hear of the namespace.
#[utoipa::path(put, path = "/v1/exports/{id}/hosts/{host}", tag = "host",
    params(("id" = String, Path, description = "Identity of the export"),
        ("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<Export>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn host_allow(
    State(control): State<Shared>,
    Segments((id, host)): Segments<(String, String)>,
) -> Answer<Json<Changed<Export>>> {
    check_host(&host)?;
    carried(async move { control.host_allow(&id, &host).await }).await.map(Json)
}

/// Let an NVMe host use an export no longer. It loses the namespace at once; what is in flight is
/// answered.
#[utoipa::path(delete, path = "/v1/exports/{id}/hosts/{host}", tag = "host",
    params(("id" = String, Path, description = "Identity of the export"),
        ("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<Export>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn host_deny(
    State(control): State<Shared>,
    Segments((id, host)): Segments<(String, String)>,
) -> Answer<Json<Changed<Export>>> {
    carried(async move { control.host_deny(&id, &host).await }).await.map(Json)
}

/// Change an export while clients are connected: the ANA state that NVMe hosts are told of it. They
/// hear of it at once.
#[utoipa::path(patch, path = "/v1/exports/{id}", tag = "export", request_body = ExportUpdate,
    params(("id" = String, Path, description = "Its identity")),
    responses((status = 200, body = Changed<Export>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn export_set(
    State(control): State<Shared>,
    Segments(id): Segments<String>,
    Body(request): Body<ExportUpdate>,
) -> Answer<Json<Changed<Export>>> {
    request.validate()?;
    carried(async move { control.export_set(&id, request).await }).await.map(Json)
}

/// Limit how fast an NVMe host may use an export, all its queues together, while it is connected.
#[utoipa::path(patch, path = "/v1/exports/{id}/hosts/{host}/limit", tag = "host", request_body = LimitUpdate,
    params(("id" = String, Path, description = "Identity of the export"),
        ("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<Export>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn host_limit(
    State(control): State<Shared>,
    Segments((id, host)): Segments<(String, String)>,
    Body(request): Body<LimitUpdate>,
) -> Answer<Json<Changed<Export>>> {
    request.validate()?;
    check_host(&host)?;
    carried(async move { control.host_limit(&id, &host, request).await }).await.map(Json)
}

/// Other discovery services that the discovery log of every address names to NVMe hosts.
#[utoipa::path(get, path = "/v1/referrals", tag = "host",
    responses((status = 200, body = ReferralList), (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn referral_list(State(control): State<Shared>) -> Answer<Json<ReferralList>> {
    Ok(Json(ReferralList { referrals: control.referrals().await? }))
}

/// Tell NVMe hosts of another discovery service. Those that watch hear of it.
#[utoipa::path(put, path = "/v1/referrals/{address}", tag = "host",
    params(("address" = String, Path, description = "Where it listens: `IP:PORT`")),
    responses((status = 200, body = Changed<Referral>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn referral_add(
    State(control): State<Shared>,
    Segments(address): Segments<String>,
) -> Answer<Json<Changed<Referral>>> {
    let address = check_referral(&address)?;
    carried(async move { control.referral_add(address).await }).await.map(Json)
}

/// Tell NVMe hosts of another discovery service no longer.
#[utoipa::path(delete, path = "/v1/referrals/{address}", tag = "host",
    params(("address" = String, Path, description = "Where it listens: `IP:PORT`")),
    responses((status = 200, body = Changed<Referral>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn referral_remove(
    State(control): State<Shared>,
    Segments(address): Segments<String>,
) -> Answer<Json<Changed<Referral>>> {
    let address = check_referral(&address)?;
    carried(async move { control.referral_remove(address).await }).await.map(Json)
}

/// Give an NVMe host the secrets that it has to prove itself with, in place of those that it had.
/// Connections that are there stay.
#[utoipa::path(put, path = "/v1/groups/{group}/hosts/{host}/key", tag = "host", request_body = HostKeySet,
    params(("group" = String, Path, description = "Name of the group"),
        ("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<HostKey>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn host_key_set(
    State(control): State<Shared>,
    Segments((group, host)): Segments<(String, String)>,
    Body(request): Body<HostKeySet>,
) -> Answer<Json<Changed<HostKey>>> {
    check_host(&host)?;
    carried(async move { control.host_key_set(Some(&group), &host, request).await }).await.map(Json)
}

/// Let an NVMe host in by its name alone, as before it had a secret.
#[utoipa::path(delete, path = "/v1/groups/{group}/hosts/{host}/key", tag = "host",
    params(("group" = String, Path, description = "Name of the group"),
        ("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<HostKey>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn host_key_remove(
    State(control): State<Shared>,
    Segments((group, host)): Segments<(String, String)>,
) -> Answer<Json<Changed<HostKey>>> {
    carried(async move { control.host_key_remove(Some(&group), &host).await }).await.map(Json)
}

/// Have an NVMe host use TLS with this key, in place of the one that it had. Connections that are
/// there stay.
#[utoipa::path(put, path = "/v1/groups/{group}/hosts/{host}/tls-key", tag = "host", request_body = HostTlsKeySet,
    params(("group" = String, Path, description = "Name of the group"),
        ("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<HostTlsKey>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn host_tls_key_set(
    State(control): State<Shared>,
    Segments((group, host)): Segments<(String, String)>,
    Body(request): Body<HostTlsKeySet>,
) -> Answer<Json<Changed<HostTlsKey>>> {
    check_host(&host)?;
    carried(async move { control.host_tls_key_set(Some(&group), &host, request).await }).await.map(Json)
}

/// Let an NVMe host in without TLS, as before it had a key.
#[utoipa::path(delete, path = "/v1/groups/{group}/hosts/{host}/tls-key", tag = "host",
    params(("group" = String, Path, description = "Name of the group"),
        ("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<HostTlsKey>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn host_tls_key_remove(
    State(control): State<Shared>,
    Segments((group, host)): Segments<(String, String)>,
) -> Answer<Json<Changed<HostTlsKey>>> {
    carried(async move { control.host_tls_key_remove(Some(&group), &host).await }).await.map(Json)
}

/// Give an NVMe host the secrets that it has to prove itself with for all shared drives, in place
/// of those that it had. Connections that are there stay.
#[utoipa::path(put, path = "/v1/shares/hosts/{host}/key", tag = "drive", request_body = HostKeySet,
    params(("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<HostKey>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn share_host_key_set(
    State(control): State<Shared>,
    Segments(host): Segments<String>,
    Body(request): Body<HostKeySet>,
) -> Answer<Json<Changed<HostKey>>> {
    check_host(&host)?;
    carried(async move { control.host_key_set(None, &host, request).await }).await.map(Json)
}

/// Let an NVMe host in to shared drives by its name alone, as before it had a secret.
#[utoipa::path(delete, path = "/v1/shares/hosts/{host}/key", tag = "drive",
    params(("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<HostKey>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn share_host_key_remove(
    State(control): State<Shared>,
    Segments(host): Segments<String>,
) -> Answer<Json<Changed<HostKey>>> {
    carried(async move { control.host_key_remove(None, &host).await }).await.map(Json)
}

/// Have an NVMe host use TLS with this key for all shared drives, in place of the one that it had.
/// Connections that are there stay.
#[utoipa::path(put, path = "/v1/shares/hosts/{host}/tls-key", tag = "drive", request_body = HostTlsKeySet,
    params(("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<HostTlsKey>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn share_host_tls_key_set(
    State(control): State<Shared>,
    Segments(host): Segments<String>,
    Body(request): Body<HostTlsKeySet>,
) -> Answer<Json<Changed<HostTlsKey>>> {
    check_host(&host)?;
    carried(async move { control.host_tls_key_set(None, &host, request).await }).await.map(Json)
}

/// Let an NVMe host in to shared drives without TLS, as before it had a key.
#[utoipa::path(delete, path = "/v1/shares/hosts/{host}/tls-key", tag = "drive",
    params(("host" = String, Path, description = "NVMe qualified name of the host")),
    responses((status = 200, body = Changed<HostTlsKey>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn share_host_tls_key_remove(
    State(control): State<Shared>,
    Segments(host): Segments<String>,
) -> Answer<Json<Changed<HostTlsKey>>> {
    carried(async move { control.host_tls_key_remove(None, &host).await }).await.map(Json)
}
