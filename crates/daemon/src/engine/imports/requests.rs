//! Requests about imports.

use std::sync::PoisonError;

use ::drive::join_all;
use api::{
    Changed, ErrorCode, Import as Shown, ImportForget, ImportMd, ImportNvme, Imported, MdArray, check_name,
    format_bytes,
};
use async_trait::async_trait;

use crate::engine::exports::devices::DeviceEnd;
use crate::engine::exports::offer;
use crate::engine::group::shard;
use crate::engine::imports::connect::{LOSS_DEFAULT, parsed};
use crate::engine::imports::import::{FoundMdArray, Import, Looked, Source};
use crate::engine::imports::{import, named, not_read, reason_texts, refuse};
use crate::engine::memory::{RememberedImport, RememberedNamespace};
use crate::engine::{Engine, drives};
use crate::http::{Answer, ImportControl};

/// Selects the array that a request names.
fn choose<'a>(looked: &'a Looked, wanted: Option<&str>) -> Answer<&'a FoundMdArray> {
    let short = |array: &MdArray| array.name.rsplit(':').next().map(str::to_owned);
    let fits = |found: &&FoundMdArray| {
        let array = &found.shown;
        wanted.is_none_or(|wanted| {
            array.uuid == wanted || array.name == wanted || short(array).as_deref() == Some(wanted)
        })
    };
    let mut fitting = looked.arrays.iter().filter(fits);
    let all = || looked.arrays.iter().map(|found| named(&found.shown)).collect::<Vec<_>>().join(", ");
    match (fitting.next(), fitting.next(), wanted) {
        (Some(found), None, _) => Ok(found),
        (Some(_), Some(_), None) => Err(refuse(
            ErrorCode::NotAssemblable,
            format!("the drives hold several arrays, say with --array which: {}", all()),
        )),
        (Some(_), Some(_), Some(wanted)) => Err(refuse(
            ErrorCode::NotAssemblable,
            format!("several arrays on the drives are called {wanted:?}, say the UUID with --array: {}", all()),
        )),
        (None, _, Some(wanted)) if !looked.arrays.is_empty() => {
            Err(refuse(ErrorCode::NotAssemblable, format!("the drives hold no array {wanted:?}: they hold {}", all())))
        }
        (None, ..) => Err(refuse(
            ErrorCode::NotAssemblable,
            format!("the drives hold no md array: {}", reason_texts(&looked.others).join("; ")),
        )),
    }
}

/// Warnings for the caller about an array that is read.
fn warnings(found: &FoundMdArray, allow_inconsistent: bool) -> Vec<String> {
    let array = &found.shown;
    let mut warnings: Vec<String> =
        reason_texts(&array.left_out).iter().map(|reason| format!("left out: {reason}")).collect();
    let missing = array.members.iter().filter(|member| member.drive.is_none());
    warnings.extend(missing.map(|member| format!("slot {} is missing", member.slot)));
    if !array.clean {
        let consequence = if allow_inconsistent {
            "what was being written then may be computed wrongly where members are missing or cannot be read"
        } else {
            "what cannot be read from its member is not computed where parity may not fit"
        };
        warnings.push(format!("the array was not stopped cleanly: {consequence}"));
    }
    warnings
}

/// A name for an import: the array's name without the machine's name before it.
fn name_of(request: &ImportMd, array: &MdArray) -> Answer<String> {
    if let Some(name) = &request.name {
        return Ok(name.clone());
    }
    let name = array.name.rsplit(':').next().unwrap_or_default().to_lowercase();
    check_name("import", &name).map_err(|_| {
        refuse(
            ErrorCode::Invalid,
            format!("no name can be made of that of the array {}: give one with --name", named(array)),
        )
    })?;
    Ok(name)
}

/// The decisions for an import request.
struct Plan<'a> {
    name: String,
    found: &'a FoundMdArray,
    assembly: md::Assembly,
    /// Members by slot, as indices of the drives looked at.
    places: Vec<Option<usize>>,
}

#[async_trait]
impl ImportControl for Engine {
    async fn imports(&self) -> Answer<Vec<Shown>> {
        let imports = self.all_imports();
        Ok(join_all(imports.iter().map(|import| self.shown_import(import))).await)
    }

    async fn import(&self, name: &str) -> Answer<Shown> {
        Ok(self.shown_import(&*self.import_named(name)?).await)
    }

    async fn import_md(&self, request: ImportMd) -> Answer<Imported> {
        let _one = self.changes.lock().await;
        let mut requested = Vec::new();
        for text in &request.drives {
            self.refuse_own_device(text)?;
            requested.push(drives::open_read_only(text)?);
        }
        let looked = import::look(&self.shards[0], &requested, request.allow_inconsistent).await?;
        let arrays = || looked.arrays.iter().map(|found| found.shown.clone()).collect();
        let Plan { name, found, assembly, places } = match self.plan_import(&request, &looked) {
            Ok(plan) => plan,
            Err(error) if request.dry_run => {
                return Ok(Imported {
                    dry_run: true,
                    steps: Vec::new(),
                    warnings: vec![error.message],
                    found: arrays(),
                    others: looked.others,
                    object: None,
                });
            }
            Err(error) => return Err(error),
        };
        let size = found.shown.size_bytes.map(format_bytes).unwrap_or_default();
        let steps = vec![format!(
            "read the array {} of {size} from {} drives, as the volume \"{name}/md\"; nothing is written to them",
            named(&found.shown),
            places.iter().flatten().count()
        )];
        let warnings = warnings(found, request.allow_inconsistent);
        let answer = |object| Imported {
            dry_run: request.dry_run,
            steps,
            warnings,
            found: arrays(),
            others: looked.others.clone(),
            object,
        };
        if request.dry_run {
            return Ok(answer(None));
        }
        let remembered = RememberedImport {
            name: name.clone(),
            uuid: found.shown.uuid.clone(),
            owner: None,
            drives: places.iter().flatten().map(|&place| requested[place].text.clone()).collect(),
            allow_inconsistent: request.allow_inconsistent,
            next_id: 1,
            exports: Vec::new(),
            namespace: None,
        };
        let key = self.new_key();
        let running = import::start(&self.shards, key, &requested, found.shown.clone(), assembly, places).await?;
        let import = self.add_import(Import::new(key, remembered, Ok(Source::Md(Box::new(running))))?);
        self.remember_imports();
        tracing::info!(import = name, array = found.shown.uuid, "imported for reading");
        Ok(answer(Some(import.shown(&[]))))
    }

    async fn import_nvme(&self, request: ImportNvme) -> Answer<Changed<Shown>> {
        let mut drive = parsed(&request.drive)?;
        drive.loss.get_or_insert(LOSS_DEFAULT);
        self.refuse_itself(&drive)?;
        // Find the namespace before taking the lock for changes: a DNS server or target that does
        // not answer then delays only this request.
        let known = self.opener.remotes.find(&drive).await?;
        let _one = self.changes.lock().await;
        let name = match request.name {
            Some(name) => name,
            None => (1..)
                .map(|number| format!("remote{number}"))
                .find(|name| self.check_free(name).is_ok())
                .expect("numbers do not end"),
        };
        self.check_free(&name)?;
        self.refuse_itself(&drive)?;
        let identity = known.identity();
        if let Some(user) = self.user_of(&identity) {
            return Err(refuse(ErrorCode::DriveInUse, format!("{} is {user} ({identity})", drive.name())));
        }
        let (size, read_only) = (format_bytes(known.info().bytes()), known.info().read_only);
        let steps = vec![format!("connect to the namespace {} of {size}, as the volume \"{name}/nvme\"", drive.name())];
        let warnings = if read_only { vec!["the namespace is write protected".to_owned()] } else { Vec::new() };
        if request.dry_run {
            return Ok(Changed::planned(steps).with_warnings(warnings));
        }
        let remote = self.opener.remotes.take(&drive.name(), known).await?;
        let remembered = RememberedImport {
            name: name.clone(),
            uuid: identity,
            owner: None,
            drives: vec![drive.to_string()],
            allow_inconsistent: false,
            next_id: 1,
            exports: Vec::new(),
            namespace: Some(RememberedNamespace { connected_unix_s: self.clock.unix_s() }),
        };
        let import = self.attach_namespace(self.new_key(), remembered, remote).await?;
        self.remember_imports();
        tracing::info!(import = name, drive = drive.name(), "a namespace is connected");
        Ok(Changed::done(steps, self.shown_import(&import).await).with_warnings(warnings))
    }

    async fn import_forget(&self, name: &str, request: ImportForget) -> Answer<Changed<Shown>> {
        let _one = self.changes.lock().await;
        let import = self.import_named(name)?;
        offer::refuse_used_devices(import.exports().values())?;
        let busy: usize = import.exports().values().map(|running| running.clients()).sum();
        if busy > 0 && !request.force {
            return Err(refuse(
                ErrorCode::Busy,
                format!("{busy} clients are connected to the import {name:?}: disconnect them, or say --force"),
            ));
        }
        let (exports, drives) = (import.exports().len(), import.remembered.drives.len());
        let release_step = match import.is_namespace() {
            true => format!("disconnect from {}", import.remembered.drives.join(", ")),
            false => format!("let go of its {drives} drives, which stay as they are"),
        };
        let steps = vec![format!("end {exports} exports of the import {name:?} and {release_step}")];
        if !request.force {
            self.refuse_out_of_reach(&import).await?;
        }
        if request.dry_run {
            return Ok(Changed::planned(steps));
        }
        if self.out_of_reach(&import).await.is_some() {
            // Fail the unanswered requests, or the kernel would wait for them.
            let key = import.key;
            for handle in &self.shards {
                let _ = handle.call(move || async move { shard::disconnect(key) }).await;
            }
        }
        let stopped = self.stop_import(&import, DeviceEnd::Goes).await;
        if stopped.is_ok() {
            self.imports.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        }
        self.remember_imports();
        stopped?;
        tracing::info!(import = name, "forgotten");
        Ok(Changed::gone(steps))
    }
}

impl Engine {
    /// Selects the array to read and its name.
    fn plan_import<'a>(&self, request: &ImportMd, looked: &'a Looked) -> Answer<Plan<'a>> {
        let found = choose(looked, request.array.as_deref())?;
        let (assembly, places) = match &found.assembly {
            Ok(assembly) => assembly.clone(),
            Err(refusal) => return Err(refuse(ErrorCode::NotAssemblable, not_read(found, refusal))),
        };
        let name = name_of(request, &found.shown)?;
        self.check_free(&name)?;
        Ok(Plan { name, found, assembly, places })
    }
}
