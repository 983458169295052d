//! Every route, over a [`Control`].
//!
//! Invariant: the router is built from the OpenAPI document, so every served route is documented
//! and vice versa. A handler that is missing on either side is a panic at start.

mod answers;
mod names;
mod nvme;
mod volumes;

use std::sync::Arc;

use api::{
    Changed, Drive, DriveDetails, DriveList, ErrorBody, ErrorCode, Export, ExportCreate, ExportList, Group,
    GroupAssemble, GroupCreate, GroupForget, GroupList, GroupStop, GroupUpdate, Import, ImportForget, ImportList,
    ImportMd, ImportNvme, Imported, MemberFail, MemberReplace, Scrub, ScrubRequest, SpareAdd, Status, Upgrade,
    UpgradeRequest,
};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Json, Router};
use serde::Deserialize;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{IntoParams, Modify, OpenApi};

use super::control::{Answer, Control, ControlError, require_confirmation};
use super::exposition::Exposition;
use super::extract::{Body, Params, Segments, whole};
use super::shape::shape;
// `utoipa::path` generates items beside each handler whose names only a glob import finds.
use answers::Answers;
use names::*;
use nvme::*;
use volumes::*;

type Shared = Arc<dyn Control>;

/// Completes an operation even if its client disconnects and the handler's future is dropped.
async fn carried<T: Send + 'static>(operation: impl Future<Output = Answer<T>> + Send + 'static) -> Answer<T> {
    tokio::spawn(operation).await.unwrap_or_else(|error| {
        tracing::error!(%error, "an operation of the API broke down");
        Err(ControlError::new(ErrorCode::Internal, "the daemon broke down in this operation; its log says where"))
    })
}

/// The answer to a request that creates an object: 201 if it was created, 200 after a dry run.
fn created<T: serde::Serialize>(changed: Changed<T>) -> Response {
    let status = if changed.dry_run { StatusCode::OK } else { StatusCode::CREATED };
    (status, Json(changed)).into_response()
}

/// The query of a request that destroys something.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Destroy {
    /// The full name of what is to be destroyed; not needed for a dry run.
    confirm: Option<String>,
    /// Only say what would be done.
    #[serde(default)]
    dry_run: bool,
}

impl Destroy {
    fn check(&self, name: &str, what_is_lost: &str) -> Answer<()> {
        if self.dry_run { Ok(()) } else { require_confirmation(name, what_is_lost, self.confirm.as_deref()) }
    }
}

/// The query of a request that removes a spare.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SpareRemove {
    /// The spare's drive.
    drive: String,
    /// Only say what would be done.
    #[serde(default)]
    dry_run: bool,
}

/// Health, load and rebuilds: one screen of everything.
#[utoipa::path(get, path = "/v1/status", tag = "status",
    responses((status = 200, body = Status), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn status(State(control): State<Shared>) -> Answer<Json<Status>> {
    Ok(Json(control.status().await?))
}

/// All groups.
#[utoipa::path(get, path = "/v1/groups", tag = "group",
    responses((status = 200, body = GroupList), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn group_list(State(control): State<Shared>) -> Answer<Json<GroupList>> {
    Ok(Json(GroupList { groups: control.groups().await?, not_started: control.groups_not_started().await? }))
}

/// One group with its members, spares and jobs.
#[utoipa::path(get, path = "/v1/groups/{group}", tag = "group", params(("group" = String, Path, description = "Its name")),
    responses((status = 200, body = Group), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn group_show(State(control): State<Shared>, Segments(group): Segments<String>) -> Answer<Json<Group>> {
    Ok(Json(control.group(&group).await?))
}

/// Make a group of drives. It is usable at once.
#[utoipa::path(post, path = "/v1/groups", tag = "group", request_body = GroupCreate,
    responses((status = 201, body = Changed<Group>, description = "Made"),
        (status = 200, body = Changed<Group>, description = "Dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn group_create(State(control): State<Shared>, Body(request): Body<GroupCreate>) -> Answer<Response> {
    request.validate()?;
    let shape = shape(&request)?;
    carried(async move { control.group_create(request, shape).await }).await.map(created)
}

/// Start a group from its drives, in any order and under any names.
#[utoipa::path(post, path = "/v1/groups/assemble", tag = "group", request_body = GroupAssemble,
    responses((status = 200, body = Changed<Group>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn group_assemble(
    State(control): State<Shared>,
    Body(request): Body<GroupAssemble>,
) -> Answer<Json<Changed<Group>>> {
    request.validate()?;
    carried(async move { control.group_assemble(request).await }).await.map(Json)
}

/// Stop using a group's drives; everything stays on them.
#[utoipa::path(post, path = "/v1/groups/{group}/stop", tag = "group", request_body = Option<GroupStop>,
    params(("group" = String, Path, description = "Its name")),
    responses((status = 200, body = Changed<Group>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn group_stop(
    State(control): State<Shared>,
    Segments(group): Segments<String>,
    Body(request): Body<GroupStop>,
) -> Answer<Json<Changed<Group>>> {
    carried(async move { control.group_stop(&group, request).await }).await.map(Json)
}

/// No longer try to start a group that could not be started; its drives stay as they are.
#[utoipa::path(post, path = "/v1/groups/{group}/forget", tag = "group", request_body = Option<GroupForget>,
    params(("group" = String, Path, description = "Its name")),
    responses((status = 200, body = Changed<Group>, description = "Forgotten, or dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn group_forget(
    State(control): State<Shared>,
    Segments(group): Segments<String>,
    Body(request): Body<GroupForget>,
) -> Answer<Json<Changed<Group>>> {
    carried(async move { control.group_forget(&group, request).await }).await.map(Json)
}

/// Destroy a group and every volume in it, with their exports. Refused while clients are connected.
#[utoipa::path(delete, path = "/v1/groups/{group}", tag = "group",
    params(("group" = String, Path, description = "Its name"), Destroy),
    responses((status = 200, body = Changed<Group>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn group_delete(
    State(control): State<Shared>,
    Segments(group): Segments<String>,
    Params(destroy): Params<Destroy>,
) -> Answer<Json<Changed<Group>>> {
    destroy.check(&group, &format!("the group {group:?} and every volume in it"))?;
    carried(async move { control.group_delete(&group, destroy.dry_run).await }).await.map(Json)
}

/// Change settings of a running group.
#[utoipa::path(patch, path = "/v1/groups/{group}", tag = "group", request_body = GroupUpdate,
    params(("group" = String, Path, description = "Its name")),
    responses((status = 200, body = Changed<Group>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn group_set(
    State(control): State<Shared>,
    Segments(group): Segments<String>,
    Body(request): Body<GroupUpdate>,
) -> Answer<Json<Changed<Group>>> {
    request.validate()?;
    carried(async move { control.group_update(&group, request).await }).await.map(Json)
}

/// Start, pause, resume or stop a scrub, or ask how it stands.
#[utoipa::path(post, path = "/v1/groups/{group}/scrub", tag = "group", request_body = ScrubRequest,
    params(("group" = String, Path, description = "Its name")),
    responses((status = 200, body = Scrub), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn group_scrub(
    State(control): State<Shared>,
    Segments(group): Segments<String>,
    Body(request): Body<ScrubRequest>,
) -> Answer<Json<Scrub>> {
    carried(async move { control.scrub(&group, request).await }).await.map(Json)
}

/// All imports.
#[utoipa::path(get, path = "/v1/imports", tag = "import",
    responses((status = 200, body = ImportList), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn import_list(State(control): State<Shared>) -> Answer<Json<ImportList>> {
    Ok(Json(ImportList { imports: control.imports().await? }))
}

/// One import.
#[utoipa::path(get, path = "/v1/imports/{import}", tag = "import", params(("import" = String, Path, description = "Its name")),
    responses((status = 200, body = Import), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn import_show(State(control): State<Shared>, Segments(import): Segments<String>) -> Answer<Json<Import>> {
    Ok(Json(control.import(&import).await?))
}

/// Find the Linux md array on some drives and read it in place. Nothing is written to them.
#[utoipa::path(post, path = "/v1/imports", tag = "import", request_body = ImportMd,
    responses((status = 201, body = Imported, description = "Imported"),
        (status = 200, body = Imported, description = "Dry run: what is there"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn import_md(State(control): State<Shared>, Body(request): Body<ImportMd>) -> Answer<Response> {
    request.validate()?;
    let status = if request.dry_run { StatusCode::OK } else { StatusCode::CREATED };
    let imported = carried(async move { control.import_md(request).await }).await?;
    Ok((status, Json(imported)).into_response())
}

/// Connect to a namespace of another machine, to make it a block device of this one.
#[utoipa::path(post, path = "/v1/imports/nvme", tag = "import", request_body = ImportNvme,
    responses((status = 201, body = Changed<Import>, description = "Connected"),
        (status = 200, body = Changed<Import>, description = "Dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn import_nvme(State(control): State<Shared>, Body(request): Body<ImportNvme>) -> Answer<Response> {
    request.validate()?;
    carried(async move { control.import_nvme(request).await }).await.map(created)
}

/// Let go of an import's drives, which stay as they are.
#[utoipa::path(post, path = "/v1/imports/{import}/forget", tag = "import", request_body = Option<ImportForget>,
    params(("import" = String, Path, description = "Its name")),
    responses((status = 200, body = Changed<Import>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn import_forget(
    State(control): State<Shared>,
    Segments(import): Segments<String>,
    Body(request): Body<ImportForget>,
) -> Answer<Json<Changed<Import>>> {
    carried(async move { control.import_forget(&import, request).await }).await.map(Json)
}

/// All drives that the daemon knows.
#[utoipa::path(get, path = "/v1/drives", tag = "drive",
    responses((status = 200, body = DriveList), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn drive_list(State(control): State<Shared>) -> Answer<Json<DriveList>> {
    let drives: Vec<Drive> = control.drives().await?;
    Ok(Json(DriveList { drives }))
}

/// One drive: what it is, and what it says about itself.
#[utoipa::path(get, path = "/v1/drives/{drive}", tag = "drive",
    params(("drive" = String, Path, description = "Its name, percent-encoded, such as `%2Fdev%2Fnvme0n1`")),
    responses((status = 200, body = DriveDetails), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn drive_show(State(control): State<Shared>, Segments(drive): Segments<String>) -> Answer<Json<DriveDetails>> {
    Ok(Json(control.drive(&drive).await?))
}

/// Stop using a member. Refused where data would be lost.
#[utoipa::path(post, path = "/v1/groups/{group}/members/{slot}/fail", tag = "drive", request_body = Option<MemberFail>,
    params(("group" = String, Path, description = "Its group"), ("slot" = u32, Path, description = "Its slot, from 0")),
    responses((status = 200, body = Changed<Group>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn member_fail(
    State(control): State<Shared>,
    Segments((group, slot)): Segments<(String, u32)>,
    Body(request): Body<MemberFail>,
) -> Answer<Json<Changed<Group>>> {
    carried(async move { control.member_fail(&group, slot, request).await }).await.map(Json)
}

/// Put another drive in the slot of a member. A lost member is rebuilt onto it; a member that works
/// is copied and stays until the copy is complete. Returns at once; the rebuild or copy is a job of
/// the group.
#[utoipa::path(post, path = "/v1/groups/{group}/members/{slot}/replace", tag = "drive", request_body = MemberReplace,
    params(("group" = String, Path, description = "Its group"), ("slot" = u32, Path, description = "Its slot, from 0")),
    responses((status = 200, body = Changed<Group>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn member_replace(
    State(control): State<Shared>,
    Segments((group, slot)): Segments<(String, u32)>,
    Body(request): Body<MemberReplace>,
) -> Answer<Json<Changed<Group>>> {
    request.validate()?;
    carried(async move { control.member_replace(&group, slot, request).await }).await.map(Json)
}

/// Give a group a hot spare. A degraded group takes it at once.
#[utoipa::path(post, path = "/v1/groups/{group}/spares", tag = "drive", request_body = SpareAdd,
    params(("group" = String, Path, description = "Its group")),
    responses((status = 201, body = Changed<Group>, description = "Added"),
        (status = 200, body = Changed<Group>, description = "Dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn spare_add(
    State(control): State<Shared>,
    Segments(group): Segments<String>,
    Body(request): Body<SpareAdd>,
) -> Answer<Response> {
    request.validate()?;
    carried(async move { control.spare_add(&group, request).await }).await.map(created)
}

/// Take a hot spare away.
#[utoipa::path(delete, path = "/v1/groups/{group}/spares", tag = "drive",
    params(("group" = String, Path, description = "Its group"), SpareRemove),
    responses((status = 200, body = Changed<Group>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn spare_remove(
    State(control): State<Shared>,
    Segments(group): Segments<String>,
    Params(request): Params<SpareRemove>,
) -> Answer<Json<Changed<Group>>> {
    carried(async move { control.spare_remove(&group, &request.drive, request.dry_run).await }).await.map(Json)
}

/// All exports.
#[utoipa::path(get, path = "/v1/exports", tag = "export",
    responses((status = 200, body = ExportList), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn export_list(State(control): State<Shared>) -> Answer<Json<ExportList>> {
    Ok(Json(ExportList { exports: control.exports().await? }))
}

/// One export.
#[utoipa::path(get, path = "/v1/exports/{id}", tag = "export", params(("id" = String, Path, description = "Its identity")),
    responses((status = 200, body = Export), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn export_show(State(control): State<Shared>, Segments(id): Segments<String>) -> Answer<Json<Export>> {
    Ok(Json(control.export(&id).await?))
}

/// Offer a volume to clients.
#[utoipa::path(post, path = "/v1/exports", tag = "export", request_body = ExportCreate,
    responses((status = 201, body = Changed<Export>, description = "Made"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn export_create(State(control): State<Shared>, Body(request): Body<ExportCreate>) -> Answer<Response> {
    let (volume, place) = request.validate()?;
    carried(async move { control.export_create(request, volume, place).await }).await.map(created)
}

/// End an export. Its clients lose their connections; refused while it is a block device in use.
#[utoipa::path(delete, path = "/v1/exports/{id}", tag = "export",
    params(("id" = String, Path, description = "Its identity")),
    responses((status = 200, body = Changed<Export>),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn export_delete(State(control): State<Shared>, Segments(id): Segments<String>) -> Answer<Json<Changed<Export>>> {
    carried(async move { control.export_delete(&id).await }).await.map(Json)
}

/// Put another program in the daemon's place. Clients that come meanwhile wait; those that are
/// there connect again.
#[utoipa::path(post, path = "/v1/upgrade", tag = "status", request_body = Option<UpgradeRequest>,
    responses((status = 202, body = Changed<Upgrade>, description = "Under way: ask again for how it went"),
        (status = 200, body = Changed<Upgrade>, description = "Dry run"),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn upgrade(State(control): State<Shared>, Body(request): Body<UpgradeRequest>) -> Answer<Response> {
    request.validate()?;
    let changed = carried(async move { control.upgrade(request).await }).await?;
    let status = if changed.dry_run { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(changed)).into_response())
}

/// The upgrade that is under way, or the one that this daemon came from.
#[utoipa::path(get, path = "/v1/upgrade", tag = "status",
    responses((status = 200, body = Upgrade), (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn upgrade_show(State(control): State<Shared>) -> Answer<Json<Upgrade>> {
    Ok(Json(control.upgrade_state().await?))
}

/// Counters and gauges as Prometheus reads them: OpenMetrics, or the text that `Accept` prefers.
#[utoipa::path(get, path = "/metrics", tag = "status",
    responses((status = 200, content((String = "application/openmetrics-text"), (String = "text/plain"))),
        (status = "default", body = ErrorBody, description = "Refused or failed")))]
async fn metrics(State(control): State<Shared>, headers: HeaderMap) -> Answer<Response> {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let wanted = Exposition::wanted(&accept.collect::<Vec<_>>().join(","));
    let content_type = [(header::CONTENT_TYPE, wanted.content_type()), (header::VARY, "Accept")];
    Ok((content_type, wanted.of(control.metrics().await?)).into_response())
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "status", operation_id = "openapi",
    responses((status = 200, content_type = "application/json", description = "OpenAPI 3.1")))]
async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(document())
}

/// The only list of handlers. It makes the document, and finds the handler of an operation in it.
macro_rules! handlers {
    ($($handler:ident),* $(,)?) => {
        #[derive(OpenApi)]
        #[openapi(
            paths($($handler),*),
            modifiers(&Token, &Answers),
            security((), ("token" = [])),
            info(title = "Purlin", license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT"), description = "Drives, drive groups, volumes and exports of one Purlin daemon."),
            tags((name = "status"), (name = "group"), (name = "import"), (name = "drive"), (name = "volume"), (name = "export"), (name = "host")),
        )]
        struct Document;

        /// The handler with this name, for one method.
        fn handler(operation_id: &str, method: MethodFilter) -> Option<MethodRouter<Shared>> {
            match operation_id {
                $(stringify!($handler) => Some(on(method, $handler)),)*
                _ => None,
            }
        }
    };
}

handlers!(
    status,
    group_list,
    group_show,
    group_create,
    group_assemble,
    group_start,
    group_scan,
    group_rename,
    group_stop,
    group_forget,
    group_set,
    group_delete,
    group_scrub,
    import_list,
    import_show,
    import_md,
    import_nvme,
    import_forget,
    drive_list,
    drive_show,
    drive_wipe,
    member_fail,
    member_replace,
    spare_add,
    spare_remove,
    volume_list,
    volume_show,
    volume_create,
    volume_resize,
    volume_thin,
    volume_convert,
    volume_limit,
    volume_rename,
    volume_delete,
    export_list,
    export_create,
    export_show,
    export_delete,
    export_set,
    share_list,
    share_create,
    share_delete,
    share_host_allow,
    share_host_deny,
    share_host_key_remove,
    share_host_key_set,
    share_host_tls_key_remove,
    share_host_tls_key_set,
    host_list,
    host_allow,
    host_deny,
    host_key_remove,
    host_key_set,
    host_tls_key_remove,
    host_tls_key_set,
    host_limit,
    referral_add,
    referral_list,
    referral_remove,
    upgrade,
    upgrade_show,
    metrics,
    openapi,
);

/// Adds the bearer token that TCP requires to the document.
struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("Needed over TCP. The Unix socket is guarded by its file mode and takes none."))
            .build();
        document.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// The OpenAPI document of the API, without the address of a server.
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// All routes over `control`. Unknown routes and methods are answered with the API's errors.
///
/// # Panics
/// If a documented operation has no handler, which a test excludes.
pub fn router(control: Arc<dyn Control>) -> Router {
    let mut router = Router::new();
    for (path, item) in document().paths.paths {
        let operations = [
            (MethodFilter::GET, item.get),
            (MethodFilter::POST, item.post),
            (MethodFilter::PATCH, item.patch),
            (MethodFilter::PUT, item.put),
            (MethodFilter::DELETE, item.delete),
        ];
        for (filter, operation) in operations {
            let Some(operation) = operation else { continue };
            let id = operation.operation_id.expect("every operation has an id");
            router = router.route(&path, handler(&id, filter).expect("every documented operation has a handler"));
        }
    }
    router
        .fallback(|uri: axum::http::Uri| async move {
            ControlError::new(ErrorCode::NoRoute, format!("there is no {:?} here; see /openapi.json", uri.path()))
        })
        .method_not_allowed_fallback(|method: axum::http::Method, uri: axum::http::Uri| async move {
            let message = format!("{:?} does not take {method}; see /openapi.json", uri.path());
            ControlError::new(ErrorCode::MethodNotAllowed, message)
        })
        .layer(from_fn(whole))
        .with_state(control)
}
