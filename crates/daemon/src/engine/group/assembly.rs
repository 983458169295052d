//! Starts groups from drives: drives that an operator names, and drives that the daemon remembers
//! or finds.

use ::drive::join_all;
use api::{Changed, ErrorCode};
use array::AssembleError;

use crate::engine::drives::{Consent, RequestedDrive, find};
use crate::engine::group::LeftOut;
use crate::engine::group::scan::ProbeResult;
use crate::engine::memory::Remembered;
use crate::engine::{Engine, drives, group};
use crate::http::{Answer, ControlError};

impl Engine {
    /// Starts a group from opened drives. With `name`, the group is renamed to it.
    pub(super) async fn assemble_from(
        &self,
        requested: Vec<RequestedDrive>,
        mut warnings: Vec<String>,
        name: Option<&str>,
        dry_run: bool,
    ) -> Answer<Changed<api::Group>> {
        let found = group::start::look(&self.shards, &requested).await?;
        let superblock = &found.assembly.superblock;
        warnings.extend(found.refused.iter().map(|(drive, refusal)| format!("{drive} is left out: {refusal}")));
        warnings.extend(found.assembly.missing().map(|place| format!("member {place} is missing")));
        let name = name.filter(|name| *name != superblock.name);
        let mut steps =
            vec![format!("start the group {:?} ({}) at epoch {}", superblock.name, superblock.array, superblock.epoch)];
        steps.extend(name.map(|name| format!("rename it to {name:?}")));
        if dry_run {
            self.check_startable(&found, name)?;
            return Ok(Changed::planned(steps).with_warnings(warnings));
        }
        let was_refused: Vec<String> = found.refused.iter().map(|(drive, _)| drive.clone()).collect();
        let group = self.start_found(requested, found, name).await?;
        let late = group.left_out.iter().filter(|left_out| !was_refused.contains(&left_out.drive));
        warnings.extend(late.map(|LeftOut { drive, reason, .. }| format!("{drive} is left out: {reason}")));
        warnings.extend(self.remember());
        Ok(Changed::done(steps, self.query_group(&group).await?).with_warnings(warnings))
    }

    /// Opens the drives that an operator named. A drive that cannot be opened and holds no group is
    /// left out with a warning, such as the system drive among all drives of a machine.
    pub(super) async fn open_members(
        &self,
        texts: &[String],
        consent: Consent,
    ) -> Answer<(Vec<RequestedDrive>, Vec<String>)> {
        let (mut requested, mut unopened, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        for text in texts {
            let error = match drives::open(&self.opener, text, consent).await {
                Ok(drive) => {
                    requested.push(drive);
                    continue;
                }
                Err(error) => error,
            };
            match self.probe(text).await {
                ProbeResult::Member { superblock, .. } => unopened.push((text, superblock, error)),
                ProbeResult::Other(what) if error.code != ErrorCode::DriveNotFound => {
                    warnings.push(format!("{text} is left out: {}; {what}", error.message));
                }
                ProbeResult::Other(_) => return Err(error),
            }
        }
        let Some((text, superblock, error)) = unopened.into_iter().next() else { return Ok((requested, warnings)) };
        let mut belongs = vec![format!("{text} to {} ({})", superblock.name, superblock.array)];
        for drive in &requested {
            if let Ok(Some(own)) = drives::superblock_of(&self.shards[0], drive).await
                && own.array != superblock.array
            {
                belongs.push(format!("{} to {} ({})", drive.name, own.name, own.array));
            }
        }
        if belongs.len() > 1 {
            let several = AssembleError::SeveralArrays(belongs.join(", "));
            return Err(ControlError::new(ErrorCode::NotAssemblable, several.to_string()));
        }
        Err(error)
    }

    /// The remembered drives of a group that does not run.
    pub(super) fn remembered_group(&self, name: &str) -> Option<Remembered> {
        match self.not_started.named(name) {
            Some(group) => Some(group.remembered),
            None => self.stopped.named(name),
        }
    }

    /// Tries to reach the group's drives on other machines. A drive whose machine does not answer
    /// counts as missing.
    pub(super) async fn reach_stopped(&self, name: &str) {
        let places = self.remembered_group(name).map_or_else(Vec::new, |remembered| remembered.drives);
        let lookups: Vec<_> =
            places.iter().map(|place| self.opener.remotes.try_all(std::slice::from_ref(&place.drive))).collect();
        for error in join_all(lookups).await.into_iter().filter_map(Result::err) {
            tracing::warn!(group = name, %error, "a host is not known");
        }
    }

    /// Opens the remembered drives of a group, including memory drives.
    pub(super) async fn open_remembered(
        &self,
        remembered: &Remembered,
        consent: Consent,
    ) -> Answer<Vec<RequestedDrive>> {
        let mut requested = find::open_all(&self.shards[0], &self.opener, remembered, consent).await.requested;
        for place in remembered.drives.iter().filter(|place| place.is_memory()) {
            requested.push(drives::open(&self.opener, &place.drive, consent).await?);
        }
        if requested.is_empty() {
            let drives: Vec<&str> = remembered.drives.iter().map(|place| place.drive.as_str()).collect();
            let message =
                format!("none of the drives of the group {:?} is there: {}", remembered.name, drives.join(" "));
            return Err(ControlError::new(ErrorCode::NotAssemblable, message));
        }
        Ok(requested)
    }

    /// Opens the drives of the only group with this name on the block devices of this machine.
    pub(super) async fn open_found(&self, name: &str, consent: Consent) -> Answer<Vec<RequestedDrive>> {
        let scanned = self.scan_all().await;
        let named: Vec<_> = scanned.groups.into_iter().filter(|group| group.name == name).collect();
        let drives = match &named[..] {
            [] => {
                let message = format!(
                    "there is no group {name:?}, and none is found on the drives of this machine: `purlin group scan` \
                     lists what is; for files and drives of other machines there is `purlin group assemble`"
                );
                return Err(ControlError::new(ErrorCode::GroupNotFound, message));
            }
            [one] => &one.drives,
            several => {
                let groups: Vec<String> =
                    several.iter().map(|group| format!("{} on {}", group.uuid, group.drives.join(" "))).collect();
                let message = format!(
                    "there are {} groups {name:?}: {}; say which with `purlin group assemble`",
                    several.len(),
                    groups.join(", ")
                );
                return Err(ControlError::new(ErrorCode::WrongState, message));
            }
        };
        let mut requested = Vec::new();
        for drive in drives {
            requested.push(drives::open(&self.opener, drive, consent).await?);
        }
        Ok(requested)
    }
}
