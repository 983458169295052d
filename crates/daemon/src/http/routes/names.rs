//! Routes to find, start and rename groups, rename volumes, and erase drives that are to belong to
//! no group.

use api::{
    Changed, DriveWipe, ErrorBody, Group, GroupScan, GroupStart, Rename, Scanned, Volume, VolumeName, WipedDrive,
};
use axum::Json;
use axum::extract::State;

use super::super::control::Answer;
use super::super::extract::{Body, Segments};
use super::{Shared, carried};

/// Find out which groups are on which drives, and how they are started. Changes nothing.
#[utoipa::path(post, path = "/v1/scan", tag = "group", request_body = Option<GroupScan>,
    responses((status = 200, body = Scanned, description = "What was found"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn group_scan(State(control): State<Shared>, Body(request): Body<GroupScan>) -> Answer<Json<Scanned>> {
    request.validate()?;
    carried(async move { control.group_scan(request).await }).await.map(Json)
}

/// Start a group that was stopped, could not be started, or is found on this machine's drives.
#[utoipa::path(post, path = "/v1/groups/{group}/start", tag = "group", request_body = Option<GroupStart>,
    params(("group" = String, Path, description = "Its name")),
    responses((status = 200, body = Changed<Group>, description = "Started, or dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn group_start(
    State(control): State<Shared>,
    Segments(group): Segments<String>,
    Body(request): Body<GroupStart>,
) -> Answer<Json<Changed<Group>>> {
    carried(async move { control.group_start(&group, request).await }).await.map(Json)
}

/// Give a running group another name. Its exports follow.
#[utoipa::path(patch, path = "/v1/groups/{group}/name", tag = "group", request_body = Rename,
    params(("group" = String, Path, description = "Its name until now")),
    responses((status = 200, body = Changed<Group>, description = "Renamed, or dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn group_rename(
    State(control): State<Shared>,
    Segments(group): Segments<String>,
    Body(request): Body<Rename>,
) -> Answer<Json<Changed<Group>>> {
    request.validate_group()?;
    carried(async move { control.group_rename(&group, request).await }).await.map(Json)
}

/// Erase the superblocks of a drive that no running group has, so that it belongs to no group.
#[utoipa::path(post, path = "/v1/drives/{drive}/wipe", tag = "drive", request_body = Option<DriveWipe>,
    params(("drive" = String, Path, description = "Its name, percent-encoded, such as `%2Fdev%2Fnvme0n1`")),
    responses((status = 200, body = Changed<WipedDrive>, description = "Erased, or dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn drive_wipe(
    State(control): State<Shared>,
    Segments(drive): Segments<String>,
    Body(request): Body<DriveWipe>,
) -> Answer<Json<Changed<WipedDrive>>> {
    carried(async move { control.drive_wipe(&drive, request).await }).await.map(Json)
}

/// Give a volume another name in its group. Its exports follow.
#[utoipa::path(patch, path = "/v1/volumes/{group}/{volume}/name", tag = "volume", request_body = Rename,
    params(("group" = String, Path, description = "Its group"),
        ("volume" = String, Path, description = "Its name there until now")),
    responses((status = 200, body = Changed<Volume>, description = "Renamed, or dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
pub(super) async fn volume_rename(
    State(control): State<Shared>,
    Segments((group, volume)): Segments<(String, String)>,
    Body(request): Body<Rename>,
) -> Answer<Json<Changed<Volume>>> {
    request.validate_volume()?;
    carried(async move { control.volume_rename(&VolumeName { group, volume }, request).await }).await.map(Json)
}
