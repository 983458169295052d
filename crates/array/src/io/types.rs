//! Types of the data path: views of a stripe, writes of strips, work that waits.

use drive::{BlockError, Buf, Segments, Sender};
use smallvec::SmallVec;

use crate::drives::handle::Handle;
use crate::geometry::ranges::Range;
use crate::geometry::{MemberIndex, Role};
use crate::io::overlay::Overlay;
use crate::io::plan::Strip;
use crate::log::Open;
use crate::state::message::{Op, Reply};
use crate::state::slot::DriveId;

pub(crate) type Waiter = Sender<Result<Reply, BlockError>>;

/// Work that waits for a stripe group.
#[derive(Default)]
pub(crate) struct StripeGroupQueue {
    pub(crate) waiting: Vec<(Op, Waiter)>,
}

/// A strip of a stripe, and how an operation under the lock may use it.
pub(crate) struct StripView<D> {
    pub strip: Strip,
    pub member: MemberIndex,
    pub id: DriveId,
    /// Set unless the strip is lost. For a lost strip it may be a drive that is being filled and
    /// has not reached this stripe group.
    pub drive: Option<Handle<D>>,
}

/// All strips of a stripe, by role. The drives are those at the time of the view, so a member that
/// is replaced meanwhile is not mistaken for its successor.
pub(crate) struct RowView<D>(pub SmallVec<[StripView<D>; 12]>);

impl<D> RowView<D> {
    pub fn strips(&self) -> SmallVec<[Strip; 12]> {
        self.0.iter().map(|view| view.strip).collect()
    }

    /// Strips that cannot be read.
    pub fn lost(&self) -> usize {
        self.0.iter().filter(|view| view.strip != Strip::Good).count()
    }
}

/// Bytes for a strip, from a member offset on.
#[derive(Clone)]
pub(crate) struct StripWrite {
    pub role: Role,
    pub offset: u64,
    pub data: Segments,
}

/// Bytes of a strip from a member offset on.
pub(crate) type Run = (u64, Buf);

/// The runs of a strip, in order. Nearly always one.
pub(crate) type Runs = SmallVec<[Run; 1]>;

/// Why a read failed.
pub(crate) enum ReadFailure {
    /// This range is unreadable; the member stays.
    Unreadable,
    /// The member is now faulty, and the superblocks say so.
    Faulty,
}

/// The members whose strips a record says are overwritten in place.
pub(crate) type Overwritten = SmallVec<[(MemberIndex, DriveId); 4]>;

/// The partial parity of a record.
pub(crate) type Bases = SmallVec<[Buf; 4]>;

/// The changes of a component.
pub(crate) struct Change<'a> {
    pub overlay: &'a Overlay,
    pub offsets: Range,
    pub writes: &'a [StripWrite],
    /// If `bases` is set, the parity is not among the writes: see
    /// [`crate::array::ArrayShard::changes_alone`].
    pub bases: &'a [Buf],
    pub fua: bool,
}

/// The result of logging a component.
pub(crate) enum Logged {
    /// Nothing was logged: no redundancy is at stake, or the group keeps no log.
    Nothing,
    /// The record is durable, so the strips may be overwritten.
    Durable(Open, Overwritten),
    /// A member left: plan again.
    Again,
}

impl StripWrite {
    /// The member offsets of this write.
    pub fn range(&self) -> Range {
        Range::new(self.offset, self.offset + self.data.iter().map(|data| data.len() as u64).sum::<u64>())
    }
}
