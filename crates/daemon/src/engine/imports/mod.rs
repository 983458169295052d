//! Imports: their exports, and their restart with the daemon.

pub(crate) mod connect;
pub(crate) mod connected;
pub(crate) mod import;
mod requests;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use api::{Changed, DriveReason, ErrorCode, Export, ExportCreate, ExportPlace, Import as Shown, MdArray, VolumeName};
use export::ExportState;
use format::{ExportKind, ExportRecord, TlsFiles};

use crate::engine::drives;
use crate::engine::drives::RequestedDrive;
use crate::engine::exports;
use crate::engine::exports::devices::DeviceEnd;
use crate::engine::exports::offer;
use crate::engine::exports::running_export::{RunningExport, torn};
use crate::engine::group::shard;
use crate::engine::group::shard::Offer;
use crate::engine::imports::import::{FoundMdArray, Import, Running, Source, VOLUME_ID};
use crate::engine::memory::RememberedImport;
use crate::engine::{Engine, view};
use crate::http::{Answer, ControlError};

/// How long a stopping daemon waits for unanswered requests to a namespace. It leaves the rest to
/// the next daemon.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// All imports by name.
pub(crate) type Imports = RwLock<BTreeMap<String, Arc<Import>>>;

fn refuse(code: ErrorCode, message: impl Into<String>) -> ControlError {
    ControlError::new(code, message)
}

/// The name of an array in a sentence.
fn named(array: &MdArray) -> String {
    format!("{:?} ({})", array.name, array.uuid)
}

/// The reasons why drives are not read, as text.
fn reason_texts(reasons: &[DriveReason]) -> Vec<String> {
    reasons.iter().map(|DriveReason { drive, reason }| format!("{drive}: {reason}")).collect()
}

/// The reason why an array is not read, with possible remedies.
fn not_read(found: &FoundMdArray, refusal: &md::Refusal) -> String {
    let mut sentence = format!("the array {} is not read: {refusal}", named(&found.shown));
    if matches!(refusal, md::Refusal::DirtyDegraded { .. }) {
        sentence.push_str("; to read it all the same, say --allow-inconsistent");
    }
    if !found.shown.left_out.is_empty() {
        sentence.push_str(&format!(" (left out: {})", reason_texts(&found.shown.left_out).join("; ")));
    }
    sentence
}

impl Engine {
    pub(crate) fn all_imports(&self) -> Vec<Arc<Import>> {
        self.imports.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn find_import(&self, name: &str) -> Option<Arc<Import>> {
        self.imports.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn import_named(&self, name: &str) -> Answer<Arc<Import>> {
        self.find_import(name).ok_or_else(|| refuse(ErrorCode::ImportNotFound, format!("there is no import {name:?}")))
    }

    /// The import that a volume name belongs to, if any.
    pub(crate) fn import_of(&self, volume: &VolumeName) -> Option<Answer<Arc<Import>>> {
        let import = self.find_import(&volume.group)?;
        if volume.volume == import.volume_part() {
            Some(Ok(import))
        } else {
            Some(Err(ControlError::volume_not_found(volume)))
        }
    }

    pub(crate) async fn shown_import(&self, import: &Import) -> Shown {
        let key = import.key;
        // Each shard has its own connections to the same addresses; those of one shard are shown.
        let paths =
            self.shards[0].call(move || async move { shard::namespace(key).map(|connected| connected.paths()) });
        import.shown(&paths.await.ok().flatten().unwrap_or_default())
    }

    pub(crate) fn add_import(&self, import: Import) -> Arc<Import> {
        let import = Arc::new(import);
        let mut imports = self.imports.write().unwrap_or_else(PoisonError::into_inner);
        imports.insert(import.name().to_owned(), import.clone());
        import
    }

    /// Refuses to remove the block device of a namespace that cannot be reached: data written to it
    /// may not have arrived yet.
    async fn refuse_out_of_reach(&self, import: &Import) -> Answer<()> {
        let Some(why) = self.out_of_reach(import).await else { return Ok(()) };
        let name = import.name();
        Err(refuse(
            ErrorCode::Busy,
            format!(
                "{name:?} is {why}; wait until it is back, or give up what was not written yet: purlin import forget {name} --force"
            ),
        ))
    }

    /// Ends the exports of an import, and closes its drives.
    ///
    /// # Errors
    /// If a block device cannot be removed. The import continues then, with the remaining exports.
    async fn stop_import(&self, import: &Import, device: DeviceEnd) -> Answer<()> {
        let exports: Vec<_> = import.exports().values().cloned().collect();
        for export in exports {
            self.withdraw_from_import(import, &export, device).await?;
        }
        let key = import.key;
        for handle in &self.shards {
            // A shard that has stopped has released everything.
            let _ = handle.call(move || async move { shard::remove_import(key) }).await;
        }
        Ok(())
    }

    /// Ends all imports in this process. Block devices stay.
    pub(crate) async fn stop_imports(&self) {
        for import in self.all_imports() {
            // A device that stays may be in use: that is no error.
            if let Err(error) = self.stop_import(&import, DeviceEnd::Stays).await {
                tracing::error!(import = import.name(), %error, "could not be stopped in order");
            }
            self.imports.write().unwrap_or_else(PoisonError::into_inner).remove(import.name());
        }
    }

    pub(crate) fn remember_imports(&self) {
        let imports = self.all_imports().iter().map(|import| import.to_remember()).collect();
        if let Err(error) = self.memory.save_imports(imports) {
            tracing::error!(%error, "the state directory cannot be written: imports have to be made again after a restart");
        }
    }

    /// Starts every remembered import whose drives are present, with its exports.
    pub(crate) async fn start_remembered_imports(&self) -> std::io::Result<()> {
        for remembered in self.memory.load_imports()? {
            let key = self.new_key();
            let running = match &remembered.namespace {
                // Its machine may be unreachable. The daemon looks for it meanwhile.
                Some(_) => Err("out of reach: not connected yet".to_owned()),
                None => {
                    let running = self.start_remembered_import(key, &remembered).await;
                    match &running {
                        Ok(_) => tracing::info!(import = remembered.name, "started"),
                        Err(reason) => tracing::error!(import = remembered.name, reason, "not started"),
                    }
                    running.map(|running| Source::Md(Box::new(running)))
                }
            };
            let exports = remembered.exports.clone();
            let import = Import::new(key, remembered, running).map_err(|error| std::io::Error::other(error.message))?;
            let import = self.add_import(import);
            for record in exports {
                self.offer_import(&import, record).await;
            }
        }
        Ok(())
    }

    async fn start_remembered_import(&self, key: u64, remembered: &RememberedImport) -> Result<Running, String> {
        let (mut requested, mut unopened): (Vec<RequestedDrive>, Vec<String>) = (Vec::new(), Vec::new());
        for text in &remembered.drives {
            match drives::open_read_only_when_released(text).await {
                Ok(drive) => requested.push(drive),
                Err(error) => unopened.push(error.message),
            }
        }
        for error in &unopened {
            tracing::warn!(import = remembered.name, error, "drive not opened");
        }
        let looked = import::look(&self.shards[0], &requested, remembered.allow_inconsistent).await;
        let looked = looked.map_err(|error| error.message)?;
        let found = looked.arrays.iter().find(|found| found.shown.uuid == remembered.uuid);
        let sentence = |what: String| [vec![what], unopened.clone()].concat().join("; ");
        let Some(found) = found else {
            return Err(sentence(format!("its drives do not hold the array {} any more", remembered.uuid)));
        };
        let (assembly, places) = match &found.assembly {
            Ok(assembly) => assembly.clone(),
            Err(refusal) => return Err(sentence(not_read(found, refusal))),
        };
        import::start(&self.shards, key, &requested, found.shown.clone(), assembly, places)
            .await
            .map_err(|error| error.message)
    }

    /// Serves an export of an import. An export that cannot be served is listed with the reason.
    pub(crate) async fn offer_import(&self, import: &Import, record: ExportRecord) -> Arc<RunningExport> {
        let name = import.volume_name();
        let state = ExportState::new(&name, "", record.kind.read_only());
        let failure = match (&import.running, &record.kind) {
            (Err(_), _) => Some(format!("the import is not there: {}", import.reason().unwrap_or_default())),
            (Ok(_), ExportKind::Nbd { address, tls, .. }) => {
                let offer = Offer { key: import.key, volume: record.volume, state: state.clone() };
                self.listeners.offer(&name, address, tls, offer).await.err().map(|error| error.message)
            }
            (Ok(_), ExportKind::Ublk { .. }) => {
                let (backing, _) = import.backing().expect("it is read");
                self.devices.offer(&backing, &record, &state).await.err().map(|error| error.message)
            }
            (Ok(_), ExportKind::NvmeTcp { .. }) => Some("an import is not offered over NVMe/TCP".to_owned()),
        };
        if import.running.is_ok() {
            let before = import.exports().get(&record.id).and_then(|before| before.failure.clone());
            exports::log_served(&import.export_id(record.id), before.as_deref(), failure.as_deref());
        }
        let running = Arc::new(RunningExport { record, state, failure });
        import.exports_mut().insert(running.record.id, running.clone());
        running
    }

    /// Ends an export's service. A block device is removed, or stays for the next daemon.
    async fn withdraw_from_import(&self, import: &Import, running: &RunningExport, device: DeviceEnd) -> Answer<()> {
        let record = &running.record;
        match (&record.kind, &running.failure) {
            (ExportKind::Ublk { .. }, None) if device == DeviceEnd::Stays && import.is_namespace() => {
                running.state.stop();
                if tokio::time::timeout(LEAVE_WITHIN, running.state.stopped()).await.is_err() {
                    tracing::warn!(import = import.name(), "what is not answered is left to the next daemon");
                }
            }
            (ExportKind::Ublk { number, .. }, None) => {
                self.devices.withdraw(*number, &running.state, device).await?;
            }
            // Requests to a device that a previous daemon left would wait for ever if the import
            // stays unreadable.
            (ExportKind::Ublk { .. }, Some(_)) if device == DeviceEnd::Goes => {
                self.devices.discard(&import.owner, record, running.state.name()).await?;
            }
            (kind, None) => self.listeners.withdraw(&kind.address(), &running.state).await,
            (_, Some(_)) => {}
        }
        import.exports_mut().remove(&record.id);
        Ok(())
    }

    /// Exports an import's volume; read-only if the import is, regardless of the request. The
    /// caller holds `changes`.
    pub(crate) async fn export_import(
        &self,
        import: &Import,
        request: ExportCreate,
        place: &ExportPlace,
    ) -> Answer<Changed<Export>> {
        let name = import.volume_name();
        if let Some(reason) = import.reason() {
            return Err(refuse(
                ErrorCode::WrongState,
                format!("the import {:?} is not there: {reason}", import.name()),
            ));
        }
        let (kind, step) = self.export_kind(import, &request, place).await?;
        let record = ExportRecord { id: import.new_export(), volume: VOLUME_ID, kind };
        let running = self.offer_import(import, record).await;
        if let Some(failure) = &running.failure {
            self.withdraw_from_import(import, &running, DeviceEnd::Goes).await?;
            return Err(refuse(ErrorCode::Invalid, failure.clone()));
        }
        self.remember_imports();
        tracing::info!(volume = name, address = running.record.kind.address(), "exported");
        let mut warnings = match import.is_read_only() && !request.read_only {
            true if import.is_namespace() => vec!["the namespace is write protected".to_owned()],
            true => vec!["an import is exported for reading only".to_owned()],
            false => Vec::new(),
        };
        warnings.extend(import.atomic_bytes().and_then(|bytes| torn(&running.record.kind, bytes)));
        let shown = view::export_of(&import.export_id(running.record.id), name, &running, import.atomic_bytes());
        Ok(Changed::done(vec![step], shown).with_warnings(warnings))
    }

    /// The export that a request makes of an import's volume, and the step that says so. A block
    /// device is made, but not served yet.
    async fn export_kind(
        &self,
        import: &Import,
        request: &ExportCreate,
        place: &ExportPlace,
    ) -> Answer<(ExportKind, String)> {
        let name = import.volume_name();
        let exports: Vec<_> = import.exports().values().cloned().collect();
        match place {
            ExportPlace::Nbd(_) | ExportPlace::NvmeTcp(..) if import.is_namespace() => Err(refuse(
                ErrorCode::Invalid,
                format!(
                    "\"{name}\" is a namespace of another machine, which is offered as a block device only (--ublk)"
                ),
            )),
            ExportPlace::Nbd(address) => {
                let address = address.to_string();
                if exports.iter().any(|running| running.record.kind.address() == address) {
                    return Err(refuse(
                        ErrorCode::ExportExists,
                        format!("the volume \"{name}\" is exported at {address} already"),
                    ));
                }
                let step = format!("offer the volume \"{name}\" for reading over NBD at {address}");
                let tls = request.tls.clone();
                let tls = tls.map(|tls| TlsFiles { certificate: tls.cert, key: tls.key, client_ca: tls.ca });
                Ok((ExportKind::Nbd { address, read_only: true, tls }, step))
            }
            ExportPlace::Ublk(asked) => {
                let read_only = request.read_only || import.is_read_only();
                let own = import.backing().expect("it is read").1;
                let kind = self.device_of(&exports, &name, read_only, *asked, own).await?;
                let ExportKind::Ublk { number, block_bytes, .. } = kind else { unreachable!("a device was made") };
                if import.is_namespace() && block_bytes < own {
                    return Err(refuse(
                        ErrorCode::Invalid,
                        format!("blocks of {block_bytes} bytes: the namespace has blocks of {own}"),
                    ));
                }
                let how = if read_only { ", for reading" } else { "" };
                Ok((kind, format!("{}{how}", offer::device_step(&name, number))))
            }
            ExportPlace::NvmeTcp(..) => Err(refuse(
                ErrorCode::Invalid,
                format!(
                    "\"{name}\" is of an import, which is offered over NBD or as a block device, not over NVMe/TCP"
                ),
            )),
        }
    }

    /// Ends an export, if it is one of an import. The caller holds `changes`.
    ///
    /// # Errors
    /// If it is a block device that cannot be removed.
    pub(crate) async fn end_import_export(&self, id: &str) -> Answer<Option<Changed<Export>>> {
        for import in self.all_imports() {
            let found = import.exports().values().find(|running| import.export_id(running.record.id) == id).cloned();
            if let Some(running) = found {
                self.refuse_out_of_reach(&import).await?;
                self.withdraw_from_import(&import, &running, DeviceEnd::Goes).await?;
                self.remember_imports();
                tracing::info!(export = id, "deleted");
                return Ok(Some(Changed::gone(vec![offer::end_step(id, &running.record.kind)])));
            }
        }
        Ok(None)
    }

    /// The exports of all imports, as the API shows them.
    pub(crate) fn import_exports(&self) -> Vec<Export> {
        let mut shown = Vec::new();
        for import in self.all_imports() {
            let one = |running: &Arc<RunningExport>| {
                view::export_of(
                    &import.export_id(running.record.id),
                    import.volume_name(),
                    running,
                    import.atomic_bytes(),
                )
            };
            shown.extend(import.exports().values().map(one));
        }
        shown
    }
}
