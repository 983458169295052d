//! Changes of the drives of a group, by an operator or by the task that watches the drives.

pub(crate) mod configure;
pub(crate) mod leader;
pub(crate) mod leave;
pub(crate) mod lost_blocks;
pub(crate) mod ownership;
pub(crate) mod replacement;
pub(crate) mod status;

use drive::{BlockError, Drive, Env};
use format::{MemberState, Uuid};

use crate::array::{Array, ArrayShard};
use crate::geometry::MemberIndex;
use crate::state::cause::Cause;
use crate::state::slot::DriveId;

/// Why a drive cannot become a member or a spare.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Smaller than the members' regions.
    #[error("the drive has {have} bytes, a member of this group needs {need}")]
    TooSmall {
        /// Bytes needed.
        need: u64,
        /// Bytes that the drive has.
        have: u64,
    },
    /// Its logical blocks are larger than those the group was made for.
    #[error("the drive has logical blocks of {have} bytes, the group was made for {need}")]
    Sector {
        /// Largest logical block size that works.
        need: u64,
        /// Block size of the drive.
        have: u32,
    },
    /// The group has no such member.
    #[error("the group has no member {0}: members are numbered from 0")]
    NoMember(u16),
    /// The member is being rebuilt on another drive.
    #[error("member {0} is being rebuilt already")]
    Busy(u16),
    /// This member or another one is being replaced.
    #[error("member {0} is being replaced already: one at a time")]
    Replacing(u16),
    /// No more spares can be listed.
    #[error("the group has {0} spares already, the most it can have")]
    TooManySpares(usize),
    /// Not a spare of this group.
    #[error("the drive is not a spare of this group")]
    NotASpare,
    /// The RAID level has no redundancy to rebuild from.
    #[error("this level has no redundancy: a lost member cannot be rebuilt")]
    NoRedundancy,
    /// The superblocks could not be written.
    #[error(transparent)]
    Block(#[from] BlockError),
}

impl<E: Env> Array<E> {
    /// Puts an installed drive in the slot of a member and begins to fill it. Leader only. A
    /// working member stays until its content has been copied, and leaves then. So the group has
    /// its full redundancy all the time.
    ///
    /// # Errors
    /// [`JoinError`]; nothing has changed then.
    pub async fn replace(&self, member: MemberIndex, drive: DriveId, identity: Uuid) -> Result<(), JoinError> {
        let inner = &self.0;
        let Some(slot) = inner.shared.slots().nth(usize::from(member.0)).map(|(_, slot)| slot) else {
            return Err(JoinError::NoMember(member.0));
        };
        match slot.state {
            MemberState::Rebuilding => return Err(JoinError::Busy(member.0)),
            MemberState::Missing | MemberState::Faulty if inner.shared.geometry.parity_count == 0 => {
                return Err(JoinError::NoRedundancy);
            }
            MemberState::InSync | MemberState::Missing | MemberState::Faulty => {}
        }
        inner.check_fits(drive)?;
        inner.leader().identities.borrow_mut().insert(drive, identity);
        let inner = inner.clone();
        if slot.state == MemberState::InSync {
            return self.0.run_detached(async move { inner.begin_replacement(member, drive).await }).await;
        }
        self.0
            .run_detached(async move {
                inner.take_place(member, drive, false).await?;
                inner.start_rebuild(member);
                Ok(())
            })
            .await
    }

    /// Like [`Array::replace`], with one of the spares.
    ///
    /// # Errors
    /// [`JoinError`]; nothing has changed then.
    pub async fn replace_with_spare(&self, member: MemberIndex, spare: DriveId) -> Result<(), JoinError> {
        let inner = self.0.clone();
        let Some(slot) = inner.shared.slots().nth(usize::from(member.0)).map(|(_, slot)| slot) else {
            return Err(JoinError::NoMember(member.0));
        };
        if !inner.leader().spares.borrow().contains(&spare) {
            return Err(JoinError::NotASpare);
        }
        self.0
            .run_detached(async move {
                if slot.state == MemberState::InSync {
                    return inner.begin_replacement(member, spare).await;
                }
                inner.take_place(member, spare, true).await?;
                inner.start_rebuild(member);
                Ok(())
            })
            .await
    }

    /// Adds an installed drive as a hot spare. Leader only. If a member needs a drive, the spare is
    /// used at once.
    ///
    /// # Errors
    /// [`JoinError`]; nothing has changed then.
    pub async fn add_spare(&self, drive: DriveId, identity: Uuid) -> Result<(), JoinError> {
        let inner = self.0.clone();
        inner.check_fits(drive)?;
        self.0
            .run_detached(async move {
                let leader = inner.leader();
                let turn = leader.state_lock.enter().await;
                let mut state = inner.state();
                if state.spares.len() >= format::SPARES_MAX {
                    return Err(JoinError::TooManySpares(state.spares.len()));
                }
                leader.identities.borrow_mut().insert(drive, identity);
                state.spares.push(drive);
                inner.commit(state).await?;
                drop(turn);
                inner.start_repair();
                Ok(())
            })
            .await
    }

    /// Removes a spare. Leader only. The caller has to erase its superblocks.
    ///
    /// # Errors
    /// [`JoinError::NotASpare`].
    pub async fn remove_spare(&self, drive: DriveId) -> Result<(), JoinError> {
        let inner = self.0.clone();
        self.0
            .run_detached(async move {
                let _turn = inner.leader().state_lock.enter().await;
                let mut state = inner.state();
                let before = state.spares.len();
                state.spares.retain(|&spare| spare != drive);
                if state.spares.len() == before {
                    return Err(JoinError::NotASpare);
                }
                Ok(inner.commit(state).await?)
            })
            .await
    }

    /// Renames the group in the superblocks of all members and spares. Leader only. After a crash
    /// on the way some drives have the new superblock. It is the newer one, so it counts.
    ///
    /// # Errors
    /// [`BlockError`] if no member took the new superblock. The group then keeps its name.
    ///
    /// # Panics
    /// If `name` is not valid, see [`format::check_name`].
    pub async fn rename(&self, name: String) -> Result<(), BlockError> {
        assert!(format::check_name(&name).is_ok(), "names are checked before they get here");
        let inner = self.0.clone();
        self.0
            .run_detached(async move {
                let leader = inner.leader();
                let _turn = leader.state_lock.enter().await;
                let before = std::mem::replace(&mut leader.superblock.borrow_mut().name, name);
                let result = inner.commit(inner.state()).await;
                if result.is_err() {
                    leader.superblock.borrow_mut().name = before;
                }
                result
            })
            .await
    }

    /// Takes a member out of service at the operator's request, as if it had failed. Leader only. A
    /// missing member is no longer waited for: a spare takes its place.
    ///
    /// # Errors
    /// [`JoinError::NoMember`]; [`BlockError::Lost`] if the group cannot do without it.
    pub async fn fail_member(&self, member: MemberIndex) -> Result<(), JoinError> {
        let Some((_, slot)) = self.0.shared.slots().nth(usize::from(member.0)) else {
            return Err(JoinError::NoMember(member.0));
        };
        if slot.state == MemberState::Missing {
            self.0.replace_missing();
            return Ok(());
        }
        self.fail_member_on(member, slot.drive, Cause::Operator).await
    }

    /// Like [`Array::fail_member`] with this cause, if the member is still on the drive. The caller
    /// may have looked at the drive some time ago, and a spare may have taken its place since.
    ///
    /// # Errors
    /// As for [`Array::fail_member`].
    pub async fn fail_member_on(&self, member: MemberIndex, drive: DriveId, cause: Cause) -> Result<(), JoinError> {
        let inner = self.0.clone();
        let failed = self.0.run_detached(async move { Ok(inner.fail_in_place(member, drive, cause).await) });
        if failed.await.map_err(JoinError::Block)? {
            return Ok(());
        }
        let set = u64::from(member.0) / self.0.shared.geometry.strips() as u64;
        let (lost, survives) = (self.0.shared.lost_in_set(set) + 1, self.0.shared.geometry.parity_count);
        Err(JoinError::Block(BlockError::Lost { lost, survives }))
    }
}

impl<E: Env> ArrayShard<E> {
    pub fn check_fits(&self, drive: DriveId) -> Result<(), JoinError> {
        let drive = self.drive(drive).expect("a drive is installed before it is put to use");
        let (info, need) = (drive.info(), self.leader().layout.member_bytes);
        if info.size_bytes < need {
            return Err(JoinError::TooSmall { need, have: info.size_bytes });
        }
        let sector = self.shared.geometry.sector_bytes;
        if u64::from(info.sector_bytes) > sector {
            return Err(JoinError::Sector { need: sector, have: info.sector_bytes });
        }
        Ok(())
    }
}
