//! Members on targets: how they leave a group and come back. The rules are those of the daemon
//! (`engine/drives/reconnect.rs`).

use std::time::Duration;

use ::drive::{Env, join_all};
use array::{DriveId, MemberIndex};
use format::MemberState;
use initiator::{Namespace, PathState, PathStatus};

use super::Group;
use super::group::uuid;
use crate::{GroupDrive, Rng, SimDrive, SimEnv};

/// The interval between looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Group {
    /// The member whose slot a drive has, or had last.
    fn place_of(&self, id: DriveId) -> Option<(MemberIndex, MemberState)> {
        let shared = self.leader().shared();
        shared.slots().find(|(_, slot)| slot.drive == id).map(|(member, slot)| (member, slot.state))
    }

    /// Members that are unreachable for too long leave the group.
    pub async fn take_out_lost(&self) {
        for (&place, namespaces) in &self.attached {
            let id = DriveId(place as u16);
            if let Some((member, state)) = self.place_of(id)
                && state.takes_writes()
                && namespaces.iter().any(Namespace::is_lost)
            {
                // If it is needed, it stays.
                let _ = self.leader().fail_member_on(member, id, array::Cause::OutOfReach).await;
            }
        }
    }

    /// Releases a drive of a target: returns when no command to it is executed any more.
    pub async fn release(&mut self, place: usize) {
        self.shards.iter().for_each(|shard| shard.uninstall(DriveId(place as u16)));
        if let Some(namespaces) = self.attached.remove(&place) {
            join_all(namespaces.iter().map(Namespace::close)).await;
        }
        self.released.push(place);
    }

    /// Installs a drive of a target on every shard, if it can be reached.
    pub async fn install_remote(&mut self, drive: &SimDrive) -> Option<DriveId> {
        let known = self.ways.look(&self.env, drive).await.ok()?;
        let id = self.leader().shared().new_drive();
        assert_eq!(usize::from(id.0), self.drives.len(), "a drive's index is its place in the list");
        let namespaces: Vec<_> = self.shards.iter().map(|_| Namespace::attach(&self.env, &known)).collect();
        for (shard, namespace) in self.shards.iter().zip(&namespaces) {
            shard.install(id, GroupDrive::Remote(namespace.clone()));
        }
        self.attached.insert(self.drives.len(), namespaces);
        self.drives.push(drive.clone());
        Some(id)
    }

    /// Puts a drive of a target back into its slot. It has left the group, or was absent at the
    /// assembly. False: it cannot be reached.
    ///
    /// # Panics
    /// If the member did not leave, or the group does not take the drive.
    pub async fn bring_back(&mut self, member: usize, drive: &SimDrive, rng: &mut Rng) -> bool {
        let state = self.state(member);
        let has_left = !state.takes_writes();
        assert!(has_left, "only what has left can return: member {member} is {state:?}");
        let is_it = |place: &usize| self.drives[*place].index() == drive.index();
        let places: Vec<usize> = self.attached.keys().copied().filter(is_it).collect();
        for place in places {
            self.release(place).await;
        }
        self.disconnected.retain(|disconnected| disconnected.index() != drive.index());
        let Some(id) = self.install_remote(drive).await else {
            self.disconnected.push(drive.clone());
            return false;
        };
        let replaced = self.leader().replace(MemberIndex(member as u16), id, uuid(rng)).await;
        replaced.expect("the drive that was there fits");
        true
    }

    /// Waits until every shard is connected to every drive of a target that the group has.
    pub async fn until_reached(&self) {
        let is_live = |status: PathStatus| matches!(status.state, PathState::Live(_));
        let is_reached = |namespace: &Namespace<SimEnv>| namespace.paths().into_iter().any(is_live);
        while !self.attached.values().flatten().all(is_reached) {
            self.env.sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the drive of a member is unreachable for too long and has left the group.
    pub async fn until_lost(&self, member: usize) {
        while self.state(member).takes_writes() {
            self.take_out_lost().await;
            self.env.sleep(LOOK_EVERY).await;
        }
    }
}
