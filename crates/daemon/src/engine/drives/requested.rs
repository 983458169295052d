//! Opens the drives that a request names, unless they are in use here.

use api::ErrorCode;

use crate::engine::drives::{Consent, RequestedDrive};
use crate::engine::group::{Group, lost};
use crate::engine::{Engine, drives};
use crate::http::{Answer, ControlError};

impl Engine {
    /// Opens and inspects drives for a request. Returns the drives, and descriptions of the data
    /// that would be lost on them.
    pub(crate) async fn open_requested(
        &self,
        texts: &[String],
        consent: Consent,
    ) -> Answer<(Vec<RequestedDrive>, Vec<String>)> {
        let (mut requested, mut lost) = (Vec::new(), Vec::new());
        for text in texts {
            self.refuse_own_device(text)?;
            self.refuse_own_drive(text)?;
            let drive = drives::open(&self.opener, text, consent).await?;
            self.refuse_imported(&drive)?;
            lost.extend(drives::inspect(&self.shards[0], &drive, consent).await?);
            requested.push(drive);
        }
        Ok((requested, lost))
    }

    /// Refuses a drive that a running group has open under the same name. Under another name,
    /// opening it fails: the system reports that it is in use.
    fn refuse_own_drive(&self, text: &str) -> Answer<()> {
        let name = drives::name_of(text)?;
        match self.all().iter().find(|group| group.drive_id(&name).is_some()) {
            Some(group) => Err(ControlError::new(
                ErrorCode::DriveInUse,
                format!("{name} is part of the group {:?} already", group.name),
            )),
            None => Ok(()),
        }
    }

    /// Opens a drive that can join a running group. Also returns what is lost on it.
    pub(crate) async fn open_joining(
        &self,
        group: &Group,
        text: &str,
        consent: Consent,
    ) -> Answer<(RequestedDrive, Vec<String>)> {
        group.release_if_unused(&drives::name_of(text)?).await?;
        let (mut requested, holds) = self.open_requested(&[text.to_owned()], consent).await?;
        let steps = lost::overwritten(&requested, &holds);
        Ok((requested.pop().expect("one drive was asked for"), steps))
    }
}
