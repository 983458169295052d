//! Space for direct volumes: free space of the group, and what the pool of thin volumes can do
//! without.

use std::time::{Duration, Instant};

use api::{ErrorCode, VolumeName, format_bytes};
use format::ExtentRecord;
use volume::Space;

use crate::engine::{Group, view};
use crate::http::{Answer, ControlError};

/// A request waits at most so long for segments that the pool has to collect.
const COLLECT_TIME: Duration = Duration::from_secs(10);

/// The pool collects so many segments at once, so that a request can end in time.
const COLLECT_SEGMENTS: usize = 32;

/// A need of space.
pub(crate) struct DirectNeed<'a> {
    pub volume: &'a VolumeName,
    pub bytes: u64,
    /// The need in a sentence: "10 GiB more".
    pub shown: &'a str,
    pub dry_run: bool,
}

/// Space that was found.
#[derive(Default)]
pub(crate) struct DirectRoom {
    /// Empty after a dry run for which the pool would have to give space back.
    pub extents: Vec<ExtentRecord>,
    /// Bytes that the pool has given back for it, or would.
    pub from_pool_bytes: u64,
}

impl DirectRoom {
    /// The change of the pool, as a step.
    pub fn step(&self) -> Option<String> {
        let bytes = Some(self.from_pool_bytes).filter(|bytes| *bytes > 0)?;
        Some(format!("take {} back from the pool of thin volumes", format_bytes(bytes)))
    }
}

impl Group {
    /// Finds space for a direct volume with `find`. If the group has not enough of it, the pool of
    /// thin volumes gives some back. The caller has the turn to give space.
    ///
    /// # Errors
    /// [`ErrorCode::NoSpace`] if both have not enough. [`ErrorCode::Busy`] if the pool has it, but
    /// it takes a while until it is free.
    pub async fn find_direct(
        &self,
        need: DirectNeed<'_>,
        find: impl Fn(Space, &[ExtentRecord]) -> Option<Vec<ExtentRecord>>,
    ) -> Answer<DirectRoom> {
        let (began, mut from_pool_bytes) = (Instant::now(), 0);
        loop {
            let catalogue = self.catalogue().await?;
            let (space, used) = view::space(self, &catalogue);
            if let Some(extents) = find(space, &used) {
                return Ok(DirectRoom { extents, from_pool_bytes });
            }
            let free = space.free_bytes(&used);
            let spare = self.on_stores(|store| async move { store.spare_bytes() }).await?;
            let spare: u64 = spare.into_iter().map(|(_, bytes)| bytes).sum();
            let missing = need.bytes.saturating_sub(free).max(1);
            if missing > spare {
                return Err(self.no_room(&need, free, spare));
            }
            if need.dry_run {
                return Ok(DirectRoom { extents: Vec::new(), from_pool_bytes: missing });
            }
            let Some(pool) = &catalogue.thin else { return Err(self.no_room(&need, free, 0)) };
            let segments = missing.div_ceil(pool.segment_bytes) as usize;
            let mut given = self.move_free_space(segments).await?;
            if given == 0 && began.elapsed() < COLLECT_TIME {
                given = self.move_space(None, segments.min(COLLECT_SEGMENTS)).await?;
            }
            if given == 0 {
                let message = format!(
                    "the pool of thin volumes still frees {} for the volume \"{}\": try again in a moment",
                    format_bytes(missing),
                    need.volume
                );
                return Err(ControlError::new(ErrorCode::Busy, message));
            }
            from_pool_bytes += given;
        }
    }

    fn no_room(&self, need: &DirectNeed<'_>, free: u64, spare: u64) -> ControlError {
        let (volume, needed, group, free) = (need.volume, need.shown, &self.name, format_bytes(free));
        let pool = match spare {
            0 => String::new(),
            spare => format!(", and its pool of thin volumes can do without {}", format_bytes(spare)),
        };
        let message = format!("the volume \"{volume}\" needs {needed}, and the group {group:?} has {free} free{pool}");
        ControlError::new(ErrorCode::NoSpace, message)
    }
}
