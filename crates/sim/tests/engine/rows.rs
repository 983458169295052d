//! Groups that are full of data, the blocks of a stripe at one member offset, and damage to them.

use std::ops::Range;

use array::{JobState, JobStatus, ScrubMode, StripeGroup};
use drive::Buf;
use format::Shape;
use sim::{Rng, Sim};

use crate::group::*;

pub(crate) const BLOCK: u64 = format::BLOCK as u64;
pub(crate) const DRIVE_BYTES: u64 = 640 * KIB;

/// Every level that can compute a strip from others: the strips of a stripe are `k` data strips and
/// `m` parity strips.
pub(crate) fn redundant_shapes(strip: u64) -> Vec<Shape> {
    every_level(strip).into_iter().filter(|shape| shape.survives() > 0).collect()
}

/// A group that was written all over, durably.
pub(crate) fn filled_with(sim: &Sim, shape: Shape, protection: Protection, rng: &mut Rng) -> (Group, Model) {
    let drives = new_drives(sim, usize::from(shape.members), DRIVE_BYTES, *rng.pick(&[512, 4096]));
    let group = Group::create_with(sim, shape, protection, drives, 1 + rng.index(3));
    let mut model = Model::new(group.size());
    rng.fill(&mut model.bytes);
    sim.block_on(async {
        group.leader().write(0, Buf::from(model.bytes.clone()), false).await.expect("writable");
        group.leader().flush().await.expect("flushes");
    });
    (group, model)
}

pub(crate) fn filled(sim: &Sim, shape: Shape, rng: &mut Rng) -> (Group, Model) {
    let (group, model) = filled_with(sim, shape, Protection::DEFAULT, rng);
    assert!(superblock(&group.drives[0]).layout.checksums.is_some(), "{shape} has checksums");
    (group, model)
}

/// The blocks of all strips at one member offset of a stripe.
pub(crate) struct Row {
    pub(crate) stripe_group: StripeGroup,
    pub(crate) offset: u64,
    /// By role: the member, and the byte on it.
    pub(crate) blocks: Vec<(usize, u64)>,
}

impl Row {
    pub(crate) fn pick(group: &Group, rng: &mut Rng) -> Row {
        let geometry = &group.leader().shared().geometry;
        let place = geometry.place(rng.below(group.size() / BLOCK) * BLOCK);
        let block = |role| {
            let member = geometry.member(place.stripe_group, place.offset, role);
            (usize::from(member.0), geometry.drive_offset(place.stripe_group, place.offset))
        };
        Row {
            stripe_group: place.stripe_group,
            offset: place.offset,
            blocks: (0..geometry.strips()).map(block).collect(),
        }
    }

    /// `count` of its strips.
    pub(crate) fn roles(&self, rng: &mut Rng, count: usize) -> Vec<usize> {
        let mut roles: Vec<usize> = (0..self.blocks.len()).collect();
        rng.shuffle(&mut roles);
        roles.truncate(count);
        roles
    }

    pub(crate) fn read_raw(&self, group: &Group, role: usize) -> Vec<u8> {
        let (member, at) = self.blocks[role];
        group.member(member).read_raw(at, BLOCK)
    }

    /// Damages a sector of a strip's block. Returns the block's earlier content.
    pub(crate) fn rot(&self, group: &Group, role: usize, rng: &mut Rng) -> Vec<u8> {
        let before = self.read_raw(group, role);
        let (member, at) = self.blocks[role];
        group.member(member).corrupt(at + rng.below(8) * 512, 512);
        before
    }

    /// The offset of a data strip's block in the group.
    pub(crate) fn offset(&self, group: &Group, role: usize) -> u64 {
        group.leader().shared().geometry.offset(self.stripe_group, role, self.offset)
    }
}

pub(crate) fn images(group: &Group) -> Vec<Vec<u8>> {
    group.drives.iter().map(|drive| drive.read_raw(0, DRIVE_BYTES)).collect()
}

/// Where the data lie on each member.
pub(crate) fn data_region(group: &Group) -> Range<usize> {
    let geometry = &group.leader().shared().geometry;
    let start = geometry.data_start as usize;
    start..start + (geometry.bands * geometry.stripe_group_bytes) as usize
}

pub(crate) async fn scrub(group: &Group, mode: ScrubMode) -> JobStatus {
    assert!(group.leader().start_scrub(mode));
    group.jobs_end().await;
    let job = group.leader().status().jobs.pop().expect("the scrub");
    assert_eq!(job.state, JobState::Done);
    job
}

/// Everything is right on every drive: a scrub finds nothing, and all data is there with as many
/// members lost as the level survives.
pub(crate) fn is_whole(sim: &Sim, group: Group, shape: Shape, model: &Model, rng: &mut Rng) {
    sim.block_on(async {
        assert_eq!(scrub(&group, ScrubMode::Report).await.found, 0, "{shape}");
        verify(&group, model, rng).await;
        assert!(group.all_in_sync(), "{shape}: damage in places is no failed member");
    });
    let drives = sim.block_on(group.stop());
    verify_without_members(sim, &drives, shape, model, rng, 2);
}
