//! Routes of volumes.

use api::{
    Changed, ErrorBody, LimitUpdate, ThinUpdate, Volume, VolumeConvert, VolumeCreate, VolumeList, VolumeName,
    VolumeUpdate,
};
use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::super::control::Answer;
use super::super::extract::{Body, Params, Segments};
use super::{Destroy, Shared, carried, created};

/// All volumes.
#[utoipa::path(get, path = "/v1/volumes", tag = "volume",
    responses((status = 200, body = VolumeList), (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn volume_list(State(control): State<Shared>) -> Answer<Json<VolumeList>> {
    Ok(Json(VolumeList { volumes: control.volumes().await? }))
}

/// One volume.
#[utoipa::path(get, path = "/v1/volumes/{group}/{volume}", tag = "volume",
    params(("group" = String, Path, description = "Its group"), ("volume" = String, Path, description = "Its name there")),
    responses((status = 200, body = Volume), (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn volume_show(
    State(control): State<Shared>,
    Segments((group, volume)): Segments<(String, String)>,
) -> Answer<Json<Volume>> {
    Ok(Json(control.volume(&VolumeName { group, volume }).await?))
}

/// Make a volume. It is usable at once and reads as zeroes.
#[utoipa::path(post, path = "/v1/volumes", tag = "volume", request_body = VolumeCreate,
    responses((status = 201, body = Changed<Volume>, description = "Made"),
        (status = 200, body = Changed<Volume>, description = "Dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn volume_create(
    State(control): State<Shared>,
    Body(request): Body<VolumeCreate>,
) -> Answer<Response> {
    request.validate()?;
    carried(async move { control.volume_create(request).await }).await.map(created)
}

/// Grow or shrink a volume. Shrinking loses what lies behind the new end, and must be confirmed.
#[utoipa::path(patch, path = "/v1/volumes/{group}/{volume}", tag = "volume", request_body = VolumeUpdate,
    params(("group" = String, Path, description = "Its group"), ("volume" = String, Path, description = "Its name there")),
    responses((status = 200, body = Changed<Volume>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn volume_resize(
    State(control): State<Shared>,
    Segments((group, volume)): Segments<(String, String)>,
    Body(request): Body<VolumeUpdate>,
) -> Answer<Json<Changed<Volume>>> {
    request.validate()?;
    carried(async move { control.volume_resize(&VolumeName { group, volume }, request).await }).await.map(Json)
}

/// Change how a thin volume uses the pool of its group: compression, quota, reserve, waiting.
#[utoipa::path(patch, path = "/v1/volumes/{group}/{volume}/thin", tag = "volume", request_body = ThinUpdate,
    params(("group" = String, Path, description = "Its group"), ("volume" = String, Path, description = "Its name there")),
    responses((status = 200, body = Changed<Volume>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn volume_thin(
    State(control): State<Shared>,
    Segments((group, volume)): Segments<(String, String)>,
    Body(request): Body<ThinUpdate>,
) -> Answer<Json<Changed<Volume>>> {
    request.validate()?;
    carried(async move { control.volume_thin(&VolumeName { group, volume }, request).await }).await.map(Json)
}

/// Convert a volume from direct to thin or back, while it is in use, or stop that. It goes on in
/// the background, also after a restart.
#[utoipa::path(post, path = "/v1/volumes/{group}/{volume}/convert", tag = "volume", request_body = VolumeConvert,
    params(("group" = String, Path, description = "Its group"), ("volume" = String, Path, description = "Its name there")),
    responses((status = 200, body = Changed<Volume>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn volume_convert(
    State(control): State<Shared>,
    Segments((group, volume)): Segments<(String, String)>,
    Body(request): Body<VolumeConvert>,
) -> Answer<Json<Changed<Volume>>> {
    request.validate()?;
    carried(async move { control.volume_convert(&VolumeName { group, volume }, request).await }).await.map(Json)
}

/// Limit how fast a volume may be used, all its exports together, while clients are connected.
#[utoipa::path(patch, path = "/v1/volumes/{group}/{volume}/limit", tag = "volume", request_body = LimitUpdate,
    params(("group" = String, Path, description = "Its group"), ("volume" = String, Path, description = "Its name there")),
    responses((status = 200, body = Changed<Volume>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn volume_limit(
    State(control): State<Shared>,
    Segments((group, volume)): Segments<(String, String)>,
    Body(request): Body<LimitUpdate>,
) -> Answer<Json<Changed<Volume>>> {
    request.validate()?;
    carried(async move { control.volume_limit(&VolumeName { group, volume }, request).await }).await.map(Json)
}

/// Destroy a volume. Refused while it is exported.
#[utoipa::path(delete, path = "/v1/volumes/{group}/{volume}", tag = "volume",
    params(("group" = String, Path, description = "Its group"), ("volume" = String, Path, description = "Its name there"),
        Destroy),
    responses((status = 200, body = Changed<Volume>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn volume_delete(
    State(control): State<Shared>,
    Segments((group, volume)): Segments<(String, String)>,
    Params(destroy): Params<Destroy>,
) -> Answer<Json<Changed<Volume>>> {
    let name = VolumeName { group, volume };
    destroy.check(&name.to_string(), &format!("the volume \"{name}\" and all that is on it"))?;
    carried(async move { control.volume_delete(&name, destroy.dry_run).await }).await.map(Json)
}
