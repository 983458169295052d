//! Majority vote on the content of an overwritten strip during a recovery.
//!
//! The record of a write stays in force for a moment after the write was flushed. Meanwhile a strip
//! that it names may have decayed, or a drive may never have written it. So the strip's drive is
//! one of several sources. Each parity strip, minus its partial parity, also tells the content of
//! the strip. A source is credible where it matches its own checksum. If the write was flushed, all
//! credible sources have the new content, and the majority is right. If it was not flushed, old and
//! new content are equally right.

use drive::{BlockError, BufMut, Env};
use format::MemberState;

use crate::geometry::ranges::Range;
use crate::geometry::{Role, StripeGroup};
use crate::recovery::replay::Replay;
use crate::recovery::row::Row;

impl<E: Env> Replay<'_, E> {
    /// Determines the content of the only strip that an entry overwrites. `bases`: of each parity
    /// strip, over the member offsets. Leaves the strip missing if there is no source.
    ///
    /// # Errors
    /// [`BlockError`] if members turn out to be gone and the group cannot do without them.
    pub async fn vote(
        &self,
        row: &mut Row,
        stripe_group: StripeGroup,
        role: Role,
        bases: &[Option<&[u8]>],
        offsets: Range,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let (data, block) = (geometry.data, geometry.sector_bytes as usize);
        let own = row.strips[role].take();
        let zeroes = vec![0; offsets.len() as usize];
        let mut said: Vec<(Role, BufMut)> = Vec::new();
        for parity_strip in data..geometry.strips() {
            // The parity strips of a mirror are copies, and have no partial parity.
            let base = if data == 1 { Some(&zeroes[..]) } else { bases[parity_strip - data] };
            let (Some(strip), Some(base)) = (&row.strips[parity_strip], base) else { continue };
            let mut change = strip.to_vec();
            gf::xor_into(&mut change, base);
            let source = |other: Role| match other {
                _ if other == parity_strip => Some(&change[..]),
                _ if other < data && other != role => Some(&zeroes[..]),
                _ => None,
            };
            said.extend(
                self.solve(&[role], source, offsets.len() as usize).map(|mut strips| (parity_strip, strips.remove(0))),
            );
        }
        let first = own.as_ref().or(said.first().map(|(_, says)| says));
        if said.iter().all(|(_, says)| first.is_some_and(|first| **first == **says)) {
            row.strips[role] = own.or_else(|| said.pop().map(|(_, says)| says));
            return Ok(());
        }
        let offset = geometry.drive_offset(stripe_group, offsets.start);
        let held = own.iter().map(|own| (role, own));
        let parity = said.iter().map(|(role, _)| (*role, row.strips[*role].as_ref().expect("it says something")));
        let mut credible: Vec<Vec<bool>> = Vec::new();
        for (role, bytes) in held.chain(parity) {
            let member = geometry.member(stripe_group, offsets.start, role);
            credible.push(match self.drive(member, Some(MemberState::InSync)) {
                Some(drive) => self.genuine_blocks(member, drive, offset, bytes).await,
                None => vec![false; bytes.len() / block],
            });
        }
        let says: Vec<&BufMut> = own.iter().chain(said.iter().map(|(_, says)| says)).collect();
        let mut agreed = self.env.alloc(offsets.len() as usize);
        for (index, into) in agreed.chunks_mut(block).enumerate() {
            let at = index * block..(index + 1) * block;
            let any = credible.iter().any(|credible| credible[index]);
            let heard = says.iter().zip(&credible).filter(|(_, credible)| !any || credible[index]);
            into.copy_from_slice(most(&heard.map(|(says, _)| &says[at.clone()]).collect::<Vec<_>>()));
        }
        row.suspect[role] = own;
        row.strips[role] = Some(agreed);
        Ok(())
    }
}

/// The content that most sources agree on. If there is a tie, the first.
fn most<'a>(said: &[&'a [u8]]) -> &'a [u8] {
    let votes = |says: &[u8]| said.iter().filter(|other| **other == says).count();
    let mut best = said[0];
    for says in said {
        if votes(says) > votes(best) {
            best = says;
        }
    }
    best
}
