//! Scrub of a stripe whose blocks have checksums. Checksums and parity decide together:
//!
//! | checksums | parity | verdict |
//! |---|---|---|
//! | all fit | agrees | right |
//! | all fit | disagrees | strips contradict each other; two parity strips may name the wrong one |
//! | some do not fit, no more than can be computed from the others | the others agree | those strips are wrong; or their checksums, where the computed bytes are what was read |
//! | some do not fit | the others disagree, or are too few | undecidable: nothing is changed |

use std::rc::Rc;

use drive::{BlockError, BufMut, Drive, DriveError, Env};
use format::BLOCK;

use crate::array::ArrayShard;
use crate::checksums::verify::sums_of;
use crate::geometry::ranges::Range;
use crate::geometry::{Role, StripeGroup};
use crate::io::plan::Strip;
use crate::io::types::{RowView, StripView};
use crate::state::cause::{Cause, Failure, Flaw};
use crate::state::errors::Failed;
use crate::state::findings::{Fault, Finding, ScrubMode, ScrubReport};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// The state of a block of a strip, as a scrub found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// As it was written.
    Good,
    /// It has other bytes than were written, or its checksum is wrong.
    Wrong,
    /// The drive cannot read it.
    Unreadable,
    /// Its member is gone.
    Lost,
}

/// The strips of a stripe, as far as they could be read.
struct Strips {
    /// By role. Bytes that could not be read are zero.
    bytes: Vec<BufMut>,
    /// By role and block.
    seen: Vec<Vec<Seen>>,
}

impl<E: Env> ArrayShard<E> {
    /// Compares an offset range of a stripe with its checksums, and the strips with each other.
    /// Under the stripe group's lock.
    pub async fn audit(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        offsets: Range,
        mode: ScrubMode,
        report: &mut ScrubReport,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let (view, strips) = self.look_at(stripe_group, offsets).await;
        let all_good = strips.seen.iter().flatten().all(|seen| *seen == Seen::Good);
        report.bytes += offsets.len();
        report.unchecked += u64::from(view.lost() > 0);
        let all: Vec<&[u8]> = strips.bytes.iter().map(|bytes| &**bytes).collect();
        if all_good && self.shared.code.check(&all[..geometry.data], &all[geometry.data..]) {
            return Ok(());
        }
        for block in 0..(offsets.len() / BLOCK_BYTES) as usize {
            let start = offsets.start + block as u64 * BLOCK_BYTES;
            let parts: Vec<&[u8]> = all.iter().map(|bytes| &bytes[block * BLOCK..][..BLOCK]).collect();
            let seen: Vec<Seen> = strips.seen.iter().map(|strip| strip[block]).collect();
            if seen.iter().any(|seen| matches!(seen, Seen::Wrong | Seen::Unreadable)) {
                self.judge(stripe_group, start, &view, (&parts, &seen), mode, report).await?;
            } else if !seen.contains(&Seen::Lost) {
                let range = Range::new(start, start + BLOCK_BYTES);
                self.compare_block(stripe_group, range, &view, &parts, mode, report).await?;
            }
        }
        Ok(())
    }

    /// Decides about the blocks at member offset `offset`. Some of them are wrong or unreadable.
    async fn judge(
        self: &Rc<Self>,
        stripe_group: StripeGroup,
        offset: u64,
        view: &RowView<E::Drive>,
        (parts, seen): (&[&[u8]], &[Seen]),
        mode: ScrubMode,
        report: &mut ScrubReport,
    ) -> Result<(), BlockError> {
        let geometry = &self.shared.geometry;
        let drive_offset = geometry.drive_offset(stripe_group, offset);
        let erased: Vec<Role> = (0..seen.len()).filter(|&role| seen[role] != Seen::Good).collect();
        let restored = self.restore_erased(&erased, parts);
        for role in erased.iter().copied().filter(|&role| seen[role] != Seen::Lost) {
            let strip = &view.0[role];
            let right = restored.as_ref().map(|restored| &restored[role]);
            let fault = match (seen[role], right) {
                (Seen::Unreadable, _) => Fault::Unreadable,
                (_, Some(right)) if **right == *parts[role] => Fault::Checksum,
                _ => Fault::Damaged,
            };
            if fault == Fault::Damaged {
                self.shared.count_damaged(strip.member);
                self.tell_flaw(strip, drive_offset, BLOCK_BYTES, Flaw::Damaged);
            }
            // A block that cannot be read is repaired in every mode: it has no content that could
            // be kept.
            let repaired = match right {
                Some(right) if mode == ScrubMode::Repair || fault == Fault::Unreadable => {
                    let right = BufMut::copy_of(right).freeze();
                    // The write updates the checksum, too.
                    let written = self.put_right(stripe_group, view, role, offset, right).await?;
                    if written && fault != Fault::Checksum {
                        self.tell_healed(strip, stripe_group, offset, BLOCK_BYTES);
                    }
                    true
                }
                _ => false,
            };
            report.findings.push(Finding {
                offset: geometry.offset(stripe_group, if role < geometry.data { role } else { 0 }, offset),
                member: Some(strip.member),
                member_offset: drive_offset,
                fault,
                repaired,
            });
        }
        Ok(())
    }

    /// All strips of a block, with the erased ones computed from the others. `None` if too many are
    /// erased, or if the others contradict each other.
    fn restore_erased(&self, erased: &[Role], parts: &[&[u8]]) -> Option<Vec<BufMut>> {
        let geometry = &self.shared.geometry;
        if erased.len() > geometry.parity_count {
            return None;
        }
        let decoder = self.decoder(erased);
        let sources: Vec<&[u8]> = decoder.sources().iter().map(|&role| parts[role]).collect();
        let mut whole: Vec<BufMut> = parts.iter().map(|part| BufMut::copy_of(part)).collect();
        let mut out: Vec<BufMut> = erased.iter().map(|_| self.env.alloc(BLOCK)).collect();
        decoder.reconstruct(&sources, &mut out.iter_mut().map(|buf| &mut **buf).collect::<Vec<_>>());
        for (&role, buf) in erased.iter().zip(out) {
            whole[role] = buf;
        }
        let all: Vec<&[u8]> = whole.iter().map(|bytes| &**bytes).collect();
        let agree = self.shared.code.check(&all[..geometry.data], &all[geometry.data..]);
        agree.then_some(whole)
    }

    /// Reads all strips of a stripe. A member that fails meanwhile counts as lost.
    async fn look_at(self: &Rc<Self>, stripe_group: StripeGroup, offsets: Range) -> (RowView<E::Drive>, Strips) {
        let view = self.view(stripe_group, offsets.start, &[]);
        let looks = view.0.iter().map(|strip| self.look_at_strip(strip, stripe_group, offsets));
        let (bytes, seen) = drive::join_all(looks).await.into_iter().unzip();
        (view, Strips { bytes, seen })
    }

    async fn look_at_strip(
        self: &Rc<Self>,
        strip: &StripView<E::Drive>,
        stripe_group: StripeGroup,
        offsets: Range,
    ) -> (BufMut, Vec<Seen>) {
        let len = offsets.len() as usize;
        let blocks = len / BLOCK;
        let offset = self.shared.geometry.drive_offset(stripe_group, offsets.start);
        let mut bytes = self.env.alloc(len);
        let lost = |mut bytes: BufMut| {
            bytes.fill(0);
            (bytes, vec![Seen::Lost; blocks])
        };
        let Some(drive) = strip.drive.as_ref().filter(|_| strip.strip == Strip::Good) else { return lost(bytes) };
        let Ok(sums) = self.sums_at(strip.id, offset, blocks).await else { return lost(bytes) };
        let seen = |bytes: &[u8]| -> Vec<Seen> {
            let fits = sums_of(bytes).into_iter().zip(&sums).map(|(sum, wanted)| sum == *wanted);
            fits.map(|fits| if fits { Seen::Good } else { Seen::Wrong }).collect()
        };
        match drive.read(offset, self.env.alloc(len)).await {
            Ok(bytes) => {
                let seen = seen(&bytes);
                (bytes, seen)
            }
            Err(error) => {
                self.shared.count_error(strip.member, Failed::Read);
                if matches!(error, DriveError::Gone) {
                    self.fail(strip.member, strip.id, Cause::of(Failure::read(offset, error))).await;
                    return lost(bytes);
                }
                // Read block by block, to find out which are unreadable.
                let mut unreadable = vec![false; blocks];
                for (index, unreadable) in unreadable.iter_mut().enumerate() {
                    let block = &mut bytes[index * BLOCK..][..BLOCK];
                    let offset = offset + (index * BLOCK) as u64;
                    match drive.read(offset, self.env.alloc(BLOCK)).await {
                        Ok(read) => block.copy_from_slice(&read),
                        Err(error) => {
                            block.fill(0);
                            *unreadable = true;
                            self.tell_flaw(strip, offset, BLOCK_BYTES, Flaw::Unreadable(error));
                        }
                    }
                }
                let mut seen = seen(&bytes);
                for (seen, _) in seen.iter_mut().zip(unreadable).filter(|(_, unreadable)| *unreadable) {
                    *seen = Seen::Unreadable;
                }
                (bytes, seen)
            }
        }
    }
}
