//! The strips of one stripe during a replay: read, computed from each other, written.

use drive::{BlockError, BufMut, Env, join_all};
use format::MemberState;
use format::log::Entry;

use crate::drives::retry::read_retried;
use crate::geometry::ranges::Range;
use crate::geometry::{Role, StripeGroup};
use crate::recovery::replay::Replay;

/// A stripe's strips over some member offsets.
pub(crate) struct Row {
    /// By role; `None` if it could not be read or its member is not in sync.
    pub strips: Vec<Option<BufMut>>,
    /// By role: read, but not trusted.
    pub suspect: Vec<Option<BufMut>>,
}

impl Row {
    /// Beyond redundancy the strips that could be read are the best there is. Returns the others.
    pub(crate) fn take_suspect(&mut self, roles: Vec<Role>) -> Vec<Role> {
        for &role in &roles {
            self.strips[role] = self.suspect[role].take();
        }
        roles.into_iter().filter(|&role| self.strips[role].is_none()).collect()
    }
}

impl<E: Env> Replay<'_, E> {
    /// Reads a stripe's strips. Damaged strips are suspect, and so are strips carried in parity
    /// unless the record is completed (`completed`). The checksums of member offsets that the
    /// record changes may be stale, so they are ignored.
    ///
    /// # Errors
    /// [`BlockError`] if members turn out to be gone and the group cannot do without them.
    pub(super) async fn read_row(
        &self,
        stripe_group: StripeGroup,
        offsets: Range,
        entry: &Entry,
        completed: bool,
    ) -> Result<Row, BlockError> {
        let geometry = &self.shared.geometry;
        let offset = geometry.drive_offset(stripe_group, offsets.start);
        let in_sync = |role: Role| {
            let member = geometry.member(stripe_group, offsets.start, role);
            (member, self.drive(member, Some(MemberState::InSync)))
        };
        let read = |role: Role| {
            let (_, drive) = in_sync(role);
            async move { read_retried(drive?, offset, || self.env.alloc(offsets.len() as usize)).await.ok() }
        };
        let mut strips: Vec<Option<BufMut>> = join_all((0..geometry.strips()).map(read)).await;
        for (role, strip) in strips.iter_mut().enumerate() {
            let (member, drive) = in_sync(role);
            if strip.is_none() && drive.is_some() {
                // A bad sector is no reason to give up the member. But a drive that is gone, or was
                // for a moment, must not make blocks count as lost that are present.
                self.look_after(member).await?;
                *strip = read(role).await;
            }
        }
        let is_damaged = join_all(strips.iter().enumerate().map(|(role, strip)| async move {
            let named = entry.overwritten | entry.in_parity;
            let ((member, Some(drive)), Some(bytes)) = (in_sync(role), strip) else { return false };
            role < geometry.data && !named.contains(role) && !self.is_genuine(member, drive, offset, bytes).await
        }));
        let mut suspect: Vec<Option<BufMut>> = Vec::with_capacity(strips.len());
        for (role, is_damaged) in is_damaged.await.into_iter().enumerate() {
            if is_damaged {
                self.look_after(in_sync(role).0).await?;
            }
            let suspects = is_damaged || (!completed && entry.in_parity.contains(role));
            suspect.push(if suspects { strips[role].take() } else { None });
        }
        Ok(Row { strips, suspect })
    }

    /// Computes the missing data strips from the strips that are present, which agree. Leaves the
    /// stripe as it is if too few are present.
    pub(super) fn fill(&self, row: &mut Row, offsets: Range) {
        let geometry = &self.shared.geometry;
        let parity: Vec<Role> = (geometry.data..geometry.strips()).filter(|&role| row.strips[role].is_some()).collect();
        let missing: Vec<Role> = (0..geometry.data).filter(|&role| row.strips[role].is_none()).collect();
        for (role, strip) in missing.iter().zip(self.by_parity(row, &missing, &parity, offsets).into_iter().flatten()) {
            row.strips[*role] = Some(strip);
        }
    }

    /// Computes data strips that are not overwritten from partial parity.
    pub(super) fn by_bases(
        &self,
        row: &Row,
        wanted: &[Role],
        overwritten: impl Fn(Role) -> bool,
        bases: &[Option<&[u8]>],
        offsets: Range,
    ) -> Option<Vec<BufMut>> {
        let geometry = &self.shared.geometry;
        let len = offsets.len() as usize;
        let zeroes = vec![0; len];
        let source = |role: Role| match role.checked_sub(geometry.data) {
            Some(parity_strip) => bases[parity_strip],
            None if overwritten(role) => Some(&zeroes[..]),
            None => row.strips[role].as_deref(),
        };
        self.solve(wanted, source, len)
    }

    /// Computes data strips from other data strips and these parity strips.
    pub(super) fn by_parity(&self, row: &Row, wanted: &[Role], parity: &[Role], offsets: Range) -> Option<Vec<BufMut>> {
        let data = self.shared.geometry.data;
        let source = |role: Role| {
            let usable = role < data || parity.contains(&role);
            usable.then(|| row.strips[role].as_deref()).flatten()
        };
        self.solve(wanted, source, offsets.len() as usize)
    }

    /// Computes strips from those that `source` gives. `None` if those are too few.
    pub fn solve<'b>(
        &self,
        wanted: &[Role],
        source: impl Fn(Role) -> Option<&'b [u8]>,
        len: usize,
    ) -> Option<Vec<BufMut>> {
        let lost: Vec<Role> = (0..self.shared.geometry.strips()).filter(|&role| source(role).is_none()).collect();
        let decoder = self.shared.code.decoder_for(&lost, wanted).ok()?;
        let sources: Vec<&[u8]> = decoder.sources().iter().map(|&role| source(role)).collect::<Option<_>>()?;
        let mut out: Vec<BufMut> = wanted.iter().map(|_| self.env.alloc(len)).collect();
        decoder.reconstruct(&sources, &mut out.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
        Some(out)
    }

    /// Writes parity and strips carried in parity where they differ from what they should be, and
    /// the data of members that are being filled.
    pub(super) async fn write_row(
        &self,
        stripe_group: StripeGroup,
        offsets: Range,
        row: Row,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let Row { strips, suspect } = row;
        let mut strips = strips.into_iter();
        let data: Vec<BufMut> =
            strips.by_ref().take(geometry.data).map(|strip| strip.expect("all are known")).collect();
        let mut before = suspect;
        for (slot, strip) in before[geometry.data..].iter_mut().zip(strips) {
            *slot = strip;
        }
        let sources: Vec<&[u8]> = data.iter().map(|strip| &**strip).collect();
        let mut parity: Vec<BufMut> =
            (0..geometry.parity_count).map(|_| self.env.alloc(offsets.len() as usize)).collect();
        self.shared.code.encode(&sources, &mut parity.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
        let offset = geometry.drive_offset(stripe_group, offsets.start);
        let written =
            data.into_iter().chain(parity).zip(before).enumerate().map(|(role, (strip, before))| async move {
                let member = geometry.member(stripe_group, offsets.start, role);
                let differs = match before {
                    _ if self.drive(member, Some(MemberState::Rebuilding)).is_some() => true,
                    Some(before) => *before != *strip,
                    // A data strip as it was read, or a strip that could not be read: writing it
                    // heals it.
                    None => role >= geometry.data,
                };
                self.note_sums(member, offset, &strip).await?;
                if differs { self.write(member, offset, strip.freeze(), false).await } else { Ok(()) }
            });
        join_all(written).await.into_iter().collect()
    }
}
