//! Requests about exports, and about what NVMe hosts may do with them.

use api::{Changed, ErrorCode, Export, ExportCreate, ExportPlace, ExportUpdate, LimitUpdate, VolumeName};
use async_trait::async_trait;
use format::{ExportKind, ExportRecord, LimitOf};

use crate::engine::exports::devices::DeviceEnd;
use crate::engine::exports::limits::LimitChange;
use crate::engine::exports::offer::end_step;
use crate::engine::exports::running_export::torn;
use crate::engine::names::LOOK_UP_WITHIN;
use crate::engine::{Engine, view};
use crate::http::{Answer, ControlError, ExportControl};

#[async_trait]
impl ExportControl for Engine {
    async fn exports(&self) -> Answer<Vec<Export>> {
        let mut exports = Vec::new();
        for group in self.all() {
            let catalogue = group.catalogue().await?;
            exports.extend(group.exports().values().map(|running| view::export(&group, &catalogue, running)));
        }
        exports.extend(self.import_exports());
        Ok(exports)
    }

    async fn export_create(
        &self,
        request: ExportCreate,
        volume: VolumeName,
        place: ExportPlace,
    ) -> Answer<Changed<Export>> {
        if let ExportPlace::Nbd(address) | ExportPlace::NvmeTcp(address, _) = &place {
            self.names.look_up_export(&address.to_string(), LOOK_UP_WITHIN).await?;
        }
        let _one = self.changes.lock().await;
        if let Some(import) = self.import_of(&volume) {
            return self.export_import(&*import?, request, &place).await;
        }
        let (group, record) = self.find_volume(&volume).await?;
        let (kind, step) = match place {
            ExportPlace::Nbd(address) => Self::nbd(&group, &record, &volume, &request, &address)?,
            ExportPlace::Ublk(device) => self.device(&group, &record, &volume, request.read_only, device).await?,
            ExportPlace::NvmeTcp(address, namespace) => {
                Self::namespace(&group, &record, &volume, request.read_only, &address, namespace)?
            }
        };
        let export = ExportRecord { id: group.catalogue().await?.next_id, volume: record.id, kind };
        // Serve the export before recording it: a record that never worked would be useless.
        let running = self.start_export(&group, export.clone()).await?;
        if let Some(failure) = &running.failure {
            let failure = failure.clone();
            self.end_export(&group, &running, DeviceEnd::Goes).await?;
            return Err(ControlError::new(ErrorCode::Invalid, failure));
        }
        let (address, exported) = (export.kind.address(), export.clone());
        let stored = group
            .change_catalogue(|catalogue| {
                catalogue.next_id += 1;
                catalogue.exports.push(export);
            })
            .await;
        let catalogue = match stored {
            Ok(catalogue) => catalogue,
            Err(error) => {
                self.end_export(&group, &running, DeviceEnd::Goes).await?;
                return Err(error);
            }
        };
        self.note_namespace(&group, &exported, &record, true);
        tracing::info!(volume = %volume, address, "exported");
        let shown = view::export(&group, &catalogue, &running);
        Ok(Changed::done(vec![step], shown)
            .with_warnings(torn(&exported.kind, group.atomic_bytes()).into_iter().collect()))
    }

    async fn export_delete(&self, id: &str) -> Answer<Changed<Export>> {
        let _one = self.changes.lock().await;
        if let Some(ended) = self.end_import_export(id).await? {
            return Ok(ended);
        }
        let (group, running) = self.find_export(id)?;
        // A device that cannot be removed keeps its record, so it ends first. Other exports end
        // after their record is deleted.
        let step = end_step(id, &running.record.kind);
        if matches!(running.record.kind, ExportKind::Ublk { .. }) {
            self.end_export(&group, &running, DeviceEnd::Goes).await?;
        }
        let own = running.record.id;
        let catalogue = group.change_catalogue(|catalogue| {
            catalogue.exports.retain(|export| export.id != own);
            catalogue.limits.retain(|limit| !matches!(limit.of, LimitOf::Host { export, .. } if export == own));
        });
        let catalogue = catalogue.await?;
        if let Some(volume) = catalogue.volumes.iter().find(|volume| volume.id == running.record.volume) {
            self.note_namespace(&group, &running.record, volume, false);
        }
        if !matches!(running.record.kind, ExportKind::Ublk { .. }) {
            self.end_export(&group, &running, DeviceEnd::Goes).await?;
        }
        tracing::info!(export = id, "deleted");
        Ok(Changed::gone(vec![step]))
    }

    async fn export_set(&self, id: &str, request: ExportUpdate) -> Answer<Changed<Export>> {
        self.set_access(id, request.validate()?, request.dry_run).await
    }

    async fn host_allow(&self, id: &str, host: &str) -> Answer<Changed<Export>> {
        self.set_host(id, host, true).await
    }

    async fn host_deny(&self, id: &str, host: &str) -> Answer<Changed<Export>> {
        self.set_host(id, host, false).await
    }

    async fn host_limit(&self, id: &str, host: &str, request: LimitUpdate) -> Answer<Changed<Export>> {
        let refuse = |message: String| Err(ControlError::new(ErrorCode::Invalid, message));
        let _one = self.changes.lock().await;
        let (group, running) = self.find_export(id)?;
        let ExportKind::NvmeTcp { hosts, .. } = &running.record.kind else {
            return refuse(format!("the export {id:?} is not one over NVMe/TCP: only those know hosts"));
        };
        if hosts.as_ref().is_some_and(|hosts| !hosts.iter().any(|known| known == host)) {
            return refuse(format!("{host} may not use the export {id:?}: let it with `purlin host allow` first"));
        }
        let of = LimitOf::Host { export: running.record.id, host: host.to_owned() };
        let before = group.catalogue().await?;
        let change = LimitChange::of(&before, &of, &request, &format!("what {host} does with the export {id}"))?;
        if request.dry_run {
            return Ok(Changed::planned(change.steps).with_warnings(change.warnings));
        }
        if !change.steps.is_empty() {
            group.change_catalogue(|catalogue| change.record(of, catalogue)).await?;
            running.state.limit_host(host, change.after);
            tracing::info!(export = id, host, limit = ?change.after, "limited");
        }
        let export = view::export(&group, &group.catalogue().await?, &running);
        Ok(Changed::done(change.steps, export).with_warnings(change.warnings))
    }
}
